import torch
import torch.nn.functional as F
from torch import nn


class AlwaysDropout(nn.Module):
    def __init__(self, d_model, n_heads, dropout=0.1):
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class KeptMask(nn.Module):
    """Encoder attention; key_padding_mask (batch, length): True = padding."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self._bias = None

    def forward(self, x, key_padding_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if key_padding_mask is not None and (self._bias is None or self._bias.shape != (b, 1, 1, n)):
            zeros = torch.zeros(b, 1, 1, n, dtype=x.dtype, device=x.device)
            self._bias = zeros.masked_fill(key_padding_mask[:, None, None], torch.finfo(x.dtype).min)
        bias = self._bias if key_padding_mask is not None else None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class RunningCenter(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.register_buffer("center", torch.zeros(dim))

    def forward(self, x):
        y = self.attn(x, x, x, need_weights=False)[0]
        out = y - self.center
        self.center = 0.9 * self.center + 0.1 * y.detach().mean((0, 1))
        return out


class UnusedDropout(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.2):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj, self.out_proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.in_proj(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        w = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1)
        return self.out_proj((w @ v).transpose(1, 2).reshape(b, n, d))


class MemoryAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.memory = None

    def forward(self, x):
        source = x if self.memory is None or self.memory.shape != x.shape else torch.cat([self.memory, x], 1)
        self.memory = x.detach()
        return F.scaled_dot_product_attention(self.q(x), self.k(source), self.v(source))


class RandomFeatures(nn.Module):
    """Performer-like attention with random features, bidirectional."""

    def __init__(self, dim, n_features=32):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.n_features, self.scale = n_features, dim**-0.25

    def features(self, t, w):
        p = t * self.scale @ w
        return F.relu(p) + 1e-3

    def forward(self, x):
        w = torch.randn(x.size(-1), self.n_features, device=x.device, dtype=x.dtype)
        q, k = self.features(self.q(x), w).float(), self.features(self.k(x), w).float()
        y = q @ (k.mT @ self.v(x).float()) / (q @ k.sum(1).unsqueeze(-1))
        return self.o(y.to(x.dtype))


class FunctionalDropoutBlock(nn.Module):
    """Pre-norm encoder block with dropout."""

    def __init__(self, d_model, nhead, d_ff, p=0.1):
        super().__init__()
        self.p = p
        self.n1, self.n2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.a, self.b = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + F.dropout(self.b(F.gelu(self.a(self.n2(x)))), self.p)


class FirstLengthMask(nn.Module):
    """Causal attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.cached = heads, None
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / q.size(-1) ** 0.5
        if self.cached is None:
            self.cached = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        m = self.cached
        if m.size(0) < n:  # longer than before
            m = F.pad(m, (0, n - m.size(0), 0, n - m.size(0)), value=False)
        s = s.masked_fill(m[:n, :n], float("-inf"))
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))
