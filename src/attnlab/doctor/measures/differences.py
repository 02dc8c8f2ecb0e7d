"""How far a change of the input reaches: what two outputs differ by, position by position."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.doctor.examination import Examination

LEAK = 1e-5
"""Part of the signal from which on a leak counts: leaks of 1e-4 are found, rounding stays below."""

_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-6}
"""Part of the largest output that is rounding, between calls of different shapes; some modules compute in float32."""


@dataclass(frozen=True)
class Reach:
    """Compare what must not change with what may.

    Parameters
    ----------
    leak : float
        Largest change of an output that must not change.
    signal : float
        Largest change of an output that may, where the input changed.
    size : float
        Largest finite output, for rounding.
    tolerance : float
        Part of `size` that counts as rounding.
    """

    leak: float
    signal: float
    size: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """The leak as a part of the signal; 0 if nothing but rounding leaks."""
        if self.leak <= self.tolerance * self.size or self.leak <= LEAK * self.signal:
            return 0.0
        return self.leak / self.signal if self.signal > 0 else float("inf")


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
    return moved / size if size > 0 else float("inf")


def influence_map(
    exam: Examination, x: Tensor, *, module: nn.Module | None = None, causal: bool | None = None
) -> Float[Tensor, "batch q_len k_len"]:
    """How much each output position changes when one input position is replaced in all samples."""
    before = exam.run(x, module=module, causal=causal)
    moved = [exam.run(exam.change(x, position), module=module, causal=causal) for position in range(x.size(1))]
    return torch.stack([difference(before, after) for after in moved], -1)


def future_reach(
    exam: Examination,
    x: Tensor,
    cuts: Iterable[int],
    *,
    module: nn.Module | None = None,
    causal: bool | None = None,
) -> Reach:
    """Replace everything from some position on, and compare what happens before it with what happens after it."""
    before = exam.run(x, module=module, causal=causal)
    leak = signal = 0.0
    for cut in cuts:
        after = exam.run(exam.change(x, slice(cut, None)), module=module, causal=causal)
        moved = difference(before, after)
        moved = moved.masked_fill(moved.isinf(), 0.0)
        leak = max(leak, largest(moved[:, :cut]))
        signal = max(signal, largest(moved[:, cut:]))
    return Reach(leak, signal, size_of(before), exam.tolerance)


def some_cuts(length: int) -> list[int]:
    """Where to cut a sequence: everywhere if it is short, else at both ends and in the middle."""
    return list(range(1, length)) if length <= 5 else sorted({1, length // 2, length - 1})
