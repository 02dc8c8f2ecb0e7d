"""Attention of which a name, an attribute or a guess says something else than it does."""

import math

import torch
from torch import nn


def split_heads(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


class Plain(nn.Module):
    """Self-attention."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (split_heads(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / math.sqrt(q.size(-1))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class KeptForTorch(Plain):
    """Self-attention that `nn.TransformerEncoder` may hold, which asks its layers for an attribute.

    x: (..., seq_len_q, d_model)
    """

    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.batch_first = False

    def forward(self, x):
        return super().forward(x)


class AsksByFlag(Plain):
    """Multi-head attention; autoregressive_mask: whether positions see nothing later, for an autoregressive decoder."""

    def forward(self, x, autoregressive_mask=False):
        q, k, v = (split_heads(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if autoregressive_mask:
            later = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class MissingDays(Plain):
    """Self-attention over days; a day without news holds zeros, and a learned vector stands in its place."""

    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.nothing = nn.Parameter(torch.randn(d_model))

    def forward(self, x):
        there = x.abs().sum(-1, keepdim=True) > 0.01
        return super().forward(torch.where(there, x, self.nothing))


class SkewedDistances(nn.Module):
    """Self-attention with scores of distances, made from those to the positions before by skewing."""

    def __init__(self, d_model, n_heads, max_len=64):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.back = nn.Parameter(torch.randn(max_len, d_model // n_heads))

    def forward(self, x, mask=None):
        length = x.size(1)
        q, k, v = (split_heads(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        to_past = nn.functional.pad(q @ self.back[-length:].T, (1, 0))
        to_past = to_past.reshape(*q.shape[:2], length + 1, length)[:, :, 1:]
        scores = (q @ k.mT + to_past) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class MasksTogether(Plain):
    """Self-attention whose padding is hidden beside a boolean mask over pairs alone."""

    def forward(self, x, attn_mask=None, key_padding_mask=None):
        q, k, v = (split_heads(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if attn_mask is not None:
            if key_padding_mask is not None:
                attn_mask = attn_mask | key_padding_mask[:, None, None, :]
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(scores).masked_fill(attn_mask, -1e4)
            scores = scores + attn_mask
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class DropPath(nn.Module):
    """Leave a branch out for whole samples."""

    def __init__(self, p):
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return x * self.drop(x.new_ones(x.size(0), 1, 1))


class PositionalWiseFeedForward(nn.Module):
    """Two linear maps, the same for every position."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model))

    def forward(self, x):
        return self.net(x)


class NumberOfAClass(nn.Module):
    """A block; `drop_path` is a rate, though a class is called like it."""

    def __init__(self, d_model, n_heads, d_ff, drop_path):
        super().__init__()
        self.norm_attn, self.norm_ff = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn, self.ff = Plain(d_model, n_heads), PositionalWiseFeedForward(d_model, d_ff)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        x = x + self.drop_path(self.attn(self.norm_attn(x)))
        return x + self.drop_path(self.ff(self.norm_ff(x)))


class SwitchedTable(Plain):
    """Self-attention; a setting says whether a table of distances is added, which is built in any case."""

    def __init__(self, d_model, n_heads, far):
        super().__init__(d_model, n_heads)
        self.far = far
        self.rel_pos_table = nn.Parameter(torch.randn(127, d_model // n_heads) * 0.1)

    def distances(self, q):
        place = torch.arange(q.size(2), device=q.device)
        return torch.einsum("bhqd,qkd->bhqk", q, self.rel_pos_table[(place - place[:, None] + 63).clamp(0, 126)])

    def forward(self, x):
        q, k, v = (split_heads(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT + self.distances(q) if self.far else q @ k.mT
        return self.out(((scores / math.sqrt(q.size(-1))).softmax(-1) @ v).transpose(1, 2).flatten(2))
