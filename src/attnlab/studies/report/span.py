"""The range of an axis, known before it is drawn, so that labels can be kept apart on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

FEW_POWERS = 4
"""Powers of ten below which a logarithmic axis has lines between them."""


@final
@dataclass(frozen=True)
class Span:
    """Hold the range of an axis and whether it is logarithmic."""

    low: float  # smallest value shown
    high: float  # largest value shown, above `low`
    logarithmic: bool  # whether equal distances are equal ratios

    def at(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end."""
        place = math.log if self.logarithmic else float
        return (place(value) - place(self.low)) / (place(self.high) - place(self.low))

    def value(self, place: float) -> float:
        """The value that lies at a place."""
        if self.logarithmic:
            return math.exp(math.log(self.low) + place * (math.log(self.high) - math.log(self.low)))
        return self.low + place * (self.high - self.low)

    def scale(self, alt: Any) -> Any:
        """The altair scale of this range."""
        kind = "log" if self.logarithmic else "linear"
        return alt.Scale(type=kind, domain=[self.low, self.high], nice=False, zero=False)

    def ticks(self) -> dict[str, Any]:
        """Where an axis has its lines, and how numbers are written there: about six places, or round numbers."""
        if not self.logarithmic:
            return {"tickCount": 6, "format": number_format(self.low, self.high)}
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1, 2, 5) if len(powers) < FEW_POWERS else (1,)
        marks = (float(f"{factor}e{power}") for power in powers for factor in factors)
        shown = [mark for mark in marks if self.low <= mark <= self.high]
        return {"values": shown, "format": "~g"}  # of values that are given, g writes all digits


def number_format(*ends: float) -> str:
    """How the numbers of a linear axis are written."""
    return ",~r" if max(map(abs, ends)) >= 1 else "~g"


def span_of(values: Iterable[float], *, ratio_for_log: float, margin: float) -> Span:
    """The range that shows all values with a margin.

    Examples
    --------
    >>> span_of([1.0, 3.0], ratio_for_log=5, margin=0.5)
    Span(low=0.0, high=4.0, logarithmic=False)
    """
    shown = list(values)
    low, high = min(shown), max(shown)
    if low > 0 and high > ratio_for_log * low:
        tight = Span(low, high, logarithmic=True)
    elif low < high:
        tight = Span(low, high, logarithmic=False)
    else:
        room = abs(low) / 10 or 1.0
        tight = Span(low - room, high + room, logarithmic=False)
    return Span(tight.value(-margin), tight.value(1 + margin), tight.logarithmic)


def evenly(ordered: Sequence[Any], most: int) -> list[Any]:
    """At most so many of some things, evenly spread, the first and the last among them."""
    places = {round(place * (len(ordered) - 1) / (most - 1)) for place in range(most)}
    return [ordered[place] for place in sorted(places) if ordered]


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Places moved as little as needed upwards, or down from the top, to lie a gap apart.

    Examples
    --------
    >>> [round(place, 2) for place in apart([0.5, 0.52], 0.1)]
    [0.5, 0.6]
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = list(places)
    for below, index in itertools.pairwise(order):
        moved[index] = max(moved[index], moved[below] + gap)
    top = max([1.0, *places])
    for index in reversed(order):
        moved[index] = min(moved[index], top)
        top = moved[index] - gap
    return moved


def beside(points: Sequence[tuple[float, float]], width: float, height: float) -> list[float]:
    """Horizontal places at which points do not cover each other.

    Examples
    --------
    >>> beside([(0.5, 0.5), (0.5, 0.5), (0.5, 0.9)], 0.1, 0.1)
    [0.5, 0.6, 0.5]
    """
    placed: list[tuple[float, float]] = []
    for x, y in points:
        steps = (x + sign * step * width for step in range(len(points) + 1) for sign in (1, -1))
        free = (at for at in steps if all(abs(at - a) >= width * 0.99 or abs(y - b) >= height for a, b in placed))
        placed.append((next(free, x), y))
    return [x for x, _ in placed]
