"""Softmax attention whose gradients are computed by matrix products over small blocks of the score matrix.

torch's fused attention on a CPU runs forward near the speed of matrix products. Its backward pass in bfloat16 does
not use the matrix units and takes four to six times as long. Here the forward pass is torch's, nothing but q, k and v
is kept, and the backward pass computes the weights once more, one block at a time, so that a block stays in cache.

The two passes are operators of their own (``torch.library``) rather than an ``autograd.Function``: a compiler
then sees one call, where it would unroll the loop over blocks into the graph, and ``vmap`` gets a rule.
"""

# ruff: noqa: ARG001, PLR0917 -- an operator and its rules take all arguments, by position

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnlab.core.layouts import Queries, SharedKeys, SharedValues

BLOCK_NUMBERS = 3 * 2**19  # scores of one block: 3 MB in bfloat16, what a second-level cache holds; measured

Gradients = tuple[Tensor, Tensor, Tensor]


def attend_recomputed(
    q: Queries,
    k: SharedKeys,
    v: SharedValues,
    mask: Float[Tensor, "*more q_len k_len"] | None,
    *,
    is_causal: bool,
    scale: float,
) -> Float[Tensor, "batch heads q_len d_v"]:
    """Return ``softmax(scale * q k^T + mask) v``, and keep nothing of the size of the scores.

    Notes
    -----
    Time of the backward pass O(heads * q_len * k_len * d_head), five matrix products where a pass that keeps the
    weights has four; memory O(length * d_head). Differentiable once.

    References
    ----------
    .. [1] Dao et al., 2022, arXiv:2205.14135, section 3.1 (recomputation in the backward pass).
    """
    return _forward(q, k, v, mask, is_causal, scale)


@torch.library.custom_op("attnlab::attend", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    found = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )
    return found.transpose(1, 2).contiguous().transpose(1, 2)  # as `_empty` lies, whatever kernel it was


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    return _empty((*q.shape[:-1], v.shape[-1]), q)


@torch.library.custom_op("attnlab::attend_backward", mutates_args=())
def _backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    q_gradient, k_gradient, v_gradient = (_empty(x.shape, x) for x in (q, k, v))
    blocks = list(_blocks(q, k, is_causal=is_causal))
    whole = len(blocks[0].queries) == q.shape[-2]
    if not whole:  # several blocks add to the same keys
        exact = torch.promote_types(q.dtype, torch.float32)
        k_gradient, v_gradient = (torch.zeros_like(x, dtype=exact) for x in (k_gradient, v_gradient))
    if mask is not None:
        gradient = gradient.masked_fill((mask == -torch.inf).all(dim=-1, keepdim=True), 0)  # rows that see nothing
    with torch.autocast(q.device.type, enabled=False):
        for block in blocks:
            parts = block.rows(gradient), block.rows(q), block.columns(k), block.columns(v)
            q_part, k_part, v_part = _block_gradients(*parts, block.added(mask, q, is_causal=is_causal), scale)
            torch.mul(q_part, scale, out=block.rows(q_gradient))
            if whole:
                torch.mul(k_part, scale, out=block.columns(k_gradient))
                block.columns(v_gradient).copy_(v_part)
            else:
                block.columns(k_gradient).add_(k_part, alpha=scale)
                block.columns(v_gradient).add_(v_part)
    return q_gradient, k_gradient.to(k.dtype), v_gradient.to(v.dtype)


@_backward.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(q.shape, q), _empty(k.shape, k), _empty(v.shape, v)


@final
@dataclass(frozen=True)
class _Block:
    """Hold which sequences, queries and keys are computed together."""

    sequences: slice
    queries: range
    n_keys: int

    def rows(self, x: Tensor) -> Tensor:
        return x[self.sequences, :, self.queries.start : self.queries.stop]

    def columns(self, x: Tensor) -> Tensor:
        return x[self.sequences, :, : self.n_keys]

    def added(self, mask: Tensor | None, q: Tensor, *, is_causal: bool) -> Tensor | None:
        """What is added to the scores of the block: finite, (rows, keys) or with sequences and heads."""
        lowest = torch.finfo(q.dtype).min / 2  # half, so that it stays finite when a score is added
        if is_causal:
            forbidden = torch.full((len(self.queries), self.n_keys), lowest, dtype=q.dtype, device=q.device)
            return forbidden.triu_(1 + self.queries.start)
        if mask is None:
            return None
        some = mask[self.sequences] if mask.dim() == 4 and len(mask) > 1 else mask
        return some[..., self.queries.start : self.queries.stop, :].clamp(min=lowest)


def _blocks(q: Tensor, k: Tensor, *, is_causal: bool) -> Iterator[_Block]:
    """Yield blocks of at most `BLOCK_NUMBERS` scores: several sequences, or some queries of one."""
    batch, heads, q_len, _ = q.shape
    k_len = k.shape[-2]
    sequences = max(1, BLOCK_NUMBERS // (heads * q_len * k_len))
    rows = min(q_len, max(1, BLOCK_NUMBERS // (heads * k_len)))
    for first in range(0, batch, sequences):
        for start in range(0, q_len, rows):
            stop = min(start + rows, q_len)
            yield _Block(slice(first, first + sequences), range(start, stop), min(stop, k_len) if is_causal else k_len)


def _block_gradients(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float
) -> Gradients:
    """The gradients of a block, of q and k up to the factor: the softmax once more, then the chain rule."""
    batch, heads, rows, _ = q.shape
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    folded = batch * k.shape[1]  # query heads that share a key head become more rows
    q, k, v, gradient = (x.reshape(folded, -1, x.shape[-1]) for x in (q, k, v, gradient))
    if added is not None and (added.dim() > 2 or len(q[0]) != rows):
        added = added.expand(batch, heads, *added.shape[-2:]).reshape(folded, -1, added.shape[-1])
    start = torch.zeros((), dtype=q.dtype, device=q.device) if added is None else added
    weights = torch.baddbmm(start, q, k.transpose(1, 2), alpha=scale).softmax(dim=-1)  # (folded, rows, keys)
    v_gradient = torch.bmm(weights.transpose(1, 2), gradient)
    toward_weights = torch.bmm(gradient, v.transpose(1, 2))
    toward_scores = torch.ops.aten._softmax_backward_data(toward_weights, weights, -1, weights.dtype)
    q_gradient = torch.bmm(toward_scores, k)
    k_gradient = torch.bmm(toward_scores.transpose(1, 2), q)
    return q_gradient.reshape(q_shape), k_gradient.reshape(k_shape), v_gradient.reshape(v_shape)


def _empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """Room for (batch, heads, length, width) that lies as (batch, length, heads, width), like projections do."""
    batch, heads, length, width = shape
    return like.new_empty((batch, length, heads, width)).transpose(1, 2)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, mask, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mask)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(gradient, *ctx.saved_tensors, ctx.is_causal, ctx.scale), None, None, None


_forward.register_autograd(_differentiate, setup_context=_remember)


@_forward.register_vmap
def _(
    info: Any,
    in_dims: tuple[int | None, ...],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, int]:
    """Fold the mapped axis into the batch."""
    many, (*inside, mask_inside) = info.batch_size, in_dims[:4]
    parts = [_lead(x, dim, many) for x, dim in zip((q, k, v), inside, strict=True)]
    batch = parts[0].shape[1]
    if mask is not None and (mask_inside is not None or (mask.dim() == 4 and len(mask) > 1)):
        mask = _lead(mask, mask_inside, many)  # (many, [[batch], heads], q_len, k_len)
        mask = mask.reshape(many, *(1,) * (5 - mask.dim()), *mask.shape[1:])
        mask = mask.expand(many, batch, *mask.shape[2:]).flatten(0, 1)
    found = _forward(*(x.flatten(0, 1) for x in parts), mask, is_causal, scale)
    return found.unflatten(0, (many, batch)), 0


def _lead(x: Tensor, dim: int | None, many: int) -> Tensor:
    """A tensor with the mapped axis in front."""
    return x.expand(many, *x.shape) if dim is None else x.movedim(dim, 0)
