"""The records of a run as they are written: followed by offset, and thinned to what a screen can show."""

from __future__ import annotations

import itertools
import json
import math
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import final

Point = tuple[int, float]
"""Step and value."""
MOST_BYTES = 8 * 1024 * 1024
"""Of a file that are read at once: some 60,000 records, less than a second."""
LAST_STEP = 2**53
"""Up to here every step is a number to a browser."""
DIGITS = 5
"""Of a value, which is finer than a pixel."""


@final
class RecordsTail:
    """Follow the file of records of a run.

    Parameters
    ----------
    path : Path
        ``metrics.jsonl``; it may come into being later, be cut, replaced, or vanish.

    Notes
    -----
    A run that goes on from a checkpoint drops the records after it and replaces the file. It is then read anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        self._identity = (0, 0)  # device and inode of the file that was read last
        self._offset = self._size = 0

    def read(self) -> tuple[list[dict[str, float]], bool]:
        """The records since the last call, and whether those of before are to be forgotten."""
        lines, anew = self.lines()
        return [record for line in lines if (record := self._record(line)) is not None], anew

    def lines(self) -> tuple[list[bytes], bool]:
        """The whole lines since the last call, and whether those of before are to be forgotten."""
        try:
            if self._is_read():
                return [], False
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = status.st_dev, status.st_ino
                anew = self._offset > 0 and (identity != self._identity or status.st_size < self._offset)
                if anew:
                    self._offset = self.damaged = 0
                self._identity, self._size = identity, status.st_size
                file.seek(self._offset)
                text = file.read(MOST_BYTES)
        except OSError:
            anew = self._offset > 0
            self._offset = self._size = 0
            return [], anew
        whole = text[: text.rfind(b"\n") + 1]  # the last line may be half written
        self._offset += len(whole)
        return whole.splitlines(), anew

    def _is_read(self) -> bool:
        """Whether the file is as it was when its last line was read, so that it need not be opened."""
        status = os.stat(self.path)
        found = status.st_dev, status.st_ino, status.st_size
        return found == (*self._identity, self._size) and self._offset == self._size

    def _record(self, line: bytes) -> dict[str, float] | None:
        """The finite numbers of a line; a line that is no record is counted."""
        try:
            found = {name: value for name, value in json.loads(line).items() if isinstance(value, int | float)}
            if isinstance(found["step"], int) and 0 <= found["step"] <= LAST_STEP:
                return {name: value for name, value in found.items() if math.isfinite(value)}
        except (ValueError, KeyError, AttributeError, RecursionError, OverflowError):
            pass
        self.damaged += 1
        return None


@final
class Curve:
    """Hold what one quantity of a run was at its steps."""

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")

    def __len__(self) -> int:
        """How many points there are."""
        return len(self.steps)

    def append(self, step: int, value: float) -> None:
        """Add a point."""
        self.steps.append(step)
        self.values.append(value)

    def points(self, columns: int, since: int = 0) -> list[Point]:
        """The points from the one numbered `since`, thinned to two a column."""
        return thinned(self.steps[since:], self.values[since:], columns)


def thinned(steps: Sequence[int], values: Sequence[float], columns: int) -> list[Point]:
    """Points as they look where a screen has so many columns of pixels: the lowest and the highest of each.

    Parameters
    ----------
    steps : sequence of int
        Rising.
    values : sequence of float
        One for each step.
    columns : int
        Into how many parts the steps are divided.

    Returns
    -------
    list of pairs
        Step and value with `DIGITS` digits; all points where there are no more than two a column. The last one is
        always among them.
    """
    count = len(steps)
    if count <= 2 * columns:
        kept = list(range(count))
    else:
        bounds = [count * column // columns for column in range(columns + 1)]
        found = {count - 1}
        for start, end in itertools.pairwise(bounds):
            found.add(min(range(start, end), key=values.__getitem__))
            found.add(max(range(start, end), key=values.__getitem__))
        kept = sorted(found)
    return [(steps[place], float(f"{values[place]:.{DIGITS}g}")) for place in kept]
