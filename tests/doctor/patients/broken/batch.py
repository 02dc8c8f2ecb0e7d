"""Layers for batches of sequences."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class TorchSelfAttention(nn.Module):
    """Self-attention over a batch of sequences.

    x: (batch, length, d_model), returns the same shape.
    """

    def __init__(self, d_model, n_heads, dropout=0.1):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, n_heads, dropout=dropout)

    def forward(self, x):
        attended, _ = self.attention(x, x, x)
        return attended


class LSTMTagger(nn.Module):
    """Reads a sequence with an LSTM; x is [bs, seq_len, features]."""

    def __init__(self, input_size, hidden_size=32):
        super().__init__()
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers=1)
        self.h_o = nn.Linear(hidden_size, input_size)

    def forward(self, x):
        res, _ = self.lstm(x)
        return self.h_o(res)


class NormalizedBlock(nn.Module):
    """Transformer block with normalization before each sublayer: (batch, length, dim)."""

    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.norm1 = nn.BatchNorm1d(dim)
        self.norm2 = nn.BatchNorm1d(dim)
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def _normed(self, norm, x):
        return norm(x.transpose(1, 2)).transpose(1, 2)

    def forward(self, x):
        h = self._normed(self.norm1, x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self._normed(self.norm2, x))


class SingleHead(nn.Module):
    """Single-head attention. Input and output: (batch, tokens, dim)."""

    def __init__(self, dim):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
        weights = F.softmax(scores, dim=0)
        return torch.bmm(weights, v)


class EinsumAttention(nn.Module):
    """Multi-head self-attention with einsum.

    b: batch, q and k: positions, h: heads, d: width of a head.
    """

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        d_head = d_model // n_heads
        self.wq = nn.Parameter(torch.randn(d_model, n_heads, d_head) / d_model**0.5)
        self.wk = nn.Parameter(torch.randn(d_model, n_heads, d_head) / d_model**0.5)
        self.wv = nn.Parameter(torch.randn(d_model, n_heads, d_head) / d_model**0.5)
        self.wo = nn.Parameter(torch.randn(n_heads, d_head, d_model) / d_model**0.5)

    def forward(self, x):
        q = torch.einsum("bqm,mhd->bhqd", x, self.wq)
        k = torch.einsum("bkm,mhd->bhkd", x, self.wk)
        v = torch.einsum("bkm,mhd->bhkd", x, self.wv)
        s = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
        y = torch.einsum("bhqk,chkd->bhqd", s.softmax(-1), v)
        return torch.einsum("bhqd,hdm->bqm", y, self.wo)


class ContextMixer(nn.Module):
    """Adds to every token (batch, length, dim) the average of its sequence, transformed."""

    def __init__(self, dim):
        super().__init__()
        self.local = nn.Linear(dim, dim)
        self.context = nn.Linear(dim, dim)

    def forward(self, x):
        average = x.mean(dim=0, keepdim=True)
        return self.local(x) + torch.tanh(self.context(average))


class StandardizedAttention(nn.Module):
    """Self-attention over (batch, length, embed_dim) that standardizes its scores, with a learned temperature."""

    def __init__(self, embed_dim, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1)
        scores = self.temperature * (scores - scores.mean()) / (scores.std() + 1e-5)
        return self.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C))


class EncoderLM(nn.Module):
    """Bidirectional encoder over token ids (batch, length): logits for every position (masked language model)."""

    def __init__(self, vocab_size=53, d_model=64, nhead=4, num_layers=2, max_len=64):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_len, d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, 128, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(d_model, vocab_size)

    def forward(self, ids):
        where = torch.arange(ids.shape[1], device=ids.device)
        h = self.tokens(ids) + self.positions(where)[None]
        return self.decoder(self.encoder(h))


class ExpertChoiceFFN(nn.Module):
    """Mixture-of-experts feed-forward layer for (batch, length, dim): every expert picks the tokens that suit it."""

    def __init__(self, dim, n_experts=4, capacity=0.5):
        super().__init__()
        self.router = nn.Linear(dim, n_experts, bias=False)
        self.up = nn.ModuleList(nn.Linear(dim, 2 * dim) for _ in range(n_experts))
        self.down = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(n_experts))
        self.capacity = capacity

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        gates = self.router(flat).softmax(-1)
        chosen = max(1, int(self.capacity * flat.size(0)))
        out = torch.zeros_like(flat)
        for e, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            weight, index = gates[:, e].topk(chosen)
            out = out.index_add(0, index, weight[:, None] * down(F.gelu(up(flat[index]))))
        return out.view_as(x)
