"""The two charts a verdict is read from: effects with intervals, and quality against cost."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from attnlab.core.contracts import Metric
from attnlab.studies.judge.results import MOST_SEEDS, StudyResults, VariantResults
from attnlab.studies.judge.verdicts import Verdict
from attnlab.studies.report import numbers, words
from attnlab.studies.report.span import Span, beside, number_format, span_of
from attnlab.studies.report.style import BAND, GRID, INK, MUTED, NORMAL, PAPER, SMALL, VERDICT_COLORS, data_of, label

EFFECT_WIDTH, ROW_HEIGHT, LABEL_LINES, LINE_HEIGHT = 430, 40, 3, 15
SEEDS_BELOW = 11
"""How far below its interval the single seeds of a row stand, in px."""
BESIDE = 40
"""Room between the axis and the words at either side, in px: seeds beyond the axis are counted there."""
PANEL_WIDTH, PANEL_HEIGHT = 250, 250
OUTLYING = 8.0
"""How many times the median effect the largest must be before the axis is compressed."""
OPEN = ("undecided", "exploratory")
"""What is drawn hollow: nothing is concluded of it."""
POINT_SIZE = 19.0
"""Diameter of a numbered point in px."""
SPREAD_FOR_LOG = 5.0
"""Ratio of largest to smallest cost from which a logarithmic axis shows more."""
CURVED_FOR_LOG = 30.0
"""The same for a metric: a loss that falls from 4 to 1.5 stays on a linear axis."""


def effects(results: StudyResults) -> Any | None:
    """The chart of effects: the difference of each comparison with its interval; None where there is no difference."""
    import altair as alt

    if all(one.comparison.difference is None for one in results.verdicts):
        return None
    rows, domain, middle = _effect_rows(results)
    labels = {row["title"]: label(row["title"], most=LABEL_LINES) for row in rows}
    height = max(ROW_HEIGHT, *(LINE_HEIGHT * (text.count("\n") + 2) for text in labels.values()), 0)
    y = _rows_axis(alt, labels)
    base = alt.Chart(data_of(rows)).encode(y=y)
    scale, axis = _effect_scale(alt, domain, middle, results.metric)
    x = alt.X("difference:Q", scale=scale, axis=axis)
    color = _verdict_color(alt)
    seeds = _seed_rows(results, rows)
    within = [seed for seed in seeds if domain[0] <= seed["value"] <= domain[1]]
    layers = [
        *_band(alt, results, scale),
        alt.Chart(data_of([{"zero": 0}])).mark_rule(color=INK, strokeWidth=1).encode(x=alt.X("zero:Q", scale=scale)),
        alt.Chart(data_of(within))
        .mark_circle(size=16, opacity=0.45, yOffset=SEEDS_BELOW)
        .encode(x=alt.X("value:Q", scale=scale), y=y, color=color),
        *_beyond(alt, seeds, domain, y, color),
        base.mark_rule(strokeWidth=2.5).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", color=color),
        base.transform_filter("datum.decided").mark_point(size=95, filled=True, opacity=1).encode(x=x, color=color),
        base.transform_filter("!datum.decided")
        .mark_point(size=85, filled=True, fill=PAPER, opacity=1, strokeWidth=2)
        .encode(x=x, stroke=color),
        base.mark_text(align="left", fontSize=NORMAL, fontWeight="bold", dy=-8).encode(
            x=alt.value(EFFECT_WIDTH + BESIDE), text="verdict:N", color=color
        ),
        base.mark_text(align="left", color=MUTED, dy=9).encode(x=alt.value(EFFECT_WIDTH + BESIDE), text="measured:N"),
        *_directions(alt, results.metric),
    ]
    return alt.layer(*layers).properties(width=EFFECT_WIDTH, height=height * len(rows))


def _effect_rows(results: StudyResults) -> tuple[list[dict[str, Any]], list[float], float]:
    """The rows of the chart of effects, the range of its axis, and what compresses it, as `_effect_domain` has it."""
    drawn = {variant.name for variant in results.charted}
    found = tuple(one for one in (*results.verdicts, *results.exploratory) if one.variant in drawn)
    rows = [_effect_row(results, one) for one in _ranked(found, results.metric)]
    return rows, *_effect_domain(rows, results.smallest_effect)


def _ranked(found: tuple[Verdict, ...], metric: Metric) -> list[Verdict]:
    """Verdicts from the largest improvement to the largest loss; those without a number last."""
    sign = 1 if metric.better == "lower" else -1

    def place(one: Verdict) -> float:
        return math.inf if one.comparison.difference is None else sign * one.comparison.difference

    return sorted(found, key=place)


def _effect_row(results: StudyResults, one: Verdict) -> dict[str, Any]:
    measured = words.difference(one.comparison)
    if one.comparison.low is not None:
        measured = f"{measured}  ({words.interval(one.comparison)})"
    return {
        "variant": one.variant,
        "baseline": one.baseline,
        "title": words.title(results, one),
        "verdict": one.verdict,
        "decided": one.verdict not in OPEN,
        "difference": one.comparison.difference,
        "low": one.comparison.low,
        "high": one.comparison.high,
        "measured": measured,
    }


def _seed_rows(results: StudyResults, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The difference of every seed that is drawn, the raw data behind an interval."""
    values = {variant.name: variant.values(results.metric.name) for variant in results.variants}
    return [
        {"title": row["title"], "verdict": row["verdict"], "value": value - baseline[seed]}
        for row in rows
        for baseline in [values[row["baseline"]]]
        for seed, value in itertools.islice(values[row["variant"]].items(), MOST_SEEDS)
        if seed in baseline and math.isfinite(value - baseline[seed])
    ]


def _rows_axis(alt: Any, labels: Mapping[str, str]) -> Any:
    """The axis with the names of the comparisons, over several lines."""
    axis = alt.Axis(
        labelExpr=f"split({json.dumps(labels)}[datum.value], '\\n')",
        labelLimit=280,
        labelFontSize=NORMAL,
        labelColor=INK,
        labelLineHeight=LINE_HEIGHT,
        labelPadding=BESIDE - 6,
        title=None,
        ticks=False,
        domain=False,
        grid=False,
    )
    return alt.Y("title:N", scale=alt.Scale(domain=list(labels)), axis=axis)


def _beyond(alt: Any, seeds: list[dict[str, Any]], domain: list[float], y: Any, color: Any) -> list[Any]:
    """How many seeds of each row lie beyond either end of the axis, beside that end."""
    ends = (
        (-4, "right", "◄\u00a0{}", [seed for seed in seeds if seed["value"] < domain[0]]),
        (EFFECT_WIDTH + 4, "left", "{}\u00a0►", [seed for seed in seeds if seed["value"] > domain[1]]),
    )
    return [
        alt.Chart(data_of(_counted(outside, text)))
        .mark_text(align=align, fontSize=SMALL - 1, yOffset=SEEDS_BELOW + 0.5)
        .encode(x=alt.value(x), y=y, text="seeds:N", color=color)
        for x, align, text, outside in ends
        if outside
    ]


def _counted(seeds: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """How many of the seeds each row has, as text."""
    counts = Counter((seed["title"], seed["verdict"]) for seed in seeds)
    return [
        {"title": title, "verdict": verdict, "seeds": text.format(count)} for (title, verdict), count in counts.items()
    ]


def _effect_domain(rows: list[dict[str, Any]], band: float) -> tuple[list[float], float]:
    """The range of differences, and the effect that compresses it where one would hide all others; else zero."""
    ends = [row[key] for row in rows for key in ("low", "high", "difference") if row[key] is not None]
    low, high = min([*ends, -1.5 * band, 0.0]), max([*ends, 1.5 * band, 0.0])
    limit = max(-low, high) or 1.0
    sizes = sorted(abs(row["difference"]) for row in rows if row["difference"] is not None)
    middle = max(sizes[len(sizes) // 2], band)
    if middle > 0 and limit > OUTLYING * middle:
        return [min(1.3 * low, -middle), max(1.3 * high, middle)], middle
    margin = 0.05 * ((high - low) or 1.0)
    return [low - margin, high + margin], 0.0


def _effect_scale(alt: Any, domain: list[float], middle: float, metric: Metric) -> tuple[Any, Any]:
    """Scale and axis of differences, compressed around the middle effect where there is one."""
    title = f"difference in {words.metric_title(metric)} ({metric.unit})"
    form = number_format(*domain)
    if middle:
        axis = alt.Axis(values=_compressed_ticks(middle, domain), format=form, title=f"{title}, compressed axis")
        return alt.Scale(type="symlog", constant=middle, domain=domain, nice=False), axis
    return alt.Scale(domain=domain, nice=False), alt.Axis(title=title, tickCount=6, format=form)


def _compressed_ticks(middle: float, domain: list[float]) -> list[float]:
    """Zero, and a few round numbers on both sides from the middle of the effects outwards."""
    powers = range(math.floor(math.log10(middle)), math.ceil(math.log10(max(map(abs, domain)))) + 1)
    factors = (1, 3) if len(powers) < 5 else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors if factor * 10.0**power >= middle]
    return [tick for tick in [*(-tick for tick in reversed(ticks)), 0.0, *ticks] if domain[0] <= tick <= domain[1]]


def _band(alt: Any, results: StudyResults, scale: Any) -> list[Any]:
    """The band of effects too small to matter, where the rules name one."""
    band = results.smallest_effect
    if band == 0:
        return []
    data = data_of([{"from": -band, "to": band}])
    return [alt.Chart(data).mark_rect(color=BAND).encode(x=alt.X("from:Q", scale=scale), x2="to:Q")]


def _directions(alt: Any, metric: Metric) -> list[Any]:
    """The words that say which side is the better one."""
    left, right = ("← better", "worse →") if metric.better == "lower" else ("← worse", "better →")
    places = ((0, "left", left), (EFFECT_WIDTH, "right", right))
    return [
        alt.Chart(data_of([{}]))
        .mark_text(align=align, color=MUTED)
        .encode(x=alt.value(x), y=alt.value(-12), text=alt.value(text))
        for x, align, text in places
    ]


def _verdict_color(alt: Any) -> Any:
    scale = alt.Scale(domain=list(VERDICT_COLORS), range=list(VERDICT_COLORS.values()))
    return alt.Color("verdict:N", scale=scale, legend=None)


def effect_caption(results: StudyResults) -> str:
    """What the chart of effects shows, in words."""
    band = results.smallest_effect
    within = (
        f" The shaded band marks differences below {numbers.number(band)}, too small to matter here." if band else ""
    )
    sure = numbers.percent(results.confidence)
    beside = f" An exploratory interval is of its own: it holds with {sure}, alone." if results.exploratory else ""
    rows, (low, high), _ = _effect_rows(results)
    outside = any(not low <= seed["value"] <= high for seed in _seed_rows(results, rows))
    beyond = ", those beyond the axis counted at its ends" if outside else ""
    drawn = ", each of which has data of its own" if results.draws_data else ""
    dots = words.drawn_seeds(results, "single seeds")
    return (
        f"Difference to the baseline {words.named(results.baseline)} unless another is named, paired over "
        f"seeds{drawn}. Lines are t intervals that hold together, over all comparisons and looks, with {sure} "
        f"confidence; small dots {dots}{beyond}.{within} A hollow point is undecided.{beside}"
    )


def cost(results: StudyResults) -> Any | None:
    """Quality against cost: one panel each for parameters, FLOPs per token, and training time.

    Points carry the variant's number in the verdict table; bars span all seeds. None where no variant has finished one.
    """
    import altair as alt

    if all(words.mean_of(variant, results.metric.name) is None for variant in results.variants):
        return None
    rows = _cost_rows(results)
    panels = (
        ("parameters", "parameters", "~s"),
        ("flops", "training FLOPs per token", "~s"),
        ("seconds", "training time of a seed (s)", ",~r"),
    )
    shown = [panel for panel in panels if any(row[panel[0]] for row in rows)]
    return alt.hconcat(
        *(_cost_panel(alt, rows, panel, results.metric, first=not index) for index, panel in enumerate(shown)),
        spacing=28,
    )


def _cost_rows(results: StudyResults) -> list[dict[str, Any]]:
    """One row per variant that finished a seed."""
    rows, drawn = [], {variant.name for variant in results.charted}
    for place, variant in enumerate(results.variants, start=1):
        values = variant.finite(results.metric.name)
        if values and variant.name in drawn:
            found = sorted(results.concluded(variant.name), key=lambda one: one.baseline != results.baseline)
            rows.append(_cost_row(place, variant, values, found[0].verdict if found else "baseline"))
    return rows


def _cost_row(place: int, variant: VariantResults, values: list[float], verdict: str) -> dict[str, Any]:
    return {
        "number": str(place),
        "verdict": verdict,
        "decided": verdict not in OPEN,
        "parameters": variant.parameters,
        "flops": variant.flops_per_token,
        "seconds": words.mean_seconds(variant),
        "mean": fmean(values),
        "low": min(values),
        "high": max(values),
    }


def _cost_panel(
    alt: Any, rows: list[dict[str, Any]], panel: tuple[str, str, str], metric: Metric, *, first: bool
) -> Any:
    """One panel of the cost chart; only the first has labels on its quality axis."""
    field, title, form = panel
    span = quality_span(row[key] for row in rows for key in ("low", "high"))
    placed, across = _placed([row for row in rows if row[field]], field, span)
    y_title = f"{words.metric_title(metric)} ({metric.unit})" if first else None
    y_axis = alt.Axis(title=y_title, labels=first, ticks=False, domain=False, **span.ticks())
    x_axis = alt.Axis(title=title, grid=False, tickCount=4, format=form, labelOverlap=True)
    y = alt.Y("mean:Q", scale=span.scale(alt), axis=y_axis)
    base = alt.Chart(data_of(placed)).encode(
        x=alt.X("place:Q", scale=across.scale(alt), axis=x_axis), color=_verdict_color(alt)
    )
    hollow = "!datum.decided"
    text = {"fontSize": 10, "fontWeight": "bold", "dy": 0.5}
    return alt.layer(
        base.mark_rule(strokeWidth=2, opacity=0.5).encode(
            y=alt.Y("low:Q", scale=span.scale(alt), axis=y_axis), y2="high:Q"
        ),
        base.mark_circle(size=POINT_SIZE**2 * 0.79, opacity=1, stroke=PAPER, strokeWidth=1).encode(y=y),
        base.transform_filter(hollow).mark_circle(size=POINT_SIZE**2 * 0.55, opacity=1, fill=PAPER).encode(y=y),
        base.transform_filter(f"!({hollow})").mark_text(**text).encode(y=y, text="number:N", color=alt.value(PAPER)),
        base.transform_filter(hollow).mark_text(**text).encode(y=y, text="number:N", color=alt.value(INK)),
    ).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT, view=alt.ViewConfig(stroke=GRID))


def _placed(rows: list[dict[str, Any]], field: str, span: Span) -> tuple[list[dict[str, Any]], Span]:
    """The rows with the place of each point, moved aside where it would cover another, and the cost axis."""
    across = span_of((row[field] for row in rows), ratio_for_log=SPREAD_FOR_LOG, margin=0.1)
    width, height = POINT_SIZE / PANEL_WIDTH, POINT_SIZE / PANEL_HEIGHT
    places = beside([(across.at(row[field]), span.at(row["mean"])) for row in rows], width, height)
    wide = Span(
        across.value(min(0.0, min(places) - width)), across.value(max(1.0, max(places) + width)), across.logarithmic
    )
    return [row | {"place": across.value(place)} for row, place in zip(rows, places, strict=True)], wide


def quality_span(values: Iterable[float]) -> Span:
    """The range of a metric: logarithmic where positive values span orders of magnitude."""
    return span_of(values, ratio_for_log=CURVED_FOR_LOG, margin=0.07)


COST_CAPTION = (
    "The number in a point is the variant's number in the verdict table; a bar spans its seeds; a point that would "
    "cover another is moved sideways. "
    "Blue is better than what it is compared with, orange worse, gray equivalent or (hollow) undecided, black the "
    "baseline."
)
"""What the cost chart shows, in words."""
