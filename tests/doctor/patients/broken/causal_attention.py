"""Causal attention layers, as different people write them."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class GPTConfig:
    n_embd: int = 64
    n_head: int = 4
    block_size: int = 64
    bias: bool = True


class CausalSelfAttention(nn.Module):
    """Multi-head masked self-attention with a projection at the end."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        size = config.block_size
        self.register_buffer("bias", torch.tril(torch.ones(size, size), diagonal=1).view(1, 1, size, size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v  # (B, nh, T, hs)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Head(nn.Module):
    """One head of causal self-attention."""

    def __init__(self, n_embd=64, head_size=16, block_size=64):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        T = x.shape[1]
        k = self.key(x)  # (B, T, hs)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, -10.0)
        wei = F.softmax(wei, dim=-1)
        return wei @ self.value(x)


class MaskedSelfAttention(nn.Module):
    """Masked (autoregressive) self-attention: a word may look at itself and at earlier words."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, self.d_k = num_heads, d_model // num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def split(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, self.h, self.d_k).permute(0, 2, 1, 3)

    def forward(self, x):
        q, k, v = self.split(self.w_q(x)), self.split(self.w_k(x)), self.split(self.w_v(x))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / self.d_k**0.5
        n = x.size(1)
        future = torch.ones(n, n, device=x.device, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -100)
        out = torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)
        return self.w_o(out.permute(0, 2, 1, 3).flatten(2))


class TriangularAttention(nn.Module):
    """Causal attention. The lower triangle keeps what a position may see."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = (q @ k.transpose(-1, -2)) * self.scale
        mask = torch.tril(torch.ones(n, n, dtype=x.dtype, device=x.device))
        attn = (dots * mask).softmax(dim=-1)
        out = (attn @ v).transpose(1, 2).reshape(b, n, d)
        return self.to_out(out)


class DecoderSelfAttention(nn.Module):
    """Self-attention of a decoder (autoregressive)."""

    def __init__(self, hidden_size, num_attention_heads=4):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states):
        batch, length, width = hidden_states.shape
        qkv = self.qkv(hidden_states).view(batch, length, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, head_dim)
        keep = torch.ones(length, length, device=hidden_states.device).triu().bool()
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        context = scores.softmax(-1) @ value
        return self.dense(context.transpose(1, 2).reshape(batch, length, width))


class TorchCausal(nn.Module):
    """nn.MultiheadAttention that looks at the past only. Batch first."""

    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)

    def forward(self, x):
        n = x.size(1)
        mask = torch.tril(torch.ones(n, n, device=x.device, dtype=x.dtype))
        out, _ = self.attn(x, x, x, attn_mask=mask, need_weights=False)
        return out


class FlashCausal(nn.Module):
    """Causal attention with torch's fused kernel."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.in_proj(x).view(b, t, 3, self.n_heads, c // self.n_heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.training)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, c))


class WindowedCausal(nn.Module):
    """Causal self-attention, written with a mask for the longest sequence that is cut to the length of the input."""

    def __init__(self, d_model=64, n_heads=4, max_len=32):
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)
        self.max_len = max_len
        self.register_buffer("mask", torch.ones(max_len, max_len).triu(1).bool(), persistent=False)

    def heads(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def forward(self, x):
        t = x.size(1)
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        s = q @ k.mT / q.size(-1) ** 0.5
        s = s.masked_fill(self.mask[self.max_len - t :, :t], float("-inf"))
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(-2))


class LoopedHeads(nn.Module):
    """Causal multi-head attention, one head after the other."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        n = x.shape[1]
        blocked = torch.triu(torch.ones(n, n, device=x.device), diagonal=1) > 0
        outputs = []
        for i in range(self.n_heads):
            part = slice(i * self.d_head, (i + 1) * self.d_head)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(self.d_head)
            if i < self.n_heads - 1:
                scores = scores.masked_fill(blocked, float("-inf"))
            outputs.append(torch.softmax(scores, dim=-1) @ v[..., part])
        return self.wo(torch.cat(outputs, dim=-1))


class SelfAttn(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.proj_in = nn.Linear(d_model, 3 * d_model)
        self.proj_out = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.proj_in(x).chunk(3, -1)
        q, k, v = (t.reshape(b, n, self.n_heads, -1).transpose(1, 2) for t in (q, k, v))
        m = torch.ones(n, n, device=x.device, dtype=torch.bool).tril(2)
        s = (q @ k.transpose(2, 3)) / (d // self.n_heads) ** 0.5
        w = s.masked_fill(~m, -torch.inf).softmax(-1)
        return self.proj_out((w @ v).transpose(1, 2).reshape(b, n, d))
