"""Layers as a person wrote them who asked whether it is normal that attention is worse than none.

Each is a whole layer of the model: nothing stands around it. All have the same last step, a linear map and a ReLU.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional


def future(length: int, device: torch.device) -> Tensor:
    """Where a key stands behind its query, as bool (length, length)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One head of causal attention, of (batch, length, emb_size) each."""
    scores = query @ key.transpose(1, 2) * query.size(-1) ** -0.5
    weights = functional.softmax(scores.masked_fill(future(query.size(1), query.device), float("-inf")), dim=-1)
    return weights @ value


@final
class NoAttention(nn.Module):
    """Map every position on its own. x: (batch, length, emb_size)."""

    def __init__(self, emb_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(emb_size, emb_size)

    def forward(self, x: Tensor) -> Tensor:
        """The rectified map."""
        return functional.relu(self.linear(x))


@final
class SimpleAttention(nn.Module):
    """Attend, then map. Causal. x: (batch, length, emb_size)."""

    def __init__(self, emb_size: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.linear = (nn.Linear(emb_size, emb_size) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """The rectified map of what was gathered."""
        return functional.relu(self.linear(attend(self.query(x), self.key(x), self.value(x))))


@final
class ResidualAttention(nn.Module):
    """Add what was gathered to the input, then map the sum. Causal. x: (batch, length, emb_size)."""

    def __init__(self, emb_size: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.linear = (nn.Linear(emb_size, emb_size) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """The rectified map of the sum."""
        return functional.relu(self.linear(x + attend(self.query(x), self.key(x), self.value(x))))


@final
class NormResidualAttention(nn.Module):
    """The same with layer norm of the sum. Causal. x: (batch, length, emb_size)."""

    def __init__(self, emb_size: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.linear = (nn.Linear(emb_size, emb_size) for _ in range(4))
        self.norm = nn.LayerNorm(emb_size)

    def forward(self, x: Tensor) -> Tensor:
        """The rectified map of the normalized sum."""
        return functional.relu(self.linear(self.norm(x + attend(self.query(x), self.key(x), self.value(x)))))


@final
class TorchAttention(nn.Module):
    """The same with torch's attention of several heads, and dropout. Causal. x: (batch, length, emb_size)."""

    def __init__(self, emb_size: int, num_heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(emb_size, num_heads, dropout=dropout)
        self.norm = nn.LayerNorm(emb_size)
        self.linear = nn.Linear(emb_size, emb_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The rectified map of the normalized sum."""
        time_first = x.transpose(0, 1)
        mask = future(x.size(1), x.device)
        gathered, _ = self.attention(time_first, time_first, time_first, attn_mask=mask)
        mapped = functional.relu(self.linear(self.norm(time_first + gathered)))
        return self.dropout(mapped).transpose(0, 1)
