"""Executors: here are cells, tell me what happens. Nothing else knows where a cell is computed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, final

from attnlab.core.errors import RunError
from attnlab.core.files import passing_cause, patiently
from attnlab.core.processes.apart import in_words
from attnlab.studies.run.pool import Pool

OnMessage = Callable[[int, Mapping[str, Any]], None]
"""What is told: the number of a job, and a message about it. A message about a cell has its number under ``cell``."""


@final
@dataclass(frozen=True)
class Job:
    """Hold cells that are computed as one program, and how."""

    folders: tuple[str, ...]  # where each cell lies
    specs: tuple[Mapping[str, Any], ...]  # what identifies each cell
    threads: int  # threads of its numerical libraries
    device: str  # ``cpu`` or ``cuda``
    apart: str = ""  # whose own code it runs, in a process for this job alone; empty for the lab's code alone
    trackers: tuple[str, ...] = ()  # where the cells are shown beside their folders
    study: str = ""  # the study's folder, which they are listed under there
    store: str = ""  # URL of the store that the study's folder is a copy of; empty where it is none
    in_turns: bool = False  # whether the steps of its cells, which have run, are timed side by side
    setting: Mapping[str, Any] = field(default_factory=dict)
    """``precision`` and ``compile``, where they are to be those of another study; empty leaves them to the recipe."""
    trained_bytes: float | None = None  # what its cells keep together while they train, as counted; None if unknown


class Executor(Protocol):
    """Compute jobs somewhere."""

    def run(self, jobs: Sequence[Job], on_message: OnMessage) -> None:
        """Compute jobs to their ends and tell what happens; a job that breaks ends with a message ``broken``.

        While it runs `on_message` may append to `jobs`; an executor that does not look again is given those anew.
        """
        ...


def computes_elsewhere(executor: Executor | None) -> bool:
    """Whether jobs are computed where the folder of a study in a store has copies of its own.

    An executor says so by an attribute ``elsewhere = True``.
    """
    return getattr(executor, "elsewhere", False)


@final
class LocalProcesses:
    """Compute jobs in processes of this machine: a crash costs one job, never the study.

    Parameters
    ----------
    workers : int
        Number of processes; they start with the first job.
    threads : int
        Threads of each.
    log : Path
        File for what they print.
    """

    def __init__(self, workers: int, threads: int, log: Path) -> None:
        self._shape = (workers, threads, log)
        self._pool: Pool | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """The executor."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        self._open.close()
        self._pool = None

    def run(self, jobs: Sequence[Job], on_message: OnMessage) -> None:
        """Compute jobs as processes become free, those that are appended meanwhile too."""
        if self._pool is None:
            self._pool = self._open.enter_context(Pool(*self._shape))
        requests: list[Mapping[str, Any]] = []

        def take() -> None:
            requests.extend(vars(job) for job in jobs[len(requests) :])

        def tell(number: int, message: Mapping[str, Any]) -> None:
            on_message(number, message)
            take()

        take()
        self._pool.run(requests, tell)


@final
class InProcess:
    """Compute jobs one after another in this process; a crash of compiled code ends it."""

    def run(self, jobs: Sequence[Job], on_message: OnMessage) -> None:
        """Compute jobs in their order, those that are appended meanwhile too."""
        import torch

        threads = torch.get_num_threads()
        try:
            for number, job in enumerate(jobs):
                for message in compute(job, lambda message, number=number: on_message(number, message)):
                    on_message(number, message)
        finally:
            torch.set_num_threads(threads)
            torch.set_flush_denormal(False)  # as `run_cells` has it, for this process alone


def compute(job: Job, tell: Callable[[Mapping[str, Any]], None]) -> Iterator[dict[str, Any]]:
    """Run a job's cells, together if there are several, and yield how each of them ended; or time their steps.

    Where storage fails for a while, the cells that it stopped go on from their last checkpoints once it works again.
    """
    folders = [Path(folder) for folder in job.folders]
    if job.in_turns:
        from attnlab.studies.run.clock import time_in_turns

        time_in_turns(folders, job.specs, threads=job.threads, device=job.device)
        return
    from attnlab.studies.run.cell import run_cells

    with contextlib.ExitStack() as tracked:
        listeners = [tracked.enter_context(shown(job, cell, tell)) for cell in range(len(folders))]

        def on_event(cell: int, event: Mapping[str, Any]) -> None:
            listeners[cell](event)
            tell({**event, "cell": cell})

        def attempt() -> list[dict[str, float] | Exception]:
            how: dict[str, Any] = {"threads": job.threads, "device": job.device, "setting": job.setting}
            found = run_cells(folders, job.specs, **how, on_event=on_event)
            for outcome in found:
                if isinstance(outcome, RunError | OSError) and passing_cause(outcome):
                    raise outcome
            return found

        outcomes = patiently(attempt, lambda text: tell({"kind": "warning", "cell": 0, "text": text}))
    for cell, outcome in enumerate(outcomes):
        if isinstance(outcome, Exception):
            yield {"kind": "failed", "cell": cell, "error": in_words(outcome)}
        else:
            yield {"kind": "finished", "cell": cell, "metrics": outcome}


def shown(
    job: Job, cell: int, tell: Callable[[Mapping[str, Any]], None]
) -> contextlib.AbstractContextManager[Callable[[Mapping[str, Any]], None]]:
    """Show a cell where its job says."""
    from attnlab.training.tracking.tracking import tracking

    folder, study = Path(job.folders[cell]), Path(job.study)
    return tracking(
        job.trackers,
        folder=folder,
        project=study.name,
        name=folder.relative_to(study).as_posix() if job.trackers else None,
        config=job.specs[cell],
        warn=lambda text: tell({"kind": "warning", "cell": cell, "text": text}),
    )
