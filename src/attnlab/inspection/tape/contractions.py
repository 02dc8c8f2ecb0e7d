"""Bring every product of two tensors that sums over an axis into one form.

The form is ``out[n, a, b] = sum_c left[n, a, c] right[n, c, b]``.
``bmm`` and ``mm`` have it already; a broadcast multiplication that is summed afterwards, as loops and pooling layers
write it, is brought there by tables of places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from attnlab.inspection.tape.tape import Event, Tape

Operand = tuple[int, int]
"""Index of an event, and which of its inputs."""


@final
@dataclass(frozen=True, eq=False)
class Contraction:
    """Hold where the elements of a product lie in the tensors the code works with."""

    event: int  # the event whose output is the product
    left: Operand
    right: Operand
    """Event and input of the two factors."""
    left_places: Int[Tensor, "n a c"]
    right_places: Int[Tensor, "n c b"]
    out_places: Int[Tensor, "n a b"]
    """(n, a, c), (n, c, b) and (n, a, b): places in the flattened factors and product."""


def contraction_of(tape: Tape, event: Event) -> Contraction | None:
    """An event as a contraction, or None if it is none."""
    if event.call in ("bmm", "mm", "mv"):
        return _plain(event, 0)
    if event.call == "baddbmm":
        return _plain(event, 1)
    if event.call == "sum":
        return _summed(tape, event)
    return None


def _plain(event: Event, first: int) -> Contraction:
    """A product of matrices; those without a batch axis get one of size 1."""
    left, right = _places(event.inputs[first]), _places(event.inputs[first + 1])
    out = _places(event.output)
    if right.dim() == 1:  # a matrix times a vector
        right, out = right[:, None], out[:, None]
    if left.dim() == 2:
        left, right, out = left[None], right[None], out[None]
    return Contraction(event.index, (event.index, first), (event.index, first + 1), left, right, out)


def _summed(tape: Tape, event: Event) -> Contraction | None:
    """A broadcast multiplication and the sum over one axis that both factors have as a contraction."""
    parent = event.parents[0]
    if parent is None or tape.events[parent].call != "mul" or len(tape.events[parent].inputs) != 2:
        return None
    product = tape.events[parent]
    shape = product.output.shape
    axes = _summed_axes(event, len(shape))
    spread = [_spread(factor, shape) for factor in product.inputs]
    if len(axes) != 1 or event.inputs[0].shape != shape or any(axes[0] in missing for missing in spread):
        return None
    rest = [axis for axis in range(len(shape)) if axis != axes[0]]
    only_left = [axis for axis in rest if axis in spread[1] and axis not in spread[0]]
    only_right = [axis for axis in rest if axis in spread[0] and axis not in spread[1]]
    both = [axis for axis in rest if axis not in only_left and axis not in only_right]
    left, right = (_places(factor).expand(shape) for factor in product.inputs)
    kept = event.output.reshape([1 if axis in axes else shape[axis] for axis in range(len(shape))])
    return Contraction(
        event=event.index,
        left=(parent, 0),
        right=(parent, 1),
        left_places=_fold(left, both, only_left, axes, only_right),
        right_places=_fold(right, both, axes, only_right, only_left),
        out_places=_fold(_places(kept), both, only_left, only_right, axes),
    )


def _fold(places: Tensor, first: list[int], second: list[int], third: list[int], dropped: list[int]) -> Tensor:
    """Places with three groups of axes folded into one each; of the dropped axes the first element is taken."""
    ordered = places.permute(*first, *second, *third, *dropped)
    sizes = [int(torch.tensor([places.shape[axis] for axis in group]).prod()) for group in (first, second, third)]
    return ordered.reshape(*sizes, -1)[..., 0]


def _summed_axes(event: Event, dims: int) -> list[int]:
    """Over which axes a sum runs."""
    given = next((value for value in event.arguments if isinstance(value, list)), None)
    return [axis % dims for axis in given] if given else list(range(dims))


def _spread(factor: Tensor, shape: torch.Size) -> set[int]:
    """The axes along which a factor is repeated."""
    padded = [1] * (len(shape) - factor.dim()) + list(factor.shape)
    return {axis for axis, size in enumerate(shape) if padded[axis] == 1 and size > 1}


def _places(tensor: Tensor) -> Tensor:
    """The place of each element in the flattened tensor."""
    return torch.arange(tensor.numel()).view(tensor.shape)
