"""Time several things in turn, A B C A B C ..., so that whatever else the machine does meets all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from attnlab.core.machine import environment

DETAILS = {
    "parameters": "{:,} parameters",
    "tokens_per_second": "{:,.0f} tokens/s",
    "utilization": "{:.0%} of the matrix rate",
    "communication": "{:.0%} of it communication",
}
"""Details that are printed behind a row, with their form."""


@final
@dataclass(frozen=True)
class PairedTimes:
    """Hold what was measured of several things in turn."""

    title: str  # what was measured
    unit: str  # unit of the numbers, with what they are per; fewer is better
    reference: str  # the thing that ratios are taken against
    rows: Mapping[str, tuple[float, ...]]  # for each thing, one number per round
    notes: tuple[str, ...] = ()  # what a reader must know: what was skipped, what differs
    details: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """For each thing, what else is known of it in JSON types: parameters, settings that were chosen."""
    environment: dict[str, Any] = field(default_factory=environment)  # versions and hardware

    def ratios(self, name: str) -> list[float]:
        """The reference's number over one thing's, round by round: above 1, it is faster than the reference."""
        return [other / own for own, other in zip(self.rows[name], self.rows[self.reference], strict=True)]

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {
            "kind": "comparison",
            "title": self.title,
            "unit": self.unit,
            "reference": self.reference,
            "rows": [
                {
                    "name": name,
                    "median": statistics.median(values),
                    "values": list(values),
                    "times_faster": _spread(self.ratios(name)),
                    **self.details.get(name, {}),
                }
                for name, values in self.rows.items()
            ],
            "notes": list(self.notes),
            "environment": self.environment,
        }

    def __str__(self) -> str:
        """Medians and ratios as a person reads them."""
        machine = self.environment
        width = max(len(name) for name in self.rows) + 2
        lines = [self.title]
        for row in self.to_json()["rows"]:
            faster = row["times_faster"]
            ratio = f"{faster['median']:6.2f}x ({faster['low']:.2f} to {faster['high']:.2f})"
            shown = "reference" if row["name"] == self.reference else ratio
            known = ", ".join(form.format(row[key]) for key, form in DETAILS.items() if key in row)
            lines.append(f"  {row['name']:<{width}} {row['median']:9.2f} {self.unit}   {shown:<24} {known}".rstrip())
        lines += [f"  {note}" for note in self.notes]
        rounds = len(next(iter(self.rows.values())))
        device = "" if machine["device"] == "cpu" else f", {machine['device']}"
        lines.append(
            f"  {rounds} rounds; torch {machine['torch']}, {machine['threads']} thread(s), {machine['cpu']}{device}"
        )
        return "\n".join(lines)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def measure_in_turn(
    title: str,
    things: Mapping[str, Callable[[], float]],
    *,
    reference: str,
    unit: str,
    rounds: int,
    notes: Sequence[str] = (),
    details: Mapping[str, dict[str, Any]] | None = None,
    warm_up: bool = True,
    device: torch.device | str = "cpu",
) -> PairedTimes:
    """Measure several things in turn."""
    if warm_up:
        for measure in things.values():
            measure()
    measured: dict[str, list[float]] = {name: [] for name in things}
    for _ in range(rounds):
        for name, measure in things.items():
            measured[name].append(measure())
    rows = {name: tuple(values) for name, values in measured.items()}
    return PairedTimes(title, unit, reference, rows, tuple(notes), details or {}, environment(device))
