"""Ray as an executor: every job is a task of a cluster, and goes on elsewhere when its process or its node is lost."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, final

from attnlab.core.errors import AttnlabError, Interrupted, RunError, SpecError
from attnlab.core.files import patiently
from attnlab.core.machine import usable_cores
from attnlab.core.processes.apart import own_code_in
from attnlab.studies.run.executor import Job, OnMessage
from attnlab.studies.run.node import Mailbox, compute_here, place_of
from attnlab.studies.run.own_code import own_code
from attnlab.studies.run.pool import BROKEN, INTERRUPT_PATIENCE_S
from attnlab.studies.storage.mirror import Mirror

HERE = "ray"
"""Name of a cluster that is started on this machine and ends with the command."""
LOSSES = 3
"""How often in a row the process of a job may be lost without a step more than before, until it counts as broken."""
ANSWER_S = 5.0
"""How long a cluster may take to answer at its address; where nobody does, Ray itself tries for minutes."""
SILENCE_S = 120.0
"""How long a cluster may leave a command without an answer until it counts as lost: longer than it takes to notice that
a node is lost and to start the mailbox on another one. Where the head was started anew Ray itself waits for ever."""
GATHER_S = 0.1
"""How long further tasks may end before messages are fetched for all of them: fetching takes as long for one."""
IN_FLIGHT = 1000
"""How many jobs are tasks of the cluster at the same time at least, if it has so few cores; others wait here, where it
costs nothing to look after them."""
POLL_S = 0.2
"""How often messages are fetched while tasks run."""
GOES_ON = "every run is at its last checkpoint on disk. The same command goes on from there"


@final
class Ray:
    """Compute jobs as tasks of a Ray cluster.

    Every node must see the folder of the study and the data under the same paths, as on a file system that all of them
    mount; or the folder lies in an object store. A person's own modules travel with the runs.

    Parameters
    ----------
    address : str, default "ray"
        ``ray``: a cluster on this machine for as long as the study runs. ``auto``: the one that is there.
        ``ray://HOST:PORT``: another one.

    Raises
    ------
    SpecError
        If Ray is not installed.
    RunError
        If there is no cluster at the address.

    References
    ----------
    .. [1] P. Moritz et al., "Ray: A Distributed Framework for Emerging AI Applications", 2018, arXiv:1712.05889.
    """

    elsewhere: ClassVar[bool] = True  # as `computes_elsewhere` has it

    def __init__(self, address: str = HERE) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # what the cluster says of itself stays in its logs
        try:
            import ray
        except ImportError:
            raise SpecError("studies on Ray need the extra: pip install 'attnlab[cluster]'") from None
        if not re.fullmatch(rf"{HERE}|auto|ray://.+:\d+", address):
            raise SpecError(f"a cluster is ray, auto or ray://HOST:PORT; got {address}")
        self._ray, self._address = ray, address
        self._mailbox: Any = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """The executor, connected."""
        if not self._ray.is_initialized():
            try:
                self._connect()
            except Exception as error:
                raise RunError(self._in_words(error)) from None
            self._open.callback(self._ray.shutdown)
        self._mailbox = self._ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Mailbox).remote()
        return self

    def _connect(self) -> None:
        how: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "attnlab"}
        if self._address == HERE:
            self._ray.init(address="local", num_cpus=usable_cores(), include_dashboard=False, **how)
        else:
            address = self._address if self._address != "auto" else _address_of_this_machine()
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
            self._ray.init(address=address, **how)

    def _in_words(self, error: Exception) -> str:
        """Why there is no connection."""
        if "ersion mismatch" in str(error):
            versions = " ".join(str(error).split())
            return f"the cluster at {self._address} has other versions; install the same on all nodes: {versions}"
        hint = "; if it asks for a token, set RAY_AUTH_MODE=token" if self._address.startswith("ray://") else ""
        return f"no Ray cluster at {self._address}: {_first_line(error)}{hint}"

    def __exit__(self, *_: object) -> None:
        """Leave the cluster; one that was started here ends."""
        with self._open, contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._mailbox)

    def cores(self) -> list[int]:
        """The number of CPUs of every node that is there."""
        return [int(resources.get("CPU", 0)) for resources in _resources(self._ray)]

    def run(self, jobs: Sequence[Job], on_message: OnMessage) -> None:
        """Compute jobs wherever there is room, those that are appended meanwhile too.

        One whose process or node is lost goes on from its last checkpoint.
        """
        running = _Running(self._ray, jobs, self._mailbox, on_message, travels=self._address != HERE)
        try:
            running.to_the_end()
        except self._ray.exceptions.RayError as error:
            raise RunError(f"the Ray cluster was lost ({_first_line(error)}); {GOES_ON}") from None
        except BaseException as error:
            with contextlib.suppress(self._ray.exceptions.RayError):
                running.interrupt()
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(f"stopped; {GOES_ON}") from None
            raise


@final
class _Running:
    """Follow the tasks of jobs, of which more may come, until the last of them has ended."""

    def __init__(self, ray: Any, jobs: Sequence[Job], mailbox: Any, on_message: OnMessage, *, travels: bool) -> None:
        self._ray, self._mailbox, self._on_message = ray, mailbox, on_message
        self._given, self._travels = jobs, travels
        self._jobs: list[Job] = []  # those that were given so far, as nodes see them
        self._task = ray.remote(max_retries=0)(compute_here)
        self._tasks: dict[tuple[Any, ...], Any] = {}  # by what a job asks of its node
        self._code_of, self._files = set[str](), dict[str, bytes]()  # whose code travels, and its files
        self._own_code = ray.put(self._files)
        self._places: dict[tuple[str, str], dict[str, str | None]] = {}  # by folder of a study and its store
        self._lost: Counter[int] = Counter()
        self._reached: Counter[int] = Counter()  # steps so far
        self._before: dict[int, int] = {}  # steps when last lost
        self._number: dict[Any, int] = {}
        self._waiting: deque[int] = deque()
        self._most = IN_FLIGHT

    def to_the_end(self) -> None:
        """Start a task for every job, and pass on what happens."""
        self._take()
        while self._number or self._waiting:
            while self._waiting and len(self._number) < self._most:
                self._start(self._waiting.popleft())
            tasks = list(self._number)
            self._ray.wait(tasks, num_returns=1, timeout=POLL_S)
            done, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=GATHER_S)
            self._pass_on()
            for task in done:
                self._end(task, self._number.pop(task))
            self._take()

    def _take(self) -> None:
        """Take the jobs that were given since; refuse what no node has room for."""
        new = [_seen_from_anywhere(job) for job in self._given[len(self._jobs) :]]
        if not new:
            return
        nodes = _resources(self._ray)
        self._most = max(IN_FLIGHT, int(2 * sum(node.get("CPU", 0) for node in nodes)))
        _check_room(new, nodes)
        names = {*own_code_in([job.specs for job in new])} if self._travels else set()
        if names - self._code_of:
            self._code_of |= names
            self._files |= own_code(new)
            self._own_code = self._ray.put(self._files)
        self._waiting += range(len(self._jobs), len(self._jobs) + len(new))
        self._jobs += new

    def interrupt(self) -> None:
        """Ask every task that has not ended for a checkpoint and an end, and wait until they have."""
        if not self._number:
            return
        for task in self._number:
            self._ray.cancel(task, recursive=False)
        self._ray.wait(list(self._number), num_returns=len(self._number), timeout=INTERRUPT_PATIENCE_S)

    def _start(self, number: int) -> None:
        job = self._jobs[number]
        needs, study, variables = _needs(job), (job.study, job.store), _environment(job)
        if study not in self._places:
            self._places[study] = place_of(job)
        kind = (*needs.items(), *variables.items())
        if kind not in self._tasks:  # Ray takes a millisecond to read what is asked for
            how = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"], "runtime_env": {"env_vars": variables}}
            self._tasks[kind] = self._task.options(**how)
        given = (number, vars(job), self._places[study], self._mailbox, self._own_code)
        self._number[self._tasks[kind].remote(*given)] = number

    def _pass_on(self) -> None:
        for number, message in self._ray.get(self._mailbox.take.remote(), timeout=SILENCE_S):
            self._reached[number] = max(self._reached[number], message.get("step") or 0)
            self._on_message(number, message)

    def _end(self, task: Any, number: int) -> None:
        """Pass on how a job ended, or start it again where its process or its node was lost."""
        errors = self._ray.exceptions
        try:
            messages = self._ray.get(task, timeout=SILENCE_S)
        except errors.RayTaskError as error:
            raise RunError(_first_line(error.cause)) from None
        except errors.RayError as error:
            if self._starts_again(number, process_lost=not isinstance(error, errors.NodeDiedError)):
                return
            words = f"its process was lost {LOSSES} times at the same step: {_first_line(error)}"
            messages = [{"kind": BROKEN, "error": words}]
        self._take_over(self._jobs[number])
        for message in messages:
            self._on_message(number, message)

    def _take_over(self, job: Job) -> None:
        """Read what a node has sent of a job's runs to the store, if the study is in one."""
        if job.store:
            mirror = Mirror(job.store, "work")
            runs = [Path(folder).relative_to(job.study).as_posix() for folder in job.folders]
            patiently(lambda: [mirror.pull(run) for run in runs])

    def _starts_again(self, number: int, *, process_lost: bool) -> bool:
        """Start a lost job again, unless its process was lost too often; a lost node is no fault of the job's."""
        if process_lost:
            further = self._reached[number] > self._before.get(number, -1)
            self._lost[number] = 1 if further else self._lost[number] + 1
            self._before[number] = self._reached[number]
        if self._lost[number] >= LOSSES:
            return False
        self._start(number)
        return True


def _resources(ray: Any) -> list[dict[str, float]]:
    """What every node that is there has, by Ray's names."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _address_of_this_machine() -> str:
    """The address of the cluster that this machine belongs to, as Ray finds it."""
    from ray._private.services import canonicalize_bootstrap_address_or_die

    return os.environ.get("RAY_ADDRESS") or canonicalize_bootstrap_address_or_die("auto")


def _first_line(error: BaseException) -> str:
    """What an error says, without what Ray adds of its logs."""
    words = str(error).strip().partition("\n")[0]
    return words if isinstance(error, AttnlabError) else f"{type(error).__name__}: {words}"


def _seen_from_anywhere(job: Job) -> Job:
    """A job whose paths mean the same in any working directory."""
    return replace(
        job, folders=tuple(map(os.path.abspath, job.folders)), study=job.study and os.path.abspath(job.study)
    )


def _check_room(jobs: Sequence[Job], nodes: Sequence[Mapping[str, float]]) -> None:
    """Refuse jobs that no node has room for."""
    for needs in {tuple(_needs(job).items()): _needs(job) for job in jobs}.values():
        if not any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in nodes):
            words = " and ".join(f"{amount} {name}" for name, amount in needs.items() if amount)
            raise RunError(f"no node of the cluster has the {words} that a run needs")


def _needs(job: Job) -> dict[str, int]:
    """What a node must have free for a job, by Ray's names."""
    return {"CPU": job.threads, "GPU": int(job.device == "cuda")}


def _environment(job: Job) -> dict[str, str]:
    """Variables of the processes that compute a job: with other ones a process is another."""
    threads = str(job.threads)
    kept = {name: value for name in ("ATTNLAB_DATA",) if (value := os.environ.get(name)) is not None}
    return kept | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "ATTNLAB_SERVES": job.apart}
