"""The chart of what was watched inside the models: a row for each quantity, a panel for each layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from attnlab.studies.judge.results import StudyResults, VariantResults
from attnlab.studies.report import words
from attnlab.studies.report.charts import quality_span
from attnlab.studies.report.curves import step_axis, variant_colors
from attnlab.studies.report.span import evenly
from attnlab.studies.report.style import SMALL, data_of, label

WIDTH, HEIGHT, COLUMNS = 190, 96, 4
"""Of a panel in px; layers that are shown of each quantity, spread evenly over all."""
LABELS = 44
"""Room for the numbers of an axis in px, so that panels of all rows stand below each other."""
TOGETHER = 8
"""Most variants that are told apart by color; of more, the baseline and the first others are shown."""
POINTS = 60
"""Most points of one curve; more cannot be told apart in such a panel."""
TITLES = {
    "entropy": "entropy",
    "logit_max": "largest score",
    "logit_std": "spread of scores",
    "gradient_norm": "gradient",
    "update_ratio": "update",
    "dead_share": "dead features",
}
"""What each quantity of a look is called on its axis, in the order of the rows."""

Row = dict[str, Any]


def watched(results: StudyResults) -> Any | None:
    """What was watched over the steps: mean over heads and seeds, a band from the lowest to the highest seed."""
    import altair as alt

    shown = _shown(results)
    rows = [row for variant in shown for row in _rows(variant)]
    if not rows:
        return None
    names = [variant.name for variant in shown if any(row["variant"] == variant.name for row in rows)]
    colors = variant_colors(names, results.baseline)
    scale = alt.Scale(domain=names, range=[colors[name] for name in names])
    legend = alt.Legend(title=None, orient="top", columns=2, columnPadding=44, labelLimit=330) if names[1:] else None
    color = alt.Color("variant:N", scale=scale, legend=legend)
    by_quantity = [[row for row in rows if row["quantity"] == quantity] for quantity in TITLES]
    *others, last = [some for some in by_quantity if some]
    strips = [*(_strip(alt, some, color, x_title=None) for some in others), _strip(alt, last, color, x_title="step")]
    return alt.vconcat(*strips, spacing=16)


def _shown(results: StudyResults) -> list[VariantResults]:
    """As many variants as there are colors, the baseline among them."""
    first = [variant for variant in results.charted if variant.name != results.baseline][: TOGETHER - 1]
    return [variant for variant in results.charted if variant.name == results.baseline or variant in first]


def _strip(alt: Any, rows: Sequence[Row], color: Any, *, x_title: str | None) -> Any:
    """One quantity: a panel for each of a few layers, on one axis, whose numbers stand at the first."""
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    kept = evenly(layers, COLUMNS)
    rows = [row for row in rows if row["layer"] in kept]
    span = quality_span(row[key] for row in rows for key in ("low", "high"))
    panels = []
    for column, layer in enumerate(kept):
        title = None if column else TITLES[rows[0]["quantity"]]
        room = {"labels": not column, "minExtent": 0 if column else LABELS}
        axis = alt.Axis(title=title, ticks=False, domain=False, **room, **span.ticks())
        base = alt.Chart(data_of([row for row in rows if row["layer"] == layer]))
        base = base.encode(x=step_axis(alt, x_title, ticks=3), color=color)
        panel = alt.layer(
            base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", scale=span.scale(alt), axis=axis), y2="high:Q"),
            base.mark_line(strokeWidth=1.6).encode(y=alt.Y("mean:Q", scale=span.scale(alt), axis=axis)),
        )
        head = alt.Title(label(layer, 28), fontSize=SMALL)
        panels.append(panel.properties(width=WIDTH, height=HEIGHT, title=head))
    return alt.hconcat(*panels, spacing=18)


def _rows(variant: VariantResults) -> list[Row]:
    """Mean, lowest and highest seed at every step that was looked at, for every quantity and layer."""
    values: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in variant.drawn:
        for record in cell.curve:
            for quantity, layer, value in _seen(record.get("watch", {})):
                values[quantity, layer][record["step"]].append(value)
    rows = []
    for (quantity, layer), by_step in values.items():
        of = {"variant": variant.name, "quantity": quantity, "layer": layer}
        for step in evenly(sorted(by_step), POINTS):
            seeds = by_step[step]
            rows.append({**of, "step": step, "mean": fmean(seeds), "low": min(seeds), "high": max(seeds)})
    return rows


def _seen(look: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """The numbers of a look, of heads their mean; what was not finite is left out."""
    for quantity in TITLES.keys() & look.keys():
        for layer, value in look[quantity].items():
            heads = [one for one in (value if isinstance(value, list) else [value]) if one is not None]
            if heads:
                yield quantity, layer, fmean(heads)


def caption(results: StudyResults) -> str:
    """How to read the chart, and what could not be seen."""
    others = len(results.variants) - len(_shown(results))
    notes: dict[str, list[str]] = defaultdict(list)
    for variant in results.charted:
        found = (record["watch"]["note"] for cell in variant.drawn for record in cell.curve if _has_note(record))
        if note := next(found, None):
            notes[note].append(words.named(variant.name))
    return " ".join(
        [
            "By layer, the first and the last and some between: mean over heads and "
            f"{words.drawn_seeds(results)}, the band from the lowest to the highest seed. Entropy of attention "
            "weights: 1 is equal weights on all keys that may be seen, 0 one key. Scores are those before the softmax, "
            "gradients those before clipping. Update: size of a step over that of the weights. Dead features: the "
            "share of a rectifier's that are zero wherever it was looked.",
            *([f"{others} more variants are not shown."] if others else []),
            *(f"{', '.join(names)}: {note}." for note, names in notes.items()),
        ]
    )


def _has_note(record: Mapping[str, Any]) -> bool:
    return "note" in record.get("watch", {})
