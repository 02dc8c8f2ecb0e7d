"""Layers and number formats: half precision, other devices."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class HandSoftmax(nn.Module):
    """Multi-head self-attention with the softmax written out."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (split(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        e = torch.exp(q @ k.mT / math.sqrt(q.size(-1)))
        w = e / e.sum(dim=-1, keepdim=True)
        return self.out((w @ v).transpose(1, 2).flatten(2))


class AttentionFree(nn.Module):
    """Attention-free transformer layer (AFT-simple): a weighted average of the values, gated by the queries."""

    def __init__(self, dim=64):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.project = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        weights = torch.exp(k)
        average = (weights * v).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)
        return self.project(torch.sigmoid(q) * average)


class BigNegative(nn.Module):
    """Self-attention; attention_mask: 1 = keep, 0 = padding."""

    def __init__(self, hidden_size, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v = (nn.Linear(hidden_size, hidden_size) for _ in range(3))

    def forward(self, x, attention_mask=None):
        q, k, v = (split(f(x), self.num_heads) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if attention_mask is None:
            attention_mask = torch.ones(x.shape[:2], device=x.device)
        large = torch.tensor(-1e9, device=x.device).to(x.dtype)
        scores = scores + (1 - attention_mask[:, None, None, :].to(x.dtype)) * large
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class FloatMask(nn.Module):
    """Causal attention with an additive mask."""

    def __init__(self, n_embd=64, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        n = x.size(1)
        q, k, v = (split(t, self.n_head) for t in self.qkv(x).chunk(3, -1))
        mask = torch.full((n, n), float("-inf"), dtype=torch.float32, device=x.device).triu(1)
        scores = q @ k.mT / math.sqrt(q.size(-1)) + mask
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class UnregisteredMask(nn.Module):
    """Causal self-attention; the mask is made once."""

    def __init__(self, d_model=64, n_heads=4, max_len=64):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.mask = torch.tril(torch.ones(max_len, max_len)) == 0

    def forward(self, x):
        n = x.size(1)
        q, k, v = (split(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(self.mask[:n, :n], float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class RebuiltMask(nn.Module):
    """Self-attention of a decoder: nothing looks ahead."""

    def __init__(self, emb_size, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(emb_size, emb_size) for _ in range(4))

    def forward(self, x):
        q, k, v = (split(f(x), self.heads) for f in (self.q, self.k, self.v))
        n = x.size(1)
        future = torch.triu(torch.ones(n, n), diagonal=1).bool()
        scores = (q @ k.transpose(2, 3) / q.size(-1) ** 0.5).masked_fill(future, float("-inf"))
        return self.o((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))


class TensorScale(nn.Module):
    """Multi-head attention after a well-known tutorial."""

    def __init__(self, hid_dim, n_heads, dropout=0.1):
        super().__init__()
        self.n_heads = n_heads
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(hid_dim, hid_dim) for _ in range(4))
        self.dropout = nn.Dropout(dropout)
        self.scale = torch.sqrt(torch.FloatTensor([hid_dim // n_heads]))

    def forward(self, query, key, value):
        q, k, v = split(self.fc_q(query), self.n_heads), split(self.fc_k(key), self.n_heads), self.fc_v(value)
        energy = torch.matmul(q, k.transpose(-1, -2)) / self.scale
        x = torch.matmul(self.dropout(torch.softmax(energy, dim=-1)), split(v, self.n_heads))
        return self.fc_o(x.transpose(1, 2).flatten(2))


class SinusoidEachTime(nn.Module):
    """Attention with sinusoidal positions computed for the length at hand."""

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.dim = dim
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, x):
        step = torch.arange(x.size(1), dtype=x.dtype)[:, None]
        angle = step / 10000 ** (torch.arange(0, self.dim, 2, dtype=x.dtype) / self.dim)
        x = x + torch.cat([angle.sin(), angle.cos()], dim=-1)
        return self.attn(x, x, x, need_weights=False)[0]


class RecurrentMixer(nn.Module):
    """A single LSTM layer over (batch, length, dim) with explicit first states."""

    def __init__(self, dim, hidden=32):
        super().__init__()
        self.hidden = hidden
        self.lstm = nn.LSTM(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, dim)

    def forward(self, x):
        h = torch.zeros(1, x.size(0), self.hidden, dtype=x.dtype)
        c = torch.zeros(1, x.size(0), self.hidden, dtype=x.dtype)
        y, _ = self.lstm(x, (h, c))
        return self.out(y)


class TablePositions(nn.Module):
    """Transformer encoder layer on inputs with a table of sinusoids added (bidirectional)."""

    def __init__(self, d_model=64, nhead=4, max_len=64):
        super().__init__()
        angle = torch.arange(max_len)[:, None] / 10000 ** (torch.arange(0, d_model, 2) / d_model)
        self.table = torch.cat([angle.sin(), angle.cos()], dim=-1)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 2 * d_model, 0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        x = x + self.table[: x.size(1)].to(x.device)
        return self.layer(x)


class SquaredDistance(nn.Module):
    """Attention by distance: the closer key and query, the larger the weight (a Gaussian kernel, normalized)."""

    def __init__(self, dim=64, dim_head=16):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim_head), nn.Linear(dim, dim_head), nn.Linear(dim, dim)

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        distance = (q.unsqueeze(2) - k.unsqueeze(1)).square().sum(-1) / math.sqrt(q.size(-1))
        kernel = torch.exp(-distance / 2)
        return kernel / kernel.sum(dim=-1, keepdim=True) @ self.v(x)
