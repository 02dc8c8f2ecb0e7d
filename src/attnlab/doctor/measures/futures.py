"""Whether later positions leak into earlier ones, asked under many conditions.

A mask can hold for ordinary inputs and fail for large logits, hold in one mode or at one length and fail in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.measures.differences import Reach, difference, future_reach, largest, size_of, some_cuts
from attnlab.doctor.measures.logits import HUGE_LOGIT, LARGE_LOGIT, enlarging
from attnlab.doctor.measures.samples import meeting
from attnlab.doctor.measures.steady import same_course
from attnlab.inspection.tape.tape import Change

FAR_FETCHED = f"once logits reach {HUGE_LOGIT:.0e}"
"""The condition under which masks fail that well-known models have."""

_SHORT = (2, 5)  # the shortest with a future, and one between that and the usual length
_LONG = 67  # above the sizes of 16, 32 and 64 that buffers of small test modules have


@dataclass(frozen=True)
class Leak:
    """Say under which condition the future leaks, and how much.

    Parameters
    ----------
    condition : str
        In words that end a sentence: ``in training mode``.
    ratio : float
        Change of an earlier position as a part of that of the replaced ones.
    """

    condition: str
    ratio: float


def leaks(exam: Examination, *, causal: bool | None = None) -> Iterator[Leak]:
    """Replace the future under every condition."""
    for condition, measure in _CONDITIONS.items():
        try:
            reach = measure(exam, causal)
        except ModuleError:
            continue
        if reach is not None and reach.ratio:
            yield Leak(condition, reach.ratio)


def _scaled(scale: float) -> Callable[[Examination, bool | None], Reach | None]:
    """The measurement at another size of inputs; tokens have none."""

    def measure(exam: Examination, causal: bool | None) -> Reach | None:
        if exam.usage.takes == "tokens":
            return None
        x = exam.inputs(scale=scale)
        return future_reach(exam, x, some_cuts(x.size(1)), causal=causal)

    return measure


def _in_training(exam: Examination, causal: bool | None) -> Reach | None:
    """Measure in training mode; a batch norm, or randomness of the module's own, hides what is asked."""
    module = exam.fresh(train=True)
    x = exam.inputs()
    again = difference(exam.run(x, module=module, causal=causal), exam.run(x, module=module, causal=causal))
    if again.any() or meeting(exam, train=True).ratio:
        return None
    reach = future_reach(exam, x, range(1, x.size(1)), module=module, causal=causal)
    return reach if not reach.ratio or same_course(exam, module, exam.change(x, slice(1, None))) else None


def _at_short_lengths(exam: Examination, causal: bool | None) -> Reach | None:
    if not exam.usage.any_length:
        return None
    reaches = [_at_length(exam, length, causal) for length in _SHORT]
    return max(reaches, key=lambda reach: reach.ratio)


def _at_a_long_length(exam: Examination, causal: bool | None) -> Reach | None:
    """Measure at the longest length, or at one above the usual sizes of buffers."""
    length = min(_LONG, exam.usage.longest or _LONG)
    return _at_length(exam, length, causal) if exam.usage.any_length and length > exam.usage.length else None


def _at_length(exam: Examination, length: int, causal: bool | None) -> Reach:
    return future_reach(exam, exam.inputs(length=length), some_cuts(length), causal=causal)


def _by_gradient(exam: Examination, causal: bool | None) -> Reach | None:
    """Differentiate some output positions by all inputs."""
    x = exam.inputs()
    output, leaf = exam.run_from_embeddings(x, causal=causal)
    if not output.requires_grad or not output.isfinite().all():
        return None
    weights = torch.linspace(-1.0, 1.0, output.size(-1), dtype=output.dtype) + 0.3  # a mean over features can cancel
    leak = signal = 0.0
    for position in some_cuts(x.size(1)):
        (gradient,) = torch.autograd.grad((output[:, position - 1] @ weights).sum(), leaf, retain_graph=True)
        sizes = gradient.nan_to_num().abs().amax(-1)  # (batch, length)
        sizes = sizes if sizes.shape == x.shape[:2] else sizes.T
        leak, signal = max(leak, largest(sizes[:, position:])), max(signal, largest(sizes[:, :position]))
    return Reach(leak, signal, 0.0, 0.0)


# Large logits


def _for_logits_of(size: float) -> Callable[[Examination, bool | None], Reach | None]:
    """The measurement with logits of some size in an attention whose mask is finite."""

    def measure(exam: Examination, causal: bool | None) -> Reach | None:
        x = exam.inputs()
        visible = torch.ones(1, x.size(1), x.size(1), dtype=torch.bool).tril()
        changes = enlarging(exam, exam.tape(x, causal=causal), visible, size=size)
        reaches = [_changed_reach(exam, x, change, causal) for change in changes]
        return max(reaches, key=lambda reach: reach.ratio, default=None)

    return measure


def _changed_reach(exam: Examination, x: Tensor, change: Change, causal: bool | None) -> Reach:
    """Replace the future in calls with a change in the middle."""
    before = exam.tape(x, causal=causal, change=change).output
    leak = signal = 0.0
    for cut in (1, x.size(1) // 2):
        moved = exam.change(x, slice(cut, None))
        apart = difference(before, exam.tape(moved, causal=causal, change=change).output)
        leak, signal = max(leak, largest(apart[:, :cut])), max(signal, largest(apart[:, cut:]))
    return Reach(leak, signal, size_of(before), exam.tolerance)


_CONDITIONS: Mapping[str, Callable[[Examination, bool | None], Any]] = {
    "for small inputs (0.1 standard deviations)": _scaled(0.1),
    "for large inputs (10 standard deviations)": _scaled(10.0),
    "for large inputs (30 standard deviations)": _scaled(30.0),
    "in training mode": _in_training,
    "at short lengths": _at_short_lengths,
    "at a longer length": _at_a_long_length,
    "in the gradient": _by_gradient,
    f"once logits reach {LARGE_LOGIT:.0e}": _for_logits_of(LARGE_LOGIT),
    FAR_FETCHED: _for_logits_of(HUGE_LOGIT),
}
"""Condition -> measurement, from the cheap to the strange."""
