"""Time two things in turn, A B A B ..., so that whatever else the machine does meets both alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnlab.training.environment import environment


@dataclass(frozen=True)
class Comparison:
    """Hold the times of two things measured in turn.

    Parameters
    ----------
    title : str
        What was measured.
    unit : str
        Unit of the times, with what they are per.
    names : tuple of str
        The two things; the second is the reference.
    times : tuple of tuple of float
        For each, one time per round.
    environment : dict
        Versions and hardware.
    """

    title: str
    unit: str
    names: tuple[str, str]
    times: tuple[tuple[float, ...], tuple[float, ...]]
    environment: dict[str, Any]

    @property
    def ratios(self) -> list[float]:
        """Time of the first over time of the second, round by round."""
        return [one / other for one, other in zip(*self.times, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        rows = [
            {"name": name, "median": statistics.median(times), "times": list(times)}
            for name, times in zip(self.names, self.times, strict=True)
        ]
        ratio = {"median": statistics.median(self.ratios), "low": min(self.ratios), "high": max(self.ratios)}
        return {"title": self.title, "unit": self.unit, "rows": rows, "ratio": ratio, "environment": self.environment}

    def __str__(self) -> str:
        """Return medians and ratio as a person reads them."""
        content = self.to_json()
        rows = [f"  {row['name']:<40} {row['median']:8.2f} {self.unit}" for row in content["rows"]]
        ratio = content["ratio"]
        machine = self.environment
        spread = f"from {ratio['low']:.3f} to {ratio['high']:.3f} in {len(self.ratios)} rounds"
        lines = [
            self.title,
            *rows,
            f"  ratio {ratio['median']:.3f} ({spread})",
            f"  torch {machine['torch']}, {machine['threads']} thread(s), {machine['cpu']}",
        ]
        return "\n".join(lines)


def measure_in_turn(
    title: str,
    first: tuple[str, Callable[[], float]],
    second: tuple[str, Callable[[], float]],
    *,
    unit: str,
    rounds: int,
) -> Comparison:
    """Measure two things in turn.

    Parameters
    ----------
    title : str
        What is measured.
    first, second : tuple of str and callable
        Name, and what measures once and returns the time; the second is the reference.
    unit : str
        Unit of what they return.
    rounds : int
        How often both are measured, after one round that is not counted.

    Returns
    -------
    Comparison
        All times.
    """
    first[1](), second[1]()
    pairs = [(first[1](), second[1]()) for _ in range(rounds)]
    times = (tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))
    return Comparison(title, unit, (first[0], second[0]), times, environment())
