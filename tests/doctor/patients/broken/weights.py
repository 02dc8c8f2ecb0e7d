"""Attention layers: from scores to weights."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Scaled dot-product self-attention, bidirectional."""

    def __init__(self, dim, heads=4, dim_head=16):
        super().__init__()
        inner = dim_head * heads
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        attn = (q @ k.transpose(-1, -2) * self.scale).softmax(dim=-2)
        return self.to_out((attn @ v).transpose(1, 2).reshape(b, n, -1))


class HeadwiseAttention(nn.Module):
    """Multi-head attention, weights from a softmax over the scores."""

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.w_qkv = nn.Linear(d_model, 3 * d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.w_qkv(x).view(b, t, 3, self.n_heads, d // self.n_heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(d // self.n_heads)
        weights = F.softmax(scores, dim=1)
        return self.w_o((weights @ v).transpose(1, 2).reshape(b, t, d))


class JointSoftmax(nn.Module):
    """Self-attention: how much each token should look at each other token."""

    def __init__(self, emb_size):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(emb_size, emb_size) for _ in range(3))

    def forward(self, x):
        b, n, e = x.shape
        scores = self.q(x) @ self.k(x).transpose(1, 2) / e**0.5
        weights = scores.view(b, -1).softmax(dim=-1).view(b, n, n)
        return weights @ self.v(x)


class MaskedAfterwards(nn.Module):
    """Causal self-attention."""

    def __init__(self, n_embd, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.n_head, c // self.n_head).permute(2, 0, 3, 1, 4)
        att = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)
        att = att.tril()
        return self.proj((att @ v).transpose(1, 2).reshape(b, t, c))


class PaddedAttention(nn.Module):
    """Self-attention over padded batches.

    attention_mask: (batch, length), 1 for tokens to keep, 0 for padding.
    """

    def __init__(self, hidden_size=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)

    def forward(self, x, attention_mask=None):
        split = [f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value)]
        q, k, v = split
        probs = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)), dim=-1)
        if attention_mask is not None:
            probs = probs * attention_mask[:, None, None, :].to(probs.dtype)
        return (probs @ v).transpose(1, 2).flatten(-2)


class UnscaledAttention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)

    def _split(self, x):
        return x.view(*x.shape[:2], self.n_heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = self._split(self.q(x)), self._split(self.k(x)), self._split(self.v(x))
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class FusedAttention(nn.Module):
    """Scaled dot-product attention, computed by torch."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scaling = (embed_dim // num_heads) ** -0.5
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.in_proj(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q * self.scaling, k, v)
        return self.out_proj(y.transpose(1, 2).reshape(b, n, e))


class WidthScaled(nn.Module):
    """Multi-head attention: softmax(q k^T / sqrt(d)) v."""

    def __init__(self, emb_size, heads=8):
        super().__init__()
        self.emb_size, self.heads = emb_size, heads
        self.toqueries = nn.Linear(emb_size, emb_size, bias=False)
        self.tokeys = nn.Linear(emb_size, emb_size, bias=False)
        self.tovalues = nn.Linear(emb_size, emb_size, bias=False)
        self.unifyheads = nn.Linear(emb_size, emb_size)

    def forward(self, x):
        b, t, e = x.size()
        s = e // self.heads
        queries = self.toqueries(x).view(b, t, self.heads, s).transpose(1, 2)
        keys = self.tokeys(x).view(b, t, self.heads, s).transpose(1, 2)
        values = self.tovalues(x).view(b, t, self.heads, s).transpose(1, 2)
        dot = queries @ keys.transpose(2, 3) * self.emb_size ** (-1 / 2)
        out = F.softmax(dot, dim=-1) @ values
        return self.unifyheads(out.transpose(1, 2).reshape(b, t, e))


class LengthScaled(nn.Module):
    """Attention with keys transposed once for all heads."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.qkv_proj = nn.Linear(d_model, 3 * d_model)
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv_proj(x).reshape(b, n, self.n_heads, 3 * self.d_head).permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        k = k.transpose(-2, -1)
        attn = torch.softmax(torch.matmul(q, k) / math.sqrt(k.size(-1)), dim=-1)
        return self.o_proj(torch.matmul(attn, v).permute(0, 2, 1, 3).reshape(b, n, d))


class MultipliedAttention(nn.Module):
    """Dot-product attention for n_heads heads."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.dk = n_heads, d_model // n_heads
        self.proj = nn.ModuleDict({name: nn.Linear(d_model, d_model) for name in "qkvo"})

    def forward(self, x):
        q, k, v = (self.proj[n](x).unflatten(2, (self.h, self.dk)).permute(0, 2, 1, 3) for n in "qkv")
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.dk
        y = torch.einsum("bhqk,bhkd->bqhd", scores.softmax(-1), v)
        return self.proj["o"](y.flatten(2))
