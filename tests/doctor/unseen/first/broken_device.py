import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class AttributeMask(nn.Module):
    """Causal attention."""

    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.n_head = n_head
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mask = torch.tril(torch.ones(block_size, block_size)).bool()

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / math.sqrt(q.size(-1))
        s = torch.where(self.mask[:T, :T], s, torch.finfo(s.dtype).min)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))


class ArangePositions(nn.Module):
    """Attention with learned positions."""

    def __init__(self, dim, heads, max_len=64):
        super().__init__()
        self.pos = nn.Embedding(max_len, dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        x = x + self.pos(torch.arange(x.size(1)))
        return self.attn(x, x, x, need_weights=False)[0]


class Float32Weights(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = F.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1, dtype=torch.float32)
        return self.proj(torch.matmul(w, v.float()).transpose(1, 2).reshape(b, n, d))


class Float32Bias(nn.Module):
    """Causal self-attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = torch.full((n, n), float("-inf"), device=x.device).triu(1)
        w = (q @ k.mT / math.sqrt(q.size(-1)) + bias).softmax(-1)
        return self.proj((w @ v).transpose(1, 2).reshape(b, n, d))


class NumpyMask(nn.Module):
    """Decoder self-attention (causal)."""

    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        future = torch.from_numpy(np.triu(np.ones((n, n), dtype=bool), k=1))
        s = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(future, float("-inf"))
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class PlainSlopes(nn.Module):
    """Causal attention with linear biases."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.slopes = torch.tensor([2.0 ** -(8 * (i + 1) / heads) for i in range(heads)]).view(-1, 1, 1)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        i = torch.arange(n, device=x.device)
        bias = (self.slopes.to(x.dtype) * (i[None] - i[:, None])).masked_fill(i[None] > i[:, None], float("-inf"))
        return self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(b, n, d))


class PreallocatedOutput(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.dh = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        out = torch.zeros(x.shape)
        for h in range(self.heads):
            part = slice(h * self.dh, (h + 1) * self.dh)
            w = (q[..., part] @ k[..., part].mT / self.dh**0.5).softmax(-1)
            out[..., part] = w @ v[..., part]
        return self.o(out)


class TutorialScale(nn.Module):
    def __init__(self, hid_dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(hid_dim, hid_dim) for _ in range(4))
        self.scale = torch.sqrt(torch.FloatTensor([hid_dim // n_heads]))

    def forward(self, query, key, value, mask=None):
        # mask = [batch size, 1, query len, key len], 0 = hidden
        b = query.shape[0]
        Q, K, V = (
            f(t).view(b, -1, self.n_heads, f.out_features // self.n_heads).permute(0, 2, 1, 3)
            for f, t in ((self.fc_q, query), (self.fc_k, key), (self.fc_v, value))
        )
        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / self.scale
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e4)
        x = torch.matmul(torch.softmax(energy, dim=-1), V).permute(0, 2, 1, 3).contiguous()
        return self.fc_o(x.view(b, -1, self.n_heads * V.size(-1)))
