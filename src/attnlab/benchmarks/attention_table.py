"""What attention layers cost beside fused attention called by hand: the result, as JSON and as text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from attnlab.benchmarks.measuring.growth import NOT_RUN, GrowthRow, GrowthTable, in_columns, machine_line
from attnlab.benchmarks.measuring.passes import MIB
from attnlab.core.machine import environment


@final
@dataclass(frozen=True)
class Measured:
    """Hold what was measured of one layer at one length."""

    milliseconds: tuple[float, ...]  # time of a forward and backward pass, one number per round
    peak_bytes: int  # the most memory that a pass holds at once, weights and input left out


@final
@dataclass(frozen=True)
class LayerRow:
    """Hold what was measured of one layer."""

    name: str  # what is special about the layer; no other row has the same
    group: str  # what it shares with the reference it was measured in turn with: mask and heads
    is_reference: bool  # whether this is the group's fused attention called by hand
    measured: Mapping[int, Measured]  # for each length that was run
    missing: Mapping[int, str] = field(default_factory=dict)  # for each length that was not run, the reason

    def milliseconds(self) -> GrowthRow:
        """Time against length."""
        values = {length: measured.milliseconds for length, measured in self.measured.items()}
        return GrowthRow(self.name, values, self.missing)

    def mebibytes(self) -> GrowthRow:
        """Peak memory against length."""
        values = {length: (measured.peak_bytes / MIB,) for length, measured in self.measured.items()}
        return GrowthRow(self.name, values, dict.fromkeys(self.missing, ""))


@final
@dataclass(frozen=True)
class AttentionTable:
    """Hold time and memory of attention layers, measured in turn with fused attention called by hand."""

    setting: str  # sizes, precision and rounds, in words
    rows: tuple[LayerRow, ...]  # each group begins with its reference
    environment: dict[str, Any] = field(default_factory=environment)  # versions and hardware

    def lengths(self) -> list[int]:
        """All lengths that were asked for."""
        return sorted({length for row in self.rows for length in (*row.measured, *row.missing)})

    def ratios(self, row: LayerRow, length: int) -> list[float]:
        """The reference's time over the layer's, round by round: above 1, the layer is faster."""
        (reference,) = (other for other in self.rows if other.is_reference and other.group == row.group)
        rounds = zip(row.measured[length].milliseconds, reference.measured[length].milliseconds, strict=True)
        return [other / own for own, other in rounds]

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {
            "kind": "attention",
            "title": "attention layers, forward + backward",
            "setting": self.setting,
            "rows": [self._row_to_json(row) for row in self.rows],
            "environment": self.environment,
        }

    def __str__(self) -> str:
        """Times, ratios and memory as a person reads them."""
        times = tuple(row.milliseconds() for row in self.rows)
        memory = tuple(row.mebibytes() for row in self.rows)
        parts = [
            f"Attention layers beside SDPA (torch's scaled_dot_product_attention) called by hand\n{self.setting}",
            str(GrowthTable("Milliseconds of forward + backward, median", "n", times)),
            "\n".join(["Times faster than SDPA with the same mask and heads, median (range)", *self._ratio_lines()]),
            str(GrowthTable("Peak memory in MiB, weights and input left out", "n", memory)),
            machine_line(self.environment),
        ]
        return "\n\n".join(parts)

    def _ratio_lines(self) -> list[str]:
        lengths = self.lengths()
        lines = [["", *(f"n = {length}" for length in lengths)]]
        for row in self.rows:
            if not row.is_reference:
                lines.append([row.name, *(self._ratio_cell(row, length) for length in lengths)])
        return in_columns(lines)

    def _ratio_cell(self, row: LayerRow, length: int) -> str:
        if length not in row.measured:
            return NOT_RUN
        ratios = self.ratios(row, length)
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"

    def _row_to_json(self, row: LayerRow) -> dict[str, Any]:
        growths = {"time_growth": row.milliseconds().growth(), "memory_growth": row.mebibytes().growth()}
        return {
            "name": row.name,
            "group": row.group,
            "is_reference": row.is_reference,
            "lengths": {str(length): self._measured_to_json(row, length) for length in row.measured},
            "missing": {str(length): reason for length, reason in row.missing.items()},
            **{name: None if growth is None else growth.to_json() for name, growth in growths.items()},
        }

    def _measured_to_json(self, row: LayerRow, length: int) -> dict[str, Any]:
        measured, ratios = row.measured[length], self.ratios(row, length)
        return {
            "median_ms": statistics.median(measured.milliseconds),
            "ms": list(measured.milliseconds),
            "times_faster": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
            "peak_bytes": measured.peak_bytes,
        }
