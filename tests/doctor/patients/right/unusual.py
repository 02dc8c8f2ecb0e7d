"""Modules that are written or called in unusual ways."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class StackedParameters(nn.Module):
    """All projections in one parameter, (4, heads, d_model, d_head)."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, n_heads, d_model, d_model // n_heads) / d_model**0.5)

    def forward(self, x):
        q, k, v = torch.einsum("btd,phde->pbhte", x, self.w[:3])
        a = (q @ k.mT / math.sqrt(k.size(-1))).softmax(-1)
        return torch.einsum("bhte,hde->btd", a @ v, self.w[3])


class Functional(nn.Module):
    """F.multi_head_attention_forward by hand; (length, batch, features)."""

    def __init__(self, embed_dim=64, num_heads=4):
        super().__init__()
        self.e, self.h = embed_dim, num_heads
        self.w_in = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.b_in = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out = nn.Linear(embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.w_in)

    def forward(self, x):  # x: (length, batch, features)
        y, _ = F.multi_head_attention_forward(
            x,
            x,
            x,
            self.e,
            self.h,
            self.w_in,
            self.b_in,
            None,
            None,
            False,
            0.0,
            self.out.weight,
            self.out.bias,
            training=self.training,
            need_weights=False,
        )
        return y


class LoopedQueries(nn.Module):
    """Causal attention computed one query at a time."""

    def __init__(self, d_model=32):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        rows = []
        for t in range(x.size(1)):
            a = F.softmax((k[:, : t + 1] @ q[:, t, :, None]).squeeze(-1) / q.size(-1) ** 0.5, dim=-1)
            rows.append((a[..., None] * v[:, : t + 1]).sum(1))
        return torch.stack(rows, dim=1)


class ReformerShared(nn.Module):
    """Shared query-key attention: queries and keys share one projection on purpose, keys are normalized."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qk, self.v, self.o = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.qk, self.v))
        k = F.normalize(q, dim=-1)
        a = (q @ k.mT * q.size(-1) ** -0.5).softmax(-1)
        return self.o((a @ v).transpose(1, 2).flatten(2))


class LazyBuffers(nn.Module):
    """Causal attention whose mask grows as needed, rebuilt where length or device change."""

    def __init__(self, n_embd=64, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self._mask = None

    def mask(self, x):
        n = x.size(1)
        if self._mask is None or self._mask.size(0) < n or self._mask.device != x.device:
            self._mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        return self._mask[:n, :n]

    def forward(self, x):
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        s = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(self.mask(x), float("-inf"))
        return self.c_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class TimeFirstGRU(nn.Module):
    """seq, batch, features in and out."""

    def __init__(self, features=24, hidden=24):
        super().__init__()
        self.gru = nn.GRU(features, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, inputs):  # (seq, batch, features)
        return inputs + self.norm(self.gru(inputs)[0])


class Wave(nn.Module):
    """A waveform (batch, length) through convolutions, one number per position."""

    def __init__(self, channels=16):
        super().__init__()
        self.a, self.b = nn.Conv1d(1, channels, 5, padding=2), nn.Conv1d(channels, 1, 5, padding=2)

    def forward(self, wave):
        return self.b(F.gelu(self.a(wave.unsqueeze(1)))).squeeze(1)


class SqueezeReLU(nn.Module):
    """Attention with a narrow ReLU gate on every channel."""

    def __init__(self, dim=64, heads=4, r=16):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.down, self.up = nn.Linear(dim, dim // r), nn.Linear(dim // r, dim)

    def forward(self, x):
        y, _ = self.attn(x, x, x, need_weights=False)
        return y * torch.sigmoid(self.up(F.relu(self.down(y))))
