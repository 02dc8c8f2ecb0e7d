"""Causal attention with a cache of keys and values for generation."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def heads_of(x, n):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)  # (batch, heads, length, d_head)


def rotary(x, start=0):
    n, d = x.shape[-2:]
    frequency = 10000.0 ** -(torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angle = (start + torch.arange(n, device=x.device, dtype=torch.float32))[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
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
        n, m = q.size(-2), k.size(-2)
        allowed = torch.ones(n, m, dtype=torch.bool, device=x.device).tril(m - n)
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
        start = 0 if past_key_value is None else past_key_value[0].size(2)
        q, k = rotary(q, start), rotary(k, start)
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        n, m = q.size(2), k.size(2)
        allowed = torch.ones(n, m, dtype=torch.bool, device=x.device).tril(m - n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.wo(y.transpose(1, 2).flatten(2)), (k, v)


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
        start = 0 if past_key_values is None else past_key_values[0].size(2)
        x = self.wte(idx) + self.wpe(torch.arange(start, start + idx.size(1), device=idx.device))
        q, k, v = (heads_of(t, self.n_head) for t in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        if past_key_values is not None:
            k = torch.cat([past_key_values[0], k], dim=2)
            v = torch.cat([past_key_values[1], v], dim=2)
        n, m = q.size(2), k.size(2)
        mask = torch.ones(n, m, dtype=torch.bool, device=idx.device).tril(m - n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        return self.head(self.ln_f(x)), (k, v)
