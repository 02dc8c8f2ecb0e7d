"""Which charts a report has, in which order, and what is said below each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from attnlab.studies.report import charts, curves, heads, surfaces, words
from attnlab.studies.report.inside import watched
from attnlab.studies.report.style import Drawing, draw

if TYPE_CHECKING:
    from attnlab.core.contracts import Metric
    from attnlab.studies.judge.results import StudyResults


@final
@dataclass(frozen=True)
class Figure:
    """Hold a chart with its words."""

    drawing: Drawing  # the chart
    title: str  # what it answers
    caption: str  # how to read it, with `words.named` variants


def figures(results: StudyResults) -> list[Figure]:
    """Draw every chart that the results so far allow."""
    drawers = (_effects, _curves, _watched, _cost, _surfaces, _predictions, _heads)
    return [figure for drawer in drawers if (figure := drawer(results)) is not None]


def _effects(results: StudyResults) -> Figure | None:
    """Draw the effects if there is one."""
    if all(one.comparison.difference is None for one in results.verdicts):
        return None
    return Figure(
        draw(charts.effects(results), "effects"), "How large are the effects?", charts.effect_caption(results)
    )


def _curves(results: StudyResults) -> Figure | None:
    """Draw the learning curves if any were recorded."""
    metric = curves.curve_metric(results)
    if metric is None:
        return None
    drawing = draw(curves.learning_curves(results, metric), "curves")
    return Figure(drawing, "How do they learn?", _curve_caption(results, metric))


def _curve_caption(results: StudyResults, metric: Metric) -> str:
    """Say what the curves show."""
    title = words.metric_title(metric)
    return (
        f"{title[:1].upper() + title[1:]} during training: mean over {words.drawn_seeds(results)}, the band from the "
        "lowest to the highest. The first tenth of the steps may lie outside."
    )


def _watched(results: StudyResults) -> Figure | None:
    """Draw what was watched inside the models, if anything was."""
    chart = watched.watched(results)
    return chart and Figure(draw(chart, "watched"), "What happens inside?", watched.caption(results))


def _cost(results: StudyResults) -> Figure | None:
    """Draw quality against cost if a variant has finished."""
    if all(words.mean_of(variant, results.metric.name) is None for variant in results.variants):
        return None
    return Figure(draw(charts.cost(results), "cost"), "What does it cost?", charts.COST_CAPTION)


def _surfaces(results: StudyResults) -> Figure | None:
    """Draw the loss around the weights if a variant was looked into."""
    chart = surfaces.surfaces(results)
    return chart and Figure(draw(chart, "surface"), "How does the loss rise around the end?", surfaces.CAPTION)


def _heads(results: StudyResults) -> Figure | None:
    """Draw what heads and layers are worth if it was measured."""
    chart = heads.heads(results)
    return chart and Figure(draw(chart, "heads"), "What is each head worth?", heads.caption(results))


def _predictions(results: StudyResults) -> Figure | None:
    """Draw predictions against targets if the task predicts series."""
    chart = curves.predictions(results)
    return chart and Figure(draw(chart, "predictions"), "What do they predict?", curves.PREDICTION_CAPTION)
