"""Run a study: rules to disk, tuning, judged runs, report. The same command goes on where it stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import read_json, write_json, writing
from attnlab.core.machine import environment, require_device
from attnlab.studies.define.study import OWN_FILES, Study
from attnlab.studies.judge.collect import TUNING, chosen_settings, collect, read_scores
from attnlab.studies.judge.results import StudyResults
from attnlab.studies.judge.tuning import tuning_record
from attnlab.studies.plan.plan import CellPlan, Plan, make_plan
from attnlab.studies.run.cell import is_done
from attnlab.studies.run.layout import WORKERS_LOG, Layout, layout_for
from attnlab.studies.run.pool import BROKEN, Pool
from attnlab.studies.run.task_record import TaskRecord
from attnlab.training.keeping.runs import lock

RULES = "rules.json"
STUDY = "study.json"
_PREFIX = {"content": "", "files": "file", "scale": "scale"}


class Watcher(Protocol):
    """What a study tells whoever watches it."""

    def alarms(self, messages: Sequence[str]) -> None:
        """Say what is suspicious about the data, before anything is trained on it."""
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
    tensorboard: bool = False,
    watcher: Watcher | None = None,
) -> StudyResults:
    """Run a study to its verdict, or what is missing of it.

    Parameters
    ----------
    study : Study
        The study.
    out : Path
        Folder of the study.
    device : str
        ``cpu``, ``cuda``, or ``auto``: CUDA where there is one.
    jobs : int, optional
        Number of worker processes, one thread each; measured and chosen by default.
    tensorboard : bool
        Whether every cell also writes TensorBoard events into its folder.
    watcher : Watcher, optional
        Is told about progress.

    Returns
    -------
    StudyResults
        What was found; cells that failed are in it as failed.

    Raises
    ------
    SpecError
        If a variant cannot be built.
    RunError
        If the folder belongs to another study or another process.
    Interrupted
        After Ctrl-C.
    """
    _check_machine(device, jobs)
    plan = make_plan(study)
    if watcher:
        watcher.alarms(plan.task.alarms())
    with lock(out):
        prepare(plan, out)
        layout = layout_for(plan, out, device, jobs)
        with _pool(plan, out, layout) as pool:
            runner = Runner(pool, out, layout, tensorboard=tensorboard, watcher=watcher)
            runner.run("tuning runs", plan.tuning_cells())
            chosen = _record_tuning(plan, out)
            runner.run("judged runs", plan.judged_cells(chosen))
    return collect(out)


def _check_machine(device: str, jobs: int | None) -> None:
    """Raise a `SpecError` where the machine cannot do what is asked for."""
    require_device(device, "auto")
    if jobs is not None and jobs < 1:
        raise SpecError(f"--jobs must be at least 1; got {jobs}")


def prepare(plan: Plan, out: Path) -> None:
    """Write study and rules before the first step, or check that they are those already written."""
    rules = plan.rules_record()
    if not (out / RULES).exists():
        strangers = sorted(
            name for name in OWN_FILES if name.startswith(("report.", "charts")) and (out / name).exists()
        )
        if strangers:
            raise RunError(f"{out} is no study's folder and holds {', '.join(strangers)}; choose another with --out")
        write_json(out / STUDY, _study_record(plan))
        write_json(out / "environment.json", environment())
        write_json(out / RULES, {**rules, "fixed_at": _now(), "extended": []})
        return
    written = read_json(out / RULES)
    if written["hash"] != rules["hash"]:
        _extend(plan, out, written, rules)


def _study_record(plan: Plan) -> dict[str, Any]:
    study = plan.study
    variants = [asdict(variant) for variant in plan.variants]
    record = {"name": study.name, "scale": study.scale, "folder": study.folder, "content": study.content}
    task = TaskRecord.of(plan.task).to_json()
    return {**record, "files": study.files(), "data": plan.data(), "task": task, "variants": variants}


def _extend(plan: Plan, out: Path, written: dict[str, Any], rules: dict[str, Any]) -> None:
    """Record that a study goes on with more seeds; refuse any other change."""
    before = read_json(out / STUDY)
    now = _study_record(plan)
    if before["data"] != now["data"]:
        raise RunError(f"{out} holds runs on another text: it has changed since; choose another folder with --out")
    changed = [f for key in ("content", "files", "scale") for f in _difference(before[key], now[key], _PREFIX[key])]
    if changed == ["rules.seeds"] and rules["seeds"] < written["seeds"]:
        many = written["seeds"]
        raise RunError(
            f"{out} already has {many} seeds; run it with --seeds {many} or more, or see: attnlab report {out}"
        )
    if changed != ["rules.seeds"]:
        raise RunError(
            f"{out} holds runs of another study or other rules (they differ in: {', '.join(changed) or 'version'}); "
            "choose another folder with --out, or delete it"
        )
    step = {"from": written["seeds"], "to": rules["seeds"], "at": _now(), "first_hash": written["hash"]}
    write_json(out / STUDY, now)
    write_json(out / RULES, {**rules, "fixed_at": written["fixed_at"], "extended": [*written["extended"], step]})


def _difference(one: Any, other: Any, path: str = "") -> list[str]:
    """The dotted keys in which two nested mappings differ."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [path]
    keys = sorted(set(one) | set(other))
    return [found for key in keys for found in _difference(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _pool(plan: Plan, out: Path, layout: Layout) -> contextlib.AbstractContextManager[Pool | None]:
    """The worker processes, or none where nothing is left to run."""
    if _todo_anything(plan, out):
        return Pool(layout.workers, layout.threads, out / WORKERS_LOG)
    return contextlib.nullcontext()


def _todo_anything(plan: Plan, out: Path) -> bool:
    """Whether any cell needs a worker."""
    if _missing(plan.tuning_cells(), out):
        return True
    chosen = chosen_settings(plan, out)
    return bool(_missing(plan.judged_cells(chosen), out))


def _missing(cells: Sequence[CellPlan], out: Path) -> list[CellPlan]:
    return [cell for cell in cells if not is_done(out / cell.folder, cell.spec)]


class Runner:
    """Run the cells of a study's phases on its worker processes.

    Parameters
    ----------
    pool : Pool or None
        The worker processes; None where nothing is left to run.
    out : Path
        Folder of the study.
    layout : Layout
        Which cells train together, and where.
    tensorboard : bool
        Whether cells write TensorBoard events too.
    watcher : Watcher or None
        Is told about progress.
    """

    def __init__(
        self, pool: Pool | None, out: Path, layout: Layout, *, tensorboard: bool, watcher: Watcher | None
    ) -> None:
        self._pool, self._out, self._layout, self._watcher = pool, out, layout, watcher
        self._how = {"threads": layout.threads, "device": layout.device, "tensorboard": tensorboard}

    def run(self, title: str, cells: Sequence[CellPlan]) -> None:
        """Run the cells of one phase that are not done; a failed one is tried again by the same command."""
        missing = _missing(cells, self._out)
        if not missing or self._pool is None:
            return
        if self._watcher:
            self._watcher.phase(title, missing, len(cells) - len(missing))
        bereft = self._run_cohorts(self._pool, self._layout.cohorts(missing))
        self._run_cohorts(self._pool, [[cell] for cell in bereft])

    def _run_cohorts(self, pool: Pool, cohorts: Sequence[Sequence[CellPlan]]) -> list[CellPlan]:
        """Run cohorts; return the cells of those whose process died, which one of them may have killed alone."""
        bereft: list[CellPlan] = []

        def tell(index: int, message: Mapping[str, Any]) -> None:
            cohort = cohorts[index]
            if "cell" in message:
                self._tell(cohort[message["cell"]], message)
            elif message["kind"] == BROKEN and len(cohort) > 1:
                bereft.extend(_missing(cohort, self._out))
            elif message["kind"] == BROKEN:
                self._tell(cohort[0], {**message, "kind": "failed"})

        pool.run([self._request(cohort) for cohort in cohorts], tell)
        return bereft

    def _request(self, cohort: Sequence[CellPlan]) -> dict[str, Any]:
        cells = [{"folder": str(self._out / cell.folder), "spec": cell.spec} for cell in cohort]
        return {"do": "run", "cells": cells, **self._how}

    def _tell(self, cell: CellPlan, message: Mapping[str, Any]) -> None:
        """Note a failure on disk, and tell the watcher."""
        failure = self._out / cell.folder / "failed.json"
        if message["kind"] == "failed" and not failure.exists():
            with contextlib.suppress(RunError), writing(failure.parent):
                failure.parent.mkdir(parents=True, exist_ok=True)
                write_json(failure, {"error": message["error"], "kind": "crash", "step": None, "layer": None})
        if self._watcher:
            self._watcher.message(cell, message)


def _record_tuning(plan: Plan, out: Path) -> dict[str, dict[str, int | float]]:
    """Choose each variant's settings from the tuning runs, and write down what was tried."""
    scores = read_scores(plan, out)
    chosen = chosen_settings(plan, out)
    if plan.tuning_cells():
        record = {v.name: tuning_record(plan, v.name, scores[v.name], chosen[v.name]) for v in plan.variants}
        write_json(out / TUNING, record)
    return chosen
