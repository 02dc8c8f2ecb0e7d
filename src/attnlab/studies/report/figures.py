"""Which charts a report has, in which order, and what is said below each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from attnlab.studies.judge.results import StudyResults
from attnlab.studies.report import charts, curves, heads, surfaces
from attnlab.studies.report.inside import watched
from attnlab.studies.report.style import Drawing, draw


@final
@dataclass(frozen=True)
class Figure:
    """Hold a chart with its words."""

    drawing: Drawing  # the chart
    title: str  # what it answers
    caption: str  # how to read it, with `words.named` variants


DRAWN: tuple[tuple[str, str, Callable[[StudyResults], Any | None], Callable[[StudyResults], str]], ...] = (
    ("effects", "How large are the effects?", charts.effects, charts.effect_caption),
    ("curves", "How do they learn?", curves.learning_curves, curves.curve_caption),
    ("watched", "What happens inside?", watched.watched, watched.caption),
    ("cost", "What does it cost?", charts.cost, lambda _: charts.COST_CAPTION),
    ("surface", "How does the loss rise around the end?", surfaces.surfaces, lambda _: surfaces.CAPTION),
    ("predictions", "What do they predict?", curves.predictions, lambda _: curves.PREDICTION_CAPTION),
    ("heads", "What is each head worth?", heads.heads, heads.caption),
)
"""Name and title of every chart, what draws it (None where there is nothing to draw), and what says how to read it."""


def figures(results: StudyResults) -> list[Figure]:
    """Draw every chart that the results so far allow."""
    return [
        Figure(draw(chart, name), title, caption(results))
        for name, title, drawn, caption in DRAWN
        if (chart := drawn(results)) is not None
    ]
