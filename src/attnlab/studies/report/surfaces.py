"""The chart of the loss around the weights that training ended with."""

from __future__ import annotations

import math
from typing import Any

from attnlab.studies.judge.results import StudyResults, VariantResults
from attnlab.studies.report.charts import quality_span
from attnlab.studies.report.style import FAINT, MUTED, SMALL, VERDICT_COLORS, data_of, label

WIDTH, HEIGHT, COLUMNS = 190, 120, 4
HIGHEST = 4.0
"""How many times the largest loss at the weights themselves is in sight; what lies above is cut off."""


def surfaces(results: StudyResults) -> Any | None:
    """The loss along lines through the weights of each variant: one panel per variant, a curve per line."""
    import altair

    alt: Any = altair
    rows = [row for variant in results.charted for row in _rows(variant)]
    if not rows:
        return None
    shown = list(dict.fromkeys(row["variant"] for row in rows))
    span = quality_span(_in_sight(rows))
    axis = alt.Axis(ticks=False, domain=False, **span.ticks())
    data = data_of(rows)
    panels = []
    for index, name in enumerate(shown):
        last = index >= len(shown) - COLUMNS
        x = alt.X(
            "at:Q",
            axis=alt.Axis(title="of the weights' norm" if last else None, grid=False, tickCount=3, format="+.0%"),
        )
        y = alt.Y("loss:Q", scale=span.scale(alt), axis=axis, title="loss" if index % COLUMNS == 0 else None)
        lines = alt.Chart(data).mark_line(strokeWidth=0.8, color=FAINT, clip=True)
        own = alt.Chart(data).mark_line(strokeWidth=1.6, color=VERDICT_COLORS["better"], clip=True)
        panel = alt.layer(
            alt.Chart(data_of([{"at": 0}])).mark_rule(color=MUTED, strokeDash=[2, 3]).encode(x=x),
            lines.encode(x=x, y=y, detail=["variant:N", "line:N"]),
            own.transform_filter({"field": "variant", "equal": name}).encode(x=x, y=y, detail="line:N"),
        )
        title = alt.Title(label(name, 26).split("\n"), fontSize=SMALL)
        panels.append(panel.properties(width=WIDTH, height=HEIGHT, title=title))
    return alt.concat(*panels, columns=COLUMNS, spacing=18)


def _rows(variant: VariantResults) -> list[dict[str, Any]]:
    """The points of all lines of the first seed that was looked into."""
    found = next((cell.surface for cell in variant.done if cell.surface), None)
    return [
        {"variant": variant.name, "line": line, "at": at, "loss": loss}
        for line, losses in enumerate(found["loss"] if found else ())
        for at, loss in zip(found["at"] if found else (), losses, strict=True)
        if loss is not None
    ]


def _in_sight(rows: list[dict[str, Any]]) -> list[float]:
    """The losses that set the range of the axis: what lies far above all of the weights themselves does not."""
    here = [row["loss"] for row in rows if row["at"] == 0]
    limit = HIGHEST * max(here, default=math.inf)
    return [row["loss"] for row in rows if row["loss"] <= limit]


CAPTION = (
    "The loss of a few training sequences where the weights of a variant's first seed are moved along three random "
    "lines, each row of a matrix by a part of its own norm (Li 2018, arXiv:1712.09913): blue, the variant's own; gray, "
    "the others'. It says nothing of other directions."
)
"""What the chart shows, in words."""
