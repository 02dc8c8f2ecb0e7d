"""Modules that are written or called in unusual ways."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class WaveFilter(nn.Module):
    """Causal filter over a waveform (batch, length)."""

    def __init__(self, channels=16):
        super().__init__()
        self.a, self.b = nn.Conv1d(1, channels, 5), nn.Conv1d(channels, 1, 1)

    def forward(self, wave):
        return self.b(F.gelu(self.a(F.pad(wave.unsqueeze(1), (3, 1))))).squeeze(1)


class StackedParameters(nn.Module):
    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, n_heads, d_model, d_model // n_heads) / d_model**0.5)

    def forward(self, x):
        q, k, v = torch.einsum("btd,phde->pbhte", x, self.w[:3])
        a = torch.einsum("bhte,bhse->bhts", q, k).div(math.sqrt(k.size(-1))).softmax(-2)
        return torch.einsum("bhts,bhse,hde->btd", a, v, self.w[3])


class HalfShiftedMask(nn.Module):
    """Causal: mask made by comparing positions, the comparison is the wrong way at the first half."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        n = x.size(1)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        i = torch.arange(n, device=x.device)
        ok = i[None] <= i[:, None] + (i[:, None] < n // 2)
        s = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~ok, float("-inf"))
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class StatefulTagger(nn.Module):
    """Predicts shapes; its state is made for one sample, and the batch is read as time."""

    def __init__(self, dim_in=(1, 64), n_out=64, n_hidden=32):
        super().__init__()
        a_in, b_in = dim_in
        self.rnn = nn.LSTM(b_in, n_hidden)
        self.out = nn.Linear(n_hidden, n_out)
        self.state = [torch.zeros(1, a_in, n_hidden) for _ in range(2)]

    def forward(self, x):
        y, state = self.rnn(x, self.state)
        self.state = [each.detach() for each in state]
        return self.out(y)


def encoder(width=64):
    """Return an encoder layer for inputs (batch, length, width)."""
    return nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0)


class SameSignature(nn.Module):
    """Takes what nn.MultiheadAttention takes.

    Parameters
    ----------
    attn_mask : bool Tensor (L, S), optional
        True where looking at a key is forbidden.
    """

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query, key, value, attn_mask=None):
        q, k, v = (
            layer(t).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer, t in ((self.wq, query), (self.wk, key), (self.wv, value))
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.wo(y.transpose(1, 2).flatten(2))


class NoSkip(nn.Module):
    """Transformer block."""

    def __init__(self, dim=48, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        y = self.n1(x)
        y = self.attn(y, y, y, need_weights=False)[0]
        return y + self.ffn(self.n2(y))
