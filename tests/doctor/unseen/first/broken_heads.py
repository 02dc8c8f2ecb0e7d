import torch
import torch.nn.functional as F
from torch import nn


class ViewHeads(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q = self.w_q(x).view(b, self.n_heads, t, self.d_k)
        k = self.w_k(x).view(b, self.n_heads, t, self.d_k)
        v = self.w_v(x).view(b, self.n_heads, t, self.d_k)
        w = torch.softmax(q @ k.transpose(-1, -2) / self.d_k**0.5, dim=-1)
        return self.w_o((w @ v).view(b, t, d))


class MergeHeads(nn.Module):
    def __init__(self, hidden_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(hidden_dim, 3 * hidden_dim)
        self.proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).reshape(b, t, d))


class UnevenHeads(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        h = self.heads
        q = self.q(x).view(b, t, h, d // h).transpose(1, 2)
        k = self.k(x).view(b, h, t, d // h)
        v = self.v(x).view(b, t, h, d // h).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class PackedHeads(nn.Module):
    def __init__(self, embed_dim=64, num_heads=4, **kwargs):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.in_proj(x).reshape(b, 3, self.num_heads, t, d // self.num_heads).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, d))


class BmmHeads(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        dk = d // self.heads
        q, k, v = (f(x).view(b * self.heads, -1, dk) for f in (self.q, self.k, self.v))
        a = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / dk**0.5, dim=-1)
        return self.o(torch.bmm(a, v).view(b, -1, d))


class CausalMergeHeads(nn.Module):
    """Causal attention."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.key, self.query, self.value, self.proj = (nn.Linear(n_embd, n_embd) for _ in range(4))

    def forward(self, x):
        B, T, C = x.shape
        k, q, v = (f(x).view(B, T, self.n_head, -1).transpose(1, 2) for f in (self.key, self.query, self.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.contiguous().view(B, T, C))
