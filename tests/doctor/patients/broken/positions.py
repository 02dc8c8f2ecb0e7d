"""Positions: sinusoids, tables, rotations, biases."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class PositionalEncoding(nn.Module):
    """Sinusoidal positions added to the input, then dropout."""

    def __init__(self, d_model, dropout=0.1, max_len=100):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.dropout(x + self.pe[: x.size(0)])


class WordEncoder(nn.Module):
    """Encoder over token ids (batch, length) with sinusoidal positions; returns (batch, length, d_model)."""

    def __init__(self, vocab_size=53, d_model=64, nhead=4, max_len=100):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.positions = PositionalEncoding(d_model, 0.0, max_len)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 128, 0.0, batch_first=True)

    def forward(self, tokens):
        return self.layer(self.positions(self.embed(tokens) * 8.0))


class SinusoidClassifier(nn.Module):
    """Bidirectional token tagger with fixed sinusoidal position encodings: (batch, length) -> (batch, length, tags)."""

    def __init__(self, vocab_size=53, dim=64, heads=4, tags=7, max_len=64):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        steps = torch.arange(max_len)[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
        self.register_buffer("pos_encoding", torch.cat([steps.sin(), steps.cos()], dim=-1))
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, tags)

    def forward(self, tokens):
        x = self.embed(tokens)
        positions = self.pos_encoding[: tokens.size(1)]
        assert positions.size(0) == tokens.size(1)
        x = self.norm(x + self.attn(x, x, x, need_weights=False)[0])
        return self.out(x)


class LearnedPositions(nn.Module):
    """Self-attention with learned positions added to its input; (batch, length, dim), bidirectional."""

    def __init__(self, dim=64, num_heads=4, max_len=64):
        super().__init__()
        self.pos_embedding = nn.Embedding(max_len, dim)
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, x):
        index = torch.zeros(x.size(1), dtype=torch.long, device=x.device)
        x = x + self.pos_embedding(index)
        return self.attn(x, x, x, need_weights=False)[0]


class TokenAndPosition(nn.Module):
    """Token classifier with learned token and position embeddings and one encoder layer (bidirectional)."""

    def __init__(self, vocab_size=53, hidden=64, heads=4, max_len=64, labels=5):
        super().__init__()
        self.token_emb = nn.Embedding(vocab_size, hidden)
        self.pos_emb = nn.Embedding(max(max_len, vocab_size), hidden)
        self.encoder = nn.TransformerEncoderLayer(hidden, heads, 128, 0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(hidden, labels)

    def forward(self, ids):
        x = self.token_emb(ids) + self.pos_emb(ids)
        return self.head(self.encoder(x))


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def apply_rotary(x, base=10000.0):
    """Rotate x (batch, heads, length, d_head) by angles that grow with the position."""
    n, d = x.shape[-2:]
    frequency = base ** -(torch.arange(0, d, 2, device=x.device, dtype=x.dtype) / d)
    angle = torch.arange(n, device=x.device, dtype=x.dtype)[:, None] * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return x * angle.cos() + rotate_half(x) * angle.sin()


class RotaryAttention(nn.Module):
    """Self-attention with rotary positions, bidirectional."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.n_heads, d // self.n_heads) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = apply_rotary(q), apply_rotary(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class AlibiAttention(nn.Module):
    """Bidirectional attention with linear biases (ALiBi): scores fall with the distance between query and key."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("slopes", 2.0 ** (-8 / heads * torch.arange(1, heads + 1)))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        distance = torch.arange(n, device=x.device)[:, None].expand(n, n)
        scores = q @ k.mT / math.sqrt(q.size(-1)) - self.slopes[:, None, None] * distance
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class HalfRotary(nn.Module):
    """Attention with rotary position embedding (RoPE): scores depend on relative positions only. Not causal."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q = apply_rotary(q)
        w = (q @ k.transpose(-1, -2) * q.size(-1) ** -0.5).softmax(-1)
        return self.o((w @ v).transpose(1, 2).flatten(2))


class RelativeBias(nn.Module):
    """Attention with a learned bias per head and relative position. Bidirectional, up to max_len positions."""

    def __init__(self, dim=64, num_heads=4, max_len=64):
        super().__init__()
        self.num_heads, self.max_len = num_heads, max_len
        self.relative_position_bias = nn.Parameter(torch.randn(num_heads, 2 * max_len - 1) * 0.5)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        steps = torch.arange(n, device=x.device)
        index = (steps - steps) + self.max_len - 1
        bias = self.relative_position_bias[:, index].unsqueeze(-2)  # (heads, n, n)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + bias
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))
