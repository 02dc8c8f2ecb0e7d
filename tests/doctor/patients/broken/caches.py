"""Causal attention with a cache of keys and values for generation."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def heads_of(x, n):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)  # (batch, heads, length, d_head)


def rotary(x, start=0):
    n, d = x.shape[-2:]
    frequency = 10000.0 ** -(torch.arange(0, d, 2, device=x.device, dtype=x.dtype) / d)
    angle = (start + torch.arange(n, device=x.device, dtype=x.dtype))[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class CachedAttention(nn.Module):
    """Causal self-attention; returns (output, present) where present is the pair of all keys and values."""

    def __init__(self, n_embd=64, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x, layer_past=None):
        q, k, v = (heads_of(t, self.n_head) for t in self.c_attn(x).chunk(3, dim=-1))
        if layer_past is not None:
            k = torch.cat([layer_past[0], k], dim=-2)
            v = torch.cat([layer_past[1], v], dim=-2)
        allowed = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=x.device).tril()
        scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~allowed, torch.finfo(x.dtype).min)
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.c_proj(y), (k, v)


class RotaryCached(nn.Module):
    """Causal attention with rotary positions and a key-value cache."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x, past_key_value=None):
        q, k, v = (heads_of(w(x), self.n_heads) for w in (self.wq, self.wk, self.wv))
        q, k = rotary(q), rotary(k)
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        n, m = q.size(2), k.size(2)
        allowed = torch.ones(n, m, dtype=torch.bool, device=x.device).tril(m - n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.wo(y.transpose(1, 2).flatten(2)), (k, v)


class PrependedCache(nn.Module):
    """Causal self-attention with linear distance biases; `cache` holds the keys and values of earlier calls."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("slopes", 2.0 ** -(8 / heads * torch.arange(1, heads + 1)))

    def forward(self, x, cache=None):
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(x).chunk(3, -1))
        if cache is not None:
            k, v = torch.cat([k, cache[0]], dim=2), torch.cat([v, cache[1]], dim=2)
        n, m = q.size(2), k.size(2)
        distance = torch.arange(m - n, m, device=x.device)[:, None] - torch.arange(m, device=x.device)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.size(-1)) - self.slopes[:, None, None] * distance
        scores = scores.masked_fill(distance < 0, torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)


class ShortMemory(nn.Module):
    """Masked self-attention for generation.

    past_key_values: keys and values of what came before, as returned by the call before.
    """

    def __init__(self, hidden_size=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, past_key_values=None):
        q, k, v = (heads_of(f(hidden_states), self.num_heads) for f in (self.query, self.key, self.value))
        present = (k, v)
        if past_key_values is not None:
            k, v = (torch.cat([old, new], dim=2) for old, new in zip(past_key_values, present, strict=True))
        n, m = q.size(2), k.size(2)
        future = torch.ones(n, m, dtype=torch.bool, device=q.device).triu(m - n + 1)
        w = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(future, float("-inf")).softmax(-1)
        return self.dense((w @ v).transpose(1, 2).flatten(2)), present


class GeneratingGPT(nn.Module):
    """GPT for generation: idx (B, T), past_key_values -> (logits, past_key_values). One layer, learned positions."""

    def __init__(self, vocab_size=53, n_embd=64, n_head=4, block_size=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.n_head = n_head
        self.ln_1, self.ln_f = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, past_key_values=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        q, k, v = (heads_of(t, self.n_head) for t in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        if past_key_values is not None:
            k = torch.cat([past_key_values[0], k], dim=2)
            v = torch.cat([past_key_values[1], v], dim=2)
        n, m = q.size(2), k.size(2)
        mask = torch.ones(n, m, dtype=torch.bool, device=idx.device).tril(m - n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        return self.head(self.ln_f(x)), (k, v)
