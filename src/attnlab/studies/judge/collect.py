"""Read a study's run folder into plain data."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.core.errors import RunError
from attnlab.core.files import read_json
from attnlab.studies.define.assemble import build_task
from attnlab.studies.define.study import parse_study
from attnlab.studies.judge.alarms import alarms_of
from attnlab.studies.judge.results import CellResults, StudyResults, VariantResults, looks_in
from attnlab.studies.judge.verdicts import verdicts
from attnlab.studies.plan.plan import CellPlan, Plan, PlannedVariant, restore_plan
from attnlab.studies.run.folder import ENVIRONMENT, INSIDE, RULES, STUDY
from attnlab.studies.run.layout import LAYOUT
from attnlab.studies.run.task_record import TaskRecord
from attnlab.studies.run.tuning import TUNING, chosen_settings
from attnlab.training.keeping.runs import FAILED, RESULT, SPEC, read_metrics
from attnlab.training.speed.settings import Setting


def load_plan(out: Path) -> Plan:
    """The plan of the study that a folder holds."""
    path = out / STUDY
    if (out / SPEC).exists():
        raise RunError(f"{out} is one run of a study; its report is that of the study's folder: {out.parent.parent}")
    if not path.exists():
        raise RunError(f"{out} holds no study: no {STUDY} in it. Run one with: attnlab run STUDY --out {out}")
    saved = read_json(path)
    study = parse_study(saved["content"], name=saved["name"], path=Path(saved["folder"]) / "study.yaml")
    kept = saved.get("task")  # none in folders of earlier versions
    task = TaskRecord.from_json(kept) if kept else build_task(study.model_dump()["task"])
    return restore_plan(study.model_copy(update={"scale": saved["scale"]}), task, saved["variants"])


def read_results(out: Path) -> StudyResults:
    """Read everything a study has found so far.

    Parameters
    ----------
    out : Path
        Folder of the study, finished or not.

    Returns
    -------
    StudyResults
        What its runs reached; nothing is trained and no data is needed.

    Raises
    ------
    RunError
        If the folder holds no study.
    """
    plan = load_plan(out)
    return collect(plan, judged_so_far(plan, chosen_settings(plan, out), out), out)


def judged_so_far(plan: Plan, chosen: Mapping[str, Mapping[str, int | float]], out: Path) -> list[CellPlan]:
    """The runs that the rules ask for, by what is known so far: more seeds of what the looks until now left open."""
    rules = read_json(out / RULES)
    looks = looks_in(rules, len(plan.variants) - 1)
    tuning = read_json(out / TUNING) if (out / TUNING).exists() else {}
    untuned = {name for name, record in tuning.items() if record["at_edge"]}
    counts = {variant.name: looks[0].seeds for variant in plan.variants}
    for look, following in itertools.pairwise(looks):
        runs = _settled(plan, plan.judged_cells(chosen, counts), out)
        if any(len(runs[name]) < count for name, count in counts.items()):
            break
        found = verdicts(
            runs,
            plan.study.baseline,
            metric=plan.metric,
            smallest_effect=plan.study.rules.smallest_effect,
            looks=looks,
            confidence=plan.study.rules.confidence,
            untuned=untuned,
            advise=False,
        )
        unsettled = {one.variant for one in found if not one.settled and one.look == look.seeds}
        if not unsettled:
            break
        counts |= dict.fromkeys((plan.study.baseline, *sorted(unsettled)), following.seeds)
    return plan.judged_cells(chosen, counts)


def _settled(plan: Plan, cells: Sequence[CellPlan], out: Path) -> dict[str, dict[int, float | None]]:
    """The metric of the cells that ended, by variant and seed; None for those that failed."""
    runs: dict[str, dict[int, float | None]] = {variant.name: {} for variant in plan.variants}
    for cell in cells:
        folder = out / cell.folder
        if (folder / RESULT).exists():
            runs[cell.variant][cell.seed] = read_json(folder / RESULT)["metrics"].get(plan.metric.name)
        elif (folder / FAILED).exists():
            runs[cell.variant][cell.seed] = None
    return runs


def collect(plan: Plan, judged: Sequence[CellPlan], out: Path) -> StudyResults:
    """What a study of which plan and judged cells are at hand has found so far."""
    tuning = read_json(out / TUNING) if (out / TUNING).exists() else {}
    cells: dict[str, list[CellPlan]] = {variant.name: [] for variant in plan.variants}
    for cell in judged:
        cells[cell.variant].append(cell)
    variants = tuple(_variant(v, out, cells[v.name], tuning.get(v.name)) for v in plan.variants)
    rules = read_json(out / RULES)
    return StudyResults(
        study=plan.study.name,
        question=plan.study.question,
        task={"name": plan.task.name, **plan.task.describe()},
        metric=plan.metric,
        metrics=plan.metrics,
        floors=plan.task.floors(),
        rules=rules,
        baseline=plan.study.baseline,
        scale=plan.study.scale,
        variants=variants,
        alarms=tuple(alarms_of(plan, variants, rules)),
        environment=read_json(out / ENVIRONMENT) | _layout(out) | _company(plan, out, cells),
        complete=all(cell.status != "missing" for variant in variants for cell in variant.cells),
    )


def _layout(out: Path) -> dict[str, Any]:
    """How the cells shared the machine, as part of the environment."""
    path = out / LAYOUT
    if not path.exists():
        return {}
    layout = read_json(path)
    shared = f"{layout['workers']} process(es), {layout['threads']} thread(s) each; {layout['reason']}"
    return {"threads": layout["threads"], "device": layout["device"], "layout": shared}


def _company(plan: Plan, out: Path, cells: Mapping[str, list[CellPlan]]) -> dict[str, Any]:
    """Which variants' seeds trained as one program, and why others did not, as part of the environment."""
    words = []
    for variant in plan.variants:
        paths = [out / cell.folder / RESULT for cell in cells[variant.name]]
        results = [read_json(path) for path in paths if path.exists()]
        most = max((result.get("together", 1) for result in results), default=1)
        notes = dict.fromkeys(note for result in results if (note := result.get("together_note")))
        if most > 1 or notes:
            words.append(
                ": ".join([variant.name, "; ".join([*([f"{most} seeds together"] if most > 1 else []), *notes])])
            )
    return {"trained_together": ". ".join(words)} if words else {}


def _variant(
    planned: PlannedVariant, out: Path, cells: list[CellPlan], tuning: Mapping[str, Any] | None
) -> VariantResults:
    run = cells[0].spec
    return VariantResults(
        name=planned.name,
        spec={"task": run["task"], "model": run["model"], "training": run["recipe"]},
        parameters=planned.parameters,
        flops_per_token=planned.flops_per_token,
        activation_bytes=planned.activation_bytes,
        notes=planned.notes,
        tuning=tuning,
        cells=tuple(_cell(out / cell.folder, cell.seed) for cell in cells),
    )


def _cell(folder: Path, seed: int) -> CellResults:
    if (folder / RESULT).exists():
        result = read_json(folder / RESULT)
        inside = read_json(folder / INSIDE) if (folder / INSIDE).exists() else {}
        return CellResults(
            seed=seed,
            status="done",
            metrics=result["metrics"],
            seconds=result["seconds"],
            setting=str(Setting(result["precision"], result["compiled"])),
            curve=list(read_metrics(folder)),
            predictions=inside.get("predictions"),
            attention=inside.get("attention"),
            reach=inside.get("reach"),
        )
    if (folder / FAILED).exists():
        error = read_json(folder / FAILED)["error"]
        return CellResults(seed=seed, status="failed", error=error, curve=list(read_metrics(folder)))
    return CellResults(seed=seed, status="missing")
