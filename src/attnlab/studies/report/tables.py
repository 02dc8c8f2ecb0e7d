"""The tables of a report, numbers as text: the same for every form that it is written in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, final

from attnlab.studies.judge.results import StudyResults, VariantResults
from attnlab.studies.judge.statistics import Comparison
from attnlab.studies.judge.verdicts import Verdict
from attnlab.studies.report import numbers, words

PLAIN = "float32"
"""How steps are computed where a recipe says nothing."""
NOT_SET = "not set"
"""Value of a setting that the baseline has and a variant leaves to its default."""


def facts(results: StudyResults) -> list[str]:
    """The few facts that stand below the answer."""
    budget = results.rules.get("budget") or {}
    variants = len(results.variants)
    counts = sorted({len(variant.cells) for variant in results.variants}) or [0]
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    settings = {setting for variant in results.variants for setting in variant.settings}
    charted = len(results.charted)
    return [
        f"task {results.task.get('name', '')}".strip(),
        f"{variants} variant{'' if variants == 1 else 's'} \u00d7 {seeds} seed{'' if seeds == '1' else 's'}",
        *(f"{numbers.amount(float(amount), unit)} each" for unit, amount in budget.items()),
        *([f"scale {results.scale}"] if results.scale else []),
        *(f"computed in {setting}" for setting in settings if len(settings) == 1 and setting != PLAIN),
        *([f"charts show the baseline and the {charted - 1} best"] if charted < variants else []),
    ]


def failed_runs(results: StudyResults) -> list[tuple[str, int, str]]:
    """Variant, seed and error of every cell that stopped."""
    return [
        (variant.name, cell.seed, cell.error or "no reason was recorded")
        for variant in results.variants
        for cell in variant.failed
    ]


def verdicts(results: StudyResults) -> list[dict[str, Any]]:
    """The rows of the verdict table in the order of the study, numbers as text; one for each comparison."""
    alarmed = {alarm.variant for alarm in words.alarms(results)}
    return [
        _row(results, place, variant, one) | {"alarmed": variant.name in alarmed}
        for place, variant in enumerate(results.variants, start=1)
        for one in results.concluded(variant.name) or (None,)
    ]


def _reason(results: StudyResults, one: Verdict) -> str:
    """Why a verdict is what it is, and at which look it was drawn or what it would cost to draw one."""
    if one.verdict in ("better", "worse", "equivalent"):
        return f"{one.reason}; decided after {one.look} seeds{words.claimed(results, one.variant)}"
    price = words.price(results, one)
    return (f"{one.reason}: {price} of training" if price else one.reason) + words.claimed(results, one.variant)


def _row(results: StudyResults, place: int, variant: VariantResults, one: Verdict | None) -> dict[str, Any]:
    verdict, reason = (one.verdict, _reason(results, one)) if one else words.not_judged(results, variant)
    return {
        "number": place,
        "name": words.title(results, one) if one else variant.name,
        "verdict": verdict,
        "reason": reason,
        "difference": words.difference(one.comparison) if one else "",
        "interval": words.interval(one.comparison) if one else "",
        "median": _median(one.comparison) if one else "",
        "chance": _chance(one.comparison) if one else "",
        "p": numbers.number(one.p_adjusted, 2) if one else "",
        "reached": numbers.spread(variant.finite(results.metric.name)),
        "seeds": f"{len(variant.done)} of {len(variant.cells)}",
        "parameters": numbers.number(variant.parameters, 12),
        "flops": numbers.flops(variant.flops_per_token),
        "memory": numbers.size(variant.activation_bytes),
        "seconds": numbers.duration(words.mean_seconds(variant)),
    }


def _median(one: Comparison) -> str:
    """The median of the differences, signed, with the decimals of their mean."""
    return "" if one.median is None else numbers.fixed(one.median, words.places_of(one), sign=True)


def _chance(one: Comparison) -> str:
    """The chance that a run is better than one of what it is compared with."""
    return "" if one.better_share is None else numbers.percent(round(one.better_share, 3))


@final
@dataclass(frozen=True)
class Specification:
    """Hold what was set of a variant."""

    name: str  # of the variant
    rows: list[tuple[str, str]]
    """Dotted key and value as text: all of the baseline; of others those that differ from it."""
    notes: tuple[str, ...]  # what planning chose or corrected


def specifications(results: StudyResults) -> list[Specification]:
    """What was set of each variant."""
    baseline = results.variant(results.baseline)
    usual = dict(words.flat(baseline.spec))
    found = [Specification(baseline.name, list(usual.items()), baseline.notes)]
    for variant in results.variants:
        if variant.name != results.baseline:
            own = dict(words.flat(variant.spec))
            rows = [(key, own.get(key, NOT_SET)) for key in usual | own if own.get(key) != usual.get(key)]
            found.append(Specification(variant.name, rows, variant.notes))
    return found


def tuning(results: StudyResults) -> list[dict[str, Any]]:
    """What was tried for each variant, and what was chosen."""
    return [
        {
            "name": variant.name,
            "setting": f"{variant.tuning['setting']} by {variant.tuning['metric']}",
            "tried": [(value, _tried(variant.tuning, value)) for value in variant.tuning["scores"]],
            "chosen": _chosen(variant.tuning),
            "at_edge": variant.untuned,
        }
        for variant in results.variants
        if variant.tuning
    ]


def _tried(tuning: Mapping[str, Any], value: str) -> str:
    """What a tried value reached, and of how many runs that is the mean."""
    runs = tuning.get("runs", {}).get(value, tuning.get("seeds", 1))  # earlier versions had the same number for all
    return numbers.number(tuning["scores"][value]) + (f" ({runs} runs)" if runs > 1 else "")


def _chosen(tuning: Mapping[str, Any]) -> str:
    """The value that is used, and those within the grid that are as good where it lies at the edge."""
    as_good = tuning.get("as_good", [])
    return tuning["chosen"] + (f" (as good: {', '.join(as_good)})" if as_good else "")


def seeds(results: StudyResults) -> list[tuple[str, list[str]]]:
    """For every variant the metric of each seed, as text."""
    metric = results.metric.name
    return [
        (
            variant.name,
            [
                numbers.number(cell.metrics.get(metric)) if cell.status == "done" else cell.status
                for cell in variant.cells
            ],
        )
        for variant in results.variants
    ]


def floors(results: StudyResults) -> list[tuple[str, str, str, str]]:
    """Name, value with unit, metric and source of the reference values."""
    of = " (for the data of seed 0)" if results.draws_data else ""
    return [
        (floor.name, f"{numbers.number(floor.value)} {floor.unit}", floor.metric, floor.source + of)
        for floor in results.floors
    ]


TRAINED = "FLOPs of training"
"""Title of what a whole run takes, by what a token takes, of the model alone."""
WRITTEN = "sentences written a second"
"""Title of how fast a model translates or parses what it is judged by."""


def measures(results: StudyResults) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """What else was measured, beside what the verdicts are about."""
    columns = [
        (
            f"{metric.name} ({metric.unit})" if metric.unit else metric.name,
            [numbers.spread(one.finite(metric.name)) for one in results.variants],
        )
        for metric in results.metrics
        if metric.name != results.metric.name
    ]
    if any(one.training_flops for one in results.variants):
        columns.append((TRAINED, [numbers.flops(one.training_flops) for one in results.variants]))
    if any(one.written_per_second for one in results.variants):
        columns.append((WRITTEN, [numbers.spread(one.written_per_second) for one in results.variants]))
    rows = [(one.name, [cells[place] for _, cells in columns]) for place, one in enumerate(results.variants)]
    return [title for title, _ in columns], rows


RANKS = (
    "Effective ranks, means over all heads of one held-out sequence and one seed: how many directions scores and "
    "weights use. Scores that are products of queries and keys have no larger rank than heads are wide; a softmax "
    "raises it. No verdict rests on them."
)
"""How to read the table of ranks."""


def ranks(results: StudyResults) -> list[tuple[str, str, str, str, str]]:
    """Variant, width of a head, mean ranks of scores and weights, and of the weights the part of the largest rank."""
    layers = {variant.name: (variant.attention or {}).get("layers", ()) for variant in results.variants}
    found = {name: [layer["rank"] for layer in some if "rank" in layer] for name, some in layers.items()}
    return [_ranks(name, some) for name, some in found.items() if some]


def _ranks(name: str, found: Sequence[Mapping[str, Any]]) -> tuple[str, str, str, str, str]:
    widths = sorted({one["d_head"] for one in found if one["d_head"]})
    scores = [value for one in found for value in one["scores"] or () if value is not None]
    of = [(value, one["length"]) for one in found for value in one["weights"] if value is not None]
    return (
        name,
        ", ".join(map(str, widths)),
        numbers.number(fmean(scores), 3) if scores else "",
        numbers.number(fmean(value for value, _ in of), 3) if of else "",
        numbers.percent(round(fmean(value / length for value, length in of), 3)) if of else "",
    )
