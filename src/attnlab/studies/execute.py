"""Run a study: rules to disk, tuning, judged runs. The same command goes on where it stopped."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, final

from attnlab.core.errors import RunError
from attnlab.core.files import passing_cause, patiently, write_json, writing
from attnlab.core.machine import require_device
from attnlab.core.processes.apart import names_own_code
from attnlab.studies.define.study import Study
from attnlab.studies.judge.alarms import alarms_before
from attnlab.studies.judge.collect import so_far
from attnlab.studies.judge.results import Alarm, StudyResults
from attnlab.studies.judge.tuning import cells_again, record_tuning
from attnlab.studies.plan.plan import CellPlan, Plan, plan_study
from attnlab.studies.run.executor import Executor, Job, LocalProcesses, computes_elsewhere
from attnlab.studies.run.folder import CLOCK, is_sealed, prepare, recorded_setting
from attnlab.studies.run.index import index_of
from attnlab.studies.run.layout import WORKERS_LOG, Layout, Wishes, bounded, layout_for, require_room
from attnlab.studies.run.mirrored import holding, send_all
from attnlab.studies.run.pool import BROKEN
from attnlab.studies.run.ranks import on_ranks, wanted_ranks
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
        """Say that a phase begins, with the cells still to run and the number already done."""
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
    wishes = Wishes(device, jobs, together, None if like is None else local(like))
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
        out, mirror = held.enter_context(holding(out, trains=not computes_elsewhere(executor), say=say))
        prepare(plan, out)
        layout = layout_for(plan, out, wishes)
        if mirror:
            send_all(mirror, say=say)
        if executor is None:
            executor = held.enter_context(LocalProcesses(layout.workers, layout.threads, out / WORKERS_LOG))
        executor = on_ranks(executor, ranks, devices, meeting=meeting, device=layout.device, out=out)
        how: dict[str, Any] = {"shuffled": plan.judges_time, "trackers": trackers, "watcher": watcher}
        how["in_turns"] = ranks == 1 and _times_in_turns(plan, executor)
        phases = _Phases(executor, out, layout, store=mirror.store.url if mirror else "", **how)
        phases.run("tuning runs", plan.tuning_cells())
        phases.run("tuning runs of the best settings, again", patiently(lambda: cells_again(plan, out)))
        chosen = patiently(lambda: record_tuning(plan, out))
        judged, results = patiently(lambda: so_far(plan, chosen, out))
        while True:
            ran = phases.run(f"judged runs{_of_looks(plan, judged)}", judged)
            if not phases.time(judged) and not ran:
                return results
            judged, results = patiently(lambda: so_far(plan, chosen, out))


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


def _of_looks(plan: Plan, judged: Sequence[CellPlan]) -> str:
    """How many seeds the next look is taken after, where there are several looks."""
    seeds = max(cell.seed for cell in judged) + 1
    return f", up to {seeds} of at most {plan.study.rules.looks[-1]} seeds" if len(plan.study.rules.looks) > 1 else ""


@final
class _Phases:
    """Run the cells of a study's phases with an executor.

    Shuffled, where time is judged, so that no variant has always the same one before it, or the start of the day.
    """

    def __init__(
        self,
        executor: Executor,
        out: Path,
        layout: Layout,
        *,
        store: str,
        shuffled: bool,
        in_turns: bool,
        trackers: Sequence[str],
        watcher: Watcher | None,
    ) -> None:
        self._executor, self._out, self._layout, self._watcher = executor, out, layout, watcher
        self._store, self._shuffled, self._trackers = store, shuffled, tuple(trackers)
        self._in_turns, self._tried = in_turns, set[str]()

    def run(self, title: str, cells: Sequence[CellPlan]) -> bool:
        """Run the cells that are not done, and say whether there were any; a failed one is tried once a command."""
        missing = [cell for cell in self._missing(cells) if cell.folder not in self._tried]
        self._tried |= {cell.folder for cell in missing}
        if not missing:
            return False
        if self._shuffled:
            random.Random(title).shuffle(missing)
        if self._watcher:
            self._watcher.phase(title, missing, len(cells) - len(missing))
        suspects = self._run_cohorts(self._layout.cohorts(missing))
        self._run_cohorts([[cell] for cell in suspects])
        return True

    def time(self, cells: Sequence[CellPlan]) -> bool:
        """Time the steps of the runs of each seed in turns, once a command; say whether any were to be timed."""
        if not self._in_turns:
            return False
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
        return bool(found)

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

    def _run_cohorts(self, cohorts: Sequence[Sequence[CellPlan]]) -> list[CellPlan]:
        """Run cohorts; return the cells of those whose process died, which one of them may have killed alone."""
        suspects: list[CellPlan] = []

        def tell(index: int, message: Mapping[str, Any]) -> None:
            cohort = cohorts[index]
            if "cell" in message:
                self._tell(cohort[message["cell"]], message)
            elif message["kind"] == BROKEN and len(cohort) > 1:
                suspects.extend(self._missing(cohort))
            elif message["kind"] == BROKEN:
                self._tell(cohort[0], {**message, "kind": "failed"})

        self._executor.run([self._job(cohort) for cohort in cohorts], tell)
        return suspects

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
