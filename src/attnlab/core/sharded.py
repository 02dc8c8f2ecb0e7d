"""Tensors of which every rank holds a part (torch's DTensor), and whole ones.

They are told apart by an attribute: importing DTensor takes a second, which a run on one device need not spend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds a part of a tensor."""
    return hasattr(tensor, "placements")


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
