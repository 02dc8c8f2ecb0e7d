"""Heads as two people discussed them: those that share the width of the model, and those that each have all of it.

Both are called as ``(q, k, v, mask)``: q is (batch, q_len, d_model), k and v are (batch, k_len, d_model), and `mask` is
0 where a query may not attend.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn


def split(x: Tensor, heads: int) -> Tensor:
    """The rows of each head, (batch, heads, length, width of a head)."""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: nn.Dropout) -> Tensor:
    """What heads give, side by side: (batch, q_len, heads times their width)."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (batch, heads, q_len, k_len)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    return (dropout(scores.softmax(dim=-1)) @ v).transpose(1, 2).flatten(2)


@final
class SharedWidth(nn.Module):
    """Heads that share the width of the model."""

    def __init__(self, d_model: int, heads: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the heads give, mapped once more."""
        q, k, v = (split(one(x), self.heads) for one, x in ((self.w_q, q), (self.w_k, k), (self.w_v, v)))
        return self.w_o(attend(q, k, v, mask, self.dropout))


@final
class FullWidth(nn.Module):
    """Heads as wide as the model, each: so many times the parameters."""

    def __init__(self, d_model: int, heads: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, heads * d_model) for _ in range(3))
        self.w_o = nn.Linear(heads * d_model, d_model)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the heads give, mapped back to the width of the model."""
        q, k, v = (split(one(x), self.heads) for one, x in ((self.w_q, q), (self.w_k, k), (self.w_v, v)))
        return self.w_o(attend(q, k, v, mask, self.dropout))
