"""Draw what a run of the study `shapes` attends to, and how its networks learn 20 items by heart.

Use: ``python docs/make_shapes_figures.py runs/shapes-as-written overfit.json``, where the second file is what
``attnlab overfit shapes --scale as-written --json`` printed, with a ``--variant`` for each line that is wanted.
It also prints the numbers that stand below the figures.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from attnlab.explain.overfit import ENOUGH
from attnlab.studies.report.curves import ITEMS
from attnlab.studies.report.style import INK, MUTED, PAPER, VARIANT_COLORS, draw

IMAGES = Path(__file__).resolve().parent / "images"
SIZE, STRIP = 420, 70
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


def attention(inside: dict[str, Any]) -> Any:
    """One head's weights as a picture, with the sequence along both axes: rows ask, columns are looked at."""
    (layer,) = inside["attention"]["layers"]
    _, asking, asked = layer["shape"]
    weights = np.frombuffer(base64.b64decode(layer["weights"]), np.uint8).reshape(asking, asked) / 255 * layer["max"]
    item = inside["predictions"]["items"][0]
    cells = [{"asks": i, "is": j, "weight": float(weights[i, j])} for i in range(asking) for j in range(asked)]
    ticks = {"grid": False, "ticks": False, "values": list(range(0, asked, 20)), "labelAngle": 0}
    legend = alt.Legend(title="weight", gradientLength=160, tickCount=3, orient="bottom", direction="horizontal")
    color = alt.Color("weight:Q", scale=alt.Scale(range=[PAPER, VARIANT_COLORS[0]]), legend=legend)
    matrix = (
        alt.Chart(alt.Data(values=cells))
        .mark_rect()
        .encode(
            x=alt.X("is:O", title="position that is looked at", axis=alt.Axis(**ticks)),
            y=alt.Y("asks:O", title="position that asks", axis=alt.Axis(orient="right", **ticks)),
            color=color,
        )
        .properties(width=SIZE, height=SIZE)
    )
    points = [{"at": at, "value": value} for at, value in enumerate(item["input"])]
    bare = alt.Axis(labels=False, ticks=False, grid=False, domain=False, title=None)
    line = alt.Chart(alt.Data(values=points)).mark_line(color=MUTED, strokeWidth=1.6)
    above = line.encode(x=alt.X("at:O", axis=bare), y=alt.Y("value:Q", axis=bare)).properties(width=SIZE, height=STRIP)
    across = line.encode(
        x=alt.X("value:Q", axis=bare, scale=alt.Scale(reverse=True)), y=alt.Y("at:O", axis=bare), order="at:Q"
    ).properties(width=STRIP, height=SIZE)
    corner = alt.Chart(alt.Data(values=[{}])).mark_point(opacity=0).properties(width=STRIP, height=STRIP)
    return alt.vconcat(alt.hconcat(corner, above, spacing=4), alt.hconcat(across, matrix, spacing=4), spacing=4)


def by_heart(learned: list[dict[str, Any]]) -> Any:
    """The loss on the items that are learned, as training goes on."""
    rows = [
        {"variant": one["variant"], "step": step, "loss": loss}
        for one in learned
        for step, loss in one["curve"]
        if loss > 0
    ]
    names = [one["variant"] for one in learned]
    colors = alt.Scale(domain=names, range=[INK, *VARIANT_COLORS][: len(names)])
    same = learned[0]["same_answer"]
    marks = [
        {"loss": same, "is": "the best constant answer"},
        {"loss": ENOUGH * same, "is": f"{ENOUGH:.0%} of its error"},
    ]
    level = alt.Chart(alt.Data(values=marks)).encode(y="loss:Q")
    words = level.mark_text(align="right", baseline="top", dy=4, color=MUTED).encode(x=alt.value("width"), text="is:N")
    lines = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=1.6)
    return alt.layer(
        level.mark_rule(color=MUTED, strokeDash=[3, 4]),
        words,
        lines.encode(
            x=alt.X("step:Q", axis=alt.Axis(grid=False, format=",d")),
            y=alt.Y(
                "loss:Q",
                title="mean squared error of the 20 items",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(values=TICKS),
            ),
            color=alt.Color("variant:N", scale=colors, legend=alt.Legend(title=None, orient="top", labelLimit=300)),
        ),
    ).properties(width=SIZE + STRIP, height=260)


def errors(inside: dict[str, Any]) -> list[float]:
    """The mean squared errors of the predictions that a report shows."""
    items = inside["predictions"]["items"][:ITEMS]
    return [float(np.square(np.subtract(item["prediction"], item["target"])).mean()) for item in items]


def main(folder: str, overfit: str) -> None:
    """Draw both."""
    seen = {place.parent.parent.name: place for place in sorted(Path(folder).glob("*/seed-0/inside.json"))}
    looks = {name: json.loads(place.read_text(encoding="utf-8")) for name, place in seen.items()}
    inside = looks["cnn-attention"]
    learned = json.loads(Path(overfit).read_text(encoding="utf-8"))
    for name, chart in (("shapes-attention", attention(inside)), ("shapes-by-heart", by_heart(learned))):
        (IMAGES / f"{name}.png").write_bytes(draw(chart, name).png)
    for one in learned:
        print(f"{one['variant']}: {one['end'] / one['same_answer']:.1%} after {one['steps']} steps at {one['lr']:g}")
    for name, look in looks.items():
        print(f"{name}: {', '.join(f'{error:.4f}' for error in errors(look))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
