import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=500):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(0)]


class PositionalEncoder(nn.Module):
    """Positions, then an encoder layer; x is (batch, length, d_model)."""

    def __init__(self, d_model=64, nhead=4):
        super().__init__()
        self.pos = PositionalEncoding(d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 128, 0.0, batch_first=True)

    def forward(self, x):
        return self.layer(self.pos(x))


class SamePosition(nn.Module):
    """Attention with learned position embeddings."""

    def __init__(self, dim, heads, max_len=64):
        super().__init__()
        self.pos_emb = nn.Embedding(max_len, dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        ids = torch.full((x.size(1),), x.size(1) - 1, device=x.device)
        x = x + self.pos_emb(ids)
        return self.attn(x, x, x, need_weights=False)[0]


class UnfilledSinusoid(nn.Module):
    """Attention over inputs with sinusoidal positions."""

    def __init__(self, dim, heads, max_len=128):
        super().__init__()
        pe = torch.zeros(max_len, dim)
        angle = torch.arange(max_len)[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
        pe[:, 0::2].clone().copy_(angle.sin())
        pe[:, 1::2].clone().copy_(angle.cos())
        self.register_buffer("pe", pe)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        x = x + self.pe[: x.size(1)]
        return self.attn(x, x, x, need_weights=False)[0]


class RotaryAttention(nn.Module):
    """Attention with rotary position embeddings."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d = n_heads, d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.register_buffer("freq", 1000.0 ** (-torch.arange(0, self.d, 2) / self.d))

    def rotate(self, t):
        # t: (batch, length, heads, d_head)
        angle = torch.arange(t.size(2), device=t.device).to(t.dtype)[:, None] * self.freq.to(t.dtype)
        cos, sin = angle.cos(), angle.sin()
        a, b = t[..., 0::2], t[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, self.d).unbind(2)
        q, k = self.rotate(q), self.rotate(k)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class AlibiAttention(nn.Module):
    """Attention with linear biases (ALiBi), bidirectional."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, heads + 1).float())

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        distance = torch.arange(n, device=x.device).to(x.dtype)[:, None]
        s = q @ k.mT / q.size(-1) ** 0.5 - self.slopes.to(x.dtype)[:, None, None] * distance
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class TokenEncoder(nn.Module):
    """Encoder from tokens to logits with learned positions."""

    def __init__(self, vocab_size=40, dim=32, heads=2, max_len=32):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab_size, dim), nn.Embedding(max_len, dim)
        self.layer = nn.TransformerEncoderLayer(dim, heads, 64, 0.0, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        positions = torch.arange(tokens.size(0), device=tokens.device)[:, None].expand_as(tokens)
        x = self.token(tokens) + self.position(positions)
        return self.head(self.norm(self.layer(x)))


class ScalarPositions(nn.Module):
    """Attention with a learned position for each place, shared by all channels."""

    def __init__(self, dim, heads, max_len=64):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(max_len, 1))
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        h = self.norm(x + self.bias[: x.size(1)])
        return self.attn(h, h, h, need_weights=False)[0]
