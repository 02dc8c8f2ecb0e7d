"""A sheet, and what is put on it: boxes, lines and texts in their places, in px from the upper left corner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from attnlab.explain.drawing.nodes import Box, Frame

NOTE = 11.0
"""Size of small letters, in px."""
NARROWEST = 116.0
"""Width of a box with little text, in px."""

Point = tuple[float, float]


@final
@dataclass(frozen=True)
class Extent:
    """Say how much room a node needs around its axis."""

    left: float  # from the axis to the left
    right: float  # from the axis to the right
    height: float  # from where it is entered to where it is left

    @property
    def width(self) -> float:
        """From the left to the right."""
        return self.left + self.right

    def mirrored(self, outward: int) -> Extent:
        """The same with its left side outward."""
        return self if outward < 0 else Extent(self.right, self.left, self.height)


@final
@dataclass(frozen=True)
class Rectangle:
    """Hold a box or a frame in its place."""

    node: Box | Frame  # what it shows
    x: float  # of its left edge
    y: float  # of its upper edge
    width: float  # in px
    height: float  # in px
    inside: int | None  # number of the frame that it stands in


@final
@dataclass(frozen=True)
class Line:
    """Hold a line with corners."""

    points: tuple[Point, ...]  # from its start to its end
    arrow: bool = True  # whether it ends in a head


@final
@dataclass(frozen=True)
class Lettering:
    """Hold a line of text in its place."""

    text: str  # what is written
    x: float  # of its middle, its left or its right end, as `anchor` says
    y: float  # of its base line
    size: float = NOTE  # of its letters
    anchor: str = "middle"  # "start", "middle" or "end"
    tone: str = "muted"  # "ink" or "muted"
    bold: bool = False  # whether it is heavy


@final
@dataclass
class Sheet:
    """Collect what is drawn."""

    outward: int = -1  # where arrows around a body run: -1 on the left, 1 on the right
    box_width: float = NARROWEST  # at least, of boxes that are not small
    rectangles: list[Rectangle] = field(default_factory=list)  # boxes and frames, frames first
    lines: list[Line] = field(default_factory=list)  # arrows
    words: list[Lettering] = field(default_factory=list)  # texts outside of boxes
    circles: list[Point] = field(default_factory=list)  # middles of additions
    cells: list[tuple[float, float, bool]] = field(default_factory=list)  # of the matrices of masks
    ports: list[tuple[Point, str]] = field(default_factory=list)  # where the other half's output enters
    frame: int | None = None  # number of the frame that is being filled


@final
@dataclass(frozen=True)
class Ends:
    """Say where a node is entered, and where it is left."""

    entry: Point | None  # the point of the arrow that enters it; None where nothing does
    exit: Point  # where the next arrow starts
