"""The report as one page: self-contained, offline, readable without a script; or as a piece of a notebook.

Only the attention maps need the page's own script, because a reader chooses among them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnlab.inspection.drawing import palette
from attnlab.inspection.drawing.assets import asset, pixel_script
from attnlab.inspection.drawing.maps import one_map
from attnlab.inspection.drawing.pieces import Drawn, drawn
from attnlab.studies.judge.results import StudyResults
from attnlab.studies.report import heads, numbers, tables, words
from attnlab.studies.report.curves import example
from attnlab.studies.report.figures import Figure
from attnlab.studies.report.style import for_page
from attnlab.studies.using.looking import SentenceMaps

if TYPE_CHECKING:
    from markupsafe import Markup

TEMPLATE, SENTENCES = "report.html.j2", "sentences.html.j2"
LEVELS = 9
"""Shades for the loss of a character."""
WORST_SHOWN = 4.5
"""Loss in nats of the darkest shade: above the entropy of guessing among 65 characters."""


def page(results: StudyResults, figures: Sequence[Figure]) -> str:
    """The report of a study as an HTML page."""
    return rendered(TEMPLATE, context(results, figures))


def piece(results: StudyResults, figures: Sequence[Figure]) -> Drawn:
    """The report of a study below a cell of a notebook: the answer, the alarms, the verdicts, the charts."""
    from markupsafe import Markup

    values = context(results, figures)
    sentences = [strong(one) for one in (values["answer"], *values["qualified"])]
    return drawn(
        results.question,
        *(Markup("<p>{}</p>").format(one) for one in sentences),
        *(Markup(rendered(part, values)) for part in ("alarms.html.j2", "verdicts.html.j2")),
        *map(_chart, figures),
        kind="study",
        rules=rendered("report.css", {}),
    )


def _chart(figure: Figure) -> Markup:
    """A chart with its words; its identifiers are its own even where a page shows several studies."""
    from markupsafe import Markup

    svg = for_page(figure.drawing.svg, f"c{zlib.crc32(figure.drawing.svg.encode()):x}")
    whole = '<section><h2>{}</h2><div class="chart">{}</div><p class="note">{}</p></section>'
    return Markup(whole).format(figure.title, Markup(svg), strong(figure.caption))


def sentences_page(sentences: Sequence[SentenceMaps]) -> str:
    """The attention maps of translated sentences as an HTML page."""
    return rendered(SENTENCES, {"sentences": sentences})


def rendered(template: str, values: Mapping[str, Any], package: str = "attnlab.studies.report") -> str:
    """A template filled in; that of another package may include those of reports."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("attnlab.studies.report")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["names"] = strong
    drawing = {"palette": palette, "asset": asset, "pixel_script": pixel_script, "one_map": one_map}
    return environment.get_template(template).render(values, **drawing)


def context(results: StudyResults, figures: Sequence[Figure]) -> dict[str, Any]:
    """Everything the template names."""
    answer, *qualified = words.sentences(results)
    return {
        "results": results,
        "answer": answer,
        "qualified": qualified,
        "facts": tables.facts(results),
        "alarms": words.alarms(results),
        "failures": tables.failed_runs(results),
        "rows": tables.verdicts(results),
        "metric": words.metric_title(results.metric),
        "direction": words.direction(results.metric),
        "figures": {figure.drawing.name: _figure(figure) for figure in figures},
        "texts": [
            {"name": variant.name, "characters": _characters(found)}
            for variant in results.charted
            if (found := example(variant, "text")) is not None
        ],
        "written": _written(results),
        "maps": [
            {"name": variant.name, "data": dict(found)}
            for variant in results.charted
            if (found := variant.attention) is not None
        ],
        "heads": heads.sections(results),
        "syntax_columns": heads.SYNTAX_COLUMNS,
        "ranks": tables.ranks(results),
        "ranks_note": tables.RANKS,
        "rules": words.flat(results.rules),
        "task": words.flat(results.task),
        "environment": words.flat(results.environment),
        "tuning": tables.tuning(results),
        "seeds": tables.seeds(results),
        "floors": tables.floors(results),
        "measures": tables.measures(results),
        "specs": tables.specifications(results),
    }


def strong(text: str) -> Markup:
    """A text escaped, with the names of variants in bold."""
    from markupsafe import Markup, escape

    escaped = str(escape(text))
    return Markup(escaped.replace(words.OPEN, "<strong>").replace(words.CLOSE, "</strong>"))


def _figure(figure: Figure) -> dict[str, Any]:
    from markupsafe import Markup

    return {"svg": Markup(figure.drawing.svg), "title": figure.title, "caption": strong(figure.caption)}


def _characters(found: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Character, shade and tooltip; the first character is not predicted and may lack a loss."""
    text, losses, predicted = found["text"], list(found["loss"]), list(found["predicted"])
    losses = [None] * (len(text) - len(losses)) + losses
    predicted = [None] * (len(text) - len(predicted)) + predicted
    return [
        (character, _shade(loss), _tooltip(character, loss, guess))
        for character, loss, guess in zip(text, losses, predicted, strict=False)
    ]


def _shade(loss: float | None) -> int:
    """The shade of a loss; 0 where there is none."""
    if loss is None or not math.isfinite(loss):
        return 0
    return min(LEVELS, max(0, round(LEVELS * loss / WORST_SHOWN)))


def _tooltip(character: str, loss: float | None, guess: str | None) -> str:
    """What hovering over a character says."""
    if loss is None:
        return "not predicted"
    return f"{character!r}: {numbers.number(loss, 3)} nats; predicted {guess!r}"


def _pieces(pair: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """What was written, in pieces, each with whether it is known to be wrong."""
    return [(text, not right) for text, right in pair.get("pieces") or [(pair["translation"], True)]]


def _written(results: StudyResults) -> list[dict[str, Any]]:
    """Held-out sentences with the translations of all variants."""
    found = [(variant.name, example(variant, "pairs")) for variant in results.charted]
    shown = [(name, one["pairs"]) for name, one in found if one is not None]
    if not shown:
        return []
    return [
        {
            "source": pair["source"],
            "target": pair["target"],
            "is_tree": "pieces" in pair,
            "translations": [(name, _pieces(pairs[place])) for name, pairs in shown],
        }
        for place, pair in enumerate(shown[0][1])
    ]
