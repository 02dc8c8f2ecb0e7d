"""Run a study: rules to disk, tuning, judged runs. The same command goes on where it stopped."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, final

from attnlab.core.errors import RunError
from attnlab.core.files import passing_cause, patiently, write_json, writing
from attnlab.core.machine import require_device
from attnlab.core.processes.apart import names_own_code
from attnlab.studies.define.study import Study
from attnlab.studies.judge.alarms import alarms_before
from attnlab.studies.judge.results import Alarm, StudyResults
from attnlab.studies.plan.plan import CellPlan, Plan, plan_study
from attnlab.studies.run.executor import Executor, Job, LocalProcesses, computes_elsewhere
from attnlab.studies.run.folder import CLOCK, is_sealed, prepare, recorded_setting
from attnlab.studies.run.index import index_of
from attnlab.studies.run.layout import (
    WORKERS_LOG,
    Layout,
    Wishes,
    bounded,
    layout_for,
    needs_own_time,
    require_room,
    trained_bytes,
)
from attnlab.studies.run.mirrored import holding, send_all
from attnlab.studies.run.pool import BROKEN
from attnlab.studies.run.ranks import on_ranks, wanted_ranks
from attnlab.studies.stages import Stage, Stages
from attnlab.studies.storage.mirror import local
from attnlab.training.devices.nodes import Meeting
from attnlab.training.keeping.runs import FAILED
from attnlab.training.tracking.tracking import check_trackers


class Watcher(Protocol):
    """What a study tells whoever watches it."""

    def alarms(self, found: Sequence[Alarm]) -> None:
        """Say what is suspicious about the data and the variants, before anything is trained."""
        ...

    def phase(self, title: str, cells: Sequence[CellPlan], done: int) -> None:
        """Say that more cells may begin: those that are missing, and the number already done."""
        ...

    def message(self, cell: CellPlan, message: Mapping[str, Any]) -> None:
        """Pass on one message about a cell."""
        ...


def run_study(
    study: Study,
    out: Path,
    *,
    device: str = "auto",
    jobs: int | None = None,
    together: int | None = None,
    like: Path | None = None,
    devices: int | None = None,
    trackers: Sequence[str] = (),
    watcher: Watcher | None = None,
    executor: Executor | None = None,
    meeting: Meeting | None = None,
) -> StudyResults:
    """Run a study to its verdict, or what is missing of it.

    Parameters
    ----------
    study : Study
        The study.
    out : Path
        Folder of the study; also one in an object store, such as ``s3://bucket/my-study``.
    device : str
        ``cpu``, ``cuda``, or ``auto``: CUDA where there is one.
    jobs : int, optional
        Number of worker processes, which share the cores; by default one a core, with one thread each.
    together : int, optional
        How many runs of a variant train as one program at most; by default all on an accelerator, none on a CPU.
    like : Path, optional
        Folder of a study to repeat: its threads, device, runs together, precision and compiling are taken over.
    devices : int, optional
        How many devices train each model together; by default as many as its recipe says.
    trackers : sequence of str
        Where every cell is shown beside its folder: of ``tensorboard``, ``trackio``, ``wandb``, ``mlflow``.
    watcher : Watcher, optional
        Is told about progress.
    executor : Executor, optional
        Computes the cells; by default processes of this machine.
    meeting : Meeting, optional
        Machines on whose devices a model is trained, of which this one leads; by default this one alone.

    Returns
    -------
    StudyResults
        What was found; cells that failed are in it as failed.

    Raises
    ------
    SpecError
        If a variant cannot be built, or asks for more memory than this machine has, a tracker is not installed, or what
        is asked for cannot be.
    RunError
        If the folder belongs to another study or another process.
    Interrupted
        After Ctrl-C.
    """
    elsewhere = computes_elsewhere(executor)
    wishes = Wishes(device, jobs, together, None if like is None else local(like), elsewhere)
    require_device(device, "auto")
    wishes.check()
    check_trackers(trackers)
    plan = plan_study(study)
    if executor is None:
        wishes = _that_fit(wishes, plan, watcher)
    ranks = wanted_ranks(plan, devices, jobs=jobs, together=together, elsewhere=executor is not None, meeting=meeting)
    if watcher:
        watcher.alarms(alarms_before(plan))

    def say(text: str) -> None:
        if watcher:
            watcher.alarms([Alarm("not sent", None, text)])

    with contextlib.ExitStack() as held:
        out, mirror = held.enter_context(holding(out, trains=not elsewhere, say=say))
        prepare(plan, out)
        layout = layout_for(plan, out, wishes)
        if mirror:
            send_all(mirror, say=say)
        if executor is None:
            executor = held.enter_context(LocalProcesses(layout.workers, layout.threads, out / WORKERS_LOG))
        executor = on_ranks(executor, ranks, devices, meeting=meeting, device=layout.device, out=out)
        alone = layout.device == "cuda" and needs_own_time(plan)  # it asks for a whole GPU
        sizes = {} if alone else {variant.name: trained_bytes(variant) for variant in plan.variants}
        how: dict[str, Any] = {"sizes": sizes, "in_phases": plan.judges_time, "trackers": trackers, "watcher": watcher}
        how["in_turns"] = ranks == 1 and _times_in_turns(plan, executor)
        stages = patiently(lambda: Stages(plan, out))
        _Course(executor, out, layout, stages, store=mirror.store.url if mirror else "", **how).to_the_end()
        results = patiently(stages.results)
        index_of(out).write()
        return results


def _times_in_turns(plan: Plan, executor: Executor) -> bool:
    """Whether time is judged, and one process may hold all variants: code of a person's own shares none with others."""
    own_code = any(names_own_code([variant.model, variant.training]) for variant in plan.variants)
    return plan.judges_time and not own_code and not computes_elsewhere(executor)


def _that_fit(wishes: Wishes, plan: Plan, watcher: Watcher | None) -> Wishes:
    """As many processes as this machine has room for; an error where it has none for one run."""
    require_room(plan, wishes)
    if not wishes.jobs:
        return wishes
    most, fewer = bounded(wishes.jobs, plan)
    if watcher and fewer:
        watcher.alarms([Alarm("jobs", None, fewer)])
    return replace(wishes, jobs=most)


@final
class _Course:
    """Run the cells of a study with an executor, each as soon as those that it waits for have ended.

    Where time is judged all variants go on together: the steps of their runs are timed in turns, and runs are shuffled,
    so that no variant has always the same one before it, or the start of the day.
    """

    def __init__(
        self,
        executor: Executor,
        out: Path,
        layout: Layout,
        stages: Stages,
        *,
        store: str,
        sizes: Mapping[str, float],
        in_phases: bool,
        in_turns: bool,
        trackers: Sequence[str],
        watcher: Watcher | None,
    ) -> None:
        self._executor, self._out, self._layout, self._watcher = executor, out, layout, watcher
        self._stages, self._store, self._trackers, self._sizes = stages, store, tuple(trackers), sizes
        self._in_phases, self._in_turns, self._tried = in_phases, in_turns, set[str]()
        self._cohorts: list[Sequence[CellPlan]] = []  # that are computed or wait for it
        self._jobs: list[Job] = []  # of the cohorts
        self._left: dict[str, set[str]] = {name: set() for name in stages.names}  # folders of runs that have not ended

    def to_the_end(self) -> None:
        """Run all that is missing; a failed cell is tried once a command."""
        begun = self._go_on(self._stages.names)
        while self._jobs or (begun and self._in_phases):
            while self._jobs:
                self._run()
            if self._in_phases:
                self._time([cell for stage in begun for cell in stage.cells])
                begun = self._go_on(self._stages.names)

    def _go_on(self, names: Collection[str]) -> list[Stage]:
        """Queue what comes after all runs of some variants; where nothing of that is missing, what comes after it."""
        begun: list[Stage] = []
        while names and not (begun and self._in_phases):
            following = patiently(lambda names=names: self._stages.after(names))
            for stage in following:
                self._begin(stage)
            begun += following
            names = [name for stage in following for name in stage.names if not self._left[name]]
        return begun

    def _begin(self, stage: Stage) -> None:
        """Queue the cells of a stage that are not done."""
        missing = [cell for cell in self._missing(stage.cells) if cell.folder not in self._tried]
        self._tried |= {cell.folder for cell in missing}
        if not missing:
            return
        for cell in missing:
            self._left[cell.variant].add(cell.folder)
        if self._in_phases:
            random.Random(stage.title).shuffle(missing)
        if self._watcher:
            alone = len(stage.names) == 1 < len(self._stages.names)
            title = f"{stage.names[0]}: {stage.title}" if alone else stage.title
            self._watcher.phase(title, missing, len(stage.cells) - len(missing))
        self._queue(self._layout.cohorts(missing))

    def _queue(self, cohorts: Sequence[Sequence[CellPlan]]) -> None:
        self._cohorts += cohorts
        self._jobs += map(self._job, cohorts)

    def _run(self) -> None:
        """Compute what is queued, and what is queued meanwhile unless the executor leaves it for the next time."""
        cohorts, jobs = self._cohorts, self._jobs
        given, heard = len(jobs), set[int]()

        def tell(number: int, message: Mapping[str, Any]) -> None:
            heard.add(number)
            self._hear(cohorts[number], message)

        self._executor.run(jobs, tell)
        left = [number for number in range(given, len(jobs)) if number not in heard]
        self._cohorts, self._jobs = [cohorts[number] for number in left], [jobs[number] for number in left]
        waiting = {cell.folder for cohort in self._cohorts for cell in cohort}
        for cohort in cohorts:  # of those it said nothing more about, nothing more will come
            for cell in cohort:
                if cell.folder not in waiting:
                    self._end(cell)

    def _hear(self, cohort: Sequence[CellPlan], message: Mapping[str, Any]) -> None:
        """Pass on what happened to cells. Where the process of several died, one of them may have killed it alone."""
        if message["kind"] == BROKEN and len(cohort) > 1:
            suspects = self._missing(cohort)
            self._queue([[cell] for cell in suspects])
            for cell in (cell for cell in cohort if cell not in suspects):
                self._end(cell)
        elif message["kind"] == BROKEN:
            self._tell(cohort[0], {**message, "kind": "failed"})
            self._end(cohort[0])
        elif "cell" in message:
            cell = cohort[message["cell"]]
            self._tell(cell, message)
            if message["kind"] in ("finished", "failed"):
                self._end(cell)

    def _end(self, cell: CellPlan) -> None:
        """Note that a cell has ended; with the last one of its variant others begin."""
        left = self._left[cell.variant]
        if cell.folder in left:
            left.remove(cell.folder)
            if not left and not self._in_phases:
                self._go_on([cell.variant])

    def _time(self, cells: Sequence[CellPlan]) -> None:
        """Time the steps of the runs of each seed in turns, once a command."""
        if not self._in_turns:
            return
        of_seeds: dict[int, list[CellPlan]] = {}
        index, required = index_of(self._out), is_sealed(self._out)
        for cell in cells:
            if index.is_done(cell, required=required):
                of_seeds.setdefault(cell.seed, []).append(cell)
        found = [of_seed for of_seed in of_seeds.values() if self._is_untimed(of_seed)]
        self._tried |= {_clock_of(cell) for of_seed in found for cell in of_seed}
        if found and self._watcher:
            self._watcher.phase("seconds of a step, in turns, of runs", [one for each in found for one in each], 0)
        jobs = [replace(self._job(of_seed), in_turns=True, setting={}) for of_seed in found]
        self._executor.run(jobs, lambda job, message: self._tell_clock(found[job], message))

    def _is_untimed(self, of_seed: Sequence[CellPlan]) -> bool:
        folders = [self._out / cell.folder for cell in of_seed]
        if all((folder / CLOCK).exists() for folder in folders):
            return False
        if any(recorded_setting(folder)["compile"] for folder in folders):  # compiling is in the time of a run
            return False
        return not self._tried >= {_clock_of(cell) for cell in of_seed}

    def _tell_clock(self, of_seed: Sequence[CellPlan], message: Mapping[str, Any]) -> None:
        if message["kind"] == BROKEN and self._watcher:
            text = f"steps of seed {of_seed[0].seed} were not timed in turns, their runs count: {message['error']}"
            self._watcher.alarms([Alarm("clock", None, text)])

    def _missing(self, cells: Sequence[CellPlan]) -> list[CellPlan]:
        index, required = index_of(self._out), is_sealed(self._out)
        return patiently(lambda: [cell for cell in cells if not index.is_done(cell, required=required)])

    def _job(self, cohort: Sequence[CellPlan]) -> Job:
        return Job(
            folders=tuple(str((self._out / cell.folder).absolute()) for cell in cohort),  # its code may change folders
            specs=tuple(cell.spec for cell in cohort),
            threads=self._layout.threads,
            device=self._layout.device,
            apart=cohort[0].variant if names_own_code([cohort[0].spec["model"], cohort[0].spec["recipe"]]) else "",
            trackers=self._trackers,
            study=str(self._out.absolute()),
            store=self._store,
            setting=self._layout.settings.get(cohort[0].variant, {}),
            trained_bytes=sum(self._sizes[cell.variant] for cell in cohort) if self._sizes else None,
        )

    def _tell(self, cell: CellPlan, message: Mapping[str, Any]) -> None:
        """Note a failure on disk, and tell the watcher; storage that fails here too ends the study."""
        if message["kind"] == "failed":
            try:
                patiently(lambda: _note_failure(self._out / cell.folder / FAILED, message["error"]))
            except RunError as error:
                if passing_cause(error):
                    raise
        if self._watcher:
            self._watcher.message(cell, message)


def _clock_of(cell: CellPlan) -> str:
    return f"{cell.folder}/{CLOCK}"


def _note_failure(path: Path, error: str) -> None:
    """Write down why a run failed, unless it has done so itself."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_json(path, {"error": error, "kind": "crash", "step": None, "layer": None})
