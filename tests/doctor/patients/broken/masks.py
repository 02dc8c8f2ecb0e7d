"""Attention layers with masks: what the values mean, and rows that may see nothing."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def split_heads(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


class EncoderAttention(nn.Module):
    """Multi-head self-attention for an encoder, batch first."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, key_padding_mask=None):
        q, k, v = (split_heads(t, self.num_heads) for t in self.in_proj(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if key_padding_mask is not None:
            scores = scores.masked_fill(~key_padding_mask[:, None, None, :].bool(), -1e9)
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class BertAttention(nn.Module):
    """Self-attention of BERT."""

    def __init__(self, hidden_size=64, num_attention_heads=4):
        super().__init__()
        self.heads = num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (split_heads(f(hidden_states), self.heads) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if attention_mask is not None:
            extended = attention_mask[:, None, None, :].to(scores.dtype) * -10000.0
            scores = scores + extended
        context = scores.softmax(-1) @ v
        return context.transpose(1, 2).flatten(2)


class DocumentedAttention(nn.Module):
    """Scaled dot-product attention with heads.

    Args:
        d_model: width of the model
        num_heads: number of heads
    Inputs:
        x: (batch, length, d_model)
        mask: bool tensor (batch, length, length); True = the query may attend to the key, False = it may not
    """

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        q, k, v = (split_heads(w(x), self.num_heads) for w in (self.wq, self.wk, self.wv))
        logits = q @ k.mT / math.sqrt(q.size(-1))
        if mask is not None:
            logits = logits.masked_fill(mask[:, None], torch.finfo(logits.dtype).min)
        return self.wo((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


class SDPAWithMask(nn.Module):
    """Self-attention.

    attn_mask follows nn.MultiheadAttention: a bool tensor (length, length) where True marks the pairs that are
    blocked.
    """

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, attn_mask=None):
        q, k, v = (split_heads(t, self.num_heads) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.proj(y.transpose(1, 2).flatten(2))


class PostNormLayer(nn.Module):
    """Encoder layer, post-norm."""

    def __init__(self, d_model, nhead, dim_feedforward=128, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, src_key_padding_mask=None):
        if src_key_padding_mask is not None:
            src_key_padding_mask = src_key_padding_mask == 0
        attended, _ = self.self_attn(src, src, src, key_padding_mask=src_key_padding_mask)
        src = self.norm1(src + self.dropout(attended))
        hidden = self.linear2(self.dropout(F.relu(self.linear1(src))))
        return self.norm2(src + self.dropout(hidden))


class DecoderAttention(nn.Module):
    """Causal self-attention for padded batches.

    attention_mask: (batch, length), 1 = token, 0 = padding; padding may stand on either side.
    """

    def __init__(self, n_embd=64, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, attention_mask=None):
        n = x.size(1)
        q, k, v = (split_heads(t, self.n_head) for t in self.c_attn(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        allowed = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, None, :].bool()
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).flatten(2))


class ZeroedRows(nn.Module):
    """Self-attention with a mask over pairs.

    mask: bool, (batch, length, length), True = may attend. A row of the mask may be empty: that query gets zeros.
    """

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, mask=None):
        q, k, v = (split_heads(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) * q.size(-1) ** -0.5
        if mask is not None:
            blocked = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, float("-inf"))
            scores = scores + blocked.unsqueeze(1)
        weights = torch.nan_to_num(scores.softmax(dim=-1), nan=0.0)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class StrictlyPast(nn.Module):
    """Causal attention to the strict past: a position sees the positions before it, not itself."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        n = x.size(1)
        q, k, v = (split_heads(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        past = torch.ones(n, n, dtype=torch.bool, device=x.device).tril(-1)
        scores = (q @ k.mT) / q.size(-1) ** 0.5
        weights = scores.masked_fill(~past, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class PairwisePadding(nn.Module):
    """Bidirectional attention of a text encoder. attention_mask: 1 = word, 0 = padding."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, attention_mask=None):
        q, k, v = (split_heads(t, self.heads) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * (x.size(-1) // self.heads) ** -0.5
        if attention_mask is not None:
            keep = attention_mask.bool()
            pairs = keep[:, None, :, None] & keep[:, None, None, :]
            dots = dots.masked_fill(~pairs, float("-inf"))
        out = torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class EmptyRowAttention(nn.Module):
    """Multi-head attention.

    mask: (batch, length, length) bool, True = may attend. A query that may attend to nothing returns zeros.
    """

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))

    def forward(self, x, mask=None):
        q, k, v = (split_heads(f(x), self.n_heads) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(torch.logical_not(mask)[:, None], -float("inf"))
        return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)
