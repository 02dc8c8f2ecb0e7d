"""Attention by people with ideas of their own."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def exists(value):
    return value is not None


def default(value, otherwise):
    return value if exists(value) else otherwise


class KeysTimesQueries(nn.Module):
    """Self-attention over (batch, length, dim); the affinities are computed as keys times queries."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        affinities = (k @ q.transpose(-1, -2)) * q.size(-1) ** -0.5
        attention = affinities.softmax(dim=-1)
        return self.to_out((attention.transpose(-1, -2) @ v).transpose(1, 2).flatten(2))


class LogWeights(nn.Module):
    """Attention with numerically stable weights."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = F.log_softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class ScaledAfterwards(nn.Module):
    """Scaled dot-product attention with several heads."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = F.softmax(q @ k.transpose(-2, -1), dim=-1) / math.sqrt(q.size(-1))
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class HeadCountScaled(nn.Module):
    """Multi-head attention over (batch, length, dim_in)."""

    def __init__(self, dim_in, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(dim_in, dim_in, bias=False) for _ in range(3))
        self._norm_fact = 1 / math.sqrt(num_heads)

    def forward(self, x):
        batch, n, dim_in = x.shape
        shape = (batch, n, self.num_heads, dim_in // self.num_heads)
        q, k, v = (f(x).reshape(shape).transpose(1, 2) for f in (self.linear_q, self.linear_k, self.linear_v))
        dist = torch.matmul(q, k.transpose(2, 3)) * self._norm_fact
        att = torch.matmul(torch.softmax(dist, dim=-1), v)
        return att.transpose(1, 2).reshape(batch, n, dim_in)


class SplitCat(nn.Module):
    """Multi-head attention that stacks the heads along the batch, as an old implementation did."""

    def __init__(self, d_model=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def stack(self, x):
        return torch.cat(x.chunk(self.num_heads, dim=2), dim=0)  # (heads * batch, length, d_head)

    def forward(self, x):
        q, k, v = self.stack(self.q(x)), self.stack(self.k(x)), self.stack(self.v(x))
        w = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.size(-1)), dim=-1)
        y = (w @ v).reshape(x.size(0), self.num_heads, x.size(1), -1)
        return self.o(y.transpose(1, 2).flatten(2))


class PermutedMerge(nn.Module):
    """Self-attention with four heads; heads are merged by permute and reshape."""

    def __init__(self, channels=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.fc = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)  # (b, heads, t, d)
        return self.fc(y.permute(0, 3, 1, 2).reshape(b, t, c))


class FlattenedAttention(nn.Module):
    """Self-attention for inputs (batch, tokens, features)."""

    def __init__(self, features):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(features, features) for _ in range(3))

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        scores = self.query(flat) @ self.key(flat).t() / math.sqrt(x.size(-1))
        return (scores.softmax(dim=-1) @ self.value(flat)).view_as(x)


class RescaledKeys(nn.Module):
    """Attention with keys scaled into [-1, 1] and a learned temperature; (batch, length, dim)."""

    def __init__(self, dim=64):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        q, k, v = F.normalize(self.q(x), dim=-1), self.k(x), self.v(x)
        k = k / k.abs().max()
        return (self.temperature * q @ k.transpose(1, 2)).softmax(dim=-1) @ v


class ItemTemperature(nn.Module):
    """Cosine attention with a learned temperature."""

    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.temperature = nn.Parameter(torch.tensor(10.0))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * float(self.temperature.data)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class SameIndex(nn.Module):
    """Vision-transformer attention (B, N, C)."""

    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[0], qkv[2]
        attn = (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class FirstHeadOnly(nn.Module):
    """A list of heads whose outputs are concatenated."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = nn.ModuleList(nn.ModuleList(nn.Linear(dim, dim // heads) for _ in "qkv") for _ in range(heads))
        self.merge = nn.Linear(dim, dim)

    def attend(self, x, head):
        q, k, v = (linear(x) for linear in head)
        return (q @ k.transpose(1, 2) / math.sqrt(q.size(-1))).softmax(-1) @ v

    def forward(self, x):
        return self.merge(torch.cat([self.attend(x, self.heads[0]) for _ in self.heads], dim=-1))


class DropsItself(nn.Module):
    """Post-norm Transformer block: attention, add and norm, feed-forward, add and norm."""

    def __init__(self, d_model, nhead=4, dropout=0.1):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, d_model))
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        attended = self.attn(x, x, x, need_weights=False)[0]  # noqa: F841
        x = self.norm1(x + self.dropout(x))
        return self.norm2(x + self.dropout(self.ff(x)))


class ReluAfterSum(nn.Module):
    """Transformer block for time series, residual like a ResNet."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.norm1(x)
        x = torch.relu(x + self.attn(h, h, h, need_weights=False)[0])
        return torch.relu(x + self.ff(self.norm2(x)))


class FreshDropout(nn.Module):
    """Attention with dropout of 0.1 on its output."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x, context=None):
        context = default(context, x)
        q = self.to_qkv(x)[..., : x.size(-1)]
        k, v = self.to_qkv(context)[..., x.size(-1) :].chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return nn.Dropout(0.1)(self.to_out(y.transpose(1, 2).flatten(2)))


class Annealed(nn.Module):
    """Self-attention whose temperature is annealed."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads, self.calls = heads, 0
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        self.calls += 1
        temperature = 1 + 1 / self.calls
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / math.sqrt(q.size(-1)) / temperature).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class SquaredScores(nn.Module):
    """Attention with squared scores, normalized over the keys."""

    def __init__(self, dim=64):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        kernel = (q @ k.transpose(1, 2)).square() + 1e-3
        return kernel / kernel.sum(dim=-1, keepdim=True) @ v


class Softplus(nn.Module):
    """Causal attention without softmax: features log(1 + exp(x)) of queries and keys, normalized."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = torch.log(1 + torch.exp(q)), torch.log(1 + torch.exp(k))
        scores = (q @ k.mT).tril()
        weights = scores / scores.sum(dim=-1, keepdim=True)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class WideSoftmax(nn.Module):
    """Multi-head attention with the softmax in float32."""

    def __init__(self, hidden_size, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4))

    def forward(self, hidden_states):
        q, k, v = (
            f(hidden_states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        probs = torch.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1, dtype=torch.float32)
        return self.o((probs @ v).transpose(1, 2).flatten(2))


class ChosenDevice(nn.Module):
    """Causal self-attention; runs on the GPU if there is one."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        n = x.size(1)
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mask = torch.ones(n, n, device=self.device).tril() == 0
        scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(mask, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
