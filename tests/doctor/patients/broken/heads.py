"""Multi-head attention layers: how the heads are split and joined."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    """Multi-head attention as in "Attention Is All You Need"."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        B, T, C = x.shape
        q = self.q_proj(x).view(B, self.num_heads, T, self.head_dim)
        k = self.k_proj(x).view(B, self.num_heads, T, self.head_dim)
        v = self.v_proj(x).view(B, self.num_heads, T, self.head_dim)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        out = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.out_proj(out.contiguous().view(B, T, C))


class ReshapedAttention(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.d_k = d_model // h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value):
        n = query.size(0)
        q, k, v = (
            f(t).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for f, t in zip(self.linears, (query, key, value), strict=False)
        )
        weights = (q @ k.transpose(-2, -1) / math.sqrt(self.d_k)).softmax(dim=-1)
        x = weights @ v  # (batch, h, length, d_k)
        return self.linears[-1](x.reshape(n, -1, self.h * self.d_k))


class KeyFirstAttention(nn.Module):
    """Self-attention that lays its keys out as columns."""

    def __init__(self, hidden=64, heads=4):
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.q, self.k, self.v = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.o = nn.Linear(hidden, hidden)

    def forward(self, x):
        b, n, c = x.shape
        q = self.q(x).view(b, n, self.heads, self.size).transpose(1, 2)
        k = self.k(x).view(b, n, self.heads, self.size).transpose(1, 2)
        v = self.v(x).view(b, n, self.heads, self.size).transpose(1, 2)
        columns = k.reshape(b, self.heads, self.size, n)
        weights = torch.softmax(q @ columns / self.size**0.5, dim=-1)
        return self.o((weights @ v).transpose(1, 2).reshape(b, n, c))


class ViTAttention(nn.Module):
    """Attention of a vision transformer; x: (B, N, C)."""

    def __init__(self, dim, num_heads=4, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, 3, self.num_heads, N, C // self.num_heads).transpose(0, 1)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class AcrossHeads(nn.Module):
    """Self-attention with several heads. x: (batch, seq_len, d_model)."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.to_q = nn.Linear(d_model, d_model)
        self.to_k = nn.Linear(d_model, d_model)
        self.to_v = nn.Linear(d_model, d_model)
        self.to_out = nn.Linear(d_model, d_model)

    def forward(self, x):
        batch, seq_len, d_model = x.shape
        q = self.to_q(x).view(batch, seq_len, self.n_heads, self.d_head)
        k = self.to_k(x).view(batch, seq_len, self.n_heads, self.d_head)
        v = self.to_v(x).view(batch, seq_len, self.n_heads, self.d_head)
        scores = q @ k.transpose(-2, -1) / self.d_head**0.5
        out = scores.softmax(dim=-1) @ v
        return self.to_out(out.reshape(batch, seq_len, d_model))


class BatchedHeads(nn.Module):
    """Multi-head attention that folds the heads into the batch so that bmm can be used."""

    def __init__(self, emb_size, n_head):
        super().__init__()
        self.n_head = n_head
        self.q = nn.Linear(emb_size, emb_size, bias=False)
        self.k = nn.Linear(emb_size, emb_size, bias=False)
        self.v = nn.Linear(emb_size, emb_size, bias=False)
        self.unify = nn.Linear(emb_size, emb_size)

    def fold(self, x):
        b, t, e = x.size()
        return x.view(b, t, self.n_head, e // self.n_head).transpose(1, 2).reshape(b * self.n_head, t, -1)

    def forward(self, x):
        b, t, e = x.size()
        q, k, v = self.fold(self.q(x)), self.fold(self.k(x)), self.fold(self.v(x))
        w = torch.bmm(q, k.transpose(1, 2)) * (e // self.n_head) ** -0.5
        y = torch.bmm(w.softmax(dim=2), v)  # (b * heads, t, s)
        return self.unify(y.view(b, t, e))


class SequenceFirstHeads(nn.Module):
    """Self-attention for sequence-first tensors. x: (length, batch, dim)."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        length, batch, dim = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(length, batch * self.heads, dim // self.heads).transpose(0, 1) for t in (q, k, v))
        w = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(dim // self.heads), dim=-1)
        y = w @ v  # (batch * heads, length, d_head)
        return self.out(y.reshape(length, batch, dim))
