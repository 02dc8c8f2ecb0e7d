"""Plain multi-head attention, as different people write it."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    n_embd: int = 64
    n_head: int = 4
    block_size: int = 64
    dropout: float = 0.1
    bias: bool = True


class CausalSelfAttention(nn.Module):
    """Multi-head masked self-attention with a projection at the end."""

    def __init__(self, config: Config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        size = config.block_size
        self.register_buffer("bias", torch.tril(torch.ones(size, size)).view(1, 1, size, size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Head(nn.Module):
    """One head of self-attention (causal)."""

    def __init__(self, n_embd, head_size, block_size, dropout=0.1):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        T = x.shape[1]
        k, q = self.key(x), self.query(x)  # (B, T, hs)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5  # (B, T, T)
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ self.value(x)


class MultiHeadAttention(nn.Module):
    """Several heads of causal self-attention in parallel."""

    def __init__(self, n_embd=64, num_heads=4, block_size=64, dropout=0.1):
        super().__init__()
        size = n_embd // num_heads
        self.heads = nn.ModuleList([Head(n_embd, size, block_size, dropout) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))


class MultiHeadedAttention(nn.Module):
    """Attention of h heads over given queries, keys and values.

    mask: (batch, 1, length) or (batch, length, length); 0 marks what may not be attended to.
    """

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.dropout = nn.Dropout(p=dropout)
        self.attn = None

    def forward(self, query, key, value, mask=None):
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        self.attn = scores.softmax(dim=-1)
        x = torch.matmul(self.dropout(self.attn), value)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class EinsumAttention(nn.Module):
    """Bidirectional self-attention with einsum; the letters are batch, query, key, head, depth, model."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        shape = (d_model, n_heads, d_model // n_heads)
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(shape) * d_model**-0.5) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(n_heads, d_model // n_heads, d_model) * d_model**-0.5)

    def forward(self, x):
        q = torch.einsum("bqm,mhd->bqhd", x, self.wq)
        k = torch.einsum("bkm,mhd->bkhd", x, self.wk)
        v = torch.einsum("bkm,mhd->bkhd", x, self.wv)
        w = (torch.einsum("bqhd,bkhd->bhqk", q, k) * q.size(-1) ** -0.5).softmax(dim=-1)
        return torch.einsum("bhqk,bkhd,hdm->bqm", w, v, self.wo)


class Attention(nn.Module):
    """Self-attention, or cross-attention to a context; inner width apart from the model's."""

    def __init__(self, dim, *, context_dim=None, heads=8, dim_head=16, dropout=0.0, norm_context=False):
        super().__init__()
        inner, context_dim = dim_head * heads, context_dim or dim
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.context_norm = nn.LayerNorm(context_dim) if norm_context else nn.Identity()
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(context_dim, inner * 2, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, context=None, mask=None):
        """`mask`: (batch, length of the context), True = keep."""
        x = self.norm(x)
        context = x if context is None else self.context_norm(context)
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        sim = torch.einsum("bhid,bhjd->bhij", q * self.scale, k)
        if mask is not None:
            sim = sim.masked_fill(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        attn = self.dropout(sim.softmax(dim=-1))
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class ReturnsWeights(nn.Module):
    """Self-attention, head by head; returns the output and the weights of all heads."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.wq, self.wk, self.wv = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.wo = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        outputs, maps = [], []
        for i in range(self.n_heads):
            part = slice(i * self.d_head, (i + 1) * self.d_head)
            w = torch.softmax(q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(self.d_head), dim=-1)
            outputs.append(w @ v[..., part])
            maps.append(w)
        return self.wo(torch.cat(outputs, dim=-1)), torch.stack(maps, dim=1)


class DictAttention(nn.Module):
    """One-headed bidirectional attention, returns a dict with "output" and "attention"."""

    def __init__(self, input_dim, hidden_dim=32):
        super().__init__()
        self.query, self.key = nn.Linear(input_dim, hidden_dim), nn.Linear(input_dim, hidden_dim)
        self.value = nn.Linear(input_dim, input_dim)

    def forward(self, inputs):
        scores = self.query(inputs) @ self.key(inputs).transpose(1, 2) / self.query.out_features**0.5
        attention = scores.softmax(dim=2)
        return {"output": attention @ self.value(inputs), "attention": attention}


class ViTAttention(nn.Module):
    """Attention of a vision transformer; x: (B, N, C)."""

    def __init__(self, dim, num_heads=4, qkv_bias=False, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop, self.proj_drop = nn.Dropout(attn_drop), nn.Dropout(proj_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        attn = self.attn_drop(((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1))
        return self.proj_drop(self.proj((attn @ v).transpose(1, 2).reshape(B, N, C)))


class DepthMajor(nn.Module):
    """Self-attention whose features are ordered (depth, head) rather than (head, depth)."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.n_heads)).permute(0, 3, 1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v)  # (batch, heads, length, d_head)
        return self.o(y.permute(0, 2, 3, 1).flatten(2))


class FoldedHeads(nn.Module):
    """Multi-head attention that folds the heads into the batch so that bmm can be used."""

    def __init__(self, emb_size, n_head):
        super().__init__()
        self.n_head = n_head
        self.qkv, self.unify = nn.Linear(emb_size, 3 * emb_size, bias=False), nn.Linear(emb_size, emb_size)

    def forward(self, x):
        b, t, e = x.size()
        s = e // self.n_head
        q, k, v = (
            y.view(b, t, self.n_head, s).transpose(1, 2).reshape(b * self.n_head, t, s)
            for y in self.qkv(x).chunk(3, dim=-1)
        )
        scores = torch.baddbmm(q.new_zeros(b * self.n_head, t, t), q, k.transpose(1, 2), alpha=s**-0.5)
        y = torch.bmm(scores.softmax(dim=-1), v)
        return self.unify(y.view(b, self.n_head, t, s).transpose(1, 2).reshape(b, t, e))
