"""Ways to compute softmax attention of a scaled dot product: one formula, three orders of the same work.

Every way maps a `DotProduct` to head outputs, and is equal to the others up to rounding. `fastest` says which one to
take where.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab.core.layouts import Queries, SharedKeys, SharedValues
from attnlab.core.sharded import RankShare
from attnlab.nn.kernels.dropout import dropout
from attnlab.nn.kernels.recomputed import attend_recomputed
from attnlab.nn.kernels.recording import is_recorded

LARGE_SCORES = 32 * 2**20  # bytes: from here on keeping the weights costs more than computing them twice; measured
LONG_SEQUENCE = 640  # queries: from here on torch's backward pass on a CPU costs less than blocks; measured


@final
@dataclass(frozen=True)
class DotProduct:
    """Hold what ``softmax(scale * q k^T + bias, allowed) v`` is computed from."""

    q: Queries  # queries
    k: SharedKeys  # keys; their heads divide those of the queries
    v: SharedValues  # values
    scale: float  # factor of the products
    is_causal: bool = False  # whether query i may attend to the keys 0 to i; `allowed` and `bias` are None then
    allowed: Bool[Tensor, "*more q_len k_len"] | None = None
    """True where a query may attend to a key; everything unless given."""
    bias: Float[Tensor, "*more q_len k_len"] | None = None  # what is added to the scores
    dropout: float = 0.0  # fraction of the weights that is set to zero
    share: RankShare | None = None  # which of the weights this rank has, where ranks share them

    def mask(self, forbidden: float) -> Tensor | None:
        """What is added to the scores, `forbidden` where there is no attention; None where nothing is."""
        if self.allowed is None:
            return self.bias
        kind, device = self.product_type(), self.q.device
        bias = torch.zeros((), dtype=kind, device=device) if self.bias is None else self.bias
        return bias.masked_fill(~self.allowed, forbidden)

    def product_type(self) -> torch.dtype:
        """The type in which matrix products of these queries run."""
        device = self.q.device.type
        if _autocasts(device) and self.q.dtype != torch.float64:
            return torch.get_autocast_dtype(device)
        return self.q.dtype

    def score_bytes(self) -> int:
        """How much memory the score matrix takes."""
        batch, heads, q_len, _ = self.q.shape
        return batch * heads * q_len * self.k.shape[-2] * self.product_type().itemsize


def fused(given: DotProduct) -> Float[Tensor, "batch heads q_len d_v"]:
    """Compute head outputs with torch's ``scaled_dot_product_attention``.

    Notes
    -----
    Memory O(length) where a fused kernel takes the call: on a GPU in every type, on a CPU without dropout and
    without a gradient of the bias.
    """
    found = F.scaled_dot_product_attention(
        given.q,
        given.k,
        given.v,
        attn_mask=given.allowed if given.bias is None else given.mask(-torch.inf),
        dropout_p=given.dropout,
        is_causal=given.is_causal,
        scale=given.scale,
        enable_gqa=bool(given.q.shape[1] != given.k.shape[1]),
    )
    if given.allowed is None or not is_recorded():
        return found
    return found.masked_fill(~given.allowed.any(dim=-1, keepdim=True), 0)  # what else runs it may leave empty rows NaN


def products(given: DotProduct) -> Float[Tensor, "batch heads q_len d_v"]:
    """Compute head outputs with two matrix products and a softmax between them, which keeps the weights.

    Notes
    -----
    Memory O(heads * q_len * k_len). Everything is computed in the type of the matrix products, as
    ``scaled_dot_product_attention`` does under autocast; a softmax of bfloat16 is float32 inside. Query heads that
    share a key head become more rows of its product, so that no key is repeated. Forbidden scores get the lowest
    finite number, as minus infinity would make empty rows NaN; these are set to zero at the end. Differentiable any
    number of times, and works under ``vmap``.
    """
    kind, kv_heads = given.product_type(), given.k.shape[1]
    batch, heads, q_len, _ = given.q.shape
    with _plain_types(given.q.device.type):
        q, k, v = (x.to(kind).reshape(batch * kv_heads, -1, x.shape[-1]) for x in (given.q, given.k, given.v))
        added = _finite_mask(given, kind)
        if added is None:
            scores = torch.bmm(q * given.scale, k.transpose(1, 2))
        else:
            if added.dim() > 2 or heads != kv_heads:
                added = added.expand(batch, heads, *added.shape[-2:]).reshape(batch * kv_heads, -1, added.shape[-1])
            scores = torch.baddbmm(added, q, k.transpose(1, 2), alpha=given.scale)  # (batch * kv_heads, rows, k_len)
        weights = scores.softmax(dim=-1)
        if given.share is None:
            weights = dropout(weights, given.dropout)
        else:  # which heads and queries are this rank's is seen in four axes
            by_head = weights.view(batch, heads, q_len, -1)
            weights = dropout(by_head, given.dropout, share=given.share).view(weights.shape)
        found = torch.bmm(weights, v).reshape(batch, heads, q_len, -1)
    if given.allowed is None:
        return found
    return found.masked_fill(~given.allowed.any(dim=-1, keepdim=True), 0)


def recomputed(given: DotProduct) -> Float[Tensor, "batch heads q_len d_v"]:
    """Compute head outputs with a fused kernel, and their gradients with matrix products over small blocks.

    Notes
    -----
    Memory O(length). See `attnlab.nn.kernels.recomputed`.
    """
    kind = given.product_type()
    mask = given.mask(-torch.inf)
    q, k, v = (x.to(kind) for x in (given.q, given.k, given.v))
    return attend_recomputed(
        q, k, v, None if mask is None else mask.to(kind), is_causal=given.is_causal, scale=given.scale
    )


Way = Callable[[DotProduct], Tensor]

WAYS: Mapping[str, Way] = {"fused": fused, "products": products, "recomputed": recomputed}


def is_mapped(x: Tensor) -> bool:
    """Whether a tensor is one of many that ``vmap`` computes at once."""
    return torch._C._functorch.is_batchedtensor(x)  # torch has no public name for it


def fastest(given: DotProduct) -> Way:
    """The way that took least time where it was measured."""
    if is_mapped(given.q):
        return products
    if (given.q.is_cpu or given.share is not None) and given.dropout:
        return products
    slow = given.q.is_cpu and given.product_type() == torch.bfloat16 and torch.is_grad_enabled()
    keeps = given.bias is not None and given.bias.requires_grad
    if slow and (keeps or given.score_bytes() <= LARGE_SCORES):
        return products
    return recomputed if slow and given.q.shape[-2] < LONG_SEQUENCE else fused


def _finite_mask(given: DotProduct, kind: torch.dtype) -> Tensor | None:
    """What is added to the scores, finite everywhere."""
    lowest = torch.finfo(kind).min / 2  # half, so that it stays finite when a score is added
    if given.is_causal:
        shape = given.q.shape[-2], given.k.shape[-2]
        return torch.full(shape, lowest, dtype=kind, device=given.q.device).triu_(1)
    mask = given.mask(lowest)
    return None if mask is None else mask.to(kind)


def _autocasts(device: str) -> bool:
    return device != "meta" and torch.is_autocast_enabled(device)


def _plain_types(device: str) -> contextlib.AbstractContextManager[object]:
    """A context in which no operation changes the type of its arguments by itself."""
    return torch.autocast(device, enabled=False) if _autocasts(device) else contextlib.nullcontext()
