"""Modules that look at a memory beside their input, or pool a sequence to a few vectors; each is wrong in one place."""

import math

import torch
from torch import nn


def attention(dim=32, heads=4):
    return nn.MultiheadAttention(dim, heads, batch_first=True)


class InvertedCross(nn.Module):
    """Attention over encoder states. x (batch, n, dim), memory (batch, m, dim).

    memory_key_padding_mask (batch, m): True = padding.
    """

    def __init__(self, dim=32):
        super().__init__()
        self.attn, self.norm = attention(dim), nn.LayerNorm(dim)

    def forward(self, x, memory, memory_key_padding_mask=None):
        m = memory_key_padding_mask
        m = m if m is None else m.logical_not()
        return self.norm(x + self.attn(x, memory, memory, key_padding_mask=m, need_weights=False)[0])


class DecoderLayer(nn.Module):
    """Transformer decoder layer, causal, post-norm; encoder_attention_mask (batch, m) is 1 for real encoder states."""

    def __init__(self, dim=32):
        super().__init__()
        self.own, self.cross = attention(dim), attention(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        self.n1, self.n2, self.n3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, encoder_hidden_states, encoder_attention_mask=None):
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        x = self.n1(x + self.own(x, x, x, attn_mask=future, need_weights=False)[0])
        e = encoder_hidden_states
        m = None if encoder_attention_mask is None else encoder_attention_mask == 1
        x = self.n2(x + self.cross(x, e, e, key_padding_mask=m, need_weights=False)[0])
        return self.n3(x + self.ff(x))


class ForgetfulDecoder(nn.Module):
    """Pre-norm decoder block with causal self-attention; memory_mask (batch, m), True for padding in the memory."""

    def __init__(self, dim=32):
        super().__init__()
        self.own, self.cross = attention(dim), attention(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.n1, self.n2, self.n3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, memory, memory_mask=None):
        if memory_mask is not None:
            memory = memory.masked_fill(memory_mask[..., None], 0.0)
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        h = self.n1(x)
        x = x + self.own(h, h, h, attn_mask=future, need_weights=False)[0]
        x = x + self.cross(self.n2(x), memory, memory, need_weights=False)[0]
        return x + self.ff(self.n3(x))


class NegativeOnly(nn.Module):
    """Reads a document: x (batch, n, dim), context (batch, m, dim), context_mask (batch, m): 1 = word, 0 = padding."""

    def __init__(self, dim=32):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, context, context_mask=None):
        s = self.q(x) @ self.k(context).mT / math.sqrt(x.size(-1))
        if context_mask is not None:
            s = s.masked_fill(context_mask[:, None] < 0, float("-inf"))
        return s.softmax(-1) @ self.v(context)


class EmptyMemory(nn.Module):
    """Causal decoder layer. x (batch, n, dim), memory (batch, m, dim).

    memory_key_padding_mask (batch, m), True = padding. The memory may be wholly empty for a sample.
    """

    def __init__(self, dim=32):
        super().__init__()
        self.own, self.q, self.kv = attention(dim), nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)

    def forward(self, x, memory, memory_key_padding_mask=None):
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        x = x + self.own(x, x, x, attn_mask=future, need_weights=False)[0]
        k, v = self.kv(memory).chunk(2, -1)
        s = self.q(x) @ k.mT / math.sqrt(x.size(-1))
        if memory_key_padding_mask is not None:
            s = s.masked_fill(memory_key_padding_mask[:, None], float("-inf"))
        return x + s.softmax(-1) @ v


class BatchNormLatents(nn.Module):
    """Learned latents read a sequence (batch, length, dim); output (batch, n_latents, dim)."""

    def __init__(self, dim=32, n_latents=5):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(n_latents, dim))
        self.cross, self.norm, self.out = attention(dim), nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x):
        z = self.latents.expand(x.size(0), -1, -1)
        z = self.norm(z + self.cross(z, x, x, need_weights=False)[0])
        z = (z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt()
        return self.out(z)


class PaddedSeeds(nn.Module):
    """Pool a set by attention with seeds: x (batch, n, dim), mask (batch, n) True = real -> (batch, k, dim)."""

    def __init__(self, dim=32, k=2):
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(k, dim))
        self.kv, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        k, v = self.kv(x).chunk(2, -1)
        w = (self.seeds @ k.mT / math.sqrt(x.size(-1))).softmax(-1)
        if mask is not None:
            w = w * mask[:, None]
        return self.out(w @ v)


class NoisyLatents(nn.Module):
    """Latents (batch, n_latents, dim) from frames (batch, time, dim)."""

    def __init__(self, dim=32, n_latents=4):
        super().__init__()
        self.latents, self.cross = nn.Parameter(torch.randn(1, n_latents, dim)), attention(dim)

    def forward(self, x):
        z = self.latents.expand(x.size(0), -1, -1)
        return nn.functional.dropout(z + self.cross(z, x, x, need_weights=False)[0], 0.1)
