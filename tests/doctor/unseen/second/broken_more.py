import math
import torch
from torch import nn
import torch.nn.functional as F


class Attn(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).tril(1).logical_not(), float("-inf"))
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.sa = Attn(dim, heads)
        self.ffwd = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class GlobalContext(nn.Module):
    """Causal attention with a small context term, as in ContextNet. (batch, time, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ctx = nn.Linear(dim, dim)
        self.gain = nn.Parameter(torch.full((dim,), 1e-2))

    def forward(self, x):
        t = x.size(1)
        m = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        y = self.attn(x, x, x, attn_mask=m, need_weights=False)[0]
        return y + self.gain * self.ctx(x.mean(1, keepdim=True))


class DecoderMask(nn.Module):
    """Decoder self-attention with a causal mask, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4, max_len=256):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = [nn.Linear(dim, dim) for _ in range(4)]
        self.register_buffer("subsequent", torch.triu(torch.ones(max_len, max_len)).bool(), persistent=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = [f(x).view(b, t, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v)]
        s = q @ k.transpose(-1, -2) / math.sqrt(c // self.h)
        s = s.masked_fill(~self.subsequent[:t, :t], float("-inf"))
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class EndPositions(nn.Module):
    """Encoder (batch, seq, dim), right padded; attention_mask 1 = token. Learned positions."""

    def __init__(self, dim=32, max_len=128):
        super().__init__()
        self.pos, self.attn = nn.Embedding(max_len, dim), nn.MultiheadAttention(dim, 4, batch_first=True)

    def forward(self, x, attention_mask=None):
        t = x.size(1)
        x = x + self.pos(torch.arange(t - 1, -1, -1, device=x.device))
        pad = None if attention_mask is None else attention_mask == 0
        return self.attn(x, x, x, key_padding_mask=pad, need_weights=False)[0]


class MaxPoolEncoder(nn.Module):
    """Text encoder: features (batch, seq, dim), key_padding_mask True = padding. Max over time -> (batch, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True, norm_first=True)

    def forward(self, x, key_padding_mask=None):
        return self.layer(x, src_key_padding_mask=key_padding_mask).max(dim=1).values


class RetrievalCross(nn.Module):
    """Cross attention over retrieved passages.

    x: (batch, n, dim); memory: (batch, m, dim); memory_key_padding_mask: (batch, m), True = padding.
    Nothing may have been retrieved for a sample: then its whole row of memory_key_padding_mask is True, which is allowed.
    """

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, memory, memory_key_padding_mask=None):
        b, n, c = x.shape
        q = self.q(x).view(b, n, self.h, -1).transpose(1, 2)
        k, v = [t.view(b, memory.size(1), self.h, -1).transpose(1, 2) for t in self.kv(memory).chunk(2, -1)]
        s = q @ k.transpose(-1, -2) / math.sqrt(c // self.h)
        if memory_key_padding_mask is not None:
            s = s.masked_fill(memory_key_padding_mask[:, None, None], float("-inf"))
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class TanhLayer(nn.Module):
    """Attention block with feed-forward, (batch, seq, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, x):
        x = torch.tanh(x + self.attn(x, x, x, need_weights=False)[0])
        return torch.tanh(x + self.ff(x))


class DataAttention(nn.Module):
    """Self-attention, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = [nn.Linear(dim, dim) for _ in range(4)]

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = [f(x).view(b, t, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v)]
        scores = torch.zeros(b, self.h, t, t, dtype=x.dtype, device=x.device)
        scores.copy_(torch.matmul(q.data, k.data.transpose(-1, -2)) / math.sqrt(c // self.h))
        return self.o((F.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, c))


class NormaliseAfter(nn.Module):
    """Top-k sparse attention (batch, seq, dim): only the k largest weights of every row are kept, the rest is zero, and the row is a distribution over keys."""

    def __init__(self, dim=32, topk=3):
        super().__init__()
        self.topk = topk
        self.q, self.k, self.v = [nn.Linear(dim, dim) for _ in range(3)]

    def forward(self, x):
        p = (self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.size(-1))).softmax(-1)
        th = p.topk(min(self.topk, p.size(-1)), -1).values[..., -1:]
        return p.masked_fill(p < th, 0.0) @ self.v(x)


class StatefulRNN(nn.Module):
    """Recurrent encoder with attention pooling. x: (batch, time, features)"""

    def __init__(self, features=16, hidden=16):
        super().__init__()
        self.rnn = nn.GRU(features, hidden, batch_first=True)
        self.att = nn.Linear(hidden, 1)
        self.h = None

    def forward(self, x):
        if self.h is not None and self.h.size(1) == x.size(0):
            y, h = self.rnn(x, self.h.to(x))
        else:
            y, h = self.rnn(x)
        self.h = h.detach()
        return (self.att(y).softmax(1) * y).sum(1)


class BufferlessMask(nn.Module):
    """Causal multi-head attention (batch, seq, dim), mask computed once in the constructor"""

    def __init__(self, d_model=32, n_heads=4, max_len=256):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.o = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.mask = torch.triu(torch.full((max_len, max_len), float("-inf")), 1)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) / math.sqrt(c // self.n_heads) + self.mask[:t, :t].to(x.dtype)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class FactorScale(nn.Module):
    """Scaled dot-product attention, heads of size dim_head; (batch, seq, dim)"""

    def __init__(self, dim=64, heads=4, dim_head=16):
        super().__init__()
        inner = heads * dim_head
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_q, self.to_kv, self.to_out = (
            nn.Linear(dim, inner, bias=False),
            nn.Linear(dim, 2 * inner, bias=False),
            nn.Linear(inner, dim),
        )

    def forward(self, x):
        q, k, v = [
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.to_q(x), *self.to_kv(x).chunk(2, -1))
        ]
        q = q * self.scale
        k = k * self.scale
        return self.to_out(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2))


class RelativeBuckets(nn.Module):
    """Bidirectional attention with a learned relative position bias per head"""

    def __init__(self, dim=32, heads=4, num_buckets=32):
        super().__init__()
        self.h, self.nb = heads, num_buckets
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.relative_attention_bias = nn.Embedding(num_buckets, heads)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        i = torch.arange(t, device=x.device)
        bias = self.relative_attention_bias((i[:, None] - i[:, None].T.T).clamp(0, self.nb - 1)).permute(2, 0, 1)
        s = q @ k.transpose(-1, -2) / math.sqrt(c // self.h) + bias
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
