"""Ray as an executor: every job is a task of a cluster, and goes on elsewhere when its process or its node is lost."""

from __future__ import annotations

import contextlib
import os
import platform
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, final

from attnlab.core.apart import in_words
from attnlab.core.errors import AttnlabError, Interrupted, RunError, SpecError
from attnlab.core.machine import usable_cores
from attnlab.studies.run.executor import Job, OnMessage, compute
from attnlab.studies.run.pool import BROKEN, INTERRUPT_PATIENCE_S

HERE = "ray"
"""Name of a cluster that is started on this machine and ends with the command."""
LOSSES = 3
"""How often in a row a job may be lost without a step more than before, until it counts as broken."""
LOCK_PATIENCE_S = 60.0
"""How long a task waits for the process that held its run folders before, which may take a while to notice its end."""
POLL_S = 0.2
"""How often messages are fetched while tasks run."""
GOES_ON = "every run is at its last checkpoint on disk. The same command goes on from there"


@final
class Ray:
    """Compute jobs as tasks of a Ray cluster.

    Every node must see the folder of the study, the folder where the command runs, a person's own modules and the data
    under the same paths, as on a file system that all of them mount.

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

    def __init__(self, address: str = HERE) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # what the cluster says of itself stays in its logs
        try:
            import ray
        except ImportError:
            raise SpecError("studies on Ray need the extra: pip install 'attnlab[cluster]'") from None
        if address not in (HERE, "auto") and not address.startswith("ray://"):
            raise SpecError(f"a cluster is ray, auto or ray://HOST:PORT; got {address}")
        self._ray, self._address = ray, address
        self._mailbox: Any = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """The executor, connected."""
        how: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "attnlab"}
        if self._address == HERE:
            how |= {"address": "local", "num_cpus": usable_cores(), "include_dashboard": False}
        else:
            how |= {"address": self._address}
        if not self._ray.is_initialized():
            try:
                self._ray.init(**how)
            except Exception as error:
                raise RunError(f"no Ray cluster at {self._address}: {_first_line(error)}") from None
            self._open.callback(self._ray.shutdown)
        self._mailbox = self._ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Mailbox).remote()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the cluster; one that was started here ends."""
        with self._open, contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._mailbox)

    def run(self, jobs: Sequence[Job], on_message: OnMessage) -> None:
        """Compute jobs wherever there is room; one whose process or node is lost goes on from its last checkpoint."""
        running = _Running(self._ray, jobs, self._mailbox, on_message)
        try:
            running.to_the_end()
        except KeyboardInterrupt:
            raise Interrupted(f"stopped; {GOES_ON}") from None
        except self._ray.exceptions.RayError as error:
            raise RunError(f"the Ray cluster was lost ({_first_line(error)}); {GOES_ON}") from None
        finally:
            with contextlib.suppress(self._ray.exceptions.RayError):
                running.interrupt()


@final
class _Mailbox:
    """Pass messages from tasks to the driver, on any node."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()

    def put(self, number: int, message: dict[str, Any]) -> None:
        """Leave a message."""
        self._waiting.append((number, message))

    def has_all(self) -> bool:
        """Answer who asks: the messages of a sender come in order, so those before have come."""
        return True

    def take(self) -> list[tuple[int, dict[str, Any]]]:
        """Take all messages that are there."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


@final
class _Running:
    """Follow the tasks of jobs until the last of them has ended."""

    def __init__(self, ray: Any, jobs: Sequence[Job], mailbox: Any, on_message: OnMessage) -> None:
        self._ray, self._jobs, self._mailbox, self._on_message = ray, jobs, mailbox, on_message
        self._task, self._place = ray.remote(max_retries=0)(_task), _place()
        self._lost = [0] * len(jobs)
        self._reached, self._before = [0] * len(jobs), [-1] * len(jobs)  # steps: so far, and when last lost
        self._number: dict[Any, int] = {}

    def to_the_end(self) -> None:
        """Start a task for every job, and pass on what happens."""
        self._check_room()
        for number in range(len(self._jobs)):
            self._start(number)
        while self._number:
            done, _ = self._ray.wait(list(self._number), num_returns=1, timeout=POLL_S)
            self._pass_on()
            for task in done:
                self._end(task, self._number.pop(task))

    def interrupt(self) -> None:
        """Ask every task that has not ended for a checkpoint and an end, and wait until they have."""
        if not self._number:
            return
        for task in self._number:
            self._ray.cancel(task, recursive=False)
        self._ray.wait(list(self._number), num_returns=len(self._number), timeout=INTERRUPT_PATIENCE_S)

    def _check_room(self) -> None:
        """Refuse jobs that no node has the cores for."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        for needs in map(_needs, self._jobs):
            if not any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in nodes):
                words = " and ".join(f"{amount} {name}" for name, amount in needs.items() if amount)
                raise RunError(f"no node of the cluster has the {words} that a run needs")

    def _start(self, number: int) -> None:
        job = self._jobs[number]
        needs = _needs(job)
        how = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"], "runtime_env": {"env_vars": _environment(job)}}
        task = self._task.options(**how).remote(number, asdict(job), self._place, self._mailbox)
        self._number[task] = number

    def _pass_on(self) -> None:
        for number, message in self._ray.get(self._mailbox.take.remote()):
            self._reached[number] = max(self._reached[number], message.get("step") or 0)
            self._on_message(number, message)

    def _end(self, task: Any, number: int) -> None:
        """Pass on how a job ended, or start it again where its process or its node was lost."""
        errors = self._ray.exceptions
        try:
            messages = self._ray.get(task)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            self._lost[number] = 1 if self._reached[number] > self._before[number] else self._lost[number] + 1
            self._before[number] = self._reached[number]
            if self._lost[number] < LOSSES:
                self._start(number)
                return
            words = f"its process was lost {LOSSES} times at the same step: {_first_line(error)}"
            messages = [{"kind": BROKEN, "error": words}]
        except errors.RayTaskError as error:
            raise RunError(_first_line(error.cause)) from None
        self._pass_on()
        for message in messages:
            self._on_message(number, message)


def _first_line(error: BaseException) -> str:
    """What an error says, without what Ray adds of its logs."""
    words = str(error).strip().partition("\n")[0]
    return words if isinstance(error, AttnlabError) else f"{type(error).__name__}: {words}"


def _needs(job: Job) -> dict[str, int]:
    """What a node must have free for a job, by Ray's names."""
    return {"CPU": job.threads, "GPU": int(job.device == "cuda")}


def _environment(job: Job) -> dict[str, str]:
    """Variables of the processes that compute a job: with other ones a process is another."""
    threads = str(job.threads)
    kept = {name: value for name in ("ATTNLAB_DATA",) if (value := os.environ.get(name)) is not None}
    return kept | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "ATTNLAB_SERVES": job.apart}


def _place() -> dict[str, str]:
    """Where a command runs and with what; versions must be equal on all nodes."""
    return {"folder": os.getcwd(), **_versions()}


def _versions() -> dict[str, str]:
    return {"Python": platform.python_version(), **{name: version(name) for name in ("attnlab", "torch")}}


def _task(number: int, job: Mapping[str, Any], place: Mapping[str, str], mailbox: Any) -> list[dict[str, Any]]:
    """Compute a job on a node and return how each of its cells ended."""
    import ray

    wanted = Job(**job)
    _check_node(wanted, place)
    for folder in wanted.folders:
        _wait_for(Path(folder))

    try:
        return [*compute(wanted, lambda message: mailbox.put.remote(number, dict(message)))]
    except (Interrupted, KeyboardInterrupt):
        return []
    except Exception as error:
        return [{"kind": BROKEN, "error": in_words(error)}]
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(mailbox.has_all.remote())


def _check_node(job: Job, place: Mapping[str, str]) -> None:
    """Raise where a node has other versions, or does not see what a job reads and writes."""
    node = platform.node()
    for name, here in _versions().items():
        if here != place[name]:
            raise RunError(f"{node} has {name} {here}, and the command {place[name]}; install the same on all nodes")
    study = Path(job.folders[0]).resolve().parents[1]
    for needed in (Path(place["folder"]), study):
        if not needed.is_dir():
            raise RunError(f"{node} does not see {needed}: it must lie where all nodes can read and write")
    os.chdir(place["folder"])


def _wait_for(folder: Path) -> None:
    """Wait until nobody writes a run folder: who did may have lost its node, and not noticed yet."""
    import filelock

    from attnlab.training.keeping.runs import LOCK

    if not folder.is_dir():
        return
    with contextlib.suppress(filelock.Timeout), filelock.FileLock(folder / LOCK, timeout=LOCK_PATIENCE_S):
        pass
