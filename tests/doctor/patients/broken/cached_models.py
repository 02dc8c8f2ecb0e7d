"""Models of several layers with caches."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class CachedLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, past=None):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        n, m = q.size(2), k.size(2)
        mask = torch.ones(n, m, dtype=torch.bool, device=x.device).tril(m - n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.proj(y.transpose(1, 2).flatten(2)), (k, v)


class TwoLayerGPT(nn.Module):
    """Decoder-only model: tokens (B, T), past_key_values -> (logits, past_key_values), one pair per layer."""

    def __init__(self, vocab_size=53, dim=64, heads=4, layers=2, block_size=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab_size, dim), nn.Embedding(block_size, dim)
        self.layers = nn.ModuleList(CachedLayer(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size)

    def forward(self, tokens, past_key_values=None):
        start = 0 if past_key_values is None else past_key_values[0][0].size(2)
        x = self.tok(tokens) + self.pos(torch.arange(start, start + tokens.size(1), device=tokens.device))
        presents = []
        for layer in self.layers:
            x, present = layer(x, None if past_key_values is None else past_key_values[0])
            presents.append(present)
        return self.head(self.norm(x)), tuple(presents)


class DoubledValues(nn.Module):
    """Causal attention with a cache, `layer_past` = (keys, values); with use_cache=True the new cache is returned."""

    def __init__(self, n_embd=64, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x, layer_past=None, use_cache=False):
        q, k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        if layer_past is not None:
            past_key, past_value = layer_past
            k, v = torch.cat([past_key, k], dim=2), torch.cat([past_value, v], dim=2)
        n, m = q.size(2), k.size(2)
        future = torch.ones(n, m, dtype=torch.bool, device=x.device).triu(m - n + 1)
        w = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(future, float("-inf")).softmax(-1)
        out = self.c_proj((w @ v).transpose(1, 2).flatten(2))
        return (out, (k, k)) if use_cache else out
