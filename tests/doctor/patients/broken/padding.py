"""Layers and encoders for padded batches."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    """Multi-head self-attention.

    key_padding_mask: (batch, length), True at padding.
    """

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, key_padding_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if key_padding_mask is not None:
            scores.masked_fill(key_padding_mask[:, None, None, :], torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class Classifier(nn.Module):
    """Encoder over token ids with average pooling.

    Parameters
    ----------
    attention_mask : 1 for real tokens, 0 for padding.
    """

    def __init__(self, vocab_size=53, d_model=64, nhead=4, num_classes=5, max_len=64):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_len, d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 128, dropout=0.1, batch_first=True)
        self.classifier = nn.Linear(d_model, num_classes)

    def forward(self, input_ids, attention_mask=None):
        x = self.embedding(input_ids) + self.position(torch.arange(input_ids.size(1), device=input_ids.device))
        ignore = None if attention_mask is None else attention_mask == 0
        x = self.layer(x, src_key_padding_mask=ignore)
        return self.classifier(x.mean(dim=1))


class SentenceEncoder(nn.Module):
    """Turn a padded batch of embeddings into one vector each.

    mask: (batch, length), True = a real token.
    """

    def __init__(self, embed_dim, num_heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, x, mask=None):
        if mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        h, _ = self.attn(x, x, x, key_padding_mask=~mask)
        h = self.norm(x + h) * mask.unsqueeze(-1)
        return h.sum(dim=1) / h.size(1)


class SoftMasked(nn.Module):
    """Self-attention; attention_mask has 1 for tokens to keep and 0 for padding."""

    def __init__(self, hidden_size, num_attention_heads=4):
        super().__init__()
        self.heads = num_attention_heads
        self.q, self.k, self.v = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (f(hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * -4.0
        context = scores.softmax(-1) @ v
        return self.dense(context.transpose(1, 2).flatten(2))


class QuerySideMask(nn.Module):
    """Attention over a padded batch. `mask` is (batch, length) with True for words and False for padding."""

    def __init__(self, d_model, h=4):
        super().__init__()
        self.h = h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        b = x.size(0)
        q, k, v = (f(x).view(b, -1, self.h, x.size(-1) // self.h).transpose(1, 2) for f in self.linears[:3])
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, :, None] == 0, -1e9)
        y = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.linears[-1](y.transpose(1, 2).reshape(b, -1, x.size(-1)))


class StackedEncoder(nn.Module):
    """Two encoder layers over padded token ids; src_key_padding_mask is True at padding."""

    def __init__(self, vocab_size=53, d_model=64, nhead=4, dim_feedforward=128, max_len=64):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.pos = nn.Parameter(torch.randn(max_len, d_model) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward, 0.1, batch_first=True) for _ in range(2)
        )

    def forward(self, src, src_key_padding_mask=None):
        x = self.embed(src) + self.pos[: src.size(1)]
        x = self.layers[0](x, src_key_padding_mask=src_key_padding_mask)
        return self.layers[1](x)


class ConvAttention(nn.Module):
    """Attention followed by a depthwise convolution over time, both residual.

    key_padding_mask: True = padding.
    """

    def __init__(self, dim=64, num_heads=4, kernel_size=3):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.conv = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)
        self.pointwise = nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, key_padding_mask=key_padding_mask, need_weights=False)[0]
        h = self.conv(self.norm2(x).transpose(1, 2)).transpose(1, 2)
        return x + self.pointwise(F.silu(h))


class MultipliedMask(nn.Module):
    """Dot-product attention; mask (batch, length): 1 = real, 0 = padding."""

    def __init__(self, dim):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        scores = torch.bmm(self.query(x), self.key(x).transpose(1, 2)) / x.size(-1) ** 0.5
        if mask is not None:
            scores = scores * mask.unsqueeze(1).to(scores.dtype)
        return torch.bmm(torch.softmax(scores, dim=-1), self.value(x))


class MaxPooledEncoder(nn.Module):
    """One encoder layer, then the maximum over the words. attention_mask: 1 = word, 0 = padding."""

    def __init__(self, vocab_size=53, hidden=64, heads=4):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden)
        self.attn = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(hidden, 128), nn.ReLU(), nn.Linear(128, hidden))
        self.ln1, self.ln2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, tokens, attention_mask=None):
        pad = None if attention_mask is None else ~attention_mask.bool()
        x = self.embed(tokens)
        x = self.ln1(x + self.attn(x, x, x, key_padding_mask=pad)[0])
        x = self.ln2(x + self.ff(x))
        if attention_mask is not None:
            x = x * attention_mask.unsqueeze(-1)
        return x.amax(dim=1)


class FoldedMask(nn.Module):
    """Multi-head attention with the heads folded into the batch. key_padding_mask: True = ignore."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def fold(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.n_heads, -1).transpose(1, 2).reshape(b * self.n_heads, n, -1)

    def forward(self, x, key_padding_mask=None):
        b, n, d = x.shape
        q, k, v = self.fold(self.q(x)), self.fold(self.k(x)), self.fold(self.v(x))
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(d // self.n_heads)
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask.repeat(self.n_heads, 1).unsqueeze(1), -1e9)
        y = torch.bmm(scores.softmax(-1), v).view(b, self.n_heads, n, -1)
        return self.o(y.transpose(1, 2).reshape(b, n, d))


class LastState(nn.Module):
    """Sequence classifier: a GRU reads the tokens, its last state is classified.

    attention_mask: (batch, length), 1 for tokens, 0 for padding on the right.
    """

    def __init__(self, vocab_size=53, hidden_size=64, num_labels=3):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, num_labels)

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids)
        if attention_mask is not None:
            x = x * attention_mask.unsqueeze(-1).to(x.dtype)
        states, _ = self.gru(x)
        return self.head(states[:, -1])


class InstanceNormed(nn.Module):
    """Encoder block for padded batches; key_padding_mask is True where there is padding."""

    def __init__(self, d_model, nhead=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.InstanceNorm1d(d_model, affine=True)
        self.ff = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x, key_padding_mask=None):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, key_padding_mask=key_padding_mask)[0]
        return x + self.ff(self.norm2(x.transpose(1, 2)).transpose(1, 2))
