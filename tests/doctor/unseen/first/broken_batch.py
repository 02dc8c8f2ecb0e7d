import torch
import torch.nn.functional as F
from torch import nn


class SelfAttentionLayer(nn.Module):
    """Multi-head self-attention with dropout."""

    def __init__(self, embed_dim, num_heads=4, dropout=0.1):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        # x: (batch, length, embed_dim)
        out, _ = self.attn(x, x, x, need_weights=False)
        return self.drop(out)


class BahdanauSelf(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.wq = nn.Linear(hidden, hidden)
        self.wk = nn.Linear(hidden, hidden)
        self.wv = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, x):
        e = self.score(torch.tanh(self.wq(x)[:, :, None] + self.wk(x)[:, None])).squeeze(-1)  # b, q, k
        a = F.softmax(e, dim=0)
        return torch.bmm(a, self.wv(x))


class ImplicitDim(nn.Module):
    def __init__(self, d_model, d_k=32):
        super().__init__()
        self.d_k = d_k
        self.Q, self.K, self.V = nn.Linear(d_model, d_k), nn.Linear(d_model, d_k), nn.Linear(d_model, d_k)
        self.O = nn.Linear(d_k, d_model)

    def forward(self, x):
        s = self.Q(x) @ self.K(x).transpose(-2, -1) / self.d_k**0.5
        return self.O(F.softmax(s) @ self.V(x))


class BNEncoderBlock(nn.Module):
    """Encoder block: attention and feed-forward, each with skip and normalization."""

    def __init__(self, dim, heads, mlp_dim):
        super().__init__()
        self.bn1 = nn.BatchNorm1d(dim)
        self.bn2 = nn.BatchNorm1d(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))

    def forward(self, x):
        h = self.bn1(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        h = self.bn2(x.transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(h)


class RecurrentTagger(nn.Module):
    def __init__(self, input_size, hidden_size=48):
        super().__init__()
        self.lstm = nn.LSTM(input_size, hidden_size, bidirectional=True)
        self.out = nn.Linear(2 * hidden_size, input_size)

    def forward(self, x):
        h, _ = self.lstm(x)
        return self.out(h)


class ElementwiseKernelAttention(nn.Module):
    """Non-causal linear attention, Katharopoulos et al. 2020."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.h = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bhnd,bhne->hde", k, v)
        z = torch.einsum("bhnd,bhmd->bhn", q, k)[..., None]
        y = torch.einsum("bhnd,hde->bhne", q, kv) / z
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


class CenteredAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, 2)
        k = k - k.mean(0, keepdim=True)
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class FoldedHeads(nn.Module):
    """Attention over a batch of sequences; heads are folded into the batch for bmm."""

    def __init__(self, emb, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(emb, 3 * emb, bias=False)
        self.unify = nn.Linear(emb, emb)

    def forward(self, x):
        b, t, e = x.size()
        h, s = self.heads, e // self.heads
        q, k, v = self.to_qkv(x).chunk(3, -1)
        q, k, v = (u.view(b, t, h, s).transpose(1, 2).reshape(b * h, t, s) for u in (q, k, v))
        w = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / s**0.5, dim=2)
        out = torch.bmm(w, v).view(h, b, t, s)
        return self.unify(out.permute(1, 2, 0, 3).reshape(b, t, e))
