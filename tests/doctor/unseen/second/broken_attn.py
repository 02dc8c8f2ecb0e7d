import math
import torch
from torch import nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    """(batch, seq, dim), bidirectional"""

    def __init__(self, dim=32):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        a = F.softmax(self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.size(-1)), dim=1)
        return a @ self.v(x)


class MultiHead(nn.Module):
    """Vaswani et al. multi-head attention. q, k, v: (batch, seq, d_model)"""

    def __init__(self, d_model=32, num_heads=4):
        super().__init__()
        self.h, self.dk = num_heads, d_model // num_heads
        self.wq, self.wk, self.wv, self.wo = [nn.Linear(d_model, d_model) for _ in range(4)]

    def forward(self, q, k, v):
        B = q.size(0)
        q = self.wq(q).view(B, -1, self.h, self.dk).transpose(1, 2)
        k = self.wk(k).view(B, -1, self.h, self.dk).transpose(1, 2)
        v = self.wv(v).view(B, -1, self.h, self.dk).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / self.dk**0.5
        p = nn.Softmax(dim=1)(scores)
        return self.wo((p @ v).transpose(1, 2).reshape(B, -1, self.h * self.dk))


class CausalAfter(nn.Module):
    """Causal self-attention, (batch, seq, dim)."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        p = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).softmax(-1)
        p = p * torch.ones(t, t, device=x.device, dtype=x.dtype).tril()
        return self.o((p @ v).transpose(1, 2).reshape(b, t, c))


class EncoderAttention(nn.Module):
    """x (batch, seq, dim); key_padding_mask (batch, seq): True = padding"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        p = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).softmax(-1)
        if key_padding_mask is not None:
            p = p.masked_fill(key_padding_mask[:, None, None], 0.0)
        return self.o((p @ v).transpose(1, 2).reshape(b, t, c))


class NonLocal1d(nn.Module):
    """Non-local operation on (batch, channels, length) signals, embedded gaussian version."""

    def __init__(self, in_channels=32, key_channels=16):
        super().__init__()
        self.theta = nn.Conv1d(in_channels, key_channels, 1)
        self.phi = nn.Conv1d(in_channels, key_channels, 1)
        self.g = nn.Conv1d(in_channels, in_channels, 1)
        self.kc = key_channels

    def forward(self, x):
        q, k, v = self.theta(x), self.phi(x), self.g(x)
        a = torch.einsum("bci,bcj->bij", q, k) / self.kc**0.5
        a = a.softmax(dim=-2)
        return torch.einsum("bij,bcj->bci", a, v)


class HandSoftmaxAttention(nn.Module):
    """Attention with its own softmax. (batch, seq, dim)"""

    def __init__(self, dim=24):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        s = torch.einsum("bqd,bkd->bqk", self.q(x), self.k(x)) * x.size(-1) ** -0.5
        s = s - s.amax(dim=(1, 2), keepdim=True)
        e = torch.exp(s)
        return (e / e.sum(dim=(1, 2), keepdim=True)) @ self.v(x)


# scale -------------------------------------------------------------------


class DotAttention(nn.Module):
    """Multi-head attention, (batch, seq, dim) -> (batch, seq, dim)"""

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.h = num_heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).reshape(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, d))


class TemperedAttention(nn.Module):
    """Scaled dot-product attention (batch, seq, dim)."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        self.q, self.k, self.v, self.o = [nn.Linear(d_model, d_model) for _ in range(4)]

    def heads(self, t):
        return t.view(t.size(0), t.size(1), self.n_heads, self.d_k).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        w = F.softmax(q @ k.transpose(2, 3) / self.d_k, -1)
        return self.o((w @ v).transpose(1, 2).flatten(2))


class WideScaleAttention(nn.Module):
    """Self-attention with several heads as in 'Transformers from scratch'. x: (b, t, emb)"""

    def __init__(self, emb=64, heads=8):
        super().__init__()
        self.emb, self.heads = emb, heads
        self.tokeys = nn.Linear(emb, emb, bias=False)
        self.toqueries = nn.Linear(emb, emb, bias=False)
        self.tovalues = nn.Linear(emb, emb, bias=False)
        self.unify = nn.Linear(emb, emb)

    def forward(self, x):
        b, t, e = x.size()
        h, s = self.heads, e // self.heads
        k = self.tokeys(x).view(b, t, h, s).transpose(1, 2)
        q = self.toqueries(x).view(b, t, h, s).transpose(1, 2)
        v = self.tovalues(x).view(b, t, h, s).transpose(1, 2)
        dot = torch.matmul(q, k.transpose(2, 3)) * self.emb**-0.5
        out = torch.matmul(dot.softmax(dim=3), v).transpose(1, 2).reshape(b, t, e)
        return self.unify(out)


class FusedAttention(nn.Module):
    """Flash attention through torch (batch, seq, dim)"""

    def __init__(self, dim=64, heads=2):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q * self.scale, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class KeyQueryAttention(nn.Module):
    """Dot-product attention of a query sequence over a memory. query (b, n, dim), context (b, m, dim)"""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, query, context):
        b, n, c = query.shape
        q = self.q(query).view(b, n, self.h, self.d).transpose(1, 2)
        k, v = self.kv(context).view(b, -1, 2, self.h, self.d).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) * math.sqrt(self.d)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


# heads -------------------------------------------------------------------


class ViewAttention(nn.Module):
    """Multi-head self-attention, input (batch, seq_len, d_model)"""

    def __init__(self, d_model=32, n_heads=4):
        super().__init__()
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        self.W_q, self.W_k, self.W_v, self.W_o = [nn.Linear(d_model, d_model) for _ in range(4)]

    def forward(self, x):
        B, T, D = x.shape
        Q = self.W_q(x).view(B, self.n_heads, T, self.d_k)
        K = self.W_k(x).view(B, self.n_heads, T, self.d_k)
        V = self.W_v(x).view(B, self.n_heads, T, self.d_k)
        A = torch.softmax(Q @ K.transpose(-1, -2) / math.sqrt(self.d_k), dim=-1)
        return self.W_o((A @ V).view(B, T, D))


class MergeAttention(nn.Module):
    """Multi-head attention for vision tokens (batch, tokens, dim)"""

    def __init__(self, dim=32, num_heads=4, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, dim * 3, bias=qkv_bias), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q @ k.transpose(-2, -1)) * (C // self.num_heads) ** -0.5
        x = (attn.softmax(-1) @ v).reshape(B, N, C)
        return self.proj(x)


class FoldAttention(nn.Module):
    """Self-attention, heads in the batch dimension; x is (batch, seq, hidden)"""

    def __init__(self, hidden=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = [nn.Linear(hidden, hidden) for _ in range(4)]

    def forward(self, x):
        b, n, c = x.shape
        d = c // self.heads
        q, k, v = [f(x).reshape(b * self.heads, n, d) for f in (self.q, self.k, self.v)]
        a = torch.baddbmm(torch.zeros(1, dtype=x.dtype, device=x.device), q, k.transpose(1, 2), alpha=d**-0.5).softmax(
            -1
        )
        return self.o(torch.bmm(a, v).reshape(b, n, c))


class ValueAttention(nn.Module):
    """Bidirectional attention (batch, length, size)"""

    def __init__(self, size=32, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = [nn.Linear(size, size) for _ in range(4)]

    def forward(self, x):
        b, n, c = x.shape
        q = self.q(x).view(b, n, self.h, -1).permute(0, 2, 1, 3)
        k = self.k(x).view(b, n, self.h, -1).permute(0, 2, 3, 1)
        v = self.v(x).view(b, self.h, n, -1)
        y = ((q @ k) / math.sqrt(c // self.h)).softmax(-1) @ v
        return self.o(y.permute(0, 2, 1, 3).reshape(b, n, c))


class CrossHeads(nn.Module):
    """Cross attention; x: (batch, n, dim), memory: (batch, m, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = [nn.Linear(dim, dim) for _ in range(4)]

    def forward(self, x, memory):
        b, n, c = x.shape
        m = memory.size(1)
        q = self.q(x).view(b, n, self.h, self.d).transpose(1, 2)
        k = self.k(memory).view(b, m, self.h, self.d).transpose(1, 2)
        v = self.v(memory).view(b, m, self.h, self.d).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(2, 3).reshape(b, n, c))
