"""How a measured quantity grows with a size: the exponent p of ``value ~ size**p``, and tables of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from attnlab.core.errors import AttnlabError
from attnlab.core.machine import environment

NOT_RUN = "not run"
"""What stands in a table in place of a number that is absent; the reason stands below."""


@final
@dataclass(frozen=True)
class Growth:
    """State how fast a quantity grows."""

    exponent: float  # p of ``value ~ size**p``: 1 is linear, 2 quadratic, 0 constant
    error: float | None  # standard error of the exponent; None where there are as many numbers as unknowns
    sizes: tuple[int, ...]  # sizes it was fitted over

    def power_of(self, size: str) -> str:
        """The law in the words of a table, such as ``n^1.98 ± 0.01``."""
        spread = "" if self.error is None else f" ± {self.error:.2f}"
        return f"{size}^{self.exponent:.2f}{spread}"

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {"exponent": self.exponent, "standard_error": self.error, "sizes": list(self.sizes)}


def fit_growth(measured: Mapping[int, Sequence[float]]) -> Growth | None:
    """Fit a power law to the longer half of the sizes, where what does not grow weighs least.

    Notes
    -----
    Least squares of ``log value = a + p log size`` over all numbers of the longer half of the sizes (the middle
    one counts to it), at least two sizes. The standard error is that of the slope.

    Examples
    --------
    >>> fit_growth({1: [5], 2: [3], 4: [12], 8: [48]}).power_of("n")
    'n^2.00'
    """
    sizes = sorted(size for size, values in measured.items() if len(values))
    sizes = sizes[-max(2, math.ceil(len(sizes) / 2)) :]
    if len(sizes) < 2:
        return None
    points = [(size, value) for size in sizes for value in measured[size]]
    if any(value <= 0 for _, value in points):
        raise AttnlabError(f"numbers must be positive to have a law of growth; got {min(value for _, value in points)}")
    x, y = zip(*((math.log(size), math.log(value)) for size, value in points), strict=True)
    slope, start = statistics.linear_regression(x, y)
    return Growth(slope, _slope_error(x, y, slope, start), tuple(sizes))


def _slope_error(x: Sequence[float], y: Sequence[float], slope: float, start: float) -> float | None:
    """The standard error of a fitted slope, or None where nothing is left to judge it by."""
    freedom = len(x) - 2
    if freedom == 0:
        return None
    left_over = sum((value - start - slope * at) ** 2 for at, value in zip(x, y, strict=True))
    spread = sum((at - statistics.fmean(x)) ** 2 for at in x)
    return math.sqrt(left_over / freedom / spread)


def name_law(counted: Mapping[int, float], size: str) -> str:
    """Name the law of exact counts where it is no power.

    Notes
    -----
    Both laws have two unknowns; the one with the smaller sum of squared errors of the counts is nearer.

    Examples
    --------
    >>> name_law({2: 1, 4: 2, 8: 3, 16: 4}, "n")
    'log_2.0 n'
    """
    if len(set(counted.values())) == 1:
        return "constant"
    x, y = [math.log(at) for at in counted], list(counted.values())
    slope, start = statistics.linear_regression(x, y)
    power, log_factor = statistics.linear_regression(x, [math.log(value) for value in y])
    to_logarithm = sum((value - start - slope * at) ** 2 for at, value in zip(x, y, strict=True))
    to_power = sum((value - math.exp(log_factor + power * at)) ** 2 for at, value in zip(x, y, strict=True))
    return f"log_{math.exp(1 / slope):.1f} {size}" if to_logarithm < to_power else ""


@final
@dataclass(frozen=True)
class GrowthRow:
    """Hold one thing's numbers at several sizes."""

    name: str  # the thing
    values: Mapping[int, tuple[float, ...]]  # for each size that was measured, one or several numbers
    missing: Mapping[int, str] = field(default_factory=dict)
    """For each size that was not measured, the reason; empty where it is said elsewhere."""
    expected: str = ""  # the law the source states, as it is printed; empty where there is none
    law: str = ""  # the law that was found, where it is no power; empty for a fitted power

    def growth(self) -> Growth | None:
        """The fitted power law, or None where a law of another kind or too little was found."""
        return None if self.law else fit_growth(self.values)

    def shown_law(self, size: str) -> str:
        """The law as it is printed; empty where none was found."""
        growth = self.growth()
        return self.law or ("" if growth is None else growth.power_of(size))

    def median(self, size: int) -> float | None:
        """The median at a size, or None where there is no number."""
        return statistics.median(self.values[size]) if size in self.values else None

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        growth = self.growth()
        return {
            "name": self.name,
            "values": {str(size): list(values) for size, values in self.values.items()},
            "medians": {str(size): statistics.median(values) for size, values in self.values.items()},
            "missing": {str(size): reason for size, reason in self.missing.items()},
            "growth": None if growth is None else growth.to_json(),
            "law": self.law,
            "expected": self.expected,
        }


@final
@dataclass(frozen=True)
class GrowthTable:
    """Hold how one quantity of several things grows with one size."""

    title: str  # what was measured, with unit and setting
    size: str  # symbol of what grows, ``n`` for the length
    rows: tuple[GrowthRow, ...]  # one for each thing; each has its numbers at some of the same sizes
    places: int = 2  # digits after the decimal point

    def sizes(self) -> list[int]:
        """All sizes of all rows in order."""
        return sorted({size for row in self.rows for size in (*row.values, *row.missing)})

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {"title": self.title, "size": self.size, "rows": [row.to_json() for row in self.rows]}

    def __str__(self) -> str:
        """Medians and laws as a person reads them."""
        sizes = self.sizes()
        expects = any(row.expected for row in self.rows)
        head = ["", *(f"{self.size} = {size}" for size in sizes), "growth", *(["expected"] if expects else [])]
        lines = [head, *(self._cells(row, sizes, expects=expects) for row in self.rows)]
        return "\n".join([self.title, *in_columns(lines), *self._reasons()])

    def _cells(self, row: GrowthRow, sizes: Sequence[int], *, expects: bool) -> list[str]:
        shown = [NOT_RUN if (value := row.median(size)) is None else f"{value:,.{self.places}f}" for size in sizes]
        return [row.name, *shown, row.shown_law(self.size), *([row.expected] if expects else [])]

    def _reasons(self) -> list[str]:
        """One line for each row with absent numbers: the reason for the smallest size explains all others."""
        firsts = ((row, min(row.missing)) for row in self.rows if row.missing)
        return [
            f"  {NOT_RUN}: {row.name} from {self.size} = {size} on: {row.missing[size]}"
            for row, size in firsts
            if row.missing[size]
        ]


@final
@dataclass(frozen=True)
class GrowthReport:
    """Hold several tables of one benchmark."""

    title: str  # what was measured
    tables: tuple[GrowthTable, ...]  # the tables in the order of reading
    notes: tuple[str, ...] = ()  # what a reader must know
    environment: dict[str, Any] = field(default_factory=environment)  # versions and hardware

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {
            "kind": "growth",
            "title": self.title,
            "tables": [table.to_json() for table in self.tables],
            "notes": list(self.notes),
            "environment": self.environment,
        }

    def __str__(self) -> str:
        """All tables as a person reads them."""
        parts = [self.title, *map(str, self.tables), "\n".join(self.notes), machine_line(self.environment)]
        return "\n\n".join(part for part in parts if part)


def machine_line(environment: Mapping[str, Any]) -> str:
    """In one line where something was measured."""
    threads, device = environment["threads"], environment["device"]
    return f"torch {environment['torch']}, {threads} thread(s), {environment['cpu']}, device {device}"


def in_columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: the first column flush left, all others flush right, indented.

    Examples
    --------
    >>> in_columns([["", "n"], ["square", "16"]])
    ['           n', '  square  16']
    """
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return [
        "  " + "  ".join([line[0].ljust(widths[0]), *(map(str.rjust, line[1:], widths[1:]))]).rstrip() for line in lines
    ]
