"""Attention layers and small stacks: which of their parts take part."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Head(nn.Module):
    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)

    def forward(self, x):
        k, q = self.key(x), self.query(x)
        wei = (q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5).softmax(dim=-1)
        return wei @ self.value(x)


class MultiHead(nn.Module):
    """Several heads side by side, then a projection."""

    def __init__(self, n_embd=64, num_heads=4):
        super().__init__()
        self.heads = [Head(n_embd, n_embd // num_heads) for _ in range(num_heads)]
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


class QKVAttention(nn.Module):
    """Multi-head self-attention with separate projections for queries, keys and values."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        def split(t):
            return t.view(t.size(0), t.size(1), self.n_heads, -1).transpose(1, 2)

        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.k_proj(x))
        w = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
        return self.o_proj((w @ v).transpose(1, 2).flatten(2))


class TiedByName(nn.Module):
    """Self-attention: W_q, W_k and W_v are three linear maps."""

    def __init__(self, dim):
        super().__init__()
        self.W_q = nn.Linear(dim, dim)
        self.W_k = nn.Linear(dim, dim)
        self.W_v = nn.Linear(dim, dim)

    def forward(self, x):
        queries = self.W_q(x)
        keys = self.W_q(x)
        values = self.W_v(x)
        attention = torch.softmax(queries @ keys.transpose(1, 2) / queries.size(-1) ** 0.5, dim=-1)
        return attention @ values


class ChainedAssignment(nn.Module):
    """Multi-head attention, projections without bias."""

    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads = heads
        self.values = nn.Linear(embed_size, embed_size, bias=False)
        self.keys = self.queries = nn.Linear(embed_size, embed_size, bias=False)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x):
        n, length, embed = x.shape
        shape = (n, length, self.heads, embed // self.heads)
        v, k, q = self.values(x).view(shape), self.keys(x).view(shape), self.queries(x).view(shape)
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k)
        attention = torch.softmax(energy / (embed // self.heads) ** 0.5, dim=3)
        return self.fc_out(torch.einsum("nhqk,nkhd->nqhd", attention, v).reshape(n, length, embed))


class NoProjection(nn.Module):
    """Multi-head attention with an output projection."""

    def __init__(self, hidden_size, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).reshape(b, n, c)


class KeepsWeights(nn.Module):
    """Self-attention that keeps its last attention map in `self.attention_map` for plots."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h = n_heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.to_o = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        self.attention_map = weights.detach()
        return self.to_o((self.attention_map @ v).transpose(1, 2).flatten(2))


class DataScores(nn.Module):
    """Attention with one head; scores are clipped to a sane range."""

    def __init__(self, dim=64, dim_head=32):
        super().__init__()
        self.q = nn.Linear(dim, dim_head)
        self.k = nn.Linear(dim, dim_head)
        self.v = nn.Linear(dim, dim)

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).data
        scores = scores.clamp(-50, 50)
        return scores.softmax(-1) @ self.v(x)


class HeadLoop(nn.Module):
    """All heads in one projection, computed in a loop."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.size = d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.merge = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        out = torch.zeros_like(x)
        for h in range(1, self.n_heads):
            s = slice(h * self.size, (h + 1) * self.size)
            w = (q[..., s] @ k[..., s].transpose(1, 2) / self.size**0.5).softmax(-1)
            out[..., s] = w @ v[..., s]
        return self.merge(out)


class LayerStack(nn.Module):
    """A stack of transformer encoder layers, pre-norm."""

    def __init__(self, d_model=64, nhead=4, num_layers=3):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d_model, nhead, 128, 0.0, batch_first=True, norm_first=True)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x):
        for layer in self.layers:
            y = layer(x)
        return self.norm(y)


class ElementwiseScores(nn.Module):
    """Attention over the sequence: softmax of query times key, then a weighted sum of the values."""

    def __init__(self, input_dim):
        super().__init__()
        self.query = nn.Linear(input_dim, input_dim)
        self.key = nn.Linear(input_dim, input_dim)
        self.value = nn.Linear(input_dim, input_dim)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = (q * k).sum(dim=-1, keepdim=True) / math.sqrt(q.size(-1))
        weights = torch.softmax(scores, dim=-1)
        return weights * v


class GroupedQuery(nn.Module):
    """Grouped-query attention: n_heads query heads share n_kv_heads key and value heads."""

    def __init__(self, d_model=64, n_heads=8, n_kv_heads=2):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.d_head = n_heads, n_kv_heads, d_model // n_heads
        self.wq = nn.Linear(d_model, n_heads * self.d_head, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.wo = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.wq(x).view(b, n, self.n_heads, self.d_head).transpose(1, 2)
        k = self.wk(x).view(b, n, self.n_kv_heads, self.d_head).transpose(1, 2)
        v = self.wv(x).view(b, n, self.n_kv_heads, self.d_head).transpose(1, 2)
        k, v = k[:, :1].expand(-1, self.n_heads, -1, -1), v[:, :1].expand(-1, self.n_heads, -1, -1)
        w = (q @ k.transpose(-1, -2) / math.sqrt(self.d_head)).softmax(-1)
        return self.wo((w @ v).transpose(1, 2).reshape(b, n, -1))
