"""How every chart looks, and how a chart becomes a file and a piece of a page.

Charts are written with altair and turned into SVG without a browser, so that the page needs no script to be read.
The few named colors become CSS variables in the SVG: the same drawing is readable on light and on dark ground.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

INK, MUTED, GRID, BAND, PAPER = "#1f2430", "#667085", "#e4e7ec", "#eef1f5", "#fffffe"
FAINT = "#c4cad4"
"""Text, secondary text, grid lines, the band of effects too small to matter, the ground; lines that stay behind."""

VERDICT_COLORS = {
    "better": "#0b72b5",
    "worse": "#cc5500",
    "equivalent": "#7d8590",
    "undecided": "#7d8591",
    "exploratory": "#7d8592",
    "baseline": "#1f2431",
}
"""Blue and vermilion differ for every kind of color vision; what is not decided stays gray."""

VARIANT_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#6b8e23")
"""Okabe and Ito's palette, safe for color-blind readers, without yellow and with two more hues at the end."""

VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    FAINT: "--faint",
    BAND: "--band",
    PAPER: "--paper",
    **{color: f"--{word}" for word, color in VERDICT_COLORS.items()},
}
"""Colors of the drawing that follow the page's color scheme."""

FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
SMALL, NORMAL = 12, 13
"""Font sizes in px at the natural width of a chart."""

PNG_SCALE = 2
"""Pixels per px: sharp on a screen of double density."""

LABEL_WIDTH = 34
"""Characters after which the name of a variant continues on a second line."""


@final
@dataclass(frozen=True)
class Drawing:
    """Hold one finished chart."""

    name: str  # name of its file, without ending
    svg: str  # the drawing, for a page
    png: bytes  # the same as a picture, for documents
    document: str  # the same as an SVG of its own, in fixed colors


@final
class _Rows(str):
    """Stand for rows in a chart that is being made: altair copies and checks all data with every step of it."""

    rows: Sequence[Mapping[str, Any]]


_NUMBERS = itertools.count()
"""Words of their own for different rows, as altair may take data that say the same for one."""


def data_of(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Rows for a chart."""
    import altair

    word = _Rows(f"rows {next(_NUMBERS)}")
    word.rows = list(rows)
    return altair.Data(values=word)


def draw(chart: Any, name: str) -> Drawing:
    """A chart as SVG and PNG."""
    import vl_convert

    svg = _clipped_once(vl_convert.vegalite_to_svg(spec_of(chart.configure(**theme()))))
    return Drawing(name, for_page(svg, name), vl_convert.svg_to_png(svg, scale=PNG_SCALE), svg)


def spec_of(chart: Any) -> dict[str, Any]:
    """A chart in Vega-Lite, with its rows."""
    return _with_rows(chart.to_dict(validate=False))


def _with_rows(said: Any) -> Any:
    """A chart as plain data, with the rows in their places."""
    if isinstance(said, _Rows):
        return said.rows
    if isinstance(said, dict):
        return {key: _with_rows(value) for key, value in said.items()}
    return [_with_rows(each) for each in said] if isinstance(said, list) else said


def _clipped_once(svg: str) -> str:
    """A drawing whose lines of one kind are clipped together: Vega clips each, and each is a pass over the picture."""
    for kind in dict.fromkeys(re.findall(r"role-scope (\w+)_pathgroup", svg)):
        each = re.compile(rf'(role-mark {kind}_marks") clip-path="([^"]+)"')
        if first := each.search(svg):
            group = f'role-scope {kind}_pathgroup"'
            svg = each.sub(r"\1", svg).replace(group, f'{group} clip-path="{first[2]}"')
    return svg


def for_page(svg: str, name: str) -> str:
    """An SVG that fits its place in a page: fluid, in the page's colors, with identifiers of its own."""
    svg = re.sub(
        r'(<svg[^>]*?) width="([\d.]+)" height="[\d.]+"', r'\1 style="width:100%;max-width:\2px"', svg, count=1
    )
    svg = re.sub(r'<rect width="[\d.]+" height="[\d.]+" fill="#fffffe"/>', "", svg, count=1)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(f'"{color}"', f'"var({variable})"')
    return svg


def theme() -> dict[str, Any]:
    """The altair configuration shared by all charts."""
    title = {"titleFontSize": NORMAL, "titleFontWeight": "normal", "titleColor": MUTED}
    quiet = {"labelColor": MUTED, "labelFontSize": SMALL, "gridColor": GRID, "domainColor": GRID, "tickColor": GRID}
    return {
        "background": PAPER,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {**title, **quiet, "titlePadding": 10, "labelPadding": 6},
        "legend": {
            **title,
            "labelColor": INK,
            "labelFontSize": SMALL,
            "labelLimit": 230,
            "symbolStrokeWidth": 3,
            "symbolType": "stroke",
            "symbolSize": 220,
            "symbolOpacity": 1,
        },
        "header": {"labelColor": INK, "labelFontSize": SMALL, "title": None},
        "text": {"color": INK, "fontSize": SMALL},
        "title": {"color": INK, "fontSize": NORMAL, "fontWeight": "normal", "anchor": "start"},
    }


def label(name: str, width: int = LABEL_WIDTH, most: int = 2) -> str:
    """A name over as few lines as it needs, evenly filled; beyond the most lines its end is cut."""
    for count in range(1, most + 1):
        for narrow in range(len(name) // count, width + 1):
            lines = textwrap.wrap(name, max(1, narrow), break_long_words=False)
            if len(lines) == count and max(map(len, lines)) <= width:
                return "\n".join(lines)
    return "\n".join(textwrap.wrap(name, width, max_lines=most, placeholder=" …")) or name
