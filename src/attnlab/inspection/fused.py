"""Say what one call of ``scaled_dot_product_attention`` computes, from its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor


@final
@dataclass(frozen=True)
class FusedCall:
    """Hold the arguments of ``torch.nn.functional.scaled_dot_product_attention`` by its own names."""

    query: Tensor  # (..., heads, q_len, d_head)
    key: Tensor  # (..., kv_heads, k_len, d_head)
    value: Tensor  # (..., kv_heads, k_len, d_v)
    attn_mask: Tensor | None = None  # bool (True = may attend), or float and added to the scores
    dropout_p: float = 0.0  # share of the weights dropped
    is_causal: bool = False  # whether query i may attend to keys 0 to i only
    scale: float | None = None  # factor of the products; 1 / sqrt(d_head) where None
    enable_gqa: bool = False  # whether groups of query heads share a key head

    def scores(self) -> Float[Tensor, "*batch q_len k_len"]:
        """What goes into the softmax; minus infinity where attention is not allowed."""
        shared = self.query.shape[-3] // self.key.shape[-3] if self.enable_gqa else 1
        keys = self.key.repeat_interleave(shared, dim=-3) if shared > 1 else self.key
        scale = self.query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = self.query @ keys.transpose(-2, -1) * scale  # (..., q_len, k_len)
        if self.is_causal:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
        if self.attn_mask is None:
            return scores
        if self.attn_mask.dtype == torch.bool:
            return scores.masked_fill(~self.attn_mask, float("-inf"))
        return scores + self.attn_mask

    def keeps_no_weights(self) -> bool:
        """Whether fused kernels can run it: without dropout, without a trained mask."""
        trained_mask = self.attn_mask is not None and self.attn_mask.requires_grad
        return self.dropout_p == 0 and not trained_mask
