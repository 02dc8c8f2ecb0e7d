"""Cutting: which rows and columns of the score matrix are computed together.

`Whole` is the plain case. Where a mask lets a query see a bounded distance, `in_blocks` computes a band of the matrix
alone, all pieces of it at once; `in_chunks` computes some rows after each other and again in the backward pass. Each
hands the pieces to a function that computes head outputs the way the layer's parts say, so that every score,
normalizer and dropout works in every piece: all of them look at a row's allowed keys and at nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnlab.core.errors import ModuleError
from attnlab.core.layouts import Queries, SharedKeys, SharedValues
from attnlab.nn.axes.masks import AbstractMask, Reach

SMALLEST_BLOCK = 64  # queries: below it, calls of small matrix products cost more than the products
WORTH_CUTTING = 3  # a band pays where keys are this many times as many as the columns of a block; measured on a CPU


class AbstractPiece(ABC):
    """Say which keys some queries may see, without a matrix until one is asked for.

    Attributes
    ----------
    queries : slice
        Where the queries stand, from the first to before the last; its ends may be symbols.
    keys : slice
        Where the keys stand; for several blocks in one piece, only the distance to the queries counts.
    is_causal : bool
        Whether query i may see exactly the keys 0 to i, so that no matrix is needed to say it.
    """

    queries: slice
    keys: slice
    is_causal: bool

    @abstractmethod
    def allowed(self, device: torch.device) -> Bool[Tensor, "*more q_len k_len"] | None:
        """True where a query may see a key, or None where every query may see every key."""


Attend = Callable[[Tensor, Tensor, Tensor, AbstractPiece], Tensor]
"""From queries, keys and values of a piece to its head outputs."""


@final
class Whole(AbstractPiece):
    """Take a rectangle of the matrix: all of it, or some rows and the columns they may see.

    Parameters
    ----------
    mask : AbstractMask
        Which key a query may see, padding included.
    queries : slice
        Where the queries stand.
    keys : slice
        Where the keys stand.
    """

    def __init__(self, mask: AbstractMask, queries: slice, keys: slice) -> None:
        self.mask, self.queries, self.keys = mask, queries, keys
        self.is_causal = mask.kind == "causal" and queries == keys

    def allowed(self, device: torch.device) -> Bool[Tensor, "*more q_len k_len"] | None:
        """The rectangle of the mask."""
        if self.mask.kind == "full":
            return None
        q_positions = torch.arange(self.queries.start, self.queries.stop, device=device)[:, None]
        k_positions = torch.arange(self.keys.start, self.keys.stop, device=device)[None]
        may = self.mask.at(q_positions, k_positions)
        return may.expand(*may.shape[:-2], q_positions.shape[0], k_positions.shape[1])


@final
class Band(AbstractPiece):
    """Take the blocks around the diagonal that a mask of bounded reach can allow, folded into the batch.

    Parameters
    ----------
    mask : AbstractMask
        Which key a query may see, padding included; of bounded reach.
    batch : int
        Number of sequences.
    q_len : int
        Number of queries; the last one stands where the last key stands.
    k_len : int
        Number of keys.

    Raises
    ------
    ModuleError
        If the mask lets a query see any distance.
    """

    is_causal = False

    def __init__(self, mask: AbstractMask, *, batch: int, q_len: int, k_len: int) -> None:
        back, ahead = _bounds(mask)
        self.mask, self.batch, self.k_len = mask, batch, k_len
        self.size = block_size(back, ahead)
        self.blocks = -(-q_len // self.size)
        self.columns = back + self.size + ahead
        self.queries, self.keys = slice(back, back + self.size), slice(0, self.columns)
        self.first_query = k_len - q_len
        self.first_key = self.first_query - back

    def allowed(self, device: torch.device) -> Bool[Tensor, "*more q_len k_len"] | None:
        """The blocks of the mask, (batch * blocks, 1, q_len, k_len); False where there is no key."""
        starts = self.size * torch.arange(self.blocks, device=device)[:, None]
        q_positions = (self.first_query + starts + torch.arange(self.size, device=device))[..., None]
        k_positions = (self.first_key + starts + torch.arange(self.columns, device=device))[:, None]
        exists = (k_positions >= 0) & (k_positions < self.k_len)  # (blocks, 1, k_len)
        may = self.mask.at(q_positions, k_positions.where(exists, 0)) & exists
        may = may.expand(self.batch, 1, self.blocks, self.size, self.columns)
        return may.transpose(1, 2).flatten(0, 1)

    def fold_queries(self, q: Float[Tensor, "batch heads q_len d"]) -> Float[Tensor, "folded heads size d"]:
        """Queries cut into blocks, zeros after the last one; ``folded = batch * blocks``."""
        missing = self.blocks * self.size - q.shape[-2]
        q = F.pad(q, (0, 0, 0, missing)) if missing else q
        return q.unflatten(2, (self.blocks, self.size)).transpose(1, 2).flatten(0, 1)

    def fold_keys(self, x: Float[Tensor, "batch heads k_len d"]) -> Float[Tensor, "folded heads columns d"]:
        """For each block of queries the keys (or values) it can see, zeros where there are none."""
        end = self.first_key + (self.blocks - 1) * self.size + self.columns
        x = F.pad(x, (0, 0, -self.first_key, end - self.k_len))
        blocks = x.unfold(2, self.columns, self.size)  # (batch, heads, blocks, d, columns)
        return blocks.transpose(1, 2).transpose(-2, -1).flatten(0, 1)

    def unfold(self, x: Float[Tensor, "folded heads size d"], q_len: int) -> Float[Tensor, "batch heads q_len d"]:
        """What belongs to the queries, one after the other."""
        return x.unflatten(0, (self.batch, self.blocks)).transpose(1, 2).flatten(2, 3)[:, :, :q_len]


def _bounds(mask: AbstractMask) -> tuple[int, int]:
    """A reach that has limits on both sides."""
    back, ahead = mask.reach
    if back is None or ahead is None:
        raise ModuleError(f"blocks need a mask of bounded reach; {mask!r} lets a query see any distance")
    return back, ahead


def block_size(back: int, ahead: int) -> int:
    """How many queries a block has: half the reach of the farther side, where that is not too few.

    Notes
    -----
    Smaller blocks compute fewer pairs in vain and copy keys more often. Half the reach was fastest at a reach of 127.
    """
    return max(SMALLEST_BLOCK, max(back, ahead) // 2)


def pays_in_blocks(reach: Reach, k_len: int) -> bool:
    """Whether a mask's reach is so short that a band is worth cutting out."""
    back, ahead = reach
    if back is None or ahead is None:
        return False
    return k_len >= WORTH_CUTTING * (back + block_size(back, ahead) + ahead)


def in_blocks(
    attend: Attend, q: Queries, k: SharedKeys, v: SharedValues, mask: AbstractMask
) -> Float[Tensor, "batch heads q_len d_v"]:
    """Compute head outputs from the band of pairs that a mask of bounded reach can allow.

    Notes
    -----
    Queries are cut into blocks of about the reach r; each block gets the keys around it. Time and memory are
    O(q_len * r) per head, forward and backward.

    References
    ----------
    .. [1] Beltagy, Peters, Cohan, 2020, arXiv:2004.05150, appendix A ("sliding chunks").
    """
    band = Band(mask, batch=q.shape[0], q_len=q.shape[-2], k_len=k.shape[-2])
    found = attend(band.fold_queries(q), band.fold_keys(k), band.fold_keys(v), band)
    return band.unfold(found, q.shape[-2])


def in_chunks(
    attend: Attend, q: Queries, k: SharedKeys, v: SharedValues, mask: AbstractMask, *, rows: int
) -> Float[Tensor, "batch heads q_len d_v"]:
    """Compute head outputs for some queries after each other, and again in the backward pass.

    Notes
    -----
    Memory is that of `rows` rows of the score matrix instead of all, also in the backward pass, for one more forward
    pass [1]_. Keys that no query of a chunk can reach are left out. Dropout draws the same numbers both times.
    Does not work under ``vmap``, which has no rule for checkpoints.

    References
    ----------
    .. [1] Rabe, Staats, 2021, arXiv:2112.05682, section 3; Chen et al., 2016, arXiv:1604.06174.
    """
    q_len, k_len = q.shape[-2], k.shape[-2]
    found = []
    for start in range(0, q_len, rows):
        queries = slice(start, min(start + rows, q_len))
        here = slice(queries.start + k_len - q_len, queries.stop + k_len - q_len)
        keys = _reachable(here, mask.reach, k_len)
        parts = q[:, :, queries], *(x[:, :, keys] for x in (k, v))
        found.append(checkpoint(attend, *parts, Whole(mask, here, keys), use_reentrant=False))
    return torch.cat(found, dim=-2)


def _reachable(queries: slice, reach: Reach, k_len: int) -> slice:
    """The keys that any of some queries can see; at least one, that a mask may still forbid."""
    back, ahead = reach
    start = 0 if back is None else min(max(queries.start - back, 0), k_len - 1)
    stop = k_len if ahead is None else min(max(queries.stop + ahead, start + 1), k_len)
    return slice(start, stop)
