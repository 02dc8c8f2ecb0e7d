"""Attention as a good engineer writes it by hand: two linear layers around torch's fused attention."""

from __future__ import annotations

import copy
from typing import final

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnlab.nn.attention import Attention


@final
class SdpaByHand(nn.Module):
    """Call `torch.nn.functional.scaled_dot_product_attention` with the projections of another layer.

    Parameters
    ----------
    layer : Attention
        Layer whose projections are copied. What it does between them is replaced by plain scaled dot products,
        softmax, and its mask.
    length : int
        Positions of a sequence: the (length, length) matrix of a mask that is neither full nor causal is made
        here, once, and kept as a buffer.

    Notes
    -----
    Nothing but what this one composition needs: no check, no choice, no padding.
    """

    allowed: Bool[Tensor, "length length"] | None

    def __init__(self, layer: Attention, length: int) -> None:
        super().__init__()
        self.to_qkv = copy.deepcopy(layer.heads.packed.linear)
        self.to_residual = copy.deepcopy(layer.combiner.to_residual)
        self.rows, self.counts = layer.heads.packed.rows, layer.heads.packed.counts
        self.is_causal = layer.mask.kind == "causal"
        other = layer.mask.kind == "other"
        self.register_buffer("allowed", layer.mask.allowed(length, length) if other else None, persistent=False)

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """What every position gathered."""
        batch, length, _ = x.shape
        parts = zip(self.to_qkv(x).split(self.rows, dim=-1), self.counts, strict=True)
        q, k, v = (part.view(batch, length, heads, -1).transpose(1, 2) for part, heads in parts)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self.allowed, is_causal=self.is_causal, enable_gqa=q.shape[1] != k.shape[1]
        )
        return self.to_residual(y.transpose(1, 2).reshape(batch, length, -1))
