"""The figure of a model: the whole of it, and beside it what its attention layers do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import nn

from attnlab.explain.drawing import masks, rivals  # noqa: F401 the rivals make themselves known
from attnlab.explain.drawing.attention import Layer, layers, seen_by
from attnlab.explain.drawing.description import described
from attnlab.explain.drawing.layout import NOTE_LINE, TITLE, common_width, extent, place
from attnlab.explain.drawing.letters import counted, lines_of, width_of
from attnlab.explain.drawing.models import Halves, halves
from attnlab.explain.drawing.reading import Reading, Use
from attnlab.explain.drawing.sheet import NOTE, Extent, Lettering, Line, Sheet
from attnlab.explain.drawing.svg import CELL, written

MARGIN, PANEL_GAP, BRIDGE, BRIDGE_HEIGHT, HEAD = 24.0, 44.0, 46.0, 30.0, 34.0
NAME_SIZE, HEADING, WIDEST_NAME = 18.0, 15.0, 640.0
LEGEND_LINE, LEGEND_GAP, LEGEND_INDENT = 48, 10.0, 60.0
"""Characters of a line of the list of layers, the room between two entries, and that of the matrix beside them."""
LAYER = re.compile(r"\.(\d+)(?=\.)")


@final
@dataclass(frozen=True)
class ModelFigure:
    """Hold the figure of a model.

    Parameters
    ----------
    title : str
        What it is the figure of.
    svg : str
        The figure; a page or a document can hold it as it is.
    description : str
        What it shows, in sentences; the figure holds it as well.
    """

    title: str
    svg: str
    description: str

    def _repr_svg_(self) -> str:
        """The figure, as notebooks show it."""
        return self.svg


def draw_model(model: nn.Module, *, title: str | None = None) -> ModelFigure:
    """Draw a model as the figures of papers are: its blocks, and what its attention layers do.

    Parameters
    ----------
    model : nn.Module
        A model of the lab or any other; its weights may lie on the meta device. Nothing of it is run or changed.
    title : str, optional
        What stands above the figure; the name of its class if left out.

    Returns
    -------
    ModelFigure
        The figure.

    Notes
    -----
    Everything is read off the modules that the model is made of: what the lab's classes compute is drawn with arrows,
    layers that are equal are drawn once. A module of a person's own is drawn as what it holds, without arrows.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, figures 1 and 2.
    """
    reading = Reading()
    found = halves(model, reading)
    attentions = layers(reading.uses)
    name = title or type(model).__name__
    numbers = f"{type(model).__name__}, {counted(sum(one.numel() for one in model.parameters()), 'parameter')}"
    sheet, size = laid_out(found, attentions, name, numbers)
    description = f"{name}. {numbers}. {described(found, attentions)}"
    return ModelFigure(name, written(sheet, size, name, description), description)


def laid_out(found: Halves, attentions: Sequence[Layer], name: str, numbers: str) -> tuple[Sheet, tuple[float, float]]:
    """A sheet with the model on the left and its attention layers beside it, and the size of both."""
    sheet = Sheet()
    top = MARGIN + 2 * NAME_SIZE + NOTE_LINE
    right, bottom = _model(found, MARGIN, top, sheet)
    edge, below = right, top
    for layer in attentions:
        width, below = _layer(layer, right + PANEL_GAP, below, sheet)
        edge = max(edge, width)
        below += HEAD
    wanted = max(min(width_of(name, NAME_SIZE, bold=True), WIDEST_NAME), width_of(numbers, TITLE))
    longest = max(edge - MARGIN, wanted)
    title = _shortened(name, longest)
    sheet.words.append(Lettering(title, MARGIN, MARGIN + NAME_SIZE - 4, NAME_SIZE, "start", "ink", bold=True))
    sheet.words.append(Lettering(numbers, MARGIN, MARGIN + NAME_SIZE + 14, TITLE, "start"))
    return sheet, (max(edge, MARGIN + longest) + MARGIN, max(bottom, below) + MARGIN)


def _shortened(text: str, width: float) -> str:
    """A text that fits in one line; all of it is the title of the file."""
    while width_of(text, NAME_SIZE, bold=True) > width and len(text) > 2:
        text = f"{text[:-2]}…"
    return text


def _heading(text: str, x: float, y: float, sheet: Sheet) -> None:
    sheet.words.append(Lettering(text, x, y + HEADING, HEADING, "start", "ink", bold=True))


def _model(found: Halves, left: float, top: float, sheet: Sheet) -> tuple[float, float]:
    """Put the columns of a model on a sheet; its right edge and its lower one."""
    names = ["Model"] if len(found.columns) == 1 else ["Encoder", "Decoder"]
    sizes: list[Extent] = []
    for column, outward in zip(found.columns, (-1, 1), strict=False):
        sheet.outward, sheet.box_width = outward, common_width(column)
        sizes.append(extent(column, sheet))
    above = [BRIDGE_HEIGHT + NOTE_LINE, 0] if len(sizes) > 1 else [0]
    bottom = top + HEAD + max(size.height + more for size, more in zip(sizes, above, strict=True))
    starts = [left, left + sizes[0].width + BRIDGE]
    exits = []
    for i, (name, column, size) in enumerate(zip(names, found.columns, sizes, strict=True)):
        sheet.outward, sheet.box_width = (-1, 1)[i], common_width(column)
        _heading(name, starts[i], bottom - size.height - HEAD - above[i], sheet)
        exits.append(place(column, starts[i] + size.left, bottom, sheet).exit)
    sheet.outward = -1
    if len(exits) > 1:
        _bridge(exits[0], starts[1] - BRIDGE / 2, found.bridge, sheet)
    return starts[len(exits) - 1] + sizes[-1].width, bottom


def _bridge(start: tuple[float, float], bus: float, text: str, sheet: Sheet) -> None:
    """Lead what the first half makes to everything that it enters."""
    x, y = start
    above = y - BRIDGE_HEIGHT
    sheet.words.append(Lettering(text, x, above - 6))
    for (edge, height), what in sheet.ports:
        sheet.lines.append(Line(((x, y), (x, above), (bus, above), (bus, height), (edge, height))))
        sheet.words.append(Lettering(what, edge - 10, height - 5, anchor="end"))


def _layer(layer: Layer, left: float, top: float, sheet: Sheet) -> tuple[float, float]:
    """Put the two figures of an attention layer on a sheet, and below them where it is used."""
    inside = "Inside the head" if layer.uses[0].attention.heads.n_heads == 1 else "Inside each head"
    right, bottoms, entries = left, [], _listed(layer.uses)
    room = LEGEND_INDENT + max(width_of(line, NOTE) for lines, _ in entries for line in lines)
    for name, column in ((layer.title, layer.heads), (inside, layer.inside)):
        sheet.box_width = common_width(column)
        size = extent(column, sheet)
        _heading(name, right, top, sheet)
        bottoms.append(top + HEAD + size.height)
        place(column, right + size.left, bottoms[-1], sheet)
        right += max(size.width, width_of(name, HEADING, bold=True), room) + PANEL_GAP
        room = 0.0
    lowest = bottoms[0]
    for lines, matrix in entries:
        lowest = _entry(lines, matrix, left, lowest + LEGEND_GAP, sheet)
    return right - PANEL_GAP, max(lowest, bottoms[1])


Matrix = tuple[tuple[bool, ...], ...] | None


def _listed(uses: Sequence[Use]) -> list[tuple[list[str], Matrix]]:
    """Where a layer is used, what it looks at, and what it may see; layers of one stack together."""
    found: dict[tuple[str, str, str], list[Use]] = {}
    for use in uses:
        found.setdefault((LAYER.sub(".*", use.path), use.source, seen_by(use)), []).append(use)
    entries = []
    for (_, source, seen), same in found.items():
        said = (_together(same), f"keys and values from {source}", f"sees {seen}")
        lines = [line for text in said for line in lines_of(text, LEGEND_LINE)]
        entries.append((lines, masks.matrix(same[0].attention.mask)))
    return entries


def _together(uses: Sequence[Use]) -> str:
    """The paths of layers that differ in their number alone."""
    numbers = [int(found[1]) for use in uses if (found := LAYER.search(use.path))]
    if len(uses) == 1 or len(numbers) != len(uses):
        return ", ".join(use.path for use in uses)
    steady = numbers == list(range(numbers[0], numbers[-1] + 1))
    said = f"{numbers[0]}-{numbers[-1]}" if steady else ",".join(map(str, numbers))
    return LAYER.sub(f".{said}", uses[0].path, count=1)


def _entry(lines: Sequence[str], matrix: Matrix, left: float, top: float, sheet: Sheet) -> float:
    """Put an entry of the list of layers on a sheet; its lower edge."""
    for i, row in enumerate(matrix or ()):
        sheet.cells += [(left + j * CELL, top + i * CELL, seen) for j, seen in enumerate(row)]
    for i, line in enumerate(lines):
        tone = "ink" if i == 0 else "muted"
        sheet.words.append(Lettering(line, left + LEGEND_INDENT, top + 11 + i * NOTE_LINE, NOTE, "start", tone))
    return top + max(len(lines) * NOTE_LINE, len(matrix or ()) * CELL)
