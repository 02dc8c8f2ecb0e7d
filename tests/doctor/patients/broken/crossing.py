"""Attention over a second sequence, and weights whose sums go wrong in rare ways."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def heads_of(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


class CrossMerge(nn.Module):
    """Cross attention. x: (batch, length, d_model), memory: (batch, memory_length, d_model)"""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.h = n_heads
        self.q, self.kv, self.o = (
            nn.Linear(d_model, d_model),
            nn.Linear(d_model, 2 * d_model),
            nn.Linear(d_model, d_model),
        )

    def forward(self, x, memory):
        q = heads_of(self.q(x), self.h)
        k, v = (heads_of(part, self.h) for part in self.kv(memory).chunk(2, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v).mT.reshape(x.shape))


class CrossColumns(nn.Module):
    """Queries (batch, length, d_model) read a context (batch, context_length, d_model)."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.h = n_heads
        self.q, self.kv, self.o = (
            nn.Linear(d_model, d_model),
            nn.Linear(d_model, 2 * d_model),
            nn.Linear(d_model, d_model),
        )

    def forward(self, x, context):
        q = heads_of(self.q(x), self.h)
        k, v = (heads_of(part, self.h) for part in self.kv(context).chunk(2, -1))
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-2)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class DeafCross(nn.Module):
    """Encoder-decoder attention with a skip; x and memory are (batch, length, d_model)."""

    def __init__(self, d_model=64):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(d_model), nn.MultiheadAttention(d_model, 4, batch_first=True)

    def forward(self, x, memory):
        h = self.norm(x)
        return x + self.attention(h, h, h, need_weights=False)[0]


class OneKey(nn.Module):
    """Positions attend to the mean of the memory; x and memory are (batch, length, d_model)."""

    def __init__(self, d_model=64):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, 4, batch_first=True)

    def forward(self, x, memory):
        summary = memory.mean(1, keepdim=True)
        return self.attention(x, summary, summary, need_weights=False)[0]


class ThinnedRows(nn.Module):
    """Keeps the two largest weights of each query, and these are a distribution. (batch, length, d_model)"""

    def __init__(self, d_model=64):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        least = weights.topk(2, -1).values[..., -1:]
        return torch.where(weights >= least, weights, 0.0) @ v


class Complement(nn.Module):
    """Each position reads more of what it resembles less: weights turned round. (batch, length, d_model)"""

    def __init__(self, d_model=64):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        rest = 1 - 0.5 * (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        return rest / rest.sum(-2, keepdim=True) @ v


class LargeStart(nn.Module):
    """Multi-head attention with weight matrices of its own. (batch, length, d_model)"""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.h = n_heads
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(d_model, d_model)) for _ in range(3))
        self.o = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (heads_of(x @ w, self.h) for w in (self.wq, self.wk, self.wv))
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class FarDecay(nn.Module):
    """Causal retention: queries decay, keys grow, products know the distance alone. (batch, length, d_model)"""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.h = n_heads
        self.qkv, self.o = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.register_buffer("decay", 1 - 2.0 ** (-1.0 - torch.arange(n_heads)))

    def forward(self, x):
        q, k, v = (heads_of(part, self.h) for part in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.size(1), device=x.device)[:, None]
        decay = self.decay.to(x.dtype)[:, None, None]
        q, k = q * decay**at / math.sqrt(q.size(-1)), k * decay**-at
        return self.o(((q @ k.mT).tril() @ v).transpose(1, 2).flatten(2))
