"""What two outputs differ by, position by position, and from which size on a difference is none of rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

LEAK = 1e-5
"""Part of the signal from which on a leak counts: leaks of 1e-4 are found, rounding stays below."""

_TINY = 1e-30  # below any output
_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-6}
"""Part of the largest output that is rounding, between calls of different shapes; some modules compute in float32."""


@final
@dataclass(frozen=True)
class Leakage:
    """Compare what must not change with what may."""

    leak: float  # largest change of an output that must not change
    signal: float  # largest change of an output that may, where the input changed
    noise: float  # changes up to this are rounding

    @property
    def ratio(self) -> float:
        """The leak as a part of the signal; 0 if nothing but rounding leaks."""
        if self.leak <= max(self.noise, LEAK * self.signal):
            return 0.0
        return self.leak / self.signal if self.signal > 0 else math.inf


def difference(before: Float[Tensor, "*any d_out"], after: Float[Tensor, "*any d_out"]) -> Float[Tensor, "*any"]:
    """The largest difference over features."""
    moved = (after - before).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    same = (before == after) | (before.isnan() & after.isnan())
    return moved.masked_fill(same, 0.0).amax(-1)


def size_of(output: Tensor) -> float:
    """The largest finite size in an output."""
    return largest(output.abs().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))


def largest(values: Tensor) -> float:
    """The largest of some values."""
    return float(values.max()) if values.numel() else 0.0


def deviation(one: Tensor, other: Tensor) -> float:
    """By how much outputs that must be the same differ, as a part of the largest output."""
    size = max(size_of(one), size_of(other))
    moved = largest(difference(one, other))
    if moved <= _ROUNDING.get(one.dtype, _ROUNDING[torch.float32]) * size:
        return 0.0
    return moved / size if size > 0 else math.inf


def relative_change(before: Tensor, after: Tensor) -> float:
    """How much a result changed, relative to its size."""
    change = float((after - before).norm() / before.norm().clamp_min(_TINY))
    return change if math.isfinite(change) else math.inf
