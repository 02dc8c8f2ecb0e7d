"""Layers that are told the lengths of their sequences, in other ways and layouts."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class ValidLengths(nn.Module):
    """Dot-product attention as in a textbook; lengths: (batch,), the number of real positions of each sequence."""

    def __init__(self, num_hiddens, dropout=0.1):
        super().__init__()
        self.W_q, self.W_k, self.W_v = (nn.Linear(num_hiddens, num_hiddens, bias=False) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, lengths=None):
        scores = self.W_q(x) @ self.W_k(x).transpose(1, 2) / math.sqrt(x.size(-1))
        if lengths is not None:
            step = torch.arange(x.size(1), device=x.device)
            beyond = step > lengths[:, None]
            scores = scores.masked_fill(beyond[:, None], -1e6 if x.dtype != torch.float16 else -6e4)
        return self.dropout(scores.softmax(dim=-1)) @ self.W_v(x)


class SqueezeExcite(nn.Module):
    """Self-attention whose output is reweighted by a summary of the sequence (squeeze and excitation).

    mask: (batch, length), True = real, False = padding.
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.squeeze = nn.Sequential(nn.Linear(dim, dim // 4), nn.ReLU(), nn.Linear(dim // 4, dim), nn.Sigmoid())

    def forward(self, x, mask=None):
        ignore = None if mask is None else ~mask
        y, _ = self.attn(x, x, x, key_padding_mask=ignore, need_weights=False)
        return y * self.squeeze(x.mean(dim=1, keepdim=True))


class TimeFirstCausal(nn.Module):
    """Causal self-attention for sequence-first tensors."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):  # x: (T, B, C)
        T, B, C = x.shape
        q, k, v = (t.reshape(T, B * self.heads, -1).transpose(0, 1) for t in self.qkv(x).chunk(3, dim=-1))
        mask = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(2)
        scores = (q @ k.transpose(1, 2) / math.sqrt(q.size(-1))).masked_fill(mask, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(0, 1).reshape(T, B, C))


class ChannelAttention(nn.Module):
    """Self-attention over positions with convolutions of width one; x: [batch, channels, length]."""

    def __init__(self, in_channels=64, key_channels=16):
        super().__init__()
        self.f, self.g = nn.Conv1d(in_channels, key_channels, 1), nn.Conv1d(in_channels, key_channels, 1)
        self.h = nn.Conv1d(in_channels, in_channels, 1)

    def forward(self, x):
        q, k, v = self.f(x), self.g(x), self.h(x)
        scores = q.transpose(1, 2) @ k / math.sqrt(q.size(1))  # [batch, length (queries), length (keys)]
        weights = F.softmax(scores, dim=1)
        return (weights @ v.transpose(1, 2)).transpose(1, 2)


class SAGANBlock(nn.Module):
    """Self-attention over positions, x: (batch, channels, length), added to the input with a learned weight."""

    def __init__(self, channels=64):
        super().__init__()
        self.query, self.key = nn.Conv1d(channels, channels // 8, 1), nn.Conv1d(channels, channels // 8, 1)
        self.value = nn.Conv1d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        weights = torch.softmax(q.mT @ k / math.sqrt(q.size(1)), dim=0)
        return x + self.gamma * (v @ weights.mT)


class MaskedSequenceFirst(nn.Module):
    """Encoder layer for src (seq_len, batch, d_model); src_key_padding_mask (batch, seq_len), True = padding."""

    def __init__(self, d_model, nhead, dim_feedforward=128):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead)
        self.ff = nn.Sequential(nn.Linear(d_model, dim_feedforward), nn.ReLU(), nn.Linear(dim_feedforward, d_model))
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.pool = nn.Linear(d_model, d_model)

    def forward(self, src, src_key_padding_mask=None):
        h = self.norm1(src)
        src = src + self.self_attn(h, h, h, key_padding_mask=src_key_padding_mask, need_weights=False)[0]
        summary = torch.tanh(self.pool(src.mean(dim=0, keepdim=True)))
        return src + self.ff(self.norm2(src + summary))


class WholeBatchNormalized(nn.Module):
    """Self-attention with unit-length queries and keys, temperature learned. x: (batch, length, dim)."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.temperature = nn.Parameter(torch.tensor(8.0))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = F.normalize(q, dim=0), F.normalize(k, dim=-1)
        return self.out(((self.temperature * q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


class StackedMasks(nn.Module):
    """Multi-head attention, heads stacked in front of the batch: (heads * batch, length, d_head).

    attention_mask: (batch, length), 1 = keep, 0 = padding.
    """

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, attention_mask=None):
        q, k, v = (torch.cat(f(x).chunk(self.n_heads, dim=-1), dim=0) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(1, 2) / math.sqrt(q.size(-1))
        if attention_mask is not None:
            blocked = attention_mask.repeat_interleave(self.n_heads, dim=0)[:, None] == 0
            scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
        y = scores.softmax(-1) @ v
        return self.o(torch.cat(y.chunk(self.n_heads, dim=0), dim=-1))


class DocumentedPadding(nn.Module):
    """Encoder attention.

    pad_mask: (batch, length), 1 where there is padding, 0 at real tokens.
    """

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, pad_mask=None):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT * q.size(-1) ** -0.5
        if pad_mask is not None:
            scores = scores.masked_fill(pad_mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
