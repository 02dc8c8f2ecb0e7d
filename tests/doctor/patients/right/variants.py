"""Attention by people with ideas of their own."""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Differential(nn.Module):
    """Differential attention: the difference of two softmax maps, its weight learned. Causal."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.lam = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        q, k, v = (split(f(x), self.n_heads) for f in (self.q, self.k, self.v))
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        maps = []
        for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True):
            maps.append((a @ b.mT / math.sqrt(a.size(-1))).masked_fill(future, float("-inf")).softmax(-1))
        return self.o(((maps[0] - self.lam * maps[1]) @ v).transpose(1, 2).flatten(2))


class Sinks(nn.Module):
    """Attention with a learned sink per head that takes the weight nobody deserves (causal)."""

    def __init__(self, hidden_size=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def forward(self, x):
        n = x.size(1)
        q, k, v = (split(t, self.num_heads) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / math.sqrt(q.size(-1))
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
        sink = self.sinks.view(1, -1, 1, 1).expand(x.size(0), -1, n, 1)
        weights = torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class LatentKV(nn.Module):
    """Multi-head latent attention: keys and values are unfolded from a narrow common latent."""

    def __init__(self, d_model=64, n_heads=4, rank=16):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.down = nn.Linear(d_model, d_model, bias=False), nn.Linear(d_model, rank, bias=False)
        self.norm = nn.RMSNorm(rank)
        self.up_k, self.up_v = nn.Linear(rank, d_model, bias=False), nn.Linear(rank, d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        latent = self.norm(self.down(x))
        q, k, v = split(self.q(x), self.n_heads), split(self.up_k(latent), self.n_heads), self.up_v(latent)
        y = F.scaled_dot_product_attention(q, k, split(v, self.n_heads), is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class NormedQueries(nn.Module):
    """Self-attention with layer norm on queries and keys per head, as in large vision transformers."""

    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.q_norm, self.k_norm = nn.LayerNorm(dim // num_heads), nn.LayerNorm(dim // num_heads)

    def forward(self, x):
        q, k, v = (split(t, self.num_heads) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj(y.transpose(1, 2).flatten(2))


class ChunkedLocal(nn.Module):
    """Local attention in blocks: a position sees its own block and the block before it, causally."""

    def __init__(self, dim=64, heads=4, block=4):
        super().__init__()
        self.heads, self.block = heads, block
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        n = x.size(1)
        q, k, v = (split(t, self.heads) for t in self.qkv(x).chunk(3, -1))
        step = torch.arange(n, device=x.device)
        number = step // self.block
        allowed = (step[:, None] >= step) & (number[:, None] - number <= 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(y.transpose(1, 2).flatten(2))


class LongConvolution(nn.Module):
    """A causal convolution as long as the sequence, by the fast Fourier transform (Hyena-like), gated."""

    def __init__(self, dim=64, max_len=64):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(dim, max_len) * 0.1)
        self.gate, self.value, self.out = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        n = x.size(1)
        wide = torch.promote_types(x.dtype, torch.float32)
        v = self.value(x).transpose(1, 2).to(wide)
        spectrum = torch.fft.rfft(v, 2 * n) * torch.fft.rfft(self.kernel[:, :n].to(wide), 2 * n)
        y = torch.fft.irfft(spectrum, 2 * n)[..., :n].transpose(1, 2).to(x.dtype)
        return self.out(torch.sigmoid(self.gate(x)) * y)


class Hourglass(nn.Module):
    """Causal attention over averages of chunks; only chunks that are complete may be seen, and the position itself."""

    def __init__(self, dim=64, chunk=4):
        super().__init__()
        self.chunk = chunk
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        n = x.size(1)
        q, k, v = self.q(x), self.k(x), self.v(x)
        step, numbers = torch.arange(n, device=x.device), torch.arange(n // self.chunk, device=x.device)
        average = (step // self.chunk == numbers[:, None]).to(x.dtype) / self.chunk  # (chunks, n)
        complete = step[:, None] >= (numbers + 1) * self.chunk  # (n, chunks)
        k, v = torch.cat([k, average @ k], dim=1), torch.cat([v, average @ v], dim=1)
        seen = torch.cat([torch.eye(n, dtype=torch.bool, device=x.device), complete], dim=1)
        scores = (q @ k.transpose(1, 2) / math.sqrt(q.size(-1))).masked_fill(~seen, float("-inf"))
        return self.o(scores.softmax(-1) @ v)


class SplitCat(nn.Module):
    """Multi-head attention that stacks the heads along the batch, as an old implementation did.

    attention_mask: (batch, length), 1 = keep, 0 = padding.
    """

    def __init__(self, d_model=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, attention_mask=None):
        q, k, v = (torch.cat(f(x).chunk(self.num_heads, dim=2), dim=0) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(1, 2) / math.sqrt(q.size(-1))  # (heads * batch, length, length)
        if attention_mask is not None:
            blocked = attention_mask.repeat(self.num_heads, 1)[:, None] == 0
            scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
        y = scores.softmax(-1) @ v
        return self.o(torch.cat(y.chunk(self.num_heads, dim=0), dim=2))


class ValidLengths(nn.Module):
    """Dot-product attention as in a textbook; lengths: (batch,), the number of real positions of each sequence."""

    def __init__(self, num_hiddens, dropout=0.1):
        super().__init__()
        self.W_q, self.W_k, self.W_v = (nn.Linear(num_hiddens, num_hiddens, bias=False) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, lengths=None):
        scores = self.W_q(x) @ self.W_k(x).transpose(1, 2) / math.sqrt(x.size(-1))
        if lengths is not None:
            beyond = torch.arange(x.size(1), device=x.device) >= lengths[:, None]
            scores = scores.masked_fill(beyond[:, None], torch.finfo(x.dtype).min)
        return self.dropout(scores.softmax(dim=-1)) @ self.W_v(x)


class Distance(nn.Module):
    """Attention by distance: the closer key and query, the larger the weight (a Gaussian kernel, normalized)."""

    def __init__(self, dim=64, dim_head=16):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim_head), nn.Linear(dim, dim_head), nn.Linear(dim, dim)

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        distance = (q.unsqueeze(2) - k.unsqueeze(1)).square().sum(-1) / math.sqrt(q.size(-1))
        return (-distance / 2).softmax(dim=-1) @ self.v(x)


class Macaron(nn.Module):
    """Conformer-like block: half a feed-forward, attention, half a feed-forward, a norm at the end."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.ff1, self.ff2 = (
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))
            for _ in range(2)
        )
        self.norm, self.attn = nn.LayerNorm(dim), nn.MultiheadAttention(dim, heads, batch_first=True)
        self.last = nn.LayerNorm(dim)

    def forward(self, x):
        x = x + 0.5 * self.ff1(x)
        h = self.norm(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return self.last(x + 0.5 * self.ff2(x))


class LayerDropEncoder(nn.Module):
    """Bidirectional encoder of token ids with LayerDrop in training."""

    def __init__(self, vocab_size=53, d_model=64, nhead=4, num_layers=3, layerdrop=0.2):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(64, d_model)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d_model, nhead, 128, 0.0, batch_first=True, norm_first=True)
            for _ in range(num_layers)
        )
        self.norm, self.layerdrop = nn.LayerNorm(d_model), layerdrop

    def forward(self, tokens):
        x = self.embed(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for layer in self.layers:
            if not self.training or random.random() >= self.layerdrop:
                x = layer(x)
        return self.norm(x)


class InducedSet(nn.Module):
    """Set transformer's induced attention: inducing points ask the set, the set asks them. Post-norm."""

    def __init__(self, dim=64, heads=4, points=5):
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, dim) * 0.3)
        self.first, self.second = (nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(2))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        points = self.points.expand(x.size(0), -1, -1)
        h = self.norm1(points + self.first(points, x, x, need_weights=False)[0])
        return self.norm2(x + self.second(x, h, h, need_weights=False)[0])


class MaskRequired(nn.Module):
    """Attention that must be given its mask: (batch, length, length) bool, True where a query may look."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask):
        q, k, v = (split(t, self.heads) for t in self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~mask[:, None], torch.finfo(x.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class SAGANBlock(nn.Module):
    """Self-attention over positions, x: (batch, channels, length), added to the input; the gain starts at zero."""

    def __init__(self, channels=64):
        super().__init__()
        self.query, self.key = nn.Conv1d(channels, channels // 8, 1), nn.Conv1d(channels, channels // 8, 1)
        self.value = nn.Conv1d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        weights = torch.softmax(q.mT @ k / math.sqrt(q.size(1)), dim=-1)
        return x + self.gamma * (v @ weights.mT)


class ConvClassifier(nn.Module):
    """Text classifier without attention: convolutions over embeddings, maximum over time; (batch, length) tokens."""

    def __init__(self, vocab_size=53, dim=64, num_classes=3):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, 32, width, padding="same") for width in (3, 5))
        self.fc = nn.Linear(64, num_classes)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        return self.fc(torch.cat([F.relu(conv(x)).amax(dim=-1) for conv in self.convs], dim=-1))


class WeightNormed(nn.Module):
    """Attention with weight normalization; weights are recomputed before every call."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.utils.weight_norm(nn.Linear(d_model, 3 * d_model))
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(d_model, d_model))

    def forward(self, x):
        q, k, v = (split(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SpectralNormed(nn.Module):
    """Attention with queries and keys of spectral norm 1."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.utils.spectral_norm(nn.Linear(d_model, d_model))
        self.k = nn.utils.parametrizations.spectral_norm(nn.Linear(d_model, d_model))
        self.v, self.out = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (split(project(x), self.n_heads) for project in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SelfNormed(nn.Module):
    """Attention that computes its projection anew from gain and direction at every call, and keeps it."""

    def __init__(self, d_model=64):
        super().__init__()
        self.direction = nn.Parameter(torch.randn(3 * d_model, d_model))
        self.gain = nn.Parameter(torch.full((3 * d_model, 1), 0.5))
        self.weight = (self.gain * F.normalize(self.direction, dim=-1)).detach()

    def forward(self, x):
        self.weight = self.gain * F.normalize(self.direction, dim=-1)
        return F.scaled_dot_product_attention(*F.linear(x, self.weight).chunk(3, -1))
