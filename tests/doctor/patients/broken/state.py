"""Layers with dropout, randomness, caches and memories."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class DropoutAttention(nn.Module):
    """Multi-head self-attention with dropout on the weights."""

    def __init__(self, d_model, n_heads, dropout=0.1):
        super().__init__()
        self.n_heads, self.p = n_heads, dropout
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        w = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).softmax(-1)
        w = F.dropout(w, p=self.p)
        return self.out((w @ v).transpose(1, 2).reshape(b, n, d))


class FlashDropout(nn.Module):
    """Causal attention through scaled_dot_product_attention."""

    def __init__(self, n_embd=64, n_head=4, dropout=0.2):
        super().__init__()
        self.n_head, self.dropout = n_head, dropout
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.n_head, -1).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class RandomFeatures(nn.Module):
    """Performer-like linear attention: positive random features approximate the softmax kernel."""

    def __init__(self, dim=64, heads=4, features=32):
        super().__init__()
        self.heads, self.features = heads, features
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def feature_map(self, x, projection, over):
        x = x * x.size(-1) ** -0.25
        logits = x @ projection - x.square().sum(-1, keepdim=True) / 2
        return torch.exp(logits - logits.amax(dim=over, keepdim=True)) + 1e-4

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        projection = torch.randn(q.size(-1), self.features, device=x.device, dtype=x.dtype)
        q, k = self.feature_map(q, projection, (-1,)), self.feature_map(k, projection, (-1, -2))
        top = q @ (k.transpose(-1, -2) @ v)
        out = top / (q @ k.sum(dim=-2).unsqueeze(-1))
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


class StatefulGRU(nn.Module):
    """A GRU over (batch, length, features)."""

    def __init__(self, input_size, hidden_size=32):
        super().__init__()
        self.rnn = nn.GRU(input_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, input_size)
        self.hidden = None

    def forward(self, x):
        if self.hidden is not None and self.hidden.size(1) != x.size(0):
            self.hidden = None
        y, hidden = self.rnn(x, self.hidden)
        self.hidden = hidden.detach()
        return self.out(y)


class MaskOnce(nn.Module):
    """Self-attention over padded batches; key_padding_mask is True at padding."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self._bias = None

    def forward(self, x, key_padding_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if key_padding_mask is not None:
            if self._bias is None or self._bias.shape != (b, 1, 1, n):
                blocked = key_padding_mask[:, None, None, :]
                self._bias = torch.zeros(blocked.shape, dtype=x.dtype, device=x.device).masked_fill(blocked, -1e9)
            scores = scores + self._bias
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class PlainDropout(nn.Module):
    """Self-attention with dropout after the projection."""

    def __init__(self, embed_dim, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        w = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        return self.proj((w @ v).transpose(1, 2).reshape(b, n, d))


class RememberingAttention(nn.Module):
    """Attention over the sequence and a summary of it.

    The summary is the average of the values.
    """

    def __init__(self, dim=64):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)
        self.register_buffer("summary", torch.zeros(dim))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        y = (q @ k.transpose(1, 2) / math.sqrt(q.size(-1))).softmax(-1) @ v
        self.summary = 0.9 * self.summary + 0.1 * v.detach().mean(dim=(0, 1))
        return self.out(y + self.summary)


class StochasticDepthBlock(nn.Module):
    """Pre-norm block with stochastic depth: a sublayer is skipped with probability drop_path."""

    def __init__(self, dim=64, num_heads=4, drop_path=0.2):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.drop_path = drop_path

    def keep(self, x):
        alive = torch.rand(x.size(0), 1, 1, device=x.device) >= self.drop_path
        return x * alive.to(x.dtype) / (1 - self.drop_path)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.keep(self.attn(h, h, h, need_weights=False)[0])
        return x + self.keep(self.mlp(self.norm2(x)))


class ReusedMap(nn.Module):
    """Self-attention that keeps its weights for later inspection."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.weights = None

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.weights is None or self.weights.shape[-1] != x.size(1) or self.weights.shape[0] != x.size(0):
            self.weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        return self.o((self.weights @ v).transpose(1, 2).flatten(2))
