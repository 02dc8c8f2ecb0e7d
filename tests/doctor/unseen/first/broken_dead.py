import torch
import torch.nn.functional as F
from torch import nn


class Head(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_in, d_out, bias=False) for _ in range(3))

    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


class ListedHeads(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.heads = [Head(d_model, d_model // n_heads) for _ in range(n_heads)]
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class ForgottenOutput(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d_model, d_model) for _ in range(3))
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.n_heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)


class ValueIsKey(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, n, d = x.shape
        q = self.query(x).view(b, n, self.heads, -1).transpose(1, 2)
        k = self.key(x).view(b, n, self.heads, -1).transpose(1, 2)
        v = self.key(x).view(b, n, self.heads, -1).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class TwiceQuery(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class StoredWeights(nn.Module):
    """Attention that also keeps its last weights for plotting."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.last_weights = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1).detach()
        return self.out((self.last_weights @ v).transpose(1, 2).reshape(b, n, d))


class DataScores(nn.Module):
    def __init__(self, in_dim, out_dim, head_dim=16):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(in_dim, head_dim), nn.Linear(in_dim, head_dim), nn.Linear(in_dim, out_dim)
        self.scale = head_dim**-0.5

    def forward(self, x):
        scores = torch.bmm(self.q(x), self.k(x).transpose(1, 2)) * self.scale
        scores.data = scores.data - scores.data.amax(-1, keepdim=True)
        w = F.softmax(scores.data, dim=-1)
        return torch.bmm(w, self.v(x))


class LoopedHeads(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        out = torch.zeros_like(q)
        for i in range(1, self.num_heads):
            part = slice((i - 1) * self.head_dim, i * self.head_dim)
            out[..., part] = F.scaled_dot_product_attention(q[..., part], k[..., part], v[..., part])
        return self.proj(out)


class MutedHead(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)
        mask = torch.ones(num_heads)
        mask[num_heads // 2] = 0
        self.register_buffer("head_mask", mask.view(1, -1, 1, 1))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v) * self.head_mask
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, nhead, d_ff):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.ln = nn.LayerNorm(d_model)
        self.ln2 = nn.LayerNorm(d_model)

    def forward(self, x):
        h = self.ln(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        f = self.ff(self.ln2(x))
        return x + h


class NoGradScores(nn.Module):
    """Two attentions in a row, bidirectional."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(2))
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        for i, layer in enumerate(self.layers):
            q, k, v = layer(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            with torch.set_grad_enabled(torch.is_grad_enabled() and i > 0):
                w = (q @ k.mT * q.size(-1) ** -0.5).softmax(-1)
            x = x + (w @ v).transpose(1, 2).reshape(b, n, d)
        return self.out(x)


class CharModel(nn.Module):
    def __init__(self, vocab_size, d_model=32, n_layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, d_model)
        self.blocks = [
            nn.TransformerEncoderLayer(d_model, 2, 64, 0.0, batch_first=True, norm_first=True) for _ in range(n_layers)
        ]
        self.ln, self.head = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size)

    def forward(self, idx):
        x = self.emb(idx)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))
