"""The charts behind a verdict: learning curves with bands and floors, and predictions against targets."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from attnlab.core.contracts import Floor, Metric
from attnlab.studies.judge.results import CellResults, StudyResults, VariantResults
from attnlab.studies.report import numbers, words
from attnlab.studies.report.charts import quality_span
from attnlab.studies.report.span import Span, apart, evenly
from attnlab.studies.report.style import FAINT, INK, MUTED, SMALL, VARIANT_COLORS, VERDICT_COLORS, data_of, label

CURVE_WIDTH, CURVE_HEIGHT = 640, 340
SMALL_WIDTH, SMALL_HEIGHT = 190, 130
TOGETHER = 8
"""Most variants whose curves share one panel; more get a small panel each."""
COLUMNS = 4
"""Small panels side by side."""
POINTS = 200
"""Most points of one curve; more cannot be told apart at this width."""
LABEL_GAP = 0.047
"""Least distance of two labels of reference values, as a fraction of the height: one line of text."""
LABEL_LIMIT = 230
"""Most px such a label may take."""
NEAR = 0.4
"""How far beyond the curves a reference value may lie to be shown, as a fraction of their range."""
START = 0.1
"""Fraction of the steps that does not count for the range of the quality axis."""
ITEMS = 3
"""Held-out sequences shown for each variant."""
SERIES_COLORS = {"input": FAINT, "target": MUTED, "prediction": VARIANT_COLORS[5]}


def _curve_metric(results: StudyResults) -> Metric | None:
    """The metric whose curve is drawn: the study's own, else the first one measured during training."""
    lines = [line for variant in results.charted for cell in variant.drawn for line in cell.curve]
    candidates = (results.metric, *results.metrics)
    return next((metric for metric in candidates if any(metric.name in line for line in lines)), None)


def learning_curves(results: StudyResults) -> Any | None:
    """Learning curves: mean over seeds, a band from the lowest to the highest seed, floors as dashed lines."""
    import altair as alt

    metric = _curve_metric(results)
    if metric is None:
        return None
    rows = [row for variant in results.charted for row in _curve_rows(variant, metric.name)]
    shown = [variant.name for variant in results.charted if any(row["variant"] == variant.name for row in rows)]
    if len(shown) > TOGETHER:
        return _small_panels(alt, rows, shown, metric)
    return _one_panel(alt, rows, results, metric)


def curve_caption(results: StudyResults) -> str:
    """What the learning curves show, in words."""
    title = words.metric_title(_curve_metric(results) or results.metric)
    return (
        f"{title[:1].upper() + title[1:]} during training: mean over {words.drawn_seeds(results)}, the band from the "
        "lowest to the highest. The first tenth of the steps may lie outside."
    )


def settled(rows: list[dict[str, Any]]) -> list[float]:
    """The values after the first tenth of the steps: before it, curves fall too fast to share an axis."""
    begin = START * max(row["step"] for row in rows)
    return [row[key] for row in rows for key in ("low", "high") if row["step"] >= begin]


def _curve_rows(variant: VariantResults, metric: str) -> list[dict[str, Any]]:
    """Mean, lowest and highest value at every step at which a seed was evaluated."""
    by_step: dict[int, list[float]] = defaultdict(list)
    for cell in (one for one in variant.drawn if one.status == "done"):
        for step, value in _curve(cell, metric):
            by_step[step].append(value)
    return [
        {
            "variant": variant.name,
            "step": step,
            "mean": fmean(by_step[step]),
            "low": min(by_step[step]),
            "high": max(by_step[step]),
        }
        for step in evenly(sorted(by_step), POINTS)
    ]


def _curve(cell: CellResults, metric: str) -> Iterable[tuple[int, float]]:
    """Yield step and value of the evaluations of one cell."""
    for line in cell.curve:
        value = line.get(metric)
        if value is not None and math.isfinite(value):
            yield int(line["step"]), float(value)


def _one_panel(alt: Any, rows: list[dict[str, Any]], results: StudyResults, metric: Metric) -> Any:
    """All curves in one panel, the legend in the order in which they end."""
    floors = _near_floors(rows, results, metric)
    span = quality_span([*settled(rows), *(floor.value for floor in floors)])
    last = {row["variant"]: row["mean"] for row in rows}
    order = sorted(last, key=lambda name: -last[name])
    colors = variant_colors(list(last), results.baseline)
    legend = alt.Legend(title=None, orient="top", columns=2, columnPadding=44, rowPadding=4, labelLimit=330)
    color = alt.Color("variant:N", scale=alt.Scale(domain=order, range=[colors[name] for name in order]), legend=legend)
    base = alt.Chart(data_of(rows)).encode(x=step_axis(alt, "step"), color=color)
    scale = span.scale(alt)
    return alt.layer(
        *_floor_lines(alt, floors, span),
        base.mark_area(opacity=0.18, clip=True).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        base.mark_line(strokeWidth=2, clip=True).encode(y=_metric_axis(alt, metric, span)),
    ).properties(width=CURVE_WIDTH, height=CURVE_HEIGHT)


def variant_colors(shown: list[str], baseline: str) -> dict[str, str]:
    """A color for each variant; the baseline is black, or white on dark ground."""
    others = [name for name in shown if name != baseline]
    return {baseline: INK} | dict(zip(others, VARIANT_COLORS, strict=False))


def step_axis(alt: Any, title: str | None, ticks: int = 6) -> Any:
    """The axis of training steps."""
    axis = alt.Axis(title=title, grid=False, tickCount=ticks, tickMinStep=1, format=",d", labelOverlap=True)
    return alt.X("step:Q", axis=axis, scale=alt.Scale(nice=False))


def _metric_axis(alt: Any, metric: Metric, span: Span, title: str | None = None) -> Any:
    text = title if title is not None else f"{words.metric_title(metric)} ({metric.unit})"
    axis = alt.Axis(title=text, ticks=False, domain=False, **span.ticks())
    return alt.Y("mean:Q", scale=span.scale(alt), axis=axis)


def _floor_lines(alt: Any, floors: list[Floor], span: Span) -> list[Any]:
    """A dashed line for each reference value, its name at the right edge, apart from other names."""
    labels = apart([span.at(floor.value) for floor in floors], LABEL_GAP)
    rows = [
        {"value": floor.value, "label": span.value(place), "name": f"{floor.name}: {numbers.number(floor.value)}"}
        for floor, place in zip(floors, labels, strict=True)
    ]
    base = alt.Chart(data_of(rows))
    line = base.mark_rule(strokeDash=[3, 4], color=MUTED, opacity=0.75).encode(
        y=alt.Y("value:Q", scale=span.scale(alt))
    )
    text = base.mark_text(align="left", baseline="middle", color=MUTED, limit=LABEL_LIMIT)
    right = alt.value(CURVE_WIDTH + 8)
    return [line, text.encode(x=right, y=alt.Y("label:Q", scale=span.scale(alt)), text="name:N")] if rows else []


def _near_floors(rows: list[dict[str, Any]], results: StudyResults, metric: Metric) -> list[Floor]:
    """The reference values of a metric that lie in the range of the curves or just beyond."""
    span = quality_span(settled(rows))
    return [
        floor
        for floor in results.floors
        if floor.metric == metric.name
        and (floor.value > 0 or not span.logarithmic)
        and -NEAR <= span.at(floor.value) <= 1 + NEAR
    ]


def _small_panels(alt: Any, rows: list[dict[str, Any]], shown: list[str], metric: Metric) -> Any:
    """One small panel per variant, its curve in color and all others in gray."""
    everything = alt.Chart(data_of(rows))
    span = quality_span(settled(rows))
    scale = span.scale(alt)
    panels: list[Any] = []
    for index, name in enumerate(shown):
        x = step_axis(alt, "step" if index >= len(shown) - COLUMNS else None, ticks=3)
        y = _metric_axis(alt, metric, span, title=words.metric_title(metric) if index % COLUMNS == 0 else "")
        own = everything.transform_filter({"field": "variant", "equal": name})
        blue = VERDICT_COLORS["better"]
        panel = alt.layer(
            everything.mark_line(strokeWidth=0.8, color=FAINT, clip=True).encode(x=x, y=y, detail="variant:N"),
            own.mark_area(opacity=0.25, color=blue, clip=True).encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q"),
            own.mark_line(strokeWidth=2, color=blue, clip=True).encode(x=x, y=y),
        )
        title = alt.Title(label(name, 26).split("\n"), fontSize=SMALL)
        panels.append(panel.properties(width=SMALL_WIDTH, height=SMALL_HEIGHT, title=title))
    return alt.concat(*panels, columns=COLUMNS, spacing=18)


def predictions(results: StudyResults) -> Any | None:
    """Predictions against targets on a few held-out sequences: one row per variant."""
    import altair as alt

    shown = [(variant, found) for variant in results.charted if (found := example(variant, "series")) is not None]
    rows = [row for variant, found in shown for row in _series_rows(variant.name, found["items"][:ITEMS])]
    if not rows:
        return None
    color = alt.Color(
        "series:N",
        scale=alt.Scale(domain=list(SERIES_COLORS), range=list(SERIES_COLORS.values())),
        legend=alt.Legend(title=None, orient="top", symbolType="stroke", symbolSize=220),
    )
    lines = alt.Chart().mark_line(strokeWidth=1.6, clip=True)
    panel = lines.encode(
        x=alt.X("position:Q", axis=alt.Axis(title=None, grid=False, ticks=False, tickCount=3, labels=False)),
        y=alt.Y("value:Q", axis=alt.Axis(title=None, ticks=False, domain=False, values=[0], labels=False)),
        color=color,
    ).properties(width=215, height=72)
    order = [label(variant.name, 28) for variant, _ in shown]
    header = alt.Header(
        labelAngle=0, labelAlign="left", labelExpr="split(datum.value, '\\n')", title=None, labelLimit=210
    )
    return panel.properties(data=data_of(rows)).facet(
        row=alt.Row("label:N", sort=order, header=header),
        column=alt.Column("item:N", header=alt.Header(title=None, labels=True, labelColor=MUTED)),
        spacing=10,
    )


def example(variant: VariantResults, kind: str) -> Any | None:
    """The predictions of the first seed that kept some of a kind."""
    found = (cell.predictions for cell in variant.done)
    return next((one for one in found if one is not None and one.get("kind") == kind), None)


def _series_rows(name: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "label": label(name, 28),
            "item": f"held-out sequence {place}",
            "series": series,
            "position": at,
            "value": value,
        }
        for place, item in enumerate(items, start=1)
        for series in SERIES_COLORS
        for at, value in enumerate(item.get(series) or ())
    ]


PREDICTION_CAPTION = "What each variant makes of the same held-out sequences, in normalized units, with its first seed."
"""What the chart of predictions shows, in words."""
