"""Tensors of which every rank holds a part (torch's DTensor), and whole ones.

They are told apart by an attribute: importing DTensor takes a second, which a run on one device need not spend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class RankShare:
    """Say which part of a tensor this rank computes, where every rank has as much of it along an axis."""

    axis: int  # counted from the end, below 0
    number: int  # of this rank, from 0
    count: int  # of ranks

    def whole(self, shape: Sequence[int]) -> list[int]:
        """The shape of all parts together, by that of one."""
        return [size * self.count if axis == self.axis else size for axis, size in enumerate(shape, -len(shape))]

    def of(self, tensor: Tensor) -> Tensor:
        """The part of a tensor that is this rank's."""
        return tensor.chunk(self.count, self.axis)[self.number]


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds a part of a tensor."""
    return hasattr(tensor, "placements")


def is_cut_often(tensor: Tensor) -> bool:
    """Whether this rank holds several pieces of a tensor, which lie apart: no file of parts can hold them."""
    return is_sharded(tensor) and any(hasattr(one, "split_factor") for one in tensor.placements)  # type: ignore[attr-defined]


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[operator]


def whole(tensor: Tensor) -> Tensor:
    """A tensor whole; where it is sharded, every rank must ask for it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[operator]


def placed_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, or this rank's part of it where another tensor of its shape is sharded."""
    if not is_sharded(like) or is_sharded(tensor) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(tensor.to(like.device), mesh, placements, src_data_rank=None)  # every rank has it whole
