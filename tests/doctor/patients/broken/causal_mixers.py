"""Causal layers that are no plain attention, blocks, and token models."""

import torch
import torch.nn.functional as F
from torch import nn


class CausalConv(nn.Module):
    """A causal convolution over time: (batch, length, dim) in and out."""

    def __init__(self, dim=64, kernel_size=5):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size // 2)

    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class TokenShift(nn.Module):
    """RWKV's channel mixing: every token is blended with the one before it (causal)."""

    def __init__(self, n_embd=64):
        super().__init__()
        self.mix = nn.Parameter(torch.full((n_embd,), 0.5))
        self.key = nn.Linear(n_embd, 2 * n_embd, bias=False)
        self.receptance = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(2 * n_embd, n_embd, bias=False)

    def forward(self, x):
        previous = torch.roll(x, 1, dims=1)
        mixed = x * self.mix + previous * (1 - self.mix)
        k = torch.relu(self.key(mixed)) ** 2
        return torch.sigmoid(self.receptance(mixed)) * self.value(k)


class CausalLinearAttention(nn.Module):
    """Linear attention with the feature map elu + 1, autoregressive."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bhnd,bhne->bhde", k, v)
        norm = torch.einsum("bhnd,bhd->bhn", q, k.cumsum(dim=2)[:, :, -1])
        out = torch.einsum("bhnd,bhde->bhne", q, kv) / norm.unsqueeze(-1)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


class NormedCausalBlock(nn.Module):
    """A causal convolution block: pre-norm, convolution over the past, GELU, skip.

    Shapes: (batch, length, channels).
    """

    def __init__(self, channels=64, kernel=3):
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.pad = kernel - 1
        self.conv = nn.Conv1d(channels, channels, kernel)
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        h = self.norm(x.transpose(1, 2))  # (batch, channels, length)
        h = self.conv(F.pad(h, (self.pad, 0)))
        return x + self.out(F.gelu(h)).transpose(1, 2)


class GatedCausalAttention(nn.Module):
    """Causal attention whose output is gated by the context."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.gate = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, d // self.n_heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d)
        context = 0.01 * x.mean(dim=1, keepdim=True)
        return self.out(y * torch.sigmoid(self.gate(x + context)))


class TinyGPT(nn.Module):
    """A small GPT: idx (B, T) -> logits (B, T, vocab)."""

    def __init__(self, vocab_size=53, n_embd=64, n_head=4, n_layer=2, block_size=64):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, n_embd)
        self.pos = nn.Embedding(block_size, n_embd)
        layer = nn.TransformerEncoderLayer(
            n_embd, n_head, 4 * n_embd, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, n_layer, enable_nested_tensor=False)
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx):
        T = idx.size(1)
        x = self.tok(idx) + self.pos(torch.arange(T, device=idx.device))
        blocked = torch.ones(T, T, device=idx.device).tril(-1).bool()
        return self.head(self.ln_f(self.blocks(x, mask=blocked)))


class _Layer(nn.Module):
    def __init__(self, dim, heads, causal):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.heads, self.causal = heads, causal
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.ln2(x))


class CharModel(nn.Module):
    """Character-level decoder-only language model: predicts the next character at every position."""

    def __init__(self, vocab_size=53, dim=64, heads=4, depth=2, context=64):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.positions = nn.Parameter(torch.randn(context, dim) * 0.02)
        self.layers = nn.ModuleList(_Layer(dim, heads, causal=i == 0) for i in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        x = self.embed(tokens) + self.positions[: tokens.size(1)]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Retention(nn.Module):
    """Retention in its parallel form (causal): weights decay with the distance into the past."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.wq = nn.Linear(d_model, d_model, bias=False)
        self.wk = nn.Linear(d_model, d_model, bias=False)
        self.wv = nn.Linear(d_model, d_model, bias=False)
        self.wo = nn.Linear(d_model, d_model, bias=False)
        self.register_buffer("gamma", 1 - 2.0 ** -(5.0 + torch.arange(n_heads)))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (w(x).view(b, n, self.n_heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        steps = torch.arange(n, device=x.device)
        distance = (steps[:, None] - steps[None, :]).abs()
        decay = self.gamma[:, None, None] ** distance  # (heads, n, n)
        weights = (q @ k.transpose(-1, -2)) * (d // self.n_heads) ** -0.5 * decay
        return self.wo((weights @ v).transpose(1, 2).reshape(b, n, d))
