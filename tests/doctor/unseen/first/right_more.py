import math
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class FairseqAttention(nn.Module):
    """Multihead attention in time-major layout."""

    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.head_dim, self.p = num_heads, embed_dim // num_heads, dropout
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query, key, value, key_padding_mask=None):
        tgt_len, bsz, embed_dim = query.size()
        src_len = key.size(0)
        q = self.q_proj(query) * self.head_dim**-0.5
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = self.k_proj(key).contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = self.v_proj(value).contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        s = torch.bmm(q, k.transpose(1, 2))
        if key_padding_mask is not None:
            s = s.view(bsz, self.num_heads, tgt_len, src_len)
            s = s.masked_fill(key_padding_mask[:, None, None], float("-inf")).view(-1, tgt_len, src_len)
        w = F.dropout(s.softmax(-1), self.p, self.training)
        out = torch.bmm(w, v).transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        return self.out_proj(out), w


class UnetAttention(nn.Module):
    """Attention block of a 1-d U-Net."""

    def __init__(self, channels, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.GroupNorm(8, channels)
        self.qkv, self.proj = nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)

    def forward(self, x):
        b, c, length = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.num_heads, c // self.num_heads, length).unbind(1)
        w = torch.einsum("bhct,bhcs->bhts", q, k) * (c // self.num_heads) ** -0.5
        y = torch.einsum("bhts,bhcs->bhct", w.softmax(-1), v)
        return x + self.proj(y.reshape(b, c, length))


class LearnedScale(nn.Module):
    """Causal attention, the scale is learned from 1 / sqrt(d_head) on."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.scale = nn.Parameter(torch.full((heads, 1, 1), (dim // heads) ** -0.5))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = (q @ k.mT * self.scale).masked_fill(
            torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), float("-inf")
        )
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class LastTokenPool(nn.Module):
    """Causal classifier over tokens; reads the last real token. attention_mask: 1 = token, padding on the right."""

    def __init__(self, vocab_size=50, d_model=32, nhead=4, num_classes=5):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 64, 0.0, batch_first=True)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, input_ids, attention_mask=None):
        b, n = input_ids.shape
        mask = torch.ones(n, n, dtype=torch.bool, device=input_ids.device).triu(1)
        h = self.layer(self.embed(input_ids), src_mask=mask)
        if attention_mask is None:
            return self.head(h[:, -1])
        last = attention_mask.long().sum(1) - 1
        return self.head(h[torch.arange(b, device=h.device), last])


class AttentionLayer(nn.Module):
    """Single-head self-attention with an output width of its own; no skip, none needed."""

    def __init__(self, in_features, out_features=40):
        super().__init__()
        self.q, self.k = nn.Linear(in_features, 32), nn.Linear(in_features, 32)
        self.v = nn.Linear(in_features, out_features)

    def forward(self, x):
        return (self.q(x) @ self.k(x).mT / math.sqrt(32)).softmax(-1) @ self.v(x)


class DeepNormBlock(nn.Module):
    """DeepNet block (Wang et al. 2022): LayerNorm(alpha x + f(x)) with alpha above one."""

    def __init__(self, dim, heads, d_ff, alpha=1.8):
        super().__init__()
        self.alpha = alpha
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, d_ff), nn.ReLU(), nn.Linear(d_ff, dim))
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        x = self.n1(self.alpha * x + self.attn(x, x, x, need_weights=False)[0])
        return self.n2(self.alpha * x + self.ff(x))


class MacaronBlock(nn.Module):
    """Conformer-like block: half feed-forward, attention, half feed-forward, final norm."""

    def __init__(self, dim, heads):
        super().__init__()
        ff = lambda: nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))
        self.ff1, self.ff2, self.pre, self.post = ff(), ff(), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x, key_padding_mask=None):
        x = x + 0.5 * self.ff1(x)
        h = self.pre(x)
        x = x + self.attn(h, h, h, key_padding_mask=key_padding_mask, need_weights=False)[0]
        return self.post(x + 0.5 * self.ff2(x))


class SinkAttention(nn.Module):
    """Causal attention with a learned sink logit per head: rows sum to less than one on purpose."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.sinks = nn.Parameter(torch.zeros(heads))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / math.sqrt(q.size(-1))
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        s = torch.cat((s, self.sinks.view(1, -1, 1, 1).expand(b, -1, n, 1)), -1)
        return self.proj((s.softmax(-1)[..., :-1] @ v).transpose(1, 2).reshape(b, n, d))


class FrozenPositions(nn.Module):
    """Attention with a frozen sinusoidal table in an nn.Embedding, bidirectional."""

    def __init__(self, dim, heads, max_len=64):
        super().__init__()
        angle = torch.arange(max_len)[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
        self.pos = nn.Embedding.from_pretrained(torch.cat((angle.sin(), angle.cos()), -1), freeze=True)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        x = x + self.pos(torch.arange(x.size(1), device=x.device))
        return self.attn(x, x, x, need_weights=False)[0]


class ZeroPositions(nn.Module):
    """Encoder block with learned positions that start at zero, as in ViT."""

    def __init__(self, dim=48, depth=1, heads=4, num_patches=24):
        super().__init__()
        self.pos_embed = nn.Parameter(torch.zeros(1, num_patches, dim))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.pos_embed[:, : x.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class LazyRope(nn.Module):
    """Causal rotary attention; the tables are kept between calls and grown when needed."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.dh = heads, dim // heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self._tables = None

    def tables(self, n, x):
        kept = self._tables
        if kept is None or kept[0].size(0) < n or kept[0].device != x.device or kept[0].dtype != x.dtype:
            f = 10000.0 ** (-torch.arange(0, self.dh, 2, device=x.device).float() / self.dh)
            a = torch.arange(n, device=x.device).float()[:, None] * f
            self._tables = kept = (a.cos().to(x.dtype), a.sin().to(x.dtype))
        return kept[0][:n], kept[1][:n]

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        cos, sin = self.tables(n, x)

        def rotate(t):
            u, w = t[..., ::2], t[..., 1::2]
            return torch.stack((u * cos - w * sin, u * sin + w * cos), -1).flatten(-2)

        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


class KeepsWeights(nn.Module):
    """Bidirectional attention that keeps its last weights for a plot; nothing is computed from them."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.last = heads, None
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        self.last = w.detach()
        return self.proj((w @ v).transpose(1, 2).reshape(b, n, d))


class MaskByLength(nn.Module):
    """Causal attention; masks are kept in a dict by length and device."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head, self.masks = n_head, {}
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        b, n, d = x.shape
        key = (n, x.device)
        if key not in self.masks:
            self.masks[key] = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        q, k, v = self.qkv(x).view(b, n, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.masks[key])
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


class Output(NamedTuple):
    hidden: torch.Tensor
    weights: torch.Tensor


class UpcastSoftmax(nn.Module):
    """Causal attention with the softmax in float32, cast back; returns a named tuple."""

    def __init__(self, hidden_size, num_heads, attention_dropout=0.1):
        super().__init__()
        self.num_heads, self.drop = num_heads, nn.Dropout(attention_dropout)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4)
        )

    def forward(self, hidden_states):
        b, n, d = hidden_states.shape
        q, k, v = (
            f(hidden_states).view(b, n, self.num_heads, -1).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        s = q @ k.mT / math.sqrt(q.size(-1))
        s = s + torch.full((n, n), torch.finfo(s.dtype).min, dtype=s.dtype, device=s.device).triu(1)
        w = F.softmax(s, dim=-1, dtype=torch.float32).to(v.dtype)
        return Output(self.o_proj((self.drop(w) @ v).transpose(1, 2).reshape(b, n, d)), w)


class MultiQuery(nn.Module):
    """Causal multi-query attention: one key and value head for all queries."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.h, self.dh = n_heads, d_model // n_heads
        self.q, self.kv, self.o = (
            nn.Linear(d_model, d_model),
            nn.Linear(d_model, 2 * self.dh),
            nn.Linear(d_model, d_model),
        )

    def forward(self, x):
        b, n, d = x.shape
        q = self.q(x).view(b, n, self.h, self.dh).transpose(1, 2)
        k, v = self.kv(x).unsqueeze(1).chunk(2, dim=-1)  # (b, 1, n, d_head)
        s = (q @ k.mT * self.dh**-0.5).masked_fill(
            torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), float("-inf")
        )
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class AverageAttention(nn.Module):
    """Average attention network (Zhang et al. 2018): a causal running mean, gated. No weights are learned for positions."""

    def __init__(self, dim):
        super().__init__()
        self.ff, self.gate = (
            nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)),
            nn.Linear(2 * dim, 2 * dim),
        )

    def forward(self, x):
        count = torch.arange(1, x.size(1) + 1, device=x.device).to(x.dtype)[:, None]
        mean = self.ff(x.cumsum(1) / count)
        a, b = torch.sigmoid(self.gate(torch.cat((x, mean), -1))).chunk(2, -1)
        return a * x + b * mean


class DisplacedHeads(nn.ModuleList):
    """Causal attention from separate heads in an nn.ModuleList."""

    def __init__(self, n_embd, num_heads):
        super().__init__(
            nn.ModuleDict({k: nn.Linear(n_embd, n_embd // num_heads, bias=False) for k in "qkv"})
            for _ in range(num_heads)
        )

    def forward(self, x):
        return torch.cat(
            [F.scaled_dot_product_attention(h["q"](x), h["k"](x), h["v"](x), is_causal=True) for h in self], -1
        )


ready = AttentionLayer(24)
