"""What heads and layers of the trained models are worth: the chart, the words below it, and the table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from attnlab.studies.judge.results import StudyResults
from attnlab.studies.judge.statistics import Comparison
from attnlab.studies.judge.worth import STRONG, PartsJudged, Worth
from attnlab.studies.report.style import INK, MUTED, PAPER, SMALL, VERDICT_COLORS, data_of, label

WIDTH, ROW_HEIGHT, PANELS = 190, 17, 2
SEEDS_BELOW = 5
"""How far below its interval the single seeds of a row stand, in px."""
BESIDE = 10
"""Room between the axis and the words beside it, in px."""
COMPRESSED = 500
"""The largest worth over that below which the axis is linear: a layer may be worth a hundred times a head."""
COLUMNS = ("part", "worth", "interval", "looks at, beyond untrained heads")
"""Of the table."""
SYNTAX_COLUMNS = ("relation", "to the", "pairs", "best head", "untrained", "at a distance", "difference, %")
"""Of the table of relations between words."""
MOST_KINDS = 2  # of a head
SEEN = 0.005  # share of its weight beyond untrained heads that is told: less is written as 0.00
INSTEAD = {"zero": "zeros", "mean": "their mean over the batch", "resample": "those of the batch's next sequence"}


def heads(results: StudyResults) -> Any | None:
    """The worth of each layer and of its heads with intervals: one panel per variant."""
    import altair

    alt: Any = altair
    if not results.heads:
        return None
    shown = [row for one in results.heads for row in _chart_rows(one)]
    ends = [value for row in shown for value in (row["low"], row["high"], row["worth"]) if value is not None]
    linear = max(map(abs, ends)) / COMPRESSED or 1.0
    domain = [1.3 * min([*ends, -linear]), 1.3 * max([*ends, linear])]
    scale = alt.Scale(type="symlog", constant=linear, domain=domain, nice=False)
    unit = results.heads[0].unit
    axis = alt.Axis(
        values=_ticks(linear, domain), format="~g", labelOverlap=False, title=f"worth ({unit}), compressed axis"
    )
    panels = [_panel(alt, one, alt.X("worth:Q", scale=scale, axis=axis), scale) for one in results.heads]
    return alt.concat(*panels, columns=PANELS, spacing=24)


def _panel(alt: Any, one: PartsJudged, x: Any, scale: Any) -> Any:
    rows = _chart_rows(one)
    axis = alt.Axis(
        labelExpr=f"{json.dumps({row['place']: row['label'] for row in rows})}[datum.value]",
        labelLimit=260,
        labelColor=INK,
        title=None,
        ticks=False,
        domain=False,
        grid=False,
    )
    y = alt.Y("place:N", scale=alt.Scale(domain=[row["place"] for row in rows]), axis=axis)
    base = alt.Chart(data_of(rows)).encode(y=y)
    color = alt.Color("found:N", scale=None)
    seeds = [{"place": row["place"], "worth": worth} for row in rows for worth in row["worths"]]
    layers = [
        alt.Chart(data_of([{"worth": 0}])).mark_rule(color=INK, strokeWidth=1).encode(x=x),
        alt.Chart(data_of(seeds)).mark_circle(size=10, opacity=0.5, color=MUTED, yOffset=SEEDS_BELOW).encode(x=x, y=y),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", color=color),
        base.transform_filter("datum.decided").mark_point(size=55, filled=True, opacity=1).encode(x=x, color=color),
        base.transform_filter("!datum.decided")
        .mark_point(size=50, filled=True, fill=PAPER, opacity=1, strokeWidth=1.6)
        .encode(x=x, stroke=color),
        base.mark_text(align="left", fontSize=SMALL, color=MUTED).encode(x=alt.value(WIDTH + BESIDE), text="kinds:N"),
    ]
    title = alt.Title(label(one.variant, 44).split("\n"), fontSize=SMALL)
    return alt.layer(*layers).properties(width=WIDTH, height=ROW_HEIGHT * len(rows), title=title)


def _chart_rows(one: PartsJudged) -> list[dict[str, Any]]:
    """Each layer with its heads and what they look at below it; heads that are in no layer first."""
    layers = [row for row in one.parts if row.kind == "layer"]
    within: dict[str, list[Worth]] = {"": [], **{layer.place: [] for layer in layers}}
    for row in one.parts:
        if row.kind in ("head", "weights"):
            within[next((layer.place for layer in layers if row.place.startswith(f"{layer.place}.")), "")].append(row)
    found = [_chart_row(row, row.place) for row in within[""]]
    for layer in layers:
        inside = within[layer.place]
        found += [_chart_row(layer, layer.place)]
        found += [_chart_row(row, row.place.removeprefix(f"{layer.place}.")) for row in inside]
    return found


def _chart_row(row: Worth, name: str) -> dict[str, Any]:
    verdict = ("better" if row.mean > 0 else "worse") if row.decided else "undecided"
    return {
        "place": row.place,
        "label": name,
        "worth": row.mean,
        "worths": list(row.worths) if len(row.worths) > 1 else [],
        "low": row.comparison.low,
        "high": row.comparison.high,
        "decided": row.decided,
        "found": VERDICT_COLORS[verdict],
        "kinds": _kinds(row, least=STRONG),
    }


def _ticks(linear: float, domain: list[float]) -> list[float]:
    """Zero, and on both sides the powers of ten that stand apart from it."""
    first, last = math.ceil(math.log10(5 * linear)), math.floor(math.log10(max(map(abs, domain))))
    sizes = [10.0**power for power in range(first, last + 1)]
    return [tick for tick in [*(-size for size in reversed(sizes)), 0.0, *sizes] if domain[0] <= tick <= domain[1]]


def caption(results: StudyResults) -> str:
    """How to read the chart."""
    first = results.heads[0]
    best = "" if first.which == "last" else ", with the weights of the best evaluation"
    return (
        f"Loss without a part less the loss with it, on {first.sequences} sequences of the {first.part} part{best}: "
        f"a layer is skipped, what heads write is replaced by {INSTEAD[first.how]}, and weights of an attention "
        "(*->*) are put in a random order. Dots: single seeds, heads in one row that behave most alike. Intervals "
        "hold together for all parts of a variant; hollow where they leave open whether the part helps. Beside a "
        f"head: patterns to which it gives {STRONG:.0%} of its weight or more beyond heads of untrained models, the "
        "two strongest."
    )


def lines(one: PartsJudged) -> Iterator[str]:
    """Yield what the heads of a variant say together."""
    undecided = sum(not row.decided for row in one.parts)
    yield (
        f"worth: loss without the part minus loss with it, {one.unit}; intervals hold together for all "
        f"{len(one.parts)} parts, and {undecided} leave open whether it helps"
    )
    if one.heads > 1:
        counts = " to ".join(str(count) for count in dict.fromkeys((min(one.removable), max(one.removable))))
        yield (
            f"{counts} of {one.heads} heads, the least valuable first, can be off at once for at most "
            f"{one.tolerance:g} more loss; half of them, {one.heads // 2}, cost {one.pruned[one.heads // 2 - 1]:+.4f}"
        )
    if one.counts:
        found = ", ".join(f"{count} {kind}" for kind, count in one.counts.items())
        yield f"heads that give a pattern {STRONG:.0%} of their weight or more beyond untrained heads: {found}"
    if one.agreement is not None:
        yield (
            f"heads of other seeds that behave most alike agree to {one.agreement:.2f} (1: the same; paired at random "
            f"{one.chance:.2f}); a head's row is that of its partners"
        )
    if one.within is not None:
        yield f"two heads of one layer agree to {one.within:.2f}"
    if one.overlaps:
        words = {"q": "queries", "k": "keys", "v": "values"}
        shared = ", ".join(
            f"their {words[step]} to {trained:.2f} ({untrained:.2f})"
            for step, (trained, untrained) in one.overlaps.items()
        )
        yield f"two heads of one layer read the same directions (1: all, 0: none; in brackets, untrained): {shared}"
    for name, order in one.orders.items():
        yield (
            f"order of positions (Kendall's tau): {name} with gradient times input {order.gradient:.2f}, with "
            f"what hiding one changes {order.hidden:.2f}; these two with each other {order.between:.2f}"
        )
    if one.syntax:
        yield (
            f"relations between words: {sum(row.followed for row in one.syntax)} of {len(one.syntax)}, each in one "
            "direction, are followed by the best head more often than by the word at the best distance (both chosen on "
            "every other sentence, judged on the rest; intervals hold together)"
        )


def table(one: PartsJudged) -> list[tuple[str, str, str, str]]:
    """Part, worth, interval and kinds: layers, sublayers and heads, each from the most valuable to the least."""
    order = ("layer", "sublayer", "weights", "head")
    ranked = sorted(one.parts, key=lambda row: (order.index(row.kind), -row.mean))
    return [(row.place, f"{row.mean:+.4f}", _interval(row.comparison), _kinds(row)) for row in ranked]


def _interval(found: Comparison) -> str:
    return "" if found.low is None else f"[{found.low:+.4f}, {found.high:+.4f}]"


def _difference(found: Comparison) -> str:
    """A difference of shares with its interval, in percent."""
    ends = () if found.low is None or found.high is None else (found.low, found.high)
    shown = ", ".join(f"{100 * end:+.0f}" for end in ends)
    return f"{100 * (found.difference or 0):+.0f}" + (f" [{shown}]" if shown else "")


def _kinds(row: Worth, least: float = SEEN) -> str:
    found = [f"{kind} +{excess:.2f}" for kind, excess in row.kinds.items() if excess >= least]
    return ", ".join(found[:MOST_KINDS])


def syntax_table(one: PartsJudged) -> list[tuple[str, ...]]:
    """Of each relation and direction how often the best head is right, and what it is held beside."""
    return [
        (
            row.relation,
            row.towards,
            f"{row.pairs:,}",
            f"{row.rate:.0%}",
            f"{row.untrained:.0%}",
            f"{row.distance_rate:.0%} at {row.distance:+d}",
            _difference(row.comparison),
        )
        for row in one.syntax
    ]


def sections(results: StudyResults) -> list[dict[str, Any]]:
    """Of each variant its name, what its heads say together, and the tables."""
    return [
        {"name": one.variant, "lines": list(lines(one)), "rows": table(one), "syntax": syntax_table(one)}
        for one in results.heads
    ]
