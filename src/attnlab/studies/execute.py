"""Run a study: rules to disk, tuning, judged runs, report. The same command goes on where it stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from attnlab.errors import RunError, SpecError
from attnlab.studies.cell import is_done
from attnlab.studies.collect import TUNING, chosen_settings, collect, read_scores
from attnlab.studies.plan import CellPlan, Plan, make_plan
from attnlab.studies.pool import OnMessage, Pool
from attnlab.studies.results import StudyResults
from attnlab.studies.study import OWN_FILES, Study
from attnlab.studies.tuning import tuning_record
from attnlab.training.atomic import read_json, write_json, writing
from attnlab.training.environment import environment, usable_cores
from attnlab.training.runs import lock

RULES = "rules.json"
STUDY = "study.json"
LAYOUT = "layout.json"
WORKERS_LOG = "workers.log"
_PREFIX = {"content": "", "files": "file", "scale": "scale"}


class Watcher(Protocol):
    """What a study tells whoever watches it."""

    def phase(self, title: str, cells: Sequence[CellPlan], done: int) -> None:
        """Say that a phase begins, with the cells still to run and the number already done."""
        ...

    def message(self, cell: CellPlan, message: Mapping[str, Any]) -> None:
        """Pass on one message about a cell."""
        ...


@dataclass(frozen=True)
class Layout:
    """Say how cells share the machine: worker processes, threads of each, device, and why.

    Parameters
    ----------
    workers : int
        Number of processes.
    threads : int
        Threads of each.
    device : str
        ``cpu`` or ``cuda``.
    reason : str
        Why, in words.
    """

    workers: int
    threads: int
    device: str
    reason: str


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
    with lock(out):
        prepare(plan, out)
        layout = _layout(plan, out, device, jobs)
        with _pool(plan, out, layout) as pool:
            how = {"threads": layout.threads, "device": layout.device, "tensorboard": tensorboard}
            _run_phase("tuning", plan.tuning_cells(), pool=pool, out=out, how=how, watcher=watcher)
            chosen = _record_tuning(plan, out)
            _run_phase("judged runs", plan.judged_cells(chosen), pool=pool, out=out, how=how, watcher=watcher)
    return collect(out, plan)


def _check_machine(device: str, jobs: int | None) -> None:
    """Raise a `SpecError` where the machine cannot do what is asked for."""
    import torch

    if device not in ("auto", "cpu", "cuda"):
        raise SpecError(f"--device must be auto, cpu or cuda; got '{device}'")
    if device == "cuda" and not torch.cuda.is_available():
        raise SpecError("--device cuda: torch finds no CUDA device here; use cpu")
    if jobs is not None and jobs < 1:
        raise SpecError(f"--jobs must be at least 1; got {jobs}")


def prepare(plan: Plan, out: Path) -> None:
    """Write study and rules before the first step, or check that they are those already written.

    Parameters
    ----------
    plan : Plan
        The plan.
    out : Path
        Folder of the study.

    Raises
    ------
    RunError
        If the folder belongs to another study. More seeds are allowed, and recorded.
    """
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
    return {**record, "files": study.files(), "data": plan.data(), "variants": variants}


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
    """Return the dotted keys in which two nested mappings differ."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [path]
    keys = sorted(set(one) | set(other))
    return [found for key in keys for found in _difference(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _layout(plan: Plan, out: Path, device: str, jobs: int | None) -> Layout:
    """Return how cells share the machine: as before where the study has begun, else measured."""
    import torch

    if (out / LAYOUT).exists():
        saved = read_json(out / LAYOUT)
        if device not in ("auto", saved["device"]):
            raise RunError(f"{out} was begun on {saved['device']}; go on there, or choose another folder with --out")
        workers = jobs or max(1, min(saved["workers"], usable_cores() // saved["threads"]))
        return Layout(workers, saved["threads"], saved["device"], "as when the study began")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    layout = _new_layout(plan, out, device, jobs)
    write_json(out / LAYOUT, asdict(layout))
    return layout


def _new_layout(plan: Plan, out: Path, device: str, jobs: int | None) -> Layout:
    if device != "cpu":
        return Layout(1, usable_cores(), device, "one process on the accelerator")
    if jobs:
        return Layout(jobs, max(1, usable_cores() // jobs), device, "asked for")
    cells = len(plan.tuning_cells()) or len(plan.variants) * plan.study.rules.seeds
    workers = min(usable_cores(), cells)
    if workers == 1:
        return Layout(1, usable_cores(), device, "one cell at a time")
    return _measure_layout(plan, out, workers)


def _measure_layout(plan: Plan, out: Path, workers: int) -> Layout:
    """Time the baseline's training step in parallel single-threaded processes and in one that has all cores."""
    cells = plan.judged_cells({name: {} for name in plan.study.variants})
    cell = next(cell for cell in cells if cell.variant == plan.study.baseline)
    request = {"do": "time", "spec": cell.spec, "threads": 1}
    threads = usable_cores()
    with Pool(workers, 1, out / WORKERS_LOG) as pool:
        pool.run([request] * workers)  # the second time all of them are awake, so that they do share the machine
        answers = pool.run([request] * workers)
    with Pool(1, threads, out / WORKERS_LOG) as pool:
        answers += pool.run([{**request, "threads": threads}])
    times = [float(answer["seconds"]) for answer in answers if "seconds" in answer]
    if len(times) < len(answers):
        return Layout(workers, 1, "cpu", "not measured: a timing run failed")
    apart, alone = max(times[:-1]) / workers, times[-1]
    reason = f"measured: {1e3 * apart:.1f} ms a step as {workers} x 1 thread, {1e3 * alone:.1f} ms as 1 x {threads}"
    return Layout(workers, 1, "cpu", reason) if apart <= alone else Layout(1, threads, "cpu", reason)


def _pool(plan: Plan, out: Path, layout: Layout) -> contextlib.AbstractContextManager[Pool | None]:
    """Return the worker processes, or none where nothing is left to run."""
    if _todo_anything(plan, out):
        return Pool(layout.workers, layout.threads, out / WORKERS_LOG)
    return contextlib.nullcontext()


def _todo_anything(plan: Plan, out: Path) -> bool:
    """Return whether any cell needs a worker."""
    if _missing(plan.tuning_cells(), out):
        return True
    chosen = chosen_settings(plan, out)
    return bool(_missing(plan.judged_cells(chosen), out))


def _missing(cells: Sequence[CellPlan], out: Path) -> list[CellPlan]:
    return [cell for cell in cells if not is_done(out / cell.folder, cell.spec)]


def _run_phase(
    title: str,
    cells: Sequence[CellPlan],
    *,
    pool: Pool | None,
    out: Path,
    how: Mapping[str, Any],
    watcher: Watcher | None,
) -> None:
    """Run the cells of one phase that are not done; a failed one is tried again by the same command."""
    missing = _missing(cells, out)
    if not missing or pool is None:
        return
    if watcher:
        watcher.phase(title, missing, len(cells) - len(missing))
    requests = [{"do": "run", "folder": str(out / cell.folder), "spec": cell.spec, **how} for cell in missing]
    pool.run(requests, _teller(missing, out, watcher))


def _teller(cells: Sequence[CellPlan], out: Path, watcher: Watcher | None) -> OnMessage:
    """Return what notes failures on disk and tells the watcher."""

    def tell(index: int, message: Mapping[str, Any]) -> None:
        cell = cells[index]
        failure = out / cell.folder / "failed.json"
        if message["kind"] == "failed" and not failure.exists():
            with contextlib.suppress(RunError), writing(failure.parent):
                failure.parent.mkdir(parents=True, exist_ok=True)
                write_json(failure, {"error": message["error"], "kind": "crash", "step": None, "layer": None})
        if watcher:
            watcher.message(cell, message)

    return tell


def _record_tuning(plan: Plan, out: Path) -> dict[str, dict[str, int | float]]:
    """Choose each variant's settings from the tuning runs, and write down what was tried."""
    scores = read_scores(plan, out)
    chosen = chosen_settings(plan, out)
    if plan.tuning_cells():
        record = {v.name: tuning_record(plan, v.name, scores[v.name], chosen[v.name]) for v in plan.variants}
        write_json(out / TUNING, record)
    return chosen
