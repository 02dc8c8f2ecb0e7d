"""Draw when the heads of the study `induction` begin to continue a text, and when the loss falls.

Use: ``python docs/make_induction.py runs/induction-small``. Runs keep their last weights alone, so the first seeds of
every variant are trained once more as they were, and looked into at each evaluation. It also prints the numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import torch

from attnlab.core.draws import drawn_by_name
from attnlab.core.files import read_json
from attnlab.inspection import capture, head_scores
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.define.study import slug
from attnlab.studies.judge.collect import load_plan
from attnlab.studies.report.style import MUTED, VARIANT_COLORS, draw
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.loop import train

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH, HEIGHT = 560, 130
METRIC = "val_loss_repeated"
PATTERNS = ("previous-token", "induction")
SEEDS = 3  # as many as every variant has


def followed(folder: Path) -> list[dict[str, Any]]:
    """Train a run again and return by step its loss and, of each pattern, the highest score of a head."""
    spec = read_json(folder / "spec.json")
    task = build_task(spec["task"])
    model = drawn_by_name(lambda: build_model(spec["model"], task), spec["seed"])
    (tokens,) = task.train_batch(0, -1).inputs  # of no step and no seed
    points: list[dict[str, Any]] = []

    def look(event: Mapping[str, Any]) -> None:
        if event["kind"] != "evaluation":
            return
        with torch.no_grad(), capture(model) as trace:
            model(tokens)
        heads = head_scores(trace, tokens)
        scores = {pattern: max(head.patterns[pattern] for head in heads) for pattern in PATTERNS}
        points.append({"step": event["step"], METRIC: event["metrics"][METRIC], **scores})

    train(model, task, Recipe.parse(spec["recipe"], "training"), seed=spec["seed"], on_event=look)
    return points


def chart(runs: Mapping[str, Sequence[list[dict[str, Any]]]], floor: float) -> Any:
    """The loss of repeated tokens above, the highest score of each pattern below; a line for every seed."""
    rows = [
        {"variant": name, "seed": seed, **point}
        for name, seeds in runs.items()
        for seed, points in enumerate(seeds)
        for point in points
    ]
    color = alt.Color(
        "variant:N",
        scale=alt.Scale(domain=list(runs), range=list(VARIANT_COLORS[: len(runs)])),
        legend=alt.Legend(title=None, orient="top"),
    )
    lines = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=1.4, opacity=0.8)
    ideal = alt.Chart(alt.Data(values=[{"loss": floor}])).mark_rule(color=MUTED, strokeDash=[3, 4]).encode(y="loss:Q")
    titles = {METRIC: "loss of repeated tokens", **{pattern: f"{pattern} score" for pattern in PATTERNS}}
    x = alt.X("step:Q", axis=alt.Axis(grid=False), scale=alt.Scale(zero=True))
    panels = [
        lines.encode(x=x, y=alt.Y(f"{key}:Q", title=title, scale=alt.Scale(zero=True)), color=color, detail="seed:N")
        for key, title in titles.items()
    ]
    sized = [panel.properties(width=WIDTH, height=HEIGHT) for panel in (alt.layer(ideal, panels[0]), *panels[1:])]
    return alt.vconcat(*sized, spacing=14)


def main(folder: str) -> None:
    """Train, draw and print."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    study = load_plan(Path(folder))
    runs = {
        one.name: [followed(Path(folder) / slug(one.name) / f"seed-{seed}") for seed in range(SEEDS)]
        for one in study.variants
    }
    (ideal,) = [one.value for one in study.task.floors() if (one.name, one.metric) == ("ideal predictor", METRIC)]
    for name, seeds in runs.items():
        for seed, points in enumerate(seeds):
            for point in points:
                print(f"{name}, seed {seed}:", *(f"{key} {value:.3g}" for key, value in point.items()))
    (IMAGES / "induction.png").write_bytes(draw(chart(runs, ideal), "induction").png)


if __name__ == "__main__":
    main(*sys.argv[1:])
