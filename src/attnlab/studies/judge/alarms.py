"""Alarms: every number of a study is asked whether it can be true, and whether it compares what it seems to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from attnlab.core.contracts import Floor
from attnlab.studies.judge.results import Alarm, VariantResults
from attnlab.studies.judge.statistics import two_groups
from attnlab.studies.plan.plan import SEES_AHEAD, Plan
from attnlab.training.recipe.target import is_reached

FAR = 0.25
"""Part of the lowest loss that n-grams reach below which a result looks like a leak. The best known result on
tinyshakespeare is nine tenths of it."""

WIDE = 10.0
"""How many times the smallest effect of interest seeds must differ before a study cannot answer its question."""


def alarms_of(plan: Plan, variants: tuple[VariantResults, ...], rules: Mapping[str, Any]) -> Iterator[Alarm]:
    """Yield everything that makes a number of this study doubtful."""
    for message in plan.task.alarms():
        yield Alarm("data", None, message)
    believed = []
    for variant in variants:
        doubts = doubts_about(plan, variant)
        yield from doubts
        believed += [] if doubts else [variant]
        yield from _target_alarms(plan, variant)
        yield from _run_alarms(variant)
        yield from _tuned_by_luck(variant)
        yield from _groups(plan, variant)
    yield from _setting_alarms(plan, variants)
    yield from _unlearned(plan, believed)
    yield from _spread(plan, variants)
    if "levels" not in rules:
        message = (
            "the rules are of an earlier version: they are judged here by one look, with intervals that hold together, "
            "and nothing shows whether records in the folder were changed"
        )
        yield Alarm("earlier rules", None, message)
    if plan.study.rules.looks[-1] == 1:
        yield Alarm("one seed", None, "the difference of two runs may be noise")
    for step in rules.get("extended", []):
        message = (
            f"seeds were extended from {step['from']} to {step['to']} after results were seen; intervals are optimistic"
        )
        yield Alarm("extended", None, message)


def doubts_about(plan: Plan, variant: VariantResults) -> list[Alarm]:
    """Why the numbers of a variant cannot be true, by its own runs alone."""
    reached = _reach(plan, variant)
    return [
        *_reach_alarms(plan, variant.name, reached),
        *_floor_alarms(plan, variant, reached),
        *_far_alarms(plan, variant),
    ]


def alarms_before(plan: Plan) -> list[Alarm]:
    """What is doubtful before anything is trained: about the data, and about variants that see ahead already."""
    found = [Alarm("data", None, message) for message in plan.task.alarms()]
    for variant in plan.variants:
        ahead = list(_reach_alarms(plan, variant.name, variant.reach or {}))
        if plan.task.causal and not ahead:  # what a module does may not be heard yet, as behind a gate
            ahead = [Alarm("causality", variant.name, note) for note in variant.notes if note.startswith(SEES_AHEAD)]
        found += ahead
    return found


def _reach(plan: Plan, variant: VariantResults) -> Mapping[str, Any]:
    """The measured reach: the farthest before training and of the first trained model that was looked into."""
    trained = next((cell.reach for cell in variant.cells if cell.reach), {})
    before = plan.variant(variant.name).reach or {}
    reached = {key: max(one[key] for one in (before, trained) if key in one) for key in {*before, *trained}}
    said = variant.spec["task"]
    own = said.get("context") if isinstance(said, Mapping) else None
    window = own or plan.task.describe().get("context")  # positions that a variant is shown at once
    return reached if window is None else reached | {"past": min(window, reached.get("past", window))}


def _reach_alarms(plan: Plan, variant: str, reached: Mapping[str, Any]) -> Iterator[Alarm]:
    ahead = reached.get("future", 0)
    if ahead and plan.task.causal:
        far = f"{ahead} position{'' if ahead == 1 else 's'}"
        message = f"its outputs depend on inputs up to {far} ahead: it sees what it should predict"
        yield Alarm("causality", variant, message)
    if reached.get("mixes_batch"):
        message = "its outputs depend on other samples of the batch: samples see each other, its numbers mean nothing"
        yield Alarm("batch", variant, message)


def _floor_alarms(plan: Plan, variant: VariantResults, reached: Mapping[str, Any]) -> Iterator[Alarm]:
    """An alarm for every limit and best known result that a variant's mean beats; one result has one, in any unit."""
    known: set[str] = set()
    for floor in plan.task.floors():
        values = _beside_floors(plan, variant, floor.metric)
        if not values or floor.name in known or not _beats(plan, fmean(values), floor):
            continue
        got = f"{floor.metric} {fmean(values):.4g} {floor.unit}"
        if floor.kind == "best":
            known.add(floor.name)
            yield Alarm(
                "best known",
                variant.name,
                f"{got} is better than the best known, {floor.name}: {floor.value:.4g}; suspect a leak",
            )
        elif floor.kind == "floor" and _applies(floor, reached):
            seen = "" if floor.reach is None else f" although its outputs depend on {reached['past']} input position(s)"
            message = f"{got} lies below the floor '{floor.name}' of {floor.value:.4g}{seen}: leak or mixing suspected"
            yield Alarm("floor", variant.name, message)


def _far_alarms(plan: Plan, variant: VariantResults) -> Iterator[Alarm]:
    """An alarm for every loss that lies far below what counts of the training part reach, however much they see.

    None where the task states a limit for every model: that is held against instead.
    """
    if any(floor.kind == "floor" and floor.reach is None for floor in plan.task.floors()):
        return
    for metric in (one for one in plan.task.metrics if one.better == "lower"):
        values = _beside_floors(plan, variant, metric.name)
        counted = [floor for floor in plan.task.floors() if (floor.metric, floor.kind) == (metric.name, "floor")]
        lowest = min((floor for floor in counted if floor.reach is not None), key=lambda one: one.value, default=None)
        if values and lowest and fmean(values) < FAR * (lowest.value - lowest.tolerance):
            message = (
                f"{metric.name} {fmean(values):.4g} {metric.unit} is less than a quarter of what counts reach at best "
                f"({lowest.name}: {lowest.value:.4g}): does it see what it should predict, or has it seen it before?"
            )
            yield Alarm("floor", variant.name, message)


def _beside_floors(plan: Plan, variant: VariantResults, metric: str) -> list[float]:
    """The values that floors may be held against: where every run draws its data, floors are those of seed 0's."""
    values = variant.values(metric)
    return [value for seed, value in values.items() if plan.study.rules.split is None or seed == 0]


def _applies(floor: Floor, reached: Mapping[str, Any]) -> bool:
    """Whether a limit holds for a model of the measured reach."""
    return floor.reach is None or ("past" in reached and reached["past"] <= floor.reach)


def _beats(plan: Plan, value: float, floor: Floor) -> bool:
    metric = next(metric for metric in plan.metrics if metric.name == floor.metric)
    limit = floor.value - floor.tolerance if metric.better == "lower" else floor.value + floor.tolerance
    return metric.improves(value, limit)


def _unlearned(plan: Plan, variants: Sequence[VariantResults]) -> Iterator[Alarm]:
    """An alarm where no variant is better than what needs no context, or one position of it."""
    metric = plan.metric
    values = [of for variant in variants if (of := _beside_floors(plan, variant, metric.name))]
    if not values:
        return
    best = (min if metric.better == "lower" else max)(fmean(of) for of in values)
    unbeaten = [
        floor
        for floor in plan.task.floors()
        if floor.metric == metric.name
        and _is_simple(floor, [_reach(plan, variant) for variant in variants])
        and not metric.improves(best, floor.value)
    ]
    if unbeaten:
        floor = (max if metric.better == "lower" else min)(unbeaten, key=lambda one: one.value)
        message = (
            f"no variant is better than {floor.name}: {best:.4g} against {floor.value:.4g} {floor.unit}; what is "
            "compared has not learned the task, and may rank otherwise once it has"
        )
        yield Alarm("not learned", None, message)


def _is_simple(floor: Floor, reaches: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a network that sees all it might must reach a value: chance, what needs none, counts of one position."""
    if floor.reach is None:
        return floor.kind in ("chance", "simple")
    return floor.reach <= 1 and not all(_applies(floor, reached) for reached in reaches)


def _spread(plan: Plan, variants: tuple[VariantResults, ...]) -> Iterator[Alarm]:
    """An alarm where seeds lie much farther apart than what is asked for."""
    smallest = plan.study.rules.smallest_effect
    values = {variant.name: list(variant.values(plan.metric.name).values()) for variant in variants}
    spreads = {name: stdev(of) for name, of in values.items() if len(of) > 2}
    wide = {name: sd for name, sd in spreads.items() if smallest and sd >= WIDE * smallest}
    if wide:
        most = max(wide.values())
        message = (
            f"seeds have a standard deviation of up to {most:.2g} {plan.metric.unit}, {most / smallest:.0f} times the "
            f"smallest effect of interest, which is too much to see such effects: {', '.join(wide)}"
        )
        yield Alarm("spread", None, message)


def _tuned_by_luck(variant: VariantResults) -> Iterator[Alarm]:
    """An alarm where one run chose among settings that lie no farther apart than seeds do."""
    tuning = variant.tuning or {}
    chosen, scores = tuning.get("chosen"), tuning.get("scores", {})
    seeds = list(variant.values(tuning.get("metric", "")).values())
    if len(seeds) < 3 or scores.get(chosen) is None or tuning.get("runs", {}).get(chosen) != 1:
        return
    others = {key: score for key, score in scores.items() if score is not None and key != chosen}
    near = [key for key, score in others.items() if abs(score - scores[chosen]) < stdev(seeds)]
    if near:
        message = (
            f"one run chose {tuning['setting']} {chosen}, and {', '.join(near)} came within a standard deviation of "
            "seeds: luck may have chosen; tune_again or tune_seeds would say"
        )
        yield Alarm("tuning", variant.name, message)


def _groups(plan: Plan, variant: VariantResults) -> Iterator[Alarm]:
    """An alarm where some seeds of a variant arrive somewhere else than the others."""
    found = two_groups(variant.finite(plan.metric.name))
    if found:
        told = " and ".join(f"{len(group)} around {fmean(group):.4g}" for group in found)
        message = f"its {sum(map(len, found))} seeds fall into two groups, {told}: their mean describes neither"
        yield Alarm("groups", variant.name, message)


def _target_alarms(plan: Plan, variant: VariantResults) -> Iterator[Alarm]:
    """An alarm for every run that did not reach the target with its budget."""
    target = plan.study.rules.target or {}
    for name, value in target.items():
        for cell in variant.done:
            if not is_reached(target, plan.metrics, cell.metrics):
                steps = cell.steps or (cell.curve[-1]["step"] if cell.curve else "all")
                reached = f"{cell.metrics[name]:.4f}" if name in cell.metrics else "that nobody measured"
                message = f"seed {cell.seed} ends at {name} {reached} after {steps} steps"
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
    for error in dict.fromkeys(cell.error for cell in variant.failed):
        seeds = [str(cell.seed) for cell in variant.failed if cell.error == error]
        yield Alarm("failed", variant.name, f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)} failed: {error}")
    failed = list((variant.tuning or {}).get("failed", []))
    if variant.tuning and len(failed) == len(variant.tuning["scores"]):
        yield Alarm("failed", variant.name, "no tuning run finished or reached the target: no verdict")
        return
    if failed:
        message = f"tuning runs failed or missed the target, and were left out: {', '.join(failed)}"
        yield Alarm("tuning", variant.name, message)
    if variant.untuned and variant.tuning:
        setting, best = variant.tuning["setting"], variant.tuning["chosen"]
        message = f"the best {setting} tried, {best}, lies at the edge of its grid: a better one may lie outside"
        yield Alarm("untuned", variant.name, message)
