"""Attention over a second sequence, and weights whose sums look wrong and are not."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def heads_of(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


class Cross(nn.Module):
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
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))


class SameArguments(nn.Module):
    """A self-attention layer that takes a memory to have the same arguments as the others, and does not look at it."""

    def __init__(self, d_model=64):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, 4, batch_first=True)

    def forward(self, x, memory):
        return x + self.attention(x, x, x, need_weights=False)[0]


class TwoStreams(nn.Module):
    """Returns a new x and a new memory; only the second reads the other. Both are (batch, length, d_model)."""

    def __init__(self, d_model=64):
        super().__init__()
        self.own, self.cross = (nn.MultiheadAttention(d_model, 4, batch_first=True) for _ in range(2))

    def forward(self, x, memory):
        x = x + self.own(x, x, x, need_weights=False)[0]
        return x, memory + self.cross(memory, x, x, need_weights=False)[0]


class TwoKeys(nn.Module):
    """Positions attend to the mean and the maximum of the memory; x and memory are (batch, length, d_model)."""

    def __init__(self, d_model=64):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, 4, batch_first=True)

    def forward(self, x, memory):
        summary = torch.stack((memory.mean(1), memory.amax(1)), 1)
        return self.attention(x, summary, summary, need_weights=False)[0]


class Landmarks(nn.Module):
    """Nystrom attention: the matrix of weights as a product of three, the middle one inverted by Newton's method.

    Bidirectional. (batch, length, d_model)
    """

    def __init__(self, d_model=64, n_heads=4, landmarks=3):
        super().__init__()
        self.h, self.m = n_heads, landmarks
        self.qkv, self.o = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (heads_of(part, self.h) for part in self.qkv(x).chunk(3, -1))
        q = q / math.sqrt(q.size(-1))
        few_q, few_k = (F.adaptive_avg_pool2d(part, (self.m, part.size(-1))) for part in (q, k))
        left, middle, right = (q @ few_k.mT).softmax(-1), (few_q @ few_k.mT).softmax(-1), (few_q @ k.mT).softmax(-1)
        inverse = middle.mT / middle.sum(-2).amax(-1)[..., None, None]
        for _ in range(6):
            inverse = inverse @ (2 * torch.eye(self.m, device=x.device, dtype=x.dtype) - middle @ inverse)
        return self.o((left @ inverse @ (right @ v)).transpose(1, 2).flatten(2))


class ThinnedAgain(nn.Module):
    """Keeps the two largest weights of each query and divides by their sum: a distribution. (batch, length, d_model)"""

    def __init__(self, d_model=64):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        weights = torch.where(weights >= weights.topk(2, -1).values[..., -1:], weights, 0.0)
        return weights / weights.sum(-1, keepdim=True) @ v


class ThinnedOnPurpose(nn.Module):
    """Keeps the two largest weights of each query as they are; they are not renormalized. (batch, length, d_model)"""

    def __init__(self, d_model=64):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        return torch.where(weights >= weights.topk(2, -1).values[..., -1:], weights, 0.0) @ v


class Twice(nn.Module):
    """Spreads values over the same weights twice: neighbours of neighbours. (batch, length, d_model)"""

    def __init__(self, d_model=64):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        return weights @ (0.5 * v + 0.5 * (weights @ v))


class NarrowStart(nn.Module):
    """Multi-head attention with weight matrices of its own, no larger than Xavier's. (batch, length, d_model)"""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.h = n_heads
        self.w = nn.Parameter(torch.randn(3, d_model, d_model) / math.sqrt(d_model))
        self.o = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (heads_of(x @ w, self.h) for w in self.w)
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class DecayedScores(nn.Module):
    """Causal retention with the distance's decay in one matrix. (batch, length, d_model)"""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.h = n_heads
        self.qkv, self.o = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.register_buffer("decay", 1 - 2.0 ** (-1.0 - torch.arange(n_heads)))

    def forward(self, x):
        q, k, v = (heads_of(part, self.h) for part in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.size(1), device=x.device)
        distance = (at[:, None] - at).clamp(min=0)
        decay = (self.decay.float()[:, None, None] ** distance).to(x.dtype).tril()
        return self.o((q @ k.mT / math.sqrt(q.size(-1)) * decay @ v).transpose(1, 2).flatten(2))
