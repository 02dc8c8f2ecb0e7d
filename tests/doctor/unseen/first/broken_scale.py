import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PlainDot(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads = heads
        self.values, self.keys, self.queries, self.fc_out = (nn.Linear(embed_size, embed_size) for _ in range(4))

    def forward(self, values, keys, query):
        N, L, E = query.shape
        v = self.values(values).reshape(N, -1, self.heads, E // self.heads)
        k = self.keys(keys).reshape(N, -1, self.heads, E // self.heads)
        q = self.queries(query).reshape(N, L, self.heads, E // self.heads)
        energy = torch.einsum("nqhd,nkhd->nhqk", [q, k])
        attention = torch.softmax(energy, dim=3)
        return self.fc_out(torch.einsum("nhql,nlhd->nqhd", [attention, v]).reshape(N, L, E))


class PreScaled(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q = q * (C // self.num_heads) ** -0.5
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class WidthScaled(nn.Module):
    def __init__(self, emb_size, num_heads):
        super().__init__()
        self.emb_size, self.num_heads = emb_size, num_heads
        self.Q, self.K, self.V = (
            nn.Linear(emb_size, emb_size),
            nn.Linear(emb_size, emb_size),
            nn.Linear(emb_size, emb_size),
        )
        self.O = nn.Linear(emb_size, emb_size)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.Q, self.K, self.V))
        w = F.softmax(q @ k.transpose(2, 3) * self.emb_size ** (-1 / 2), dim=-1)
        return self.O((w @ v).transpose(1, 2).reshape(b, n, d))


class LinearScaled(nn.Module):
    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__()
        self.h, self.dh = n_heads, d_head or d_model // n_heads
        self.wq, self.wk, self.wv = (nn.Linear(d_model, self.h * self.dh) for _ in range(3))
        self.wo = nn.Linear(self.h * self.dh, d_model)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (w(x).view(b, n, self.h, self.dh).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        a = ((q @ k.mT) / self.dh).softmax(-1)
        return self.wo((a @ v).transpose(1, 2).reshape(b, n, -1))


class WrongAxisScaled(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.to_out = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.reshape(b, n, self.n_heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = q @ k.transpose(-1, -2) / math.sqrt(q.size(1))
        return self.to_out((dots.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class InverseScaled(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** 0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = torch.softmax(q @ k.mT * self.scale, dim=-1)
        return self.out((w @ v).transpose(1, 2).reshape(b, n, d))


class FusedUnscaled(nn.Module):
    """Causal self-attention."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
