"""Where everything stands: nodes become rectangles, lines and texts with places.

Every node has an axis, on which what comes in and goes out runs upwards; `extent` says how far it reaches on both
sides of that and how high it is, and `place` puts it on a sheet.
"""

# ruff: noqa: ARG001 -- entries of one function share its signature; not every entry needs all of it

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from attnlab.explain.drawing.letters import TIMES, lines_of, width_of
from attnlab.explain.drawing.nodes import (
    Beside,
    Box,
    Caption,
    Column,
    Frame,
    Join,
    Node,
    Pile,
    Plus,
    Port,
    Skip,
    walk,
)
from attnlab.explain.drawing.sheet import NARROWEST, NOTE, Ends, Extent, Lettering, Line, Point, Rectangle, Sheet

TITLE, NUMBER = 13.0, 17.0
"""Sizes of letters, in px; smaller ones are those of notes."""
TITLE_LINE, NOTE_LINE = 17.0, 14.0
"""Heights of lines of text."""
PAD_X, PAD_Y, SMALL_PAD = 12.0, 7.0, 2.0
NARROWEST_SMALL = 84.0
"""Width of a small box with little text."""
GAP = 20.0
"""Length of an arrow."""
LANE = 18.0
"""How far beside a body the arrow around it runs."""
FRAME_PAD = 16.0
PILE_GAP = 8.0
BRANCH_GAP = 22.0
LEAST_CAPTION = 12.0
SIDE_GAP = 22.0
RADIUS = 9.0
COPY_SHIFT, MOST_COPIES = 4.0, 4
"""How far boxes that stand behind each other are moved, and how many of them are shown."""
STUB = 12.0
"""From the foot of what is gone around to where its first arrow can begin."""


def box_size(box: Box, least: float) -> tuple[float, float]:
    """Width and height of the front of a box."""
    if box.small:
        return max(NARROWEST_SMALL, width_of(box.title, NOTE) + 2 * PAD_X), NOTE_LINE + 2 * SMALL_PAD
    titles, notes = box_lines(box)
    widths = [width_of(line, TITLE, bold=True) for line in titles] + [width_of(line, NOTE) for line in notes]
    height = len(titles) * TITLE_LINE + len(notes) * NOTE_LINE + 2 * PAD_Y
    return max(least, *(width + 2 * PAD_X for width in widths)), height


def box_lines(box: Box) -> tuple[list[str], list[str]]:
    """The lines of a box: large ones, then small ones."""
    return lines_of(box.title), [line for note in box.notes for line in lines_of(note)]


def common_width(node: Node) -> float:
    """The width that the boxes of a column are given: that of the widest, without those where branches meet."""
    fitted = {id(one.top) for one in walk(node) if type(one) is Join}
    fitted |= {id(one.side) for one in walk(node) if type(one) is Beside}
    boxes = [one for one in walk(node) if type(one) is Box and not one.small and id(one) not in fitted]
    return max((box_size(box, NARROWEST)[0] for box in boxes), default=NARROWEST)


def _shift(box: Box) -> float:
    return COPY_SHIFT * (min(box.copies, MOST_COPIES) - 1)


@functools.singledispatch
def extent(node: Node, sheet: Sheet) -> Extent:
    """How much room a node needs on a sheet, around its axis."""
    raise TypeError(type(node).__name__)


@functools.singledispatch
def place(node: Node, x: float, bottom: float, sheet: Sheet) -> Ends:
    """Put a node on a sheet, its axis at `x`, its foot at `bottom`."""
    raise TypeError(type(node).__name__)


@extent.register
def _(node: Box, sheet: Sheet) -> Extent:
    width, height = box_size(node, sheet.box_width)
    aside = width_of(node.aside, NOTE) + 8 if node.aside else 0.0
    return Extent(width / 2, width / 2 + _shift(node) + aside, height + _shift(node))


@place.register
def _(node: Box, x: float, bottom: float, sheet: Sheet) -> Ends:
    return _place_box(node, x, bottom, box_size(node, sheet.box_width)[0], sheet)


def _place_box(node: Box, x: float, bottom: float, width: float, sheet: Sheet) -> Ends:
    """Put a box of a given width on a sheet, with what stands behind it."""
    height, shift = box_size(node, width)[1], _shift(node)
    sheet.rectangles.append(Rectangle(node, x - width / 2, bottom - height, width, height, sheet.frame))
    if node.aside:
        sheet.words.append(Lettering(node.aside, x + width / 2 + shift + 6, bottom - height / 2 + 4, anchor="start"))
    return Ends((x, bottom), (x, bottom - height - shift))


@extent.register
def _(node: Caption, sheet: Sheet) -> Extent:
    half = max(width_of(node.text, NOTE) / 2, LEAST_CAPTION)
    return Extent(half, half, NOTE_LINE)


@place.register
def _(node: Caption, x: float, bottom: float, sheet: Sheet) -> Ends:
    sheet.words.append(Lettering(node.text, x, bottom - 3))
    return Ends((x, bottom), (x, bottom - NOTE_LINE))


@extent.register
def _(node: Plus, sheet: Sheet) -> Extent:
    return Extent(RADIUS, RADIUS, 2 * RADIUS)


@place.register
def _(node: Plus, x: float, bottom: float, sheet: Sheet) -> Ends:
    sheet.circles.append((x, bottom - RADIUS))
    return Ends((x, bottom), (x, bottom - 2 * RADIUS))


@extent.register
def _(node: Column | Pile, sheet: Sheet) -> Extent:
    sizes, gap = [extent(one, sheet) for one in node.items], GAP if type(node) is Column else PILE_GAP
    sizes = sizes or [Extent(0.0, 0.0, 0.0)]
    height = sum(size.height for size in sizes) + gap * (len(sizes) - 1)
    return Extent(max(size.left for size in sizes), max(size.right for size in sizes), height)


@place.register
def _(node: Column, x: float, bottom: float, sheet: Sheet) -> Ends:
    ends: list[Ends] = []
    for one in node.items:
        ends.append(place(one, x, bottom, sheet))
        if len(ends) > 1:
            _connect(ends[-2].exit, ends[-1].entry, sheet)
        bottom -= extent(one, sheet).height + GAP
    return Ends(ends[0].entry, ends[-1].exit) if ends else Ends((x, bottom), (x, bottom))


def _connect(start: Point, end: Point | None, sheet: Sheet) -> None:
    if end is not None:
        sheet.lines.append(Line((start, end)))


@place.register
def _(node: Pile, x: float, bottom: float, sheet: Sheet) -> Ends:
    foot = bottom
    for one in reversed(node.items):  # read like a list, from the top
        place(one, x, bottom, sheet)
        bottom -= extent(one, sheet).height + PILE_GAP
    return Ends((x, foot), (x, bottom + PILE_GAP))


def _times(node: Frame) -> str:
    return "" if node.times is None else f"{node.times} {TIMES}"


def _head(node: Frame) -> list[tuple[str, float]]:
    """The lines in the head of a frame, with the sizes of their letters."""
    title = [(line, TITLE) for line in lines_of(node.title)] if node.title else []
    return [*title, (node.note, NOTE)] if node.note else title


@extent.register
def _(node: Frame, sheet: Sheet) -> Extent:
    body = extent(node.body, sheet).mirrored(sheet.outward)  # its left side is outward here
    title = max((width_of(line, size, bold=True) for line, size in _head(node)), default=0.0) / 2
    times = width_of(_times(node), NUMBER) + 8 if node.times else 0.0
    left, right = (max(side, title) + FRAME_PAD for side in (body.left, body.right))
    height = body.height + 2 * FRAME_PAD + TITLE_LINE * len(_head(node))
    return Extent(left + times, right, height).mirrored(sheet.outward)


@place.register
def _(node: Frame, x: float, bottom: float, sheet: Sheet) -> Ends:
    whole = extent(node, sheet).mirrored(sheet.outward)
    times = width_of(_times(node), NUMBER) + 8 if node.times else 0.0
    framed = Extent(whole.left - times, whole.right, whole.height).mirrored(sheet.outward)
    left, top = x - framed.left, bottom - framed.height
    number, outer = len(sheet.rectangles), sheet.frame
    sheet.rectangles.append(Rectangle(node, left, top, framed.width, framed.height, outer))
    if node.times:
        edge = x - framed.left - 8 if sheet.outward < 0 else x + framed.right + 8
        anchor = "end" if sheet.outward < 0 else "start"
        sheet.words.append(Lettering(_times(node), edge, top + framed.height / 2 + 6, NUMBER, anchor, "ink"))
    for i, (line, size) in enumerate(_head(node)):
        middle, heavy = left + framed.width / 2, size == TITLE
        tone = "ink" if heavy else "muted"
        sheet.words.append(Lettering(line, middle, top + 19 + i * (TITLE_LINE - 1), size, tone=tone, bold=heavy))
    sheet.frame = number
    inner = place(node.body, x, bottom - FRAME_PAD, sheet)
    sheet.frame = outer
    if node.kind == "own":  # what runs inside is not known
        return Ends((x, bottom), (x, top))
    return inner


@extent.register
def _(node: Skip, sheet: Sheet) -> Extent:
    body, join = extent(node.body, sheet).mirrored(sheet.outward), extent(node.join, sheet)
    height = STUB + body.height + GAP + join.height
    return Extent(max(body.left, join.left) + LANE, max(body.right, join.right), height).mirrored(sheet.outward)


@place.register
def _(node: Skip, x: float, bottom: float, sheet: Sheet) -> Ends:
    body = extent(node.body, sheet)
    inner = place(node.body, x, bottom - STUB, sheet)
    join = place(node.join, x, bottom - STUB - body.height - GAP, sheet)
    _connect(inner.exit, join.entry, sheet)
    whole = extent(node, sheet).mirrored(sheet.outward)
    lane = x + sheet.outward * (whole.left - 4)
    size = extent(node.join, sheet)
    height = bottom - STUB - body.height - GAP - size.height / 2
    edge = x + sheet.outward * size.left
    sheet.lines.append(Line(((x, bottom), (lane, bottom), (lane, height), (edge, height))))
    return Ends(inner.entry or (x, bottom), join.exit)


@extent.register
def _(node: Join, sheet: Sheet) -> Extent:
    axes, whole = _axes(node, sheet)
    middle = (axes[0] + axes[-1]) / 2
    half = _join_width(node, axes, sheet) / 2
    top = extent(node.top, sheet)
    over = top.right - top.left  # what stands behind the box and at its side
    height = max(extent(one, sheet).height for one in node.branches) + GAP + top.height
    return Extent(max(middle, half), max(whole - middle, half + over), height)


def _axes(node: Join, sheet: Sheet) -> tuple[list[float], float]:
    """Where the branches' axes are, from the left edge, and how wide all of them are together."""
    axes, edge = [], 0.0
    for one in node.branches:
        size = extent(one, sheet)
        axes.append(edge + size.left)
        edge += size.width + BRANCH_GAP
    return axes, edge - BRANCH_GAP


def _join_width(node: Join, axes: Sequence[float], sheet: Sheet) -> float:
    return max(box_size(node.top, sheet.box_width)[0], axes[-1] - axes[0] + 2 * PAD_X)


@place.register
def _(node: Join, x: float, bottom: float, sheet: Sheet) -> Ends:
    axes, _ = _axes(node, sheet)
    middle = (axes[0] + axes[-1]) / 2
    above = bottom - max(extent(one, sheet).height for one in node.branches) - GAP
    for one, axis in zip(node.branches, axes, strict=True):
        branch = place(one, x - middle + axis, bottom, sheet)
        sheet.lines.append(Line((branch.exit, (branch.exit[0], above))))
    top = _place_box(node.top, x, above, _join_width(node, axes, sheet), sheet)
    return Ends(None, top.exit)


def _narrow(sheet: Sheet) -> Sheet:
    """The same sheet, for boxes that are as wide as they need to be."""
    return dataclasses.replace(sheet, box_width=NARROWEST)


def _reach(node: Beside, sheet: Sheet) -> float:
    """How far from the axis what comes from the side begins."""
    main = extent(node.main, sheet).mirrored(sheet.outward)
    own = main.right if node.inward else main.left
    if type(node.side) is Port:
        return own
    return max(own, 0.0 if node.inward else sheet.box_width / 2) + SIDE_GAP


@extent.register
def _(node: Beside, sheet: Sheet) -> Extent:
    main, side = extent(node.main, sheet).mirrored(sheet.outward), extent(node.side, _narrow(sheet))
    far = _reach(node, sheet) + side.width
    left, right = (main.left, max(far, main.right)) if node.inward else (max(far, main.left), main.right)
    return Extent(left, right, max(main.height, side.height)).mirrored(sheet.outward)


@place.register
def _(node: Beside, x: float, bottom: float, sheet: Sheet) -> Ends:
    main, side = extent(node.main, sheet), extent(node.side, _narrow(sheet))
    height = max(main.height, side.height)
    ends = place(node.main, x, bottom - (height - main.height) / 2, sheet)
    direction = -sheet.outward if node.inward else sheet.outward
    half = main.right if direction > 0 else main.left
    edge, middle = (x + direction * half, bottom - height / 2)
    if type(node.side) is Port:
        sheet.ports.append(((edge, middle), node.side.text))
        return ends
    reach = _reach(node, sheet)
    axis = x + direction * (reach + (side.left if direction > 0 else side.right))
    place(node.side, axis, bottom - (height - side.height) / 2, _narrow(sheet))
    sheet.lines.append(Line(((x + direction * reach, middle), (edge, middle))))
    return ends


@extent.register
def _(node: Port, sheet: Sheet) -> Extent:
    return Extent(0.0, width_of(node.text, NOTE) + 18, NOTE_LINE * 2)
