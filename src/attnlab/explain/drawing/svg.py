"""From a sheet to the text of an SVG file, which needs nothing beside itself to be seen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import cast

from attnlab.explain.drawing.layout import (
    COPY_SHIFT,
    MOST_COPIES,
    NOTE_LINE,
    PAD_Y,
    RADIUS,
    SMALL_PAD,
    TITLE,
    TITLE_LINE,
    box_lines,
)
from attnlab.explain.drawing.letters import counted
from attnlab.explain.drawing.nodes import Box, Frame, parameters_in
from attnlab.explain.drawing.sheet import NOTE, Lettering, Line, Rectangle, Sheet
from attnlab.studies.report.style import FONT, INK, MUTED

FILLS = {
    "embedding": "#fbdfe2",
    "attention": "#fde2b8",
    "feedforward": "#c8e6f5",
    "norm": "#f3f4c3",
    "linear": "#dfe1f3",
    "convolution": "#d9edd0",
    "recurrent": "#e9dcf3",
    "softmax": "#cfe9d8",
    "plain": "#ffffff",
    "own": "#fff6fb",
    "outside": "#ffffff",
    "layers": "#f4f5f7",
}
"""Near to those of the figures in the paper of the first Transformer."""
OWN_EDGE, FRAME_EDGE, SEEN, HIDDEN = "#a8457f", "#98a1b0", "#4a5468", "#e4e7ec"
DASHED = ' stroke-dasharray="4 3"'
CELL = 6.0
"""Width of a cell of the small matrix of a mask, in px."""


def written(sheet: Sheet, size: tuple[float, float], title: str, description: str) -> str:
    """A sheet as an SVG file with a title, and a description for those who read it instead."""
    width, height = (f"{value:.0f}" for value in size)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="{FONT}">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(description, quote=False)}</desc>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0.8 8 4 0 7.2z" fill="{INK}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(_frame(one, said(one, sheet)) for one in sheet.rectangles if type(one.node) is Frame),
        *map(_line, sheet.lines),
        *(_box(one, said(one, sheet)) for one in sheet.rectangles if type(one.node) is Box),
        *(_circle(x, y) for x, y in sheet.circles),
        *(_cell(*one) for one in sheet.cells),
        *map(_words, sheet.words),
        "</svg>\n",
    ]
    return "\n".join(lines)


def said(one: Rectangle, sheet: Sheet) -> str:
    """Where the module of a box or frame stands, and how many parameters it has that no box before it has."""
    numbers = counted(parameters_in(one.node) // (getattr(one.node, "times", None) or 1), "parameter")
    layers = math.prod(getattr(around.node, "times", None) or 1 for around in _around(one, sheet))
    each = f" in each of {layers} layers" if layers > 1 else ""
    return f"{one.node.path or 'no module of its own'}: {numbers}{each}"


def _around(one: Rectangle, sheet: Sheet) -> Iterator[Rectangle]:
    """Yield a box or frame, and the frames that it stands in."""
    yield one
    if one.inside is not None:
        yield from _around(sheet.rectangles[one.inside], sheet)


def _frame(one: Rectangle, tip: str) -> str:
    own = one.node.kind == "own"
    edge = f'stroke="{OWN_EDGE}"{DASHED}' if own else f'stroke="{FRAME_EDGE}"'
    return (
        f'<g class="frame"><title>{escape(tip)}</title>{_rectangle(one, 12)} fill="{FILLS[one.node.kind]}" {edge}/></g>'
    )


def _rectangle(one: Rectangle, radius: float, shift: float = 0.0) -> str:
    return (
        f'<rect x="{one.x + shift:.1f}" y="{one.y - shift:.1f}" width="{one.width:.1f}" height="{one.height:.1f}" '
        f'rx="{radius:g}"'
    )


def _box(one: Rectangle, tip: str) -> str:
    """A box with those behind it and its texts."""
    box = cast(Box, one.node)
    edge = f'stroke="{OWN_EDGE if box.kind == "own" else INK}"' + (DASHED if box.kind in ("own", "outside") else "")
    copies = range(min(box.copies, MOST_COPIES) - 1, -1, -1)
    drawn = "".join(f'{_rectangle(one, 5, COPY_SHIFT * i)} fill="{FILLS[box.kind]}" {edge}/>' for i in copies)
    texts = "".join(map(_words, _texts(box, one.x + one.width / 2, one.y)))
    return f'<g class="box"><title>{escape(tip)}</title>{drawn}{texts}</g>'


def _texts(box: Box, middle: float, top: float) -> Iterator[Lettering]:
    """Yield the lines of a box in their places."""
    if box.small:
        yield Lettering(box.title, middle, top + SMALL_PAD + 10.5, NOTE, tone="ink")
        return
    titles, notes = box_lines(box)
    for i, line in enumerate(titles):
        yield Lettering(line, middle, top + PAD_Y + 13 + i * TITLE_LINE, TITLE, tone="ink", bold=True)
    below = top + PAD_Y + len(titles) * TITLE_LINE
    for i, line in enumerate(notes):
        yield Lettering(line, middle, below + 10.5 + i * NOTE_LINE, NOTE)


def _words(one: Lettering) -> str:
    color, weight = (INK if one.tone == "ink" else MUTED), ' font-weight="600"' if one.bold else ""
    anchor = "" if one.anchor == "start" else f' text-anchor="{one.anchor}"'
    place = f'x="{one.x:.1f}" y="{one.y:.1f}" font-size="{one.size:g}"'
    return f'<text {place} fill="{color}"{anchor}{weight}>{escape(one.text, quote=False)}</text>'


def _line(one: Line) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in one.points)
    head = ' marker-end="url(#head)"' if one.arrow else ""
    return f'<polyline points="{points}" fill="none" stroke="{INK}" stroke-width="1.2" stroke-linejoin="round"{head}/>'


def _circle(x: float, y: float) -> str:
    arm = RADIUS - 3
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS:g}" fill="#ffffff" stroke="{INK}" stroke-width="1.2"/>'
        f'<path d="M{x - arm:.1f} {y:.1f}h{2 * arm:g}M{x:.1f} {y - arm:.1f}v{2 * arm:g}" stroke="{INK}"/>'
    )


def _cell(x: float, y: float, seen: bool) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{CELL - 1:g}" height="{CELL - 1:g}" fill="{SEEN if seen else HIDDEN}"/>'
    )
