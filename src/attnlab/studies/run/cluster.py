"""Ray as an executor: every job is a task of a cluster, and goes on elsewhere when its process or its node is lost."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, final

from attnlab.core.errors import AttnlabError, Interrupted, RunError, SpecError
from attnlab.core.files import patiently
from attnlab.core.machine import GIGA, usable_cores
from attnlab.core.processes.apart import own_code_in
from attnlab.core.storage import shared_cache
from attnlab.studies.run.executor import Job, OnMessage
from attnlab.studies.run.layout import WORKER_BYTES
from attnlab.studies.run.node import TELL_S, Mailbox, compute_here, gpus_here, place_of
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
MEMORY_STEP = 100_000_000
"""Bytes of memory are asked for in such steps: for each other amount that is asked for Ray queues anew."""
PEAK = 3.5
"""How many times the counted bytes a step may take: 1.3 (a decoder) to 3.3 (convolutions) were measured on a CPU."""
SHARES = 16
"""Into how many parts a GPU is shared at most, by measured memory."""
FINEST_SHARE = 0.0001
"""Ray counts a GPU in such parts."""
PASSED_ON = ("ATTNLAB_DATA", shared_cache.VARIABLE)
"""Variables that every node has from the command."""
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
    gpu_share : float, optional
        Which part of a GPU each job on CUDA asks for; by default what its runs need of the smallest one, by their
        measured memory, and a whole one where that is not known.

    Raises
    ------
    SpecError
        If Ray is not installed, or the share is none.
    RunError
        If there is no cluster at the address.

    References
    ----------
    .. [1] P. Moritz et al., "Ray: A Distributed Framework for Emerging AI Applications", 2018, arXiv:1712.05889.
    """

    elsewhere: ClassVar[bool] = True  # as `computes_elsewhere` has it

    def __init__(self, address: str = HERE, gpu_share: float | None = None) -> None:
        if gpu_share is not None and not FINEST_SHARE <= gpu_share <= 1:
            raise SpecError(f"--gpu-share must be from {FINEST_SHARE} to 1; got {gpu_share}")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # what the cluster says of itself stays in its logs
        try:
            import ray
        except ImportError:
            raise SpecError("studies on Ray need the extra: pip install 'attnlab[cluster]'") from None
        if not re.fullmatch(rf"{HERE}|auto|ray://.+:\d+", address):
            raise SpecError(f"a cluster is ray, auto or ray://HOST:PORT; got {address}")
        self._ray, self._address = ray, address
        self._gpu_share = gpu_share
        self._gpus: list[tuple[int, int]] | None = None  # what nodes tell of them, once it is needed
        self._mailbox: Any = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """The executor, connected."""
        if not self._ray.is_initialized():
            try:
                with _own_sigterm():
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
            if not port.isdecimal():
                raise SpecError(f"RAY_ADDRESS is HOST:PORT or ray://HOST:PORT; got {address}")
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
        how: dict[str, Any] = {"needs": self._needs, "travels": self._address != HERE}
        running = _Running(self._ray, jobs, self._mailbox, on_message, **how)
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

    def _needs(self, job: Job, most_memory: float) -> dict[str, float]:
        """What a node must have free for a job, by Ray's names; none with its CPUs has more memory than so much."""
        on_gpu = job.device == "cuda"
        memory = memory_of(0 if on_gpu else job.trained_bytes or 0, most_memory)
        return {"CPU": job.threads, "GPU": self._share(job) if on_gpu else 0, "memory": memory}

    def _share(self, job: Job) -> float:
        if self._gpu_share is not None:
            return self._gpu_share
        if self._gpus is None:
            self._gpus = _gpus_of(self._ray)
        return share_of(job.trained_bytes, self._gpus)


def memory_of(trained_bytes: float, most: float) -> int:
    """How many bytes some runs ask for: what a step may take, if a node has so many at all, else what is counted."""
    counted, step = (WORKER_BYTES + factor * trained_bytes for factor in (1, PEAK))
    return max(_rounded(counted), min(_rounded(step), int(most)))


def _rounded(count: float) -> int:
    return MEMORY_STEP * math.ceil(count / MEMORY_STEP)


def share_of(trained_bytes: float | None, gpus: Sequence[tuple[int, int]]) -> float:
    """Which part of the smallest GPU some runs ask for, in sixteenths; a whole one where it is not known.

    Of each GPU its bytes are given, and how many of them are taken once a process has begun on it.
    """
    if trained_bytes is None or not gpus:
        return 1.0
    smallest, begun = (min(counts) for counts in zip(*gpus, strict=True))
    return min(1.0, math.ceil(SHARES * (begun + PEAK * trained_bytes) / smallest) / SHARES)


def _gpus_of(ray: Any) -> list[tuple[int, int]]:
    """What all nodes with GPUs tell of them; nothing where one does not."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(gpus_here)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    asked = [ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)) for node in nodes]
    try:
        told = ray.get([one.remote() for one in asked], timeout=2 * TELL_S)
    except ray.exceptions.RayError:
        return []
    return [gpu for gpus in told for gpu in gpus] if all(told) else []


@final
class _Running:
    """Follow the tasks of jobs, of which more may come, until the last of them has ended."""

    def __init__(
        self,
        ray: Any,
        jobs: Sequence[Job],
        mailbox: Any,
        on_message: OnMessage,
        *,
        needs: Callable[[Job, float], dict[str, float]],
        travels: bool,
    ) -> None:
        self._ray, self._mailbox, self._on_message = ray, mailbox, on_message
        self._given, self._needs_of, self._travels = jobs, needs, travels
        self._most_memory: dict[int, float] = {}  # of a node with so many CPUs or more
        self._jobs: list[Job] = []  # those that were given so far, as nodes see them
        self._task = ray.remote(max_retries=0)(compute_here)
        # a process that stayed would keep its memory on a GPU that others were given
        self._task_on_gpu = ray.remote(max_retries=0, max_calls=1)(compute_here)
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
        for threads in {job.threads for job in new}:
            with_cpus = [node.get("memory", 0) for node in nodes if node.get("CPU", 0) >= threads]
            self._most_memory[threads] = max(with_cpus, default=0)
        _check_room(new, [self._needs(job) for job in new], nodes)
        names = {*own_code_in([job.specs for job in new])} if self._travels else set()
        if names - self._code_of:
            self._code_of |= names
            self._files |= own_code(new)
            self._own_code = self._ray.put(self._files)
        self._waiting += range(len(self._jobs), len(self._jobs) + len(new))
        self._jobs += new

    def _needs(self, job: Job) -> dict[str, float]:
        return self._needs_of(job, self._most_memory[job.threads])

    def interrupt(self) -> None:
        """Ask every task that has not ended for a checkpoint and an end, and wait until they have."""
        if not self._number:
            return
        for task in self._number:
            self._ray.cancel(task, recursive=False)
        self._ray.wait(list(self._number), num_returns=len(self._number), timeout=INTERRUPT_PATIENCE_S)

    def _start(self, number: int) -> None:
        job = self._jobs[number]
        needs, study, variables = self._needs(job), (job.study, job.store), _environment(job)
        if study not in self._places:
            self._places[study] = place_of(job)
        kind = (*needs.items(), *variables.items())
        if kind not in self._tasks:  # Ray takes a millisecond to read what is asked for
            how = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"], "memory": needs["memory"]}
            task = self._task_on_gpu if needs["GPU"] else self._task
            self._tasks[kind] = task.options(**how, runtime_env={"env_vars": variables})
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

    given = os.environ.get("RAY_ADDRESS") or "auto"
    return given if given != "auto" else canonicalize_bootstrap_address_or_die("auto")


def _first_line(error: BaseException) -> str:
    """What an error says, without what Ray adds of its logs."""
    words = str(error).strip().partition("\n")[0]
    return words if isinstance(error, AttnlabError) else f"{type(error).__name__}: {words}"


def _seen_from_anywhere(job: Job) -> Job:
    """A job whose paths mean the same in any working directory."""
    return replace(
        job, folders=tuple(map(os.path.abspath, job.folders)), study=job.study and os.path.abspath(job.study)
    )


def _check_room(
    jobs: Sequence[Job], asked: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]
) -> None:
    kinds = {tuple(needs.items()): job for job, needs in zip(jobs, asked, strict=True)}
    for kind, job in kinds.items():
        needs = {name: amount for name, amount in kind if amount}
        if not any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in nodes):
            run = os.path.relpath(job.folders[0], job.study) if job.study else "a run"
            most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in needs}
            words = f"{_in_words(needs)} that {run} needs; nodes have at most {_in_words(most)}"
            raise RunError(f"no node of the cluster has the {words}")


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Leave SIGTERM to who handled it: Ray takes it to print its own stack, and to abort."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _in_words(resources: Mapping[str, float]) -> str:
    """Resources by Ray's names, as they are said."""
    return " and ".join(
        f"{amount / GIGA:,.1f} GB of memory" if name == "memory" else f"{amount:g} {name}"
        for name, amount in resources.items()
    )


def _environment(job: Job) -> dict[str, str]:
    """Variables of the processes that compute a job: with other ones a process is another."""
    threads = str(job.threads)
    kept = {name: value for name in PASSED_ON if (value := os.environ.get(name)) is not None}
    return kept | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "ATTNLAB_SERVES": job.apart}
