"""Read a study's run folder into plain data, and ask of every number whether it can be true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from attnlab.core.contracts import Floor
from attnlab.core.errors import RunError
from attnlab.core.files import read_json
from attnlab.studies.define.assemble import build_task
from attnlab.studies.define.study import parse, slug
from attnlab.studies.judge.results import Alarm, CellResults, StudyResults, VariantResults
from attnlab.studies.judge.tuning import choose, setting_key
from attnlab.studies.plan.plan import CellPlan, Plan, PlannedVariant, restore_plan
from attnlab.studies.run.cell import read_inside
from attnlab.studies.run.task_record import TaskRecord
from attnlab.training.keeping.runs import read_metrics
from attnlab.training.recipe.target import SECONDS_TO_TARGET
from attnlab.training.speed.settings import Setting

TUNING = "tuning.json"
"""File of a study with what tuning tried and chose."""


def load_plan(out: Path) -> Plan:
    """The plan of the study that a folder holds."""
    path = out / "study.json"
    if (out / "spec.json").exists():
        raise RunError(f"{out} is one run of a study; its report is that of the study's folder: {out.parent.parent}")
    if not path.exists():
        raise RunError(f"{out} holds no study: no study.json in it. Run one with: attnlab run STUDY --out {out}")
    saved = read_json(path)
    study = parse(saved["content"], name=saved["name"], path=Path(saved["folder"]) / "study.yaml")
    kept = saved.get("task")  # none in folders of earlier versions
    task = TaskRecord.from_json(kept) if kept else build_task(study.model_dump()["task"])
    return restore_plan(study.model_copy(update={"scale": saved["scale"]}), task, saved["variants"])


def collect(out: Path) -> StudyResults:
    """Read everything a study has found so far."""
    plan = load_plan(out)
    chosen = chosen_settings(plan, out)
    tuning = read_json(out / TUNING) if (out / TUNING).exists() else {}
    cells: dict[str, list[CellPlan]] = {variant.name: [] for variant in plan.variants}
    for cell in plan.judged_cells(chosen):
        cells[cell.variant].append(cell)
    variants = tuple(_variant(v, out, cells[v.name], tuning.get(v.name)) for v in plan.variants)
    rules = read_json(out / "rules.json")
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
        alarms=tuple(_alarms(plan, variants, rules)),
        environment=read_json(out / "environment.json") | _layout(out) | _company(plan, out, cells),
        complete=all(cell.status != "missing" for variant in variants for cell in variant.cells),
    )


def _layout(out: Path) -> dict[str, Any]:
    """How the cells shared the machine, as part of the environment."""
    path = out / "layout.json"
    if not path.exists():
        return {}
    layout = read_json(path)
    shared = f"{layout['workers']} process(es), {layout['threads']} thread(s) each; {layout['reason']}"
    return {"threads": layout["threads"], "device": layout["device"], "layout": shared}


def _company(plan: Plan, out: Path, cells: Mapping[str, list[CellPlan]]) -> dict[str, Any]:
    """Which variants' seeds trained as one program, and why others did not, as part of the environment."""
    words = []
    for variant in plan.variants:
        paths = [out / cell.folder / "result.json" for cell in cells[variant.name]]
        results = [read_json(path) for path in paths if path.exists()]
        most = max((result.get("together", 1) for result in results), default=1)
        notes = dict.fromkeys(note for result in results if (note := result.get("together_note")))
        if most > 1 or notes:
            words.append(
                ": ".join([variant.name, "; ".join([*([f"{most} seeds together"] if most > 1 else []), *notes])])
            )
    return {"trained_together": ". ".join(words)} if words else {}


def read_scores(plan: Plan, out: Path) -> dict[str, dict[str, float | None]]:
    """The tuning metric of every combination of settings, as a mean over its runs."""
    found: dict[str, dict[str, list[float | None]]] = {variant.name: {} for variant in plan.variants}
    for cell in plan.tuning_cells():
        result = out / cell.folder / "result.json"
        value = read_json(result)["metrics"].get(plan.tune_metric.name) if result.exists() else None
        found[cell.variant].setdefault(setting_key(cell.tuned), []).append(value)
    return {name: {key: _mean(values) for key, values in of.items()} for name, of in found.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of values; None where one is missing."""
    there = [value for value in values if value is not None]
    return fmean(there) if len(there) == len(values) else None


def chosen_settings(plan: Plan, out: Path) -> dict[str, dict[str, int | float]]:
    """The settings of every variant: those tuning chose, fixed once a judged run has begun with them."""
    written = read_json(out / TUNING) if (out / TUNING).exists() else {}
    begun = {v.name for v in plan.variants if any((out / slug(v.name)).glob("seed-*/spec.json"))}
    fixed = {name: record["settings"] for name, record in written.items() if name in begun}
    return choose(plan, read_scores(plan, out)) | fixed


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
    if (folder / "result.json").exists():
        result = read_json(folder / "result.json")
        inside = read_inside(folder)
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
    if (folder / "failed.json").exists():
        return CellResults(
            seed=seed,
            status="failed",
            error=read_json(folder / "failed.json")["error"],
            curve=list(read_metrics(folder)),
        )
    return CellResults(seed=seed, status="missing")


def _alarms(plan: Plan, variants: tuple[VariantResults, ...], rules: Mapping[str, Any]) -> Iterator[Alarm]:
    """Yield everything that makes a number of this study doubtful."""
    for message in plan.task.alarms():
        yield Alarm("data", None, message)
    for variant in variants:
        reached = _reach(variant)
        yield from _reach_alarms(plan, variant, reached)
        yield from _floor_alarms(plan, variant, reached)
        yield from _target_alarms(plan, variant)
        yield from _run_alarms(variant)
    yield from _setting_alarms(plan, variants)
    if rules["seeds"] == 1:
        yield Alarm("one seed", None, "the difference of two runs may be noise")
    for step in rules.get("extended", []):
        message = (
            f"seeds were extended from {step['from']} to {step['to']} after results were seen; intervals are optimistic"
        )
        yield Alarm("extended", None, message)


def _reach(variant: VariantResults) -> Mapping[str, Any]:
    """The measured reach of the first model that was looked into, or an empty mapping."""
    return next((cell.reach for cell in variant.cells if cell.reach), {})


def _reach_alarms(plan: Plan, variant: VariantResults, reached: Mapping[str, Any]) -> Iterator[Alarm]:
    if reached.get("future") and plan.task.causal:
        message = (
            f"its outputs depend on inputs up to {reached['future']} positions ahead: it sees what it should predict"
        )
        yield Alarm("causality", variant.name, message)
    if reached.get("mixes_batch"):
        message = "its outputs depend on other samples of the batch: samples see each other, its numbers mean nothing"
        yield Alarm("batch", variant.name, message)


def _floor_alarms(plan: Plan, variant: VariantResults, reached: Mapping[str, Any]) -> Iterator[Alarm]:
    """An alarm for every limit and best known result that a variant's mean beats."""
    for floor in plan.task.floors():
        values = list(variant.values(floor.metric).values())
        if not values or not _beats(plan, fmean(values), floor):
            continue
        got = f"{floor.metric} {fmean(values):.4g} {floor.unit}"
        if floor.kind == "best":
            yield Alarm(
                "best known",
                variant.name,
                f"{got} is better than the best known, {floor.name}: {floor.value:.4g}; suspect a leak",
            )
        elif floor.kind == "floor" and _applies(floor, reached):
            seen = "" if floor.reach is None else f" although its outputs depend on {reached['past']} input position(s)"
            message = f"{got} lies below the floor '{floor.name}' of {floor.value:.4g}{seen}: leak or mixing suspected"
            yield Alarm("floor", variant.name, message)


def _applies(floor: Floor, reached: Mapping[str, Any]) -> bool:
    """Whether a limit holds for a model of the measured reach."""
    return floor.reach is None or ("past" in reached and reached["past"] <= floor.reach)


def _beats(plan: Plan, value: float, floor: Floor) -> bool:
    metric = next(metric for metric in plan.task.metrics if metric.name == floor.metric)
    limit = floor.value - floor.tolerance if metric.better == "lower" else floor.value + floor.tolerance
    return metric.improves(value, limit)


def _target_alarms(plan: Plan, variant: VariantResults) -> Iterator[Alarm]:
    """An alarm for every run that used its budget and did not reach the target."""
    for name, value in (plan.study.rules.target or {}).items():
        for cell in variant.done:
            if SECONDS_TO_TARGET not in cell.metrics:
                steps = cell.curve[-1]["step"] if cell.curve else "all"
                message = f"seed {cell.seed} ends at {name} {cell.metrics[name]:.4f} after {steps} steps"
                yield Alarm("target", variant.name, f"{message}: the target of {value:g} was not reached")


def _setting_alarms(plan: Plan, variants: tuple[VariantResults, ...]) -> Iterator[Alarm]:
    """An alarm for every variant computed otherwise than the baseline, unless such times are what is compared."""
    baseline = next(variant for variant in variants if variant.name == plan.study.baseline)
    for variant in variants:
        ran = " and ".join(sorted(variant.settings))
        if len(variant.settings) > 1:
            message = (
                f"its seeds were computed in different settings ({ran}), so their times differ for that reason too"
            )
            yield Alarm("setting", variant.name, message)
        elif not plan.judges_time and variant.settings and baseline.settings and variant.settings != baseline.settings:
            theirs = " and ".join(sorted(baseline.settings))
            message = f"computed in {ran}, the baseline in {theirs}: their times compare these settings too"
            yield Alarm("setting", variant.name, message)


def _run_alarms(variant: VariantResults) -> Iterator[Alarm]:
    for cell in variant.failed:
        yield Alarm("failed", variant.name, f"seed {cell.seed} failed: {cell.error}")
    failed = list((variant.tuning or {}).get("failed", []))
    if variant.tuning and len(failed) == len(variant.tuning["scores"]):
        yield Alarm("failed", variant.name, "no tuning run finished, so nothing was tuned; no verdict")
        return
    if failed:
        message = f"tuning runs failed or missed the target, and were left out: {', '.join(failed)}"
        yield Alarm("tuning", variant.name, message)
    if variant.untuned and variant.tuning:
        setting, best = variant.tuning["setting"], variant.tuning["chosen"]
        message = f"the best {setting} tried, {best}, lies at the edge of its grid: a better one may lie outside"
        yield Alarm("untuned", variant.name, message)
