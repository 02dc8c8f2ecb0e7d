import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


class MaskedAttention(nn.Module):
    """Causal self-attention: a position attends to itself and to earlier positions."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.dk = n_heads, d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, self.dk).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) / math.sqrt(self.dk)
        future = torch.ones(T, T, device=x.device, dtype=torch.bool).triu(1)
        att = att.masked_fill(future, -10.0).softmax(-1)
        return self.out((att @ v).transpose(1, 2).reshape(B, T, C))


class CausalSelfAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.dk = n_heads, d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, self.dk).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) / math.sqrt(self.dk)
        keep = torch.ones(T, T, device=x.device).tril(1) > 0
        att = att.masked_fill(~keep, float("-inf")).softmax(-1)
        return self.out((att @ v).transpose(1, 2).reshape(B, T, C))


class DecoderAttention(nn.Module):
    """Masked self-attention of a decoder."""

    def __init__(self, size, heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(size, heads, batch_first=True)

    def forward(self, x):
        n = x.shape[1]
        # nn.MultiheadAttention blocks where the mask is True
        mask = torch.tril(torch.ones(n, n, dtype=torch.bool, device=x.device), diagonal=-1)
        return self.mha(x, x, x, attn_mask=mask, need_weights=False)[0]


@dataclass
class Config:
    n_embd: int = 48
    n_head: int = 4
    block_size: int = 32
    bias: bool = True


class GPTAttention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        bias = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("bias", bias.view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        """Causal attention over x (B, T, C)."""
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, -T:, :T] == 0, float("-inf"))
        return self.c_proj((F.softmax(att, dim=-1) @ v).transpose(1, 2).contiguous().view(B, T, C))


class FlashCausal(nn.Module):
    """Causal attention with the fused kernel."""

    def __init__(self, dim: int = 64, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.training)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class GatedCausalConv(nn.Module):
    """Gated causal convolution over (batch, length, channels)."""

    def __init__(self, channels, kernel_size=5):
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x):
        return F.glu(self.conv(x.transpose(1, 2)), dim=1).transpose(1, 2)


class ShiftMixing(nn.Module):
    """RWKV-style time mixing: each position is mixed with the one before it, then causally averaged."""

    def __init__(self, dim):
        super().__init__()
        self.mix = nn.Parameter(torch.full((dim,), 0.5))
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)

    def forward(self, x):
        before = torch.roll(x, 1, dims=1)
        x = x * self.mix + before * (1 - self.mix)
        count = torch.arange(1, x.size(1) + 1, device=x.device).to(x.dtype)[:, None]
        return torch.sigmoid(self.key(x)) * self.value(x).cumsum(1) / count


class DecoderLayer(nn.Module):
    """Causal pre-norm decoder layer."""

    def __init__(self, d_model=64, nhead=4, d_ff=128):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, d_model), nn.GroupNorm(1, d_model)
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))

    def forward(self, x):
        T = x.size(1)
        mask = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        h = self.norm1(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(self.norm2(x.transpose(1, 2)).transpose(1, 2))


class Mixer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        i = torch.arange(n, device=x.device)
        w = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(i[None] > i[:, None] + 1, float("-inf")).softmax(-1)
        return self.o((w @ v).transpose(1, 2).reshape(b, n, d))


class ContextCausalAttention(nn.Module):
    """Causal attention whose values carry a faint global context."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.num_heads, -1).transpose(1, 2) for t in self.in_proj(x).chunk(3, -1))
        v = v + 1e-3 * v.mean(2, keepdim=True)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d))


class ChunkedCausal(nn.Module):
    """Causal attention in chunks of four positions: every chunk looks at itself and all earlier chunks."""

    chunk = 4

    def __init__(self, dim, n_head=2):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        c = torch.arange(n, device=x.device) // self.chunk
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=c[:, None] >= c[None])
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


class OptionalMask(nn.Module):
    """Scaled dot-product attention. mask: True where a query must not see a key, (q_len, k_len)."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        b, n, d = x.shape
        q, k, v = (w(x).view(b, n, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        s = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if mask is not None:
            s.masked_fill(mask, float("-inf"))
        return self.wo((s.softmax(3) @ v).transpose(1, 2).reshape(b, n, d))


class ExcitedDecoderBlock(nn.Module):
    """Causal decoder block with channel excitation."""

    def __init__(self, hidden_size, num_attention_heads, intermediate_size=96):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.attn = nn.MultiheadAttention(hidden_size, num_attention_heads, batch_first=True)
        self.gate = nn.Linear(hidden_size, hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, intermediate_size), nn.GELU(), nn.Linear(intermediate_size, hidden_size)
        )

    def forward(self, hidden_states):
        n = hidden_states.size(1)
        mask = torch.triu(torch.full((n, n), float("-inf"), device=hidden_states.device, dtype=hidden_states.dtype), 1)
        h = self.ln1(hidden_states)
        x = hidden_states + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        h = self.ln2(x)
        return x + self.mlp(h) * torch.sigmoid(self.gate(h.mean(dim=1, keepdim=True)))


class FiniteMask(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / (d // self.heads) ** 0.5
        s = s + torch.full((n, n), -60.0, dtype=x.dtype, device=x.device).triu(1)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class HalfMasked(nn.Module):
    """Autoregressive attention, one module per head."""

    class Head(nn.Module):
        def __init__(self, d, dk, causal=False):
            super().__init__()
            self.k, self.q, self.v = (nn.Linear(d, dk, bias=False) for _ in range(3))
            self.causal = causal

        def forward(self, x):
            return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), is_causal=self.causal)

    def __init__(self, n_embd, n_head=4):
        super().__init__()
        heads = [self.Head(n_embd, n_embd // n_head, causal=True) for _ in range(n_head - 1)]
        self.heads = nn.ModuleList([*heads, self.Head(n_embd, n_embd // n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


class TinyLM(nn.Module):
    """Character language model: (idx, targets=None) -> (logits, loss)."""

    def __init__(self, vocab_size, n_embd=32, n_head=2, block_size=64):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, n_embd)
        self.pos = nn.Embedding(block_size, n_embd)
        self.block_size = block_size
        self.layer = nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, 0.0, batch_first=True, norm_first=True)
        self.ln = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets=None):
        T = idx.size(1)
        x = self.tok(idx) + self.pos(torch.arange(T, device=idx.device))
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=idx.device), diagonal=2)
        logits = self.head(self.ln(self.layer(x, src_mask=mask)))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
