"""What happens on a node of a cluster: it is checked, waits for run folders that another held, and computes a job."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import Interrupted, RunError
from attnlab.core.files import patiently
from attnlab.core.processes.apart import in_words
from attnlab.core.storage.store import Store
from attnlab.studies.run.executor import Job, compute
from attnlab.studies.run.lease import LEASE, LEASE_S, FileSign, ObjectSign, lease
from attnlab.studies.run.mirrored import sending
from attnlab.studies.run.own_code import lay_out
from attnlab.studies.run.pool import BROKEN
from attnlab.studies.storage.mirror import Mirror

LOCK_PATIENCE_S = 2 * LEASE_S
"""How long a task waits for the process that held its run folders before, which may take a while to notice its end."""
TAKEN = 3
"""Exit code of a process whose run folder another one has taken: not another byte may be written by it."""

TELL_S = 60.0
"""How long a node may take to say what GPUs it has."""
TELLS_GPUS = "import json, torch; cuda = torch.cuda; " + (
    "print(json.dumps([cuda.mem_get_info(at) for at in range(cuda.device_count())]))"
)


@final
class Mailbox:
    """Pass messages from tasks to the command, on any node."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()

    def put(self, number: int, message: dict[str, Any]) -> None:
        """Leave a message."""
        self._waiting.append((number, message))

    def take(self) -> list[tuple[int, dict[str, Any]]]:
        """Take all messages that are there."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


def gpus_here() -> list[tuple[int, int]]:
    """Bytes of each GPU of a node, and how many of them are taken once a process has begun on it; empty if unknown.

    A process of its own looks, which ends and leaves nothing on them.
    """
    environment = dict(os.environ)
    if environment.get("CUDA_VISIBLE_DEVICES") == "":  # as some versions of Ray have it for tasks without a GPU
        del environment["CUDA_VISIBLE_DEVICES"]
    asked = [sys.executable, "-c", TELLS_GPUS]
    found = subprocess.run(asked, capture_output=True, text=True, env=environment, timeout=TELL_S, check=False)
    try:
        return [(total, total - free) for free, total in json.loads(found.stdout)]
    except ValueError:
        return []


def place_of(job: Job) -> dict[str, str | None]:
    """Where a command runs, with what versions, and what marks the folder that it holds."""
    return {"folder": os.getcwd(), "mark": _mark(job), **_versions()}


def _mark(job: Job) -> str | None:
    """What who holds the folder of a job's study has left there; None where there is nothing."""
    if job.store:
        holder = ObjectSign(Store(job.store), copy="").left()
        return None if holder is None else holder["mark"]
    mark = Path(job.study) / LEASE
    return mark.read_text() if job.study and mark.exists() else None


@functools.cache
def _versions() -> dict[str, str]:
    return {"Python": platform.python_version(), **{name: version(name) for name in ("attnlab", "torch")}}


def compute_here(
    number: int, job: Mapping[str, Any], place: Mapping[str, str | None], mailbox: Any, own_code: Mapping[str, bytes]
) -> list[dict[str, Any]]:
    """Compute a job on a node and return how each of its cells ended."""
    import ray

    wanted = Job(**job)
    patiently(lambda: check_node(wanted, place))
    lay_out(own_code)
    mirror = Mirror(wanted.store, "nodes") if wanted.store else None
    if mirror:
        folders = tuple(str(mirror.folder / Path(folder).relative_to(wanted.study)) for folder in wanted.folders)
        wanted = replace(wanted, folders=folders, study=str(mirror.folder))
    sent: list[Any] = []  # the last message

    def send(message: Mapping[str, Any]) -> None:
        sent[:] = [mailbox.put.remote(number, dict(message))]

    try:
        with contextlib.ExitStack() as held:
            for folder in map(Path, wanted.folders):
                patiently(lambda folder=folder: held.enter_context(_taken(folder, mirror)))
            return [*compute(wanted, send)]
    except (Interrupted, KeyboardInterrupt):
        return []
    except Exception as error:
        return [{"kind": BROKEN, "error": in_words(error)}]
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(sent)  # they come in order, so those before have come


def check_node(job: Job, place: Mapping[str, str | None]) -> None:
    """Raise where a node has other versions than the command, or does not see the study's folder."""
    node = platform.node()
    for name, here in _versions().items():
        if here != place[name]:
            raise RunError(f"{node} has {name} {here}, and the command {place[name]}; install the same on all nodes")
    try:
        sees = place["mark"] in (None, _mark(job))
    except RunError as error:
        raise RunError(f"{node}: {error}") from error
    if not sees:
        raise RunError(f"{node} does not see {job.store or job.study}: it must lie where all nodes can read and write")
    if Path(place["folder"] or "").is_dir():  # where relative paths of data begin
        os.chdir(place["folder"] or "")


@contextlib.contextmanager
def _taken(folder: Path, mirror: Mirror | None) -> Iterator[None]:
    """Hold a run folder once nobody writes it: who did may have lost its node, and not noticed yet."""
    import filelock

    from attnlab.training.keeping.runs import LOCK

    if folder.is_dir():
        with contextlib.suppress(filelock.Timeout), filelock.FileLock(folder / LOCK, timeout=LOCK_PATIENCE_S):
            pass
    run = folder.relative_to(mirror.folder).as_posix() if mirror else ""
    sign = ObjectSign(mirror.store, mirror.identity(), run) if mirror else FileSign(folder)
    with lease(sign, patience_s=LOCK_PATIENCE_S, lost=lambda: os._exit(TAKEN)), contextlib.ExitStack() as sent:
        if mirror:
            mirror.pull(run, checkpoints=lambda _: True)
            sent.enter_context(sending(mirror, run))
        yield
