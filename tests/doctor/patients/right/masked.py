"""Attention with masks, and pooled encoders of padded batches."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def split_heads(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


class KeyPadding(nn.Module):
    """Multi-head self-attention. key_padding_mask: (batch, length), True = ignore."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x, key_padding_mask=None):
        q, k, v = (split_heads(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None, :], torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class BertStyle(nn.Module):
    """Self-attention of BERT; attention_mask: (batch, length), 1 = keep, 0 = padding."""

    def __init__(self, hidden_size=64, num_attention_heads=4, attention_probs_dropout_prob=0.1):
        super().__init__()
        self.heads = num_attention_heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (split_heads(f(hidden_states), self.heads) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if attention_mask is not None:
            keep = attention_mask[:, None, None, :].to(scores.dtype)
            scores = scores + (1.0 - keep) * torch.finfo(scores.dtype).min
        context = self.dropout(scores.softmax(-1)) @ v
        return context.transpose(1, 2).flatten(2)


class PairMask(nn.Module):
    """Self-attention.

    mask: bool, (batch, length, length), True = the query may attend to the key.
    """

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        q, k, v = (split_heads(w(x), self.num_heads) for w in (self.wq, self.wk, self.wv))
        logits = q @ k.mT / math.sqrt(q.size(-1))
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None], torch.finfo(logits.dtype).min)
        return self.wo((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


class EmptyRows(nn.Module):
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
        if mask is None:
            return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        blocked = ~mask.unsqueeze(1)
        weights = scores.masked_fill(blocked, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return self.out((weights.masked_fill(blocked, 0.0) @ v).transpose(1, 2).flatten(2))


class ReplacedRows(nn.Module):
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
            scores = scores.masked_fill(~mask.unsqueeze(1), float("-inf"))
        weights = torch.nan_to_num(scores.softmax(dim=-1), nan=0.0)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class DecoderAttention(nn.Module):
    """Causal self-attention for padded batches.

    attention_mask: (batch, length), 1 = token, 0 = padding; padding may stand on either side.
    """

    def __init__(self, n_embd=64, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x, attention_mask=None):
        n = x.size(1)
        q, k, v = (split_heads(t, self.n_head) for t in self.c_attn(x).chunk(3, -1))
        allowed = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        if attention_mask is not None:
            itself = torch.eye(n, dtype=torch.bool, device=x.device)
            allowed = allowed & attention_mask[:, None, None, :].bool() | itself
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class TorchSDPA(nn.Module):
    """Self-attention by scaled_dot_product_attention.

    attn_mask: bool (length, length), True = may attend; or a float mask that is added to the scores.
    """

    def __init__(self, embed_dim, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.qkv, self.proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x, attn_mask=None):
        q, k, v = (split_heads(t, self.num_heads) for t in self.qkv(x).chunk(3, dim=-1))
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=p)
        return self.proj(y.transpose(1, 2).flatten(2))


class FiniteMask(nn.Module):
    """Causal attention with one head; the future gets -1e9 before the softmax."""

    def __init__(self, emb_size, head_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(emb_size, head_size, bias=False) for _ in range(3))
        self.out = nn.Linear(head_size, emb_size)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(1, 2) / math.sqrt(k.size(-1))
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return self.out(scores.masked_fill(future, -1e9).softmax(dim=-1) @ v)


class MeanPooledClassifier(nn.Module):
    """Text classifier: encoder layer, then the average over the words.

    attention_mask: 1 for real tokens, 0 for padding.
    """

    def __init__(self, vocab_size=53, d_model=64, nhead=4, num_classes=5, max_len=64):
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocab_size, d_model), nn.Embedding(max_len, d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 128, dropout=0.1, batch_first=True)
        self.classifier = nn.Linear(d_model, num_classes)

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        x = self.embedding(input_ids) + self.position(torch.arange(input_ids.size(1), device=input_ids.device))
        x = self.layer(x, src_key_padding_mask=attention_mask == 0)
        keep = attention_mask.unsqueeze(-1).to(x.dtype)
        return self.classifier((x * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1))


class AttentionPooling(nn.Module):
    """Pool (batch, length, dim) to (batch, dim) with a learned query; mask: True = a real position."""

    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, dim) * 0.1)
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, x, mask=None):
        ignore = None if mask is None else ~mask
        query = self.query.expand(x.size(0), -1, -1)
        return self.attn(query, x, x, key_padding_mask=ignore, need_weights=False)[0].squeeze(1)


class MaxPooled(nn.Module):
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
        if pad is not None:
            x = x.masked_fill(pad.unsqueeze(-1), torch.finfo(x.dtype).min)
        return x.amax(dim=1)


class LastState(nn.Module):
    """Sequence classifier: a GRU reads the tokens, its state at the last real token is classified.

    attention_mask: (batch, length), 1 for tokens, 0 for padding on the right.
    """

    def __init__(self, vocab_size=53, hidden_size=64, num_labels=3):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, num_labels)

    def forward(self, input_ids, attention_mask=None):
        states, _ = self.gru(self.embed(input_ids))
        if attention_mask is None:
            return self.head(states[:, -1])
        last = attention_mask.long().sum(dim=1).clamp(min=1) - 1
        return self.head(states.gather(1, last[:, None, None].expand(-1, 1, states.size(-1))).squeeze(1))


class ConvAttention(nn.Module):
    """Attention followed by a depthwise convolution over time, both residual; a Conformer in small.

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
        h = self.norm2(x)
        if key_padding_mask is not None:
            h = h.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
        h = self.conv(h.transpose(1, 2)).transpose(1, 2)
        return x + self.pointwise(F.silu(h))


class BertLegacy(nn.Module):
    """Self-attention of the first BERT; attention_mask: 1 = keep, 0 = padding, which gets -10000."""

    def __init__(self, hidden_size=64, num_attention_heads=4):
        super().__init__()
        self.heads = num_attention_heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (split_heads(f(hidden_states), self.heads) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * -10000.0
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class FirstGPT(nn.Module):
    """Causal attention of the first GPT: w * b - 1e4 * (1 - b) with the lower triangle b."""

    def __init__(self, n_embd=64, n_head=4, n_ctx=64):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.register_buffer("b", torch.tril(torch.ones(n_ctx, n_ctx)))

    def forward(self, x):
        q, k, v = (split_heads(t, self.n_head) for t in self.c_attn(x).chunk(3, -1))
        w = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        b = self.b[: x.size(1), : x.size(1)]
        w = w * b - 1e4 * (1 - b)
        return self.c_proj((w.softmax(-1) @ v).transpose(1, 2).flatten(2))
