"""The report as one page: self-contained, offline, readable without a script.

Only the attention maps need the page's own script, because a reader chooses among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnlab.studies.report import numbers, words
from attnlab.studies.report.curves import example
from attnlab.studies.verdicts import judge

if TYPE_CHECKING:
    from markupsafe import Markup

    from attnlab.studies.looking import SentenceMaps
    from attnlab.studies.report.figures import Figure
    from attnlab.studies.results import StudyResults, VariantResults
    from attnlab.studies.verdicts import Verdict

PLAIN = "float32"
"""How steps are computed where a recipe says nothing."""
TEMPLATE, SENTENCES = "report.html.j2", "sentences.html.j2"
LEVELS = 9
"""Shades for the loss of a character."""
WORST_SHOWN = 4.5
"""Loss in nats of the darkest shade: above the entropy of guessing among 65 characters."""


def page(results: StudyResults, figures: Sequence[Figure]) -> str:
    """Return the report of a study as an HTML page.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.
    figures : sequence of Figure
        The charts, in the order they are to appear.

    Returns
    -------
    str
        The page.
    """
    return _rendered(TEMPLATE, context(results, figures))


def sentences_page(sentences: Sequence[SentenceMaps]) -> str:
    """Return the attention maps of translated sentences as an HTML page.

    Parameters
    ----------
    sentences : sequence of SentenceMaps
        In the order they are to appear.

    Returns
    -------
    str
        The page.
    """
    return _rendered(SENTENCES, {"sentences": sentences})


def _rendered(template: str, values: Mapping[str, Any]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("attnlab.studies.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["names"] = strong
    return environment.get_template(template).render(values)


def context(results: StudyResults, figures: Sequence[Figure]) -> dict[str, Any]:
    """Return everything the template names.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.
    figures : sequence of Figure
        The charts.

    Returns
    -------
    dict
        Plain values; the template does no arithmetic.
    """
    answer, *qualified = words.sentences(results)
    return {
        "results": results,
        "answer": answer,
        "qualified": qualified,
        "facts": facts(results),
        "alarms": words.alarms(results),
        "failures": failures(results),
        "rows": verdict_rows(results),
        "metric": words.metric_title(results.metric),
        "direction": words.direction(results.metric),
        "figures": {figure.drawing.name: _figure(figure) for figure in figures},
        "texts": _texts(results),
        "written": _written(results),
        "maps": _maps(results),
        "rules": words.flat(results.rules),
        "task": words.flat(results.task),
        "environment": words.flat(results.environment),
        "tuning": tuning_rows(results),
        "seeds": seed_rows(results),
        "floors": floor_rows(results),
        "specs": [(variant.name, words.flat(variant.spec), variant.notes) for variant in results.variants],
    }


def strong(text: str) -> Markup:
    """Return a text escaped, with the names of variants in bold.

    Parameters
    ----------
    text : str
        A text with `words.named` variants.

    Returns
    -------
    Markup
        HTML.
    """
    from markupsafe import Markup, escape

    escaped = str(escape(text))
    return Markup(escaped.replace(words.OPEN, "<strong>").replace(words.CLOSE, "</strong>"))


def _figure(figure: Figure) -> dict[str, Any]:
    """Return a chart as the template wants it."""
    from markupsafe import Markup

    return {"svg": Markup(figure.drawing.svg), "title": figure.title, "caption": strong(figure.caption)}


def facts(results: StudyResults) -> list[str]:
    """Return the few facts that stand below the answer.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.

    Returns
    -------
    list of str
        Task, budget, seeds, scale, and the setting of all runs where it is not plain float32.
    """
    budget = results.rules.get("budget") or {}
    seeds = max((len(variant.cells) for variant in results.variants), default=0)
    settings = {setting for variant in results.variants for setting in variant.settings}
    return [
        f"task {results.task.get('name', '')}".strip(),
        f"{len(results.variants)} variants \u00d7 {seeds} seed{'' if seeds == 1 else 's'}",
        *(f"{numbers.number(float(amount), 9)} {unit} each" for unit, amount in budget.items()),
        *([f"scale {results.scale}"] if results.scale else []),
        *(f"computed in {setting}" for setting in settings if len(settings) == 1 and setting != PLAIN),
    ]


def failures(results: StudyResults) -> list[tuple[str, int, str]]:
    """Return variant, seed and error of every cell that stopped.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.

    Returns
    -------
    list of (str, int, str)
        In the order of the study.
    """
    return [
        (variant.name, cell.seed, cell.error or "no reason was recorded")
        for variant in results.variants
        for cell in variant.failed
    ]


def verdict_rows(results: StudyResults) -> list[dict[str, Any]]:
    """Return the rows of the verdict table in the order of the study, numbers as text.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.

    Returns
    -------
    list of dict
        One per variant, the baseline included.
    """
    found = {one.variant: one for one in judge(results)}
    alarmed = {alarm.variant for alarm in words.alarms(results)}
    return [
        _row(place, variant, found.get(variant.name), results.metric.name) | {"alarmed": variant.name in alarmed}
        for place, variant in enumerate(results.variants, start=1)
    ]


def _row(place: int, variant: VariantResults, one: Verdict | None, metric: str) -> dict[str, Any]:
    """Return one row of the verdict table."""
    return {
        "number": place,
        "name": variant.name,
        "verdict": one.verdict if one else "baseline",
        "reason": one.reason if one else "what the others are compared with",
        "difference": words.difference(one.comparison) if one else "",
        "interval": words.interval(one.comparison) if one else "",
        "p": numbers.number(one.p_adjusted, 2) if one else "",
        "reached": numbers.spread([value for value in variant.values(metric).values() if math.isfinite(value)]),
        "seeds": f"{len(variant.done)} of {len(variant.cells)}",
        "parameters": numbers.number(variant.parameters, 12),
        "flops": numbers.flops(variant.flops_per_token),
        "memory": numbers.size(variant.activation_bytes),
        "seconds": numbers.duration(words.mean_seconds(variant)),
    }


def tuning_rows(results: StudyResults) -> list[dict[str, Any]]:
    """Return what was tried for each variant, and what was chosen.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.

    Returns
    -------
    list of dict
        ``name``, ``setting``, ``tried`` (pairs of value and metric), ``chosen``, ``at_edge``; one per tuned variant.
    """
    return [
        {
            "name": variant.name,
            "setting": f"{variant.tuning['setting']} by {variant.tuning['metric']}" + _mean_of(variant.tuning),
            "tried": [(value, numbers.number(reached)) for value, reached in variant.tuning["scores"].items()],
            "chosen": variant.tuning["chosen"],
            "at_edge": variant.untuned,
        }
        for variant in results.variants
        if variant.tuning
    ]


def _mean_of(tuning: Mapping[str, Any]) -> str:
    """Return of how many runs a tried value is the mean; nothing where it is one run's."""
    seeds = tuning.get("seeds", 1)  # not in reports made before there could be several
    return f", mean of {seeds} runs" if seeds > 1 else ""


def seed_rows(results: StudyResults) -> list[tuple[str, list[str]]]:
    """Return for every variant the metric of each seed, as text.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.

    Returns
    -------
    list of (str, list of str)
        Variant and one text per seed; the status of a cell that has no value.
    """
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


def floor_rows(results: StudyResults) -> list[tuple[str, str, str, str]]:
    """Return name, value with unit, metric and source of the reference values.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.

    Returns
    -------
    list of (str, str, str, str)
        In the order of the task.
    """
    return [
        (floor.name, f"{numbers.number(floor.value)} {floor.unit}", floor.metric, floor.source)
        for floor in results.floors
    ]


def _texts(results: StudyResults) -> list[dict[str, Any]]:
    """Return the held-out text of each variant as characters with their shade and a tooltip."""
    shown = [(variant.name, example(variant, "text")) for variant in results.variants]
    return [{"name": name, "characters": _characters(found)} for name, found in shown if found is not None]


def _characters(found: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Return character, shade and tooltip; the first character is not predicted and may lack a loss."""
    text, losses, predicted = found["text"], list(found["loss"]), list(found["predicted"])
    losses = [None] * (len(text) - len(losses)) + losses
    predicted = [None] * (len(text) - len(predicted)) + predicted
    return [
        (character, _shade(loss), _tooltip(character, loss, guess))
        for character, loss, guess in zip(text, losses, predicted, strict=False)
    ]


def _shade(loss: float | None) -> int:
    """Return the shade of a loss; 0 where there is none."""
    if loss is None or not math.isfinite(loss):
        return 0
    return min(LEVELS, max(0, round(LEVELS * loss / WORST_SHOWN)))


def _tooltip(character: str, loss: float | None, guess: str | None) -> str:
    """Return what hovering over a character says."""
    if loss is None:
        return "not predicted"
    return f"{character!r}: {numbers.number(loss, 3)} nats; predicted {guess!r}"


def _written(results: StudyResults) -> list[dict[str, Any]]:
    """Return held-out sentences with the translations of all variants."""
    found = [(variant.name, example(variant, "pairs")) for variant in results.variants]
    shown = [(name, one["pairs"]) for name, one in found if one is not None]
    if not shown:
        return []
    return [
        {
            "source": pair["source"],
            "target": pair["target"],
            "translations": [(name, pairs[place]["translation"]) for name, pairs in shown],
        }
        for place, pair in enumerate(shown[0][1])
    ]


def _maps(results: StudyResults) -> list[dict[str, Any]]:
    """Return the attention maps of the first seed that kept some, for each variant that has any."""
    shown = []
    for variant in results.variants:
        found = next((cell.attention for cell in variant.done if cell.attention and cell.attention.get("layers")), None)
        if found is not None:
            shown.append({"name": variant.name, "data": dict(found)})
    return shown
