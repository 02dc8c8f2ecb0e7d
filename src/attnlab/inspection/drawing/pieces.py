"""What stands below a cell of a notebook: facts, tables, bars and colored tokens, readable without a script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from attnlab.inspection.drawing import palette
from attnlab.inspection.drawing.assets import asset

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_BARS = 24
MOST_CELLS = 2000  # of a grid, or tokens: more make a page slow and say no more
MOST_POINTS = 300
WIDE, HIGH, MARGIN = 520, 150, 16  # of a curve, in px
HOSTS = (
    ('[data-jp-theme-light="true"], .vscode-light', palette.LIGHT),
    ('[data-jp-theme-light="false"], .vscode-dark', palette.DARK),
)
"""Where a notebook says by itself what its ground is: JupyterLab and Visual Studio Code."""


@final
@dataclass(frozen=True)
class Drawn:
    """Hold what a notebook shows.

    Parameters
    ----------
    title : str
        What it shows.
    html : str
        A piece of a page that needs nothing from elsewhere and changes nothing around it.
    """

    title: str
    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        """The piece, as notebooks ask for it."""
        return self.html


def drawn(title: str, *pieces: Markup | str, kind: str = "facts", rules: str = "", script: str = "") -> Drawn:
    """Put pieces together below a title.

    Parameters
    ----------
    title : str
        What is shown; it is escaped.
    *pieces : Markup or str
        From the functions below; what is no `Markup` becomes an escaped paragraph.
    kind : str, optional
        A word for what is shown, to which alone the rules apply.
    rules : str, optional
        CSS of the pieces that those below do without.
    script : str
        A JavaScript module that runs once for each time the piece is shown.

    Returns
    -------
    Drawn
        The whole.
    """
    from markupsafe import Markup, escape

    paragraphs = [piece if isinstance(piece, Markup) else paragraph(piece) for piece in pieces]
    hosts = "".join(f":is({host}) .attnlab {{ {colors} }}" for host, colors in HOSTS)
    scheme = f"{palette.LIGHT} }} @media (prefers-color-scheme: dark) {{ .attnlab {{ {palette.DARK} }} }} {hosts}"
    own = f".attnlab {{ {asset('pieces.css')} }} .attnlab.{kind} {{ {rules} }}"
    style = f"<style>.attnlab {{ {scheme} {own}</style>"
    module = f'<script type="module">{script}</script>' if script else ""
    return Drawn(
        title,
        f'<div class="attnlab {kind}">{style}<h3>{escape(title)}</h3>{Markup().join(paragraphs)}{module}</div>',
    )


def paragraph(text: str, kind: str = "") -> Markup:
    """A sentence."""
    from markupsafe import Markup

    return Markup('<p class="{}">{}</p>').format(kind, text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> Markup:
    """A table; columns of numbers are set flush right."""
    from markupsafe import Markup

    def cell(tag: str, column: int, text: str) -> Markup:
        return Markup("<{}{}>{}</{}>").format(tag, Markup(' class="n"') if column in numbers else "", text, tag)

    def line(cells: Sequence[str], tag: str) -> Markup:
        return Markup("<tr>{}</tr>").format(Markup().join(cell(tag, at, text) for at, text in enumerate(cells)))

    top = Markup("<thead>{}</thead>").format(line(head, "th")) if head else ""
    body = Markup().join(line(row, "td") for row in rows)
    return Markup('<div class="scroll"><table>{}<tbody>{}</tbody></table></div>').format(top, body)


def facts(values: Mapping[str, str]) -> Markup:
    """What is known, a line each."""
    return table((), values.items())


def bars(values: Mapping[str, float]) -> Markup:
    """Numbers around zero as bars, the largest first; those for which there is no room are added up."""
    from markupsafe import Markup

    order = sorted(values, key=lambda name: -abs(values[name]))
    shown = {name: values[name] for name in order[:MOST_BARS]}
    rest = order[MOST_BARS:]
    if rest:
        shown[f"{len(rest)} smaller ones together"] = sum(values[name] for name in rest)
    largest = max(map(abs, shown.values()), default=0.0)
    row = Markup(
        '<tr><th scope="row">{}</th><td><span class="bar"><i class="{}" style="--part:{:.3f}"></i></span></td>'
        '<td class="n">{:+.3g}</td></tr>'
    )
    rows = [row.format(name, side(value), share(value, largest), value) for name, value in shown.items()]
    return Markup('<table class="bars"><tbody>{}</tbody></table>').format(Markup().join(rows))


def tokens(labels: Sequence[str], values: Sequence[float], *, largest: float | None = None) -> Markup:
    """Tokens in the color of a number each; those for which there is no room are left out, and counted."""
    from markupsafe import Markup

    most = max(map(abs, values), default=0.0) if largest is None else largest
    span = Markup('<span class="{}" style="--part:{:.3f}" title="{}: {:+.3g}">{}</span>')
    spans = [
        span.format(side(value), share(value, most), at, value, label.replace("\n", "↵"))
        for at, (label, value) in enumerate(zip(labels, values, strict=True))
    ]
    left = f" … {len(spans) - MOST_CELLS} more" if len(spans) > MOST_CELLS else ""
    return Markup('<div class="tokens">{}{}</div>').format(Markup().join(spans[:MOST_CELLS]), left)


Cell = tuple[str, float, str]
"""What stands in a cell of a grid, how strongly it is colored from -1 to 1, and what is said when it is pointed at."""


def grid(columns: Sequence[str], rows: Mapping[str, Sequence[Cell]]) -> Markup:
    """Cells in rows and columns, in the color of a number each; rows that have no room are left out, and counted."""
    from markupsafe import Markup

    cell = Markup('<td class="{}" style="--part:{:.3f}" title="{}">{}</td>')
    most = max(1, MOST_CELLS // max(1, len(columns)))
    lines = [
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(
            name, Markup().join(cell.format(side(part), share(part, 1.0), told, text) for text, part, told in cells)
        )
        for name, cells in rows.items()
    ]
    head = Markup().join(Markup("<th>{}</th>").format(one) for one in columns)
    left = paragraph(f"and {len(lines) - most} more rows", "note") if len(lines) > most else ""
    whole = (
        '<div class="scroll"><table class="grid"><thead><tr><th></th>{}</tr></thead><tbody>{}</tbody></table></div>{}'
    )
    return Markup(whole).format(head, Markup().join(lines[:most]), left)


def curve(points: Sequence[tuple[float, float]], *, along: str, up: str) -> Markup:
    """A line through points, with the first and the last of each axis; of many points only some are drawn."""
    from markupsafe import Markup

    shown = [*points[:: max(1, len(points) // MOST_POINTS)], points[-1]]
    lefts, heights = zip(*shown, strict=True)
    left, right, low, high = min(lefts), max(lefts), min(heights), max(heights)
    across, above = WIDE / ((right - left) or 1), HIGH / ((high - low) or 1)
    path = " ".join(f"{(x - left) * across:.1f},{MARGIN + (high - y) * above:.1f}" for x, y in shown)
    svg = (
        '<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{} over {}"><path d="M{}"/>'
        '<text x="0" y="11">{} {:.3g} to {:.3g}</text><text x="0" y="{}">{} {:g} to {:g}</text></svg>'
    )
    bottom = HIGH + 3 * MARGIN
    return Markup(svg).format(
        WIDE, bottom, up, along, path, up, heights[0], heights[-1], bottom - 6, along, left, right
    )


def side(value: float) -> str:
    """The class of what lies above zero, or below."""
    return "less" if value < 0 else "more"


def share(value: float, largest: float) -> float:
    """How much of the largest number a number is, from 0 to 1; 0 where that cannot be said."""
    part = abs(value) / largest if largest else 0.0
    return 0.0 if math.isnan(part) else min(1.0, part)
