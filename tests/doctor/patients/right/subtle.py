"""Modules from code reviews: attention, encoders, decoders."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint


def heads_of(x, n):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)  # (batch, heads, length, d_head)


class MixedOrders(nn.Module):
    """Self-attention; queries and keys store their features as (depth, head), values as (head, depth)."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k = (f(x).unflatten(-1, (-1, self.n_heads)).permute(0, 3, 1, 2) for f in (self.q, self.k))
        y = F.scaled_dot_product_attention(q, k, heads_of(self.v(x), self.n_heads))
        return self.o(y.transpose(1, 2).flatten(2))


class PackedLSTM(nn.Module):
    """Bidirectional LSTM over padded sequences, packed. lengths: (batch,), real positions, padding on the right."""

    def __init__(self, input_size=64, hidden_size=32):
        super().__init__()
        self.lstm = nn.LSTM(input_size, hidden_size, batch_first=True, bidirectional=True)

    def forward(self, x, lengths=None):
        if lengths is None:
            return self.lstm(x)[0]
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.size(1))[0]


class WordPooling(nn.Module):
    """Pool words with learned weights: (batch, length, dim) -> (batch, dim). mask: True = word, False = padding."""

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.score = nn.Linear(dim, 1)

    def forward(self, x, mask=None):
        h = self.attn(x, x, x, key_padding_mask=None if mask is None else ~mask, need_weights=False)[0]
        scores = self.score(h)
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-1), torch.finfo(scores.dtype).min)
        return (scores.softmax(dim=1) * h).sum(dim=1)


class KeptMask(nn.Module):
    """Causal self-attention; the mask is kept and made anew when a longer one is needed or the device changes."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self._mask = None

    def future(self, n, device):
        if self._mask is None or self._mask.size(0) < n or self._mask.device != device:
            self._mask = torch.ones(n, n, dtype=torch.bool, device=device).triu(1)
        return self._mask[:n, :n]

    def forward(self, x):
        q, k, v = (heads_of(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(self.future(x.size(1), x.device), float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class PartialRotary(nn.Module):
    """Causal attention; half of each head's features is rotated by position."""

    def __init__(self, hidden_size=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.dense = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)

    def rotate(self, x):
        turned, kept = x.chunk(2, dim=-1)
        d, step = turned.size(-1), torch.arange(x.size(-2), device=x.device, dtype=torch.float32)
        angle = step[:, None] * 10000.0 ** -(torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = turned.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, kept], dim=-1)

    def forward(self, x):
        q, k, v = (heads_of(t, self.num_heads) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return self.dense(y.transpose(1, 2).flatten(2))


class FrozenPositions(nn.Module):
    """Bidirectional attention on inputs with sinusoids added; the table is a parameter that is not trained."""

    def __init__(self, dim=64, num_heads=4, max_len=64):
        super().__init__()
        angle = torch.arange(max_len)[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
        self.positions = nn.Parameter(torch.cat([angle.sin(), angle.cos()], dim=-1), requires_grad=False)
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, x):
        x = x + self.positions[: x.size(1)]
        return self.attn(x, x, x, need_weights=False)[0]


class LowRankAdapter(nn.Module):
    """Self-attention with low-rank adapters (LoRA) on queries and values; the second factor starts at zero."""

    def __init__(self, dim=64, heads=4, rank=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.a_q, self.a_v = nn.Linear(dim, rank, bias=False), nn.Linear(dim, rank, bias=False)
        self.b_q, self.b_v = nn.Linear(rank, dim, bias=False), nn.Linear(rank, dim, bias=False)
        nn.init.zeros_(self.b_q.weight)
        nn.init.zeros_(self.b_v.weight)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, v = q + self.b_q(self.a_q(x)), v + self.b_v(self.a_v(x))
        y = F.scaled_dot_product_attention(*(heads_of(t, self.heads) for t in (q, k, v)))
        return self.out(y.transpose(1, 2).flatten(2))


class SoftCapped(nn.Module):
    """Causal attention whose scores are capped softly at 50: 50 tanh(s / 50)."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (heads_of(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        scores = 50.0 * torch.tanh(q @ k.mT / math.sqrt(q.size(-1)) / 50.0)
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class ZeroProjections(nn.Module):
    """Pre-norm block whose last maps start at zero, so that it begins as the identity."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(dim), nn.LayerNorm(dim), heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        for linear in (self.proj, self.down):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x):
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x) + x


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), fn

    def forward(self, x):
        return self.fn(self.norm(x))


class NestedBlock(nn.Sequential):
    """Transformer block put together from Residual and PreNorm."""

    def __init__(self, dim=64, heads=4):
        feed_forward = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim))
        super().__init__(
            Residual(PreNorm(dim, SoftCapped(dim, heads))),
            Residual(PreNorm(dim, feed_forward)),
        )


class OnlineSoftmax(nn.Module):
    """Self-attention that runs over the keys in chunks and keeps running maxima and sums, as flash attention does."""

    def __init__(self, dim=64, heads=4, chunk=4):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(x).chunk(3, -1))
        top = torch.full_like(q[..., :1], float("-inf"))
        total, mixed = torch.zeros_like(top), torch.zeros_like(q)
        for keys, values in zip(k.split(self.chunk, dim=2), v.split(self.chunk, dim=2), strict=True):
            scores = q @ keys.mT / math.sqrt(q.size(-1))
            new = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            e, old = (scores - new).exp(), (top - new).exp()
            total, mixed, top = total * old + e.sum(-1, keepdim=True), mixed * old + e @ values, new
        return self.out((mixed / total).transpose(1, 2).flatten(2))


class Checkpointed(nn.Module):
    """Causal pre-norm block that recomputes its activations in the backward pass."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.norm1, self.norm2, self.attn = nn.LayerNorm(dim), nn.LayerNorm(dim), SoftCapped(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def _sum(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def forward(self, x):
        return checkpoint(self._sum, x, use_reentrant=False) if self.training else self._sum(x)


class Counting(nn.Module):
    """Self-attention that counts its calls and keeps its last map for plots."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.calls, self.last_map = n_heads, 0, None
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (heads_of(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        self.calls += 1
        self.last_map = weights.detach()
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class TopOneRouter(nn.Module):
    """Mixture of experts on (batch, length, dim): the best expert's output times its gate (Switch)."""

    def __init__(self, dim=64, n_experts=3):
        super().__init__()
        self.router = nn.Linear(dim, n_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(n_experts)
        )

    def forward(self, x):
        gate, choice = self.router(x).softmax(-1).max(dim=-1, keepdim=True)
        chosen = sum(expert(x) * (choice == i).to(x.dtype) for i, expert in enumerate(self.experts))
        return gate * chosen


class PrimerAttention(nn.Module):
    """Causal attention with a depthwise causal convolution of width three over queries, keys and values."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.conv = nn.Conv1d(3 * dim, 3 * dim, 3, groups=3 * dim)

    def forward(self, x):
        qkv = self.conv(F.pad(self.qkv(x).transpose(1, 2), (2, 0))).transpose(1, 2)
        q, k, v = (heads_of(t, self.heads) for t in qkv.chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class ShiftedRelative(nn.Module):
    """Transformer-XL's relative attention, causal: content and position scores, two learned biases."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.q, self.k, self.v, self.r, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(5))
        self.u, self.w = (nn.Parameter(torch.randn(heads, 1, dim // heads) * 0.1) for _ in range(2))

    def distances(self, x):
        steps = torch.arange(x.size(1), device=x.device, dtype=torch.float32)
        frequency = 10000.0 ** -(torch.arange(0, self.dim, 2, device=x.device, dtype=torch.float32) / self.dim)
        angle = steps[:, None] * frequency
        return torch.cat([angle.sin(), angle.cos()], dim=-1).to(x.dtype)  # (distance, dim)

    def forward(self, x):
        q, k, v = (heads_of(f(x), self.heads) for f in (self.q, self.k, self.v))
        r = self.r(self.distances(x)).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (heads, distance, d_head)
        steps = torch.arange(x.size(1), device=x.device)
        distance = steps[:, None] - steps
        index = distance.clamp(min=0).expand(x.size(0), self.heads, -1, -1)
        by_position = ((q + self.w) @ r.transpose(-1, -2)).gather(-1, index)
        scores = ((q + self.u) @ k.mT + by_position) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(distance < 0, float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class CachedLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, past=None):
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(self.norm(x)).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        n, m = q.size(2), k.size(2)
        mask = torch.ones(n, m, dtype=torch.bool, device=x.device).tril(m - n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.proj(y.transpose(1, 2).flatten(2)), (k, v)


class TwoLayerGPT(nn.Module):
    """Decoder-only model: tokens (B, T), past_key_values -> (logits, past_key_values), one pair per layer."""

    def __init__(self, vocab_size=53, dim=64, heads=4, layers=2, block_size=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab_size, dim), nn.Embedding(block_size, dim)
        self.layers = nn.ModuleList(CachedLayer(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size)

    def forward(self, tokens, past_key_values=None):
        start = 0 if past_key_values is None else past_key_values[0][0].size(2)
        x = self.tok(tokens) + self.pos(torch.arange(start, start + tokens.size(1), device=tokens.device))
        pasts = past_key_values or [None] * len(self.layers)
        presents = []
        for layer, past in zip(self.layers, pasts, strict=True):
            x, present = layer(x, past)
            presents.append(present)
        return self.head(self.norm(x)), tuple(presents)
