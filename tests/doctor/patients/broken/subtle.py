"""Modules from code reviews: attention, encoders, decoders."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def heads_of(x, n):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)  # (batch, heads, length, d_head)


class ConvFeedForward(nn.Module):
    """Causal decoder block with a convolutional feed-forward layer (kernel 3), pre-norm."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.conv1, self.conv2 = nn.Conv1d(dim, 2 * dim, 3, padding=1), nn.Conv1d(2 * dim, dim, 1)

    def forward(self, x):
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.conv2(F.relu(self.conv1(self.norm2(x).transpose(1, 2))))
        return x + h.transpose(1, 2)


class GlobalTokens(nn.Module):
    """Causal attention with global tokens: learned tokens in front gather information, all positions read them."""

    def __init__(self, dim=64, heads=4, n_global=2):
        super().__init__()
        self.heads = heads
        self.tokens = nn.Parameter(torch.randn(1, n_global, dim) * 0.3)
        self.gather = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        tokens = self.tokens.expand(x.size(0), -1, -1)
        g = tokens.size(1)
        tokens = self.gather(tokens, x, x, need_weights=False)[0]
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(torch.cat([tokens, x], dim=1)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))[:, g:]


class EvalMask(nn.Module):
    """Masked self-attention for generation (causal)."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (heads_of(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if not self.training:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class SmoothedMask(nn.Module):
    """Causal linear attention in its quadratic form; features are relu(x) + a little."""

    def __init__(self, dim=64, heads=4, eps=1e-3):
        super().__init__()
        self.heads, self.eps = heads, eps
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(x).chunk(3, -1))
        q, k = F.relu(q) + 0.1, F.relu(k) + 0.1
        mask = torch.ones(x.size(1), x.size(1), device=x.device, dtype=x.dtype).tril() + self.eps
        scores = (q @ k.mT) * mask
        return self.out((scores / scores.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2))


class WordPooling(nn.Module):
    """Pool words with learned weights: (batch, length, dim) -> (batch, dim). mask: True = word, False = padding."""

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.score = nn.Linear(dim, 1)

    def forward(self, x, mask=None):
        h = self.attn(x, x, x, key_padding_mask=None if mask is None else ~mask, need_weights=False)[0]
        weights = self.score(h).softmax(dim=1)
        return (weights * h).sum(dim=1)


class AverageWords(nn.Module):
    """Average of the words after one attention layer. attention_mask: (batch, length), 1 = word, 0 = padding."""

    def __init__(self, hidden_size=64, num_heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)

    def forward(self, x, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones(x.shape[:2], device=x.device, dtype=torch.long)
        h = self.attn(x, x, x, key_padding_mask=attention_mask == 0, need_weights=False)[0]
        keep = attention_mask.unsqueeze(-1).to(x.dtype)
        return (h * keep).sum(dim=1) / (keep.sum() / x.size(0))


class ForwardedMask(nn.Module):
    """Text encoder on token ids. attention_mask as in Hugging Face's tokenizers."""

    def __init__(self, vocab_size=53, d_model=64, nhead=4):
        super().__init__()
        self.embed, self.pos = nn.Embedding(vocab_size, d_model), nn.Embedding(64, d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 128, 0.1, batch_first=True, norm_first=True)

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids) + self.pos(torch.arange(input_ids.size(1), device=input_ids.device))
        return self.layer(x, src_key_padding_mask=None if attention_mask is None else attention_mask.bool())


class HandMaskedSoftmax(nn.Module):
    """Attention with a mask over pairs: bool (batch, length, length), True = may attend; empty rows are allowed."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        q, k, v = (heads_of(t, self.heads) for t in self.to_qkv(x).chunk(3, dim=-1))
        scores = q @ k.mT * q.size(-1) ** -0.5
        allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask[:, None].expand_as(scores)
        top = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).amax(dim=-1, keepdim=True)
        weights = (scores - top).exp().masked_fill(~allowed, 0.0)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


class TwiceTransposed(nn.Module):
    """Self-attention over (batch, length, embed_dim)."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x):
        x = x.permute(1, 0, 2)
        out, _ = self.attn(x, x, x, need_weights=False)
        return out.permute(1, 0, 2)


class ViewedSequence(nn.Module):
    """A recurrent layer over x: (batch, length, features)."""

    def __init__(self, features=64, hidden=32):
        super().__init__()
        self.gru = nn.GRU(features, hidden)
        self.out = nn.Linear(hidden, features)

    def forward(self, x):
        batch, length, features = x.shape
        y, _ = self.gru(x.reshape(length, batch, features))
        return self.out(y).reshape(batch, length, features)


class BmmAttention(nn.Module):
    """Single-head self-attention with bmm: (batch, length, dim)."""

    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        attn = torch.bmm(self.q(x), self.k(x).transpose(1, 2)) * x.size(-1) ** -0.5
        return torch.bmm(F.softmax(attn, dim=1), self.v(x))


class DividedByWidth(nn.Module):
    """Scaled dot-product attention with n_heads heads."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (heads_of(f(x), self.n_heads) for f in (self.q, self.k, self.v))
        return self.o(((q @ k.mT / self.d_k).softmax(-1) @ v).transpose(1, 2).flatten(2))


class BothScaled(nn.Module):
    """Multi-head attention; queries and keys are scaled before the product, for stability."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (heads_of(t, self.heads) for t in self.to_qkv(x).chunk(3, dim=-1))
        sim = torch.einsum("bhid,bhjd->bhij", q * self.scale, k * self.scale)
        return self.to_out((sim.softmax(-1) @ v).transpose(1, 2).flatten(2))


class KeysViewed(nn.Module):
    """Multi-head attention (batch, length, d_model)."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        b, n, d = x.shape
        q = self.q(x).view(b, n, self.n_heads, self.d_head).transpose(1, 2)
        k = self.k(x).view(b, self.n_heads, n, self.d_head)
        v = self.v(x).view(b, n, self.n_heads, self.d_head).transpose(1, 2)
        w = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(self.d_head), dim=-1)
        return self.o((w @ v).transpose(1, 2).reshape(b, n, d))


class ChannelMerge(nn.Module):
    """Self-attention; the heads are merged for a convolution of width one."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Conv1d(dim, dim, 1)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()  # (b, n, heads, d_head)
        return self.out(y.view(b, d, n)).transpose(1, 2)


class SavedMemory(nn.Module):
    """Self-attention; keys are computed without keeping what only queries need."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, v = heads_of(self.q_proj(x), self.n_heads), heads_of(self.v_proj(x), self.n_heads)
        with torch.no_grad():
            k = heads_of(self.k_proj(x), self.n_heads)
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class HardRouter(nn.Module):
    """Mixture of experts on (batch, length, dim): a learned router sends each token to one expert."""

    def __init__(self, dim=64, n_experts=3):
        super().__init__()
        self.router = nn.Linear(dim, n_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(n_experts)
        )

    def forward(self, x):
        choice = self.router(x).softmax(-1).argmax(dim=-1, keepdim=True)
        return sum(expert(x) * (choice == i).to(x.dtype) for i, expert in enumerate(self.experts))


class OneNormOfMany(nn.Module):
    """Pre-norm encoder of two layers, with norms of their own (bidirectional)."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.attns = nn.ModuleList(nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(2))

    def forward(self, x):
        for attn in self.attns:
            h = self.norms[0](x)
            x = x + attn(h, h, h, need_weights=False)[0]
        return x


class CutPositions(nn.Module):
    """ViT-like encoder layer on embedded patches (batch, patches, dim) with learned positions."""

    def __init__(self, dim=64, num_heads=4, max_patches=64):
        super().__init__()
        self.pos_embed = nn.Parameter(torch.randn(1, max_patches, dim) * 0.2)
        self.norm, self.attn = nn.LayerNorm(dim), nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, x):
        x = x + self.pos_embed[:, :1]
        h = self.norm(x)
        return x + self.attn(h, h, h, need_weights=False)[0]


def rotated(x, sign=1):
    n, d = x.shape[-2:]
    frequency = 10000.0 ** -(torch.arange(0, d, 2, device=x.device, dtype=x.dtype) / d)
    angle = sign * torch.arange(n, device=x.device, dtype=x.dtype)[:, None] * frequency
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1).flatten(-2)


class CounterRotary(nn.Module):
    """Attention with rotary position embedding (RoPE): scores depend on relative positions only. Not causal."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (heads_of(f(x), self.n_heads) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotated(q), rotated(k, sign=-1), v)
        return self.o(y.transpose(1, 2).flatten(2))


class Queue(nn.Module):
    """Attention to the sequence and to a memory of keys and values (batch, length, dim)."""

    def __init__(self, dim=64, slots=8):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.register_buffer("memory", torch.zeros(slots, dim))

    def forward(self, x):
        memory = self.memory.expand(x.size(0), -1, -1)
        both = torch.cat([memory, x], dim=1)
        q, k, v = self.q(x), self.k(both), self.v(both)
        y = (q @ k.transpose(1, 2) / math.sqrt(q.size(-1))).softmax(-1) @ v
        new = x.detach().reshape(-1, x.size(-1))[-self.memory.size(0) :]
        self.memory = torch.cat([self.memory, new])[-self.memory.size(0) :]
        return self.o(y)


class UnusedDropout(nn.Module):
    """Multi-head attention; dropout is applied to the attention weights."""

    def __init__(self, d_model, n_heads, dropout=0.3):
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (heads_of(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def subsequent_mask(size):
    return torch.from_numpy(np.triu(np.ones((1, size, size)), k=1)) == 0


class NumpyMask(nn.Module):
    """Decoder self-attention: subsequent positions are masked out."""

    def __init__(self, h=4, d_model=64):
        super().__init__()
        self.h = h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (heads_of(f(x), self.h) for f in self.linears[:3])
        scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~subsequent_mask(x.size(1)), float("-inf"))
        return self.linears[-1]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
