"""The report of a study below a cell of a notebook: the answer, the charts, the verdicts."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from attnlab.inspection.drawing.pieces import Drawn, drawn
from attnlab.studies.report.figures import Figure, figures
from attnlab.studies.report.html import context, rendered, strong
from attnlab.studies.report.style import for_page

if TYPE_CHECKING:
    from markupsafe import Markup

    from attnlab.studies.judge.results import StudyResults


def cell(results: StudyResults) -> Drawn:
    """The report of a study as a piece of a page."""
    from markupsafe import Markup

    shown = figures(results)
    values = context(results, shown)
    sentences = [strong(one) for one in (values["answer"], *values["qualified"])]
    return drawn(
        results.question,
        *(Markup("<p>{}</p>").format(one) for one in sentences),
        *(Markup(rendered(part, values)) for part in ("alarms.html.j2", "verdicts.html.j2")),
        *map(_chart, shown),
        kind="study",
        rules=rendered("report.css", {}),
    )


def _chart(figure: Figure) -> Markup:
    """A chart with its words; its identifiers are its own even where a page shows several studies."""
    from markupsafe import Markup

    svg = for_page(figure.drawing.svg, f"c{zlib.crc32(figure.drawing.svg.encode()):x}")
    whole = '<section><h2>{}</h2><div class="chart">{}</div><p class="note">{}</p></section>'
    return Markup(whole).format(figure.title, Markup(svg), strong(figure.caption))
