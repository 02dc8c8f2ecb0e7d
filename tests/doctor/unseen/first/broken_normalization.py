import math

import torch
from torch import nn
from torch.nn import functional as F


class ScaledDotProduct(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value):
        n = query.size(0)
        q, k, v = (
            l(x).view(n, -1, self.h, l.out_features // self.h).transpose(1, 2)
            for l, x in zip(self.linears, (query, key, value))
        )
        p = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        p = F.softmax(p, dim=-2)
        return self.linears[-1](torch.matmul(p, v).transpose(1, 2).reshape(n, query.size(1), -1))


class PostMasked(nn.Module):
    """Self-attention of an encoder; attention_mask (batch, length) is 1 for tokens."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.nh = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.o = nn.Linear(hidden_size, hidden_size)

    def forward(self, x, attention_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.nh, -1).permute(2, 0, 3, 1, 4)
        p = (q @ k.transpose(-1, -2) / math.sqrt(d / self.nh)).softmax(-1)
        if attention_mask is not None:
            p = p * attention_mask[:, None, None].to(p.dtype)
        return self.o((p @ v).transpose(1, 2).reshape(b, n, d))


class CausalProbabilities(nn.Module):
    """Causal attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        p = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).softmax(-1).tril()
        return self.o((p @ v).transpose(1, 2).reshape(b, n, d))


class HeadSoftmax(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 1, 3, 4)  # b n h d
        w = torch.einsum("bihd,bjhd->bijh", q, k).div(math.sqrt(q.size(-1))).softmax(-1)
        return self.o(torch.einsum("bijh,bjhd->bihd", w, v).reshape(b, n, d))


class SingleHead(nn.Module):
    def __init__(self, in_features, head_size):
        super().__init__()
        self.query = nn.Linear(in_features, head_size)
        self.key = nn.Linear(in_features, head_size)
        self.value = nn.Linear(in_features, head_size)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        weights = torch.softmax(q.bmm(k.permute(0, 2, 1)) / math.sqrt(k.size(2)), 1)
        return weights.bmm(v), weights


class FlatSoftmax(nn.Module):
    def __init__(self, d_model=64, nhead=4):
        super().__init__()
        self.nhead = nhead
        self.inp = nn.Linear(d_model, 3 * d_model)
        self.outp = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.nhead, -1).transpose(1, 2) for t in self.inp(x).chunk(3, dim=-1))
        s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        p = s.flatten(-2).softmax(-1).view_as(s)
        return self.outp((p @ v).transpose(1, 2).reshape(b, n, d))


class PoolingQuery(nn.Module):
    """Attention pooling: one learned score per position, one vector per sequence (batch, dim)."""

    def __init__(self, dim):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1))
        self.value = nn.Linear(dim, dim)

    def forward(self, x):
        a = torch.softmax(self.score(x), dim=-1)  # (batch, length, 1)
        return (a * self.value(x)).sum(dim=1)
