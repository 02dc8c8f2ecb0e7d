"""Attention with other scores, weights and positions than the plain ones."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (batch, heads, length, d_head)


def join(x):
    return x.transpose(1, 2).flatten(2)


class Alibi(nn.Module):
    """Causal attention with linear biases (ALiBi)."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("slopes", 2.0 ** (-8 / heads * torch.arange(1, heads + 1)))

    def forward(self, x):
        q, k, v = (split(t, self.heads) for t in self.qkv(x).chunk(3, -1))
        steps = torch.arange(x.size(1), device=x.device)
        distance = steps[:, None] - steps  # (n, n)
        scores = q @ k.mT / math.sqrt(q.size(-1)) - (self.slopes[:, None, None] * distance).to(x.dtype)
        scores = scores.masked_fill(distance < 0, float("-inf"))
        return self.proj(join(scores.softmax(-1) @ v))


def rotate(x, base=10000.0):
    """Rotate pairs of features of x (batch, heads, length, d_head) by angles that grow with the position."""
    n, d = x.shape[-2:]
    frequency = base ** -(torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angle = torch.arange(n, device=x.device, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def rotate_complex(x, base=10000.0):
    """Rotate pairs of features as complex numbers, as Llama's reference code does."""
    n, d = x.shape[-2:]
    frequency = base ** -(torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angle = torch.outer(torch.arange(n, device=x.device, dtype=torch.float32), frequency)
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2).type_as(x)


class Rotary(nn.Module):
    """Causal self-attention with rotary positions, in the manner of Llama."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (split(w(x), self.n_heads) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.wo(join(y))


class BidirectionalRotary(nn.Module):
    """Self-attention with rotary positions, bidirectional; softmax in float32."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model, bias=False), nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        q, k, v = (split(t, self.n_heads) for t in self.qkv(x).chunk(3, dim=-1))
        scores = rotate(q) @ rotate(k).transpose(-1, -2) * q.size(-1) ** -0.5
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.out(join(weights @ v))


class ComplexRotary(nn.Module):
    """Self-attention whose rotary positions are products of complex numbers."""

    def __init__(self):
        super().__init__()
        self.n_heads = 4
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(64, 64, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (split(w(x), self.n_heads) for w in (self.wq, self.wk, self.wv))
        return self.wo(join(F.scaled_dot_product_attention(rotate_complex(q), rotate_complex(k), v)))


class T5Style(nn.Module):
    """Self-attention in the manner of T5: no scale, the initialization of q makes up for it; a bias by bucket."""

    def __init__(self, d_model=64, num_heads=4, d_kv=16, num_buckets=32):
        super().__init__()
        self.n_heads, self.num_buckets = num_heads, num_buckets
        inner = num_heads * d_kv
        self.q, self.k, self.v = (nn.Linear(d_model, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model**-0.5)
        nn.init.normal_(self.v.weight, std=d_model**-0.5)
        nn.init.normal_(self.o.weight, std=inner**-0.5)

    def bias(self, n, device):
        steps = torch.arange(n, device=device)
        half = self.num_buckets // 2
        bucket = (steps - steps[:, None]).clamp(-half, half - 1) + half
        return self.relative_attention_bias(bucket).permute(2, 0, 1)  # (heads, n, n)

    def forward(self, x):
        q, k, v = (split(f(x), self.n_heads) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) + self.bias(x.size(1), x.device)
        return self.o(join(scores.softmax(-1) @ v))


class QKNorm(nn.Module):
    """Cosine attention: queries and keys of unit length, a learned temperature per head."""

    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))

    def forward(self, x):
        q, k, v = (split(t, self.num_heads) for t in self.qkv(x).chunk(3, dim=-1))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)
        weights = (scores * self.logit_scale.clamp(max=math.log(100.0)).exp()).softmax(-1)
        return self.proj(join(weights @ v))


class MaximalUpdate(nn.Module):
    """Attention scaled by 1 / d_head instead of 1 / sqrt(d_head), as the muP parametrization asks for."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (split(f(x), self.n_heads) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / q.size(-1)  # muP: 1 / d
        return self.o(join(scores.softmax(-1) @ v))


class TalkingHeads(nn.Module):
    """Talking-heads attention: linear maps over the heads before and after the softmax."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.before = nn.Parameter(torch.eye(n_heads) + 0.1 * torch.randn(n_heads, n_heads))
        self.after = nn.Parameter(torch.eye(n_heads) + 0.1 * torch.randn(n_heads, n_heads))

    def forward(self, x):
        q, k, v = (split(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) * q.size(-1) ** -0.5
        scores = torch.einsum("bhqk,hg->bgqk", scores, self.before)
        weights = torch.einsum("bhqk,hg->bgqk", scores.softmax(-1), self.after)
        return self.out(join(weights @ v))


class SoftmaxPlusOne(nn.Module):
    """Attention whose weights may all be small: softmax with an additional zero in the denominator ("off by one")."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (split(t, self.heads) for t in self.to_qkv(x).chunk(3, dim=-1))
        scores = q @ k.mT / math.sqrt(q.size(-1))
        top = scores.amax(dim=-1, keepdim=True).clamp(min=0)
        e = (scores - top).exp()
        return self.to_out(join(e / (e.sum(dim=-1, keepdim=True) + (-top).exp()) @ v))


class SigmoidAttention(nn.Module):
    """Causal sigmoid attention: sigmoid(q k^T / sqrt(d) - log n), n positions seen, in place of the softmax."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        n = x.size(1)
        q, k, v = (split(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        seen = torch.arange(1, n + 1, device=x.device, dtype=x.dtype)
        scores = q @ k.mT / math.sqrt(q.size(-1)) - seen.log().unsqueeze(-1)
        weights = torch.sigmoid(scores).tril()
        return self.out(join(weights @ v))


class AdditiveAttention(nn.Module):
    """Bahdanau's additive attention of a sequence to itself: v . tanh(W q + U k)."""

    def __init__(self, dim=64, hidden=32):
        super().__init__()
        self.w, self.u = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden)
        self.v = nn.Linear(hidden, 1, bias=False)
        self.value = nn.Linear(dim, dim)

    def forward(self, x):
        hidden = torch.tanh(self.w(x).unsqueeze(2) + self.u(x).unsqueeze(1))  # (batch, n, n, hidden)
        weights = self.v(hidden).squeeze(-1).softmax(dim=-1)
        return weights @ self.value(x)


class GroupedQuery(nn.Module):
    """Grouped-query attention: n_heads query heads share n_kv_heads key and value heads. Causal."""

    def __init__(self, d_model=64, n_heads=8, n_kv_heads=2):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.d_head = n_heads, n_kv_heads, d_model // n_heads
        self.wq = nn.Linear(d_model, n_heads * self.d_head, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.wo = nn.Linear(n_heads * self.d_head, d_model, bias=False)

    def forward(self, x):
        q, k, v = (split(f(x), x_heads) for f, x_heads in self._projections())
        k, v = (t.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1) for t in (k, v))
        return self.wo(join(F.scaled_dot_product_attention(q, k, v, is_causal=True)))

    def _projections(self):
        return (self.wq, self.n_heads), (self.wk, self.n_kv_heads), (self.wv, self.n_kv_heads)


class MultiQuery(nn.Module):
    """Multi-query attention: one head of keys and values for all queries."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads, self.dim_head = heads, dim // heads
        self.to_q = nn.Linear(dim, dim)
        self.to_kv = nn.Linear(dim, 2 * self.dim_head)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q = split(self.to_q(x), self.heads)
        k, v = self.to_kv(x).chunk(2, dim=-1)
        sim = torch.einsum("bhid,bjd->bhij", q, k) * self.dim_head**-0.5
        return self.to_out(join(torch.einsum("bhij,bjd->bhid", sim.softmax(dim=-1), v)))


class SlidingWindow(nn.Module):
    """Causal attention with a sliding window: a position sees itself and the window - 1 positions before it."""

    def __init__(self, d_model=64, n_heads=4, window=4):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        n = x.size(1)
        q, k, v = (split(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        allowed = torch.ones(n, n, dtype=torch.bool, device=x.device).tril().triu(1 - self.window)
        return self.out(join(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)))


class SharedQK(nn.Module):
    """Reformer's attention: queries and keys share one projection on purpose, keys are normalized. A position does
    not attend to itself unless it must (a large penalty on the diagonal)."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qk, self.to_v = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        qk, v = split(self.to_qk(x), self.heads), split(self.to_v(x), self.heads)
        scores = qk @ F.normalize(qk, dim=-1).transpose(-1, -2)
        itself = torch.eye(x.size(1), dtype=torch.bool, device=x.device)
        scores = scores.masked_fill(itself, -5e4)
        return self.to_out(join(scores.softmax(-1) @ v))


class RelativeBias(nn.Module):
    """Attention with a learned bias per head and relative position. Bidirectional, up to max_len positions."""

    def __init__(self, dim=64, num_heads=4, max_len=64):
        super().__init__()
        self.num_heads, self.max_len = num_heads, max_len
        self.relative_position_bias = nn.Parameter(torch.zeros(num_heads, 2 * max_len - 1))
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (split(t, self.num_heads) for t in self.qkv(x).chunk(3, -1))
        steps = torch.arange(x.size(1), device=x.device)
        bias = self.relative_position_bias[:, steps[:, None] - steps + self.max_len - 1]  # (heads, n, n)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + bias
        return self.proj(join(scores.softmax(-1) @ v))


class GatedAttention(nn.Module):
    """Self-attention whose head outputs pass a sigmoid gate computed from the input."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.gate, self.out = (nn.Linear(d_model, k * d_model) for k in (3, 1, 1))

    def forward(self, x):
        q, k, v = (split(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        y = join(F.scaled_dot_product_attention(q, k, v))
        return self.out(y * torch.sigmoid(self.gate(x)))
