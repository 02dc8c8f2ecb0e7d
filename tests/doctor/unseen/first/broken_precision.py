import torch
import torch.nn.functional as F
from torch import nn


class NaiveSoftmax(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        e = torch.exp(q @ k.mT / q.size(-1) ** 0.5)
        return self.out((e / e.sum(-1, keepdim=True) @ v).transpose(1, 2).reshape(b, n, d))


class BufferedMask(nn.Module):
    """Causal attention; the mask is multiplied into the scores' bias."""

    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.register_buffer("blocked", torch.full((1, 1), -1e9))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        att = q @ k.mT * q.size(-1) ** -0.5
        att = att + (1 - self.tril[:T, :T]) * self.blocked
        return self.c_proj((att.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))


class PolyKernel(nn.Module):
    """Polynomial kernel attention of degree four, bidirectional."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = (q @ k.mT / q.size(-1) ** 0.5) ** 4
        return self.out((w / w.sum(-1, keepdim=True) @ v).transpose(1, 2).reshape(b, n, d))


class ExpFeatures(nn.Module):
    """Linear attention with exponential features."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = q.exp(), k.exp()
        return self.o((q @ (k.mT @ v) / (q @ k.sum(2).unsqueeze(-1))).transpose(1, 2).reshape(b, n, d))


class SoftplusGate(nn.Module):
    """Attention followed by a softplus gate."""

    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.gate = nn.Linear(dim, dim)

    def forward(self, x):
        y = self.attn(x, x, x, need_weights=False)[0]
        return y * torch.log(1 + torch.exp(5 * self.gate(x)))
