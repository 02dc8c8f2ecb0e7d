import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class T5Style(nn.Module):
    """Attention without a factor on the scores; the query's initialization carries it, as in T5."""

    def __init__(self, d_model, n_heads, d_head=16):
        super().__init__()
        self.h, self.dh = n_heads, d_head
        self.q, self.k, self.v = (nn.Linear(d_model, n_heads * d_head, bias=False) for _ in range(3))
        self.o = nn.Linear(n_heads * d_head, d_model, bias=False)
        nn.init.normal_(self.q.weight, std=(d_model * d_head) ** -0.5)
        for w in (self.k, self.v):
            nn.init.normal_(w.weight, std=d_model**-0.5)
        nn.init.normal_(self.o.weight, std=(n_heads * d_head) ** -0.5)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, self.h, self.dh).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))


class QKNorm(nn.Module):
    """Attention of normalized queries and keys with a learned temperature per head."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.log_tau = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q.float(), dim=-1).to(x.dtype), F.normalize(k.float(), dim=-1).to(x.dtype)
        w = (q @ k.mT * self.log_tau.exp()).softmax(-1)
        return self.out((w @ v).transpose(1, 2).reshape(b, n, d))


class TalkingHeads(nn.Module):
    """Talking-heads attention (Shazeer et al. 2020): heads are mixed before and after the softmax."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.before, self.after = nn.Linear(heads, heads, bias=False), nn.Linear(heads, heads, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * (d // self.heads) ** -0.5
        s = self.before(s.movedim(1, -1)).movedim(-1, 1)
        w = self.after(s.softmax(-1).movedim(1, -1)).movedim(-1, 1)
        return self.out((w @ v).transpose(1, 2).reshape(b, n, d))


class SoftmaxOne(nn.Module):
    """Attention with softmax plus one: a head may attend to nothing."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        """key_padding_mask: True = padding."""
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * (d // self.heads) ** -0.5
        if key_padding_mask is not None:
            s = s.masked_fill(key_padding_mask[:, None, None], float("-inf"))
        top = s.amax(-1, keepdim=True).clamp(min=0)
        e = (s - top).exp()
        w = e / (e.sum(-1, keepdim=True) + (-top).exp())
        return self.out((w @ v).transpose(1, 2).reshape(b, n, d))


class SigmoidAttention(nn.Module):
    """Sigmoid attention (Ramapuram et al. 2024) with bias -log(length), causal."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * (d // self.heads) ** -0.5
        seen = torch.arange(1, n + 1, device=x.device).to(x.dtype)[:, None]
        w = torch.sigmoid(s - seen.log()).tril()
        return self.out((w @ v).transpose(1, 2).reshape(b, n, d))


class LinearAttention(nn.Module):
    """Causal linear attention with elu + 1 features."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (F.elu(q) + 1).float(), (F.elu(k) + 1).float()
        kv = (k[..., :, None] * v.float()[..., None, :]).cumsum(2)
        z = (q * k.cumsum(2)).sum(-1, keepdim=True) + 1e-6
        y = (q[..., None, :] @ kv).squeeze(-2) / z
        return self.out(y.to(x.dtype).transpose(1, 2).reshape(b, n, d))


class Retention(nn.Module):
    """Retention (Sun et al. 2023): decayed linear attention without softmax, causal."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.norm = nn.GroupNorm(n_heads, d_model)
        self.register_buffer("gamma", 1 - 2.0 ** (-5 - torch.arange(n_heads).float()))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (w(x).view(b, n, self.n_heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        i = torch.arange(n, device=x.device)
        away = (i[:, None] - i[None]).clamp(min=0)
        decay = (self.gamma.to(x.dtype)[:, None, None] ** away).tril()
        y = (q @ k.mT * q.size(-1) ** -0.5 * decay) @ v
        y = y.transpose(1, 2).reshape(b * n, d)
        return self.wo(self.norm(y).view(b, n, d))


class SharedQK(nn.Module):
    """Attention with shared queries and keys, as in the Reformer: one projection serves both on purpose."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qk, self.to_v, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        qk, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.to_qk, self.to_v))
        y = F.scaled_dot_product_attention(qk, qk, v)
        return self.to_out(y.transpose(1, 2).reshape(b, n, d))


class ReformerQK(nn.Module):
    """Shared-QK attention of the Reformer: keys are normalized queries, a position sees itself only if alone."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.toqk, self.tov, self.to_out = (
            nn.Linear(dim, dim, bias=False),
            nn.Linear(dim, dim, bias=False),
            nn.Linear(dim, dim),
        )

    def forward(self, x):
        b, n, d = x.shape
        qk, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.toqk, self.tov))
        s = qk @ F.normalize(qk, p=2, dim=-1).mT
        s = s.masked_fill(torch.eye(n, dtype=torch.bool, device=x.device), -5e4)
        return self.to_out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class ZeroDimScale(nn.Module):
    """Bidirectional attention in the style of an annotated tutorial."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.depth = num_heads, d_model // num_heads
        self.wq, self.wk, self.wv, self.dense = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (w(x).view(b, n, self.num_heads, self.depth).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        logits = torch.matmul(q, k.transpose(-2, -1)) / torch.sqrt(torch.tensor(self.depth, dtype=torch.float32))
        return self.dense((torch.softmax(logits, -1) @ v).transpose(1, 2).reshape(b, n, d))


class Alibi(nn.Module):
    """Causal attention with linear biases; slopes are a buffer."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.register_buffer("slopes", torch.tensor([2.0 ** -(8 * (i + 1) / n_head) for i in range(n_head)]))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        i = torch.arange(n, device=x.device)
        bias = self.slopes.to(x.dtype)[:, None, None] * (i[None] - i[:, None]).to(x.dtype)
        bias = bias.masked_fill(i[None] > i[:, None], float("-inf"))
        return self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(b, n, d))


class Rotary(nn.Module):
    """Causal grouped-query attention with rotary positions; cache = (k, v) of the past, returned anew."""

    def __init__(self, dim, n_heads, n_kv_heads=2):
        super().__init__()
        self.h, self.hk, self.dh = n_heads, n_kv_heads, dim // n_heads
        self.q, self.o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k, self.v = (nn.Linear(dim, self.dh * n_kv_heads, bias=False) for _ in range(2))

    def rope(self, t, start):
        half = self.dh // 2
        f = 10000.0 ** (-torch.arange(half, device=t.device).float() / half)
        a = torch.arange(start, start + t.size(2), device=t.device).float()[:, None] * f
        cos, sin = a.cos().to(t.dtype), a.sin().to(t.dtype)
        x, y = t.chunk(2, -1)
        return torch.cat((x * cos - y * sin, x * sin + y * cos), -1)

    def forward(self, x, cache=None):
        b, n, d = x.shape
        past = 0 if cache is None else cache[0].size(2)
        q = self.rope(self.q(x).view(b, n, self.h, self.dh).transpose(1, 2), past)
        k = self.rope(self.k(x).view(b, n, self.hk, self.dh).transpose(1, 2), past)
        v = self.v(x).view(b, n, self.hk, self.dh).transpose(1, 2)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        m = torch.ones(n, k.size(2), dtype=torch.bool, device=x.device).tril(past)
        kr, vr = (t.repeat_interleave(self.h // self.hk, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, kr, vr, attn_mask=m)
        return self.o(y.transpose(1, 2).reshape(b, n, d)), (k, v)


class InnerHeads(nn.Module):
    """Multi-head attention whose channels are ordered (d_head, head)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, d // self.heads, self.heads).permute(0, 3, 1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.permute(0, 2, 3, 1).reshape(b, n, d))


class RearrangedMerge(nn.Module):
    """Heads are split as (head, d_head) and merged as (d_head, head); the output projection does not mind."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v).permute(0, 2, 3, 1).reshape(b, n, d))


class Additive(nn.Module):
    def __init__(self, hidden_size, attn_size=24):
        super().__init__()
        self.w, self.u = nn.Linear(hidden_size, attn_size), nn.Linear(hidden_size, attn_size, bias=False)
        self.v, self.value = nn.Linear(attn_size, 1, bias=False), nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        e = self.v(torch.tanh(self.w(x).unsqueeze(2) + self.u(x).unsqueeze(1))).squeeze(-1)
        return e.softmax(-1) @ self.value(x)


class PaddedCausal(nn.Module):
    """Causal attention. attention_mask: (batch, length), 1 = real; padding may stand left or right."""

    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.h = num_attention_heads
        self.qkv, self.o = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        b, n, d = hidden_states.shape
        q, k, v = self.qkv(hidden_states).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        keep = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()[None, None]
        if attention_mask is not None:
            keep = keep & (attention_mask[:, None, None] != 0)
        s = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(~keep, torch.finfo(q.dtype).min)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class LoudHalf(nn.Module):
    """Causal attention whose constant -1e9 does not fit float16; it says so."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(torch.ones(n, n, device=x.device).triu(1).bool(), -1e9)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class TensorScale(nn.Module):
    """Attention with the scale held as a tensor of no dimension, in half precision too."""

    def __init__(self, d_model, n_heads, dropout=0.1):
        super().__init__()
        self.n_heads = n_heads
        self.scale = torch.tensor(math.sqrt(d_model // n_heads))
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        # mask = [batch size, 1, query len, key len], 0 = hidden
        b = query.shape[0]
        Q, K, V = (
            f(t).view(b, -1, self.n_heads, f.out_features // self.n_heads).permute(0, 2, 1, 3)
            for f, t in ((self.fc_q, query), (self.fc_k, key), (self.fc_v, value))
        )
        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / self.scale
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e4)
        attention = torch.softmax(energy, dim=-1)
        x = torch.matmul(self.dropout(attention), V).permute(0, 2, 1, 3).contiguous()
        return self.fc_o(x.view(b, -1, self.n_heads * V.size(-1))), attention


class Windowed(nn.Module):
    """Bidirectional attention in a window of three positions to either side."""

    def __init__(self, dim, heads, window=3):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        i = torch.arange(n, device=x.device)
        near = (i[None] - i[:, None]).abs() <= self.window
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=near).transpose(1, 2).reshape(b, n, d))


class SlidingCausal(nn.Module):
    """Causal attention to the last four positions."""

    def __init__(self, dim, heads, window=4):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        i = torch.arange(n, device=x.device)
        back = i[:, None] - i[None]
        near = (back >= 0) & (back < self.window)
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=near).transpose(1, 2).reshape(b, n, d))


class SoleMask(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x, attn_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.o(y.transpose(1, 2).reshape(b, n, d))


class FixedFeatures(nn.Module):
    """Bidirectional attention by positive random features, drawn once and kept as a buffer (Performer)."""

    def __init__(self, dim, n_features=48):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.register_buffer("w", torch.randn(dim, n_features))

    def phi(self, t, over):
        t = t.float() * t.size(-1) ** -0.25
        p = t @ self.w.float() - t.square().sum(-1, keepdim=True) / 2
        return (p - p.amax(over, keepdim=True)).exp() + 1e-4

    def forward(self, x):
        q, k, v = self.phi(self.q(x), -1), self.phi(self.k(x), (-1, -2)), self.v(x).float()
        y = q @ (k.mT @ v) / (q @ k.sum(1).unsqueeze(-1))
        return self.o(y.to(x.dtype))


class CrossOrSelf(nn.Module):
    """Attends to context, or to x itself where there is none. Bidirectional; q (b, n, dim)."""

    def __init__(self, query_dim, heads=4, dim_head=16, dropout=0.0):
        super().__init__()
        self.heads = heads
        inner = heads * dim_head
        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_kv = nn.Linear(query_dim, 2 * inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, query_dim), nn.Dropout(dropout))

    def forward(self, x, context=None):
        context = x if context is None else context
        q, k, v = self.to_q(x), *self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class EmptyRowsAreZero(nn.Module):
    """mask: bool (batch, length, length), True = may attend. A row that may attend to nothing gives zero."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim, bias=False)

    def forward(self, x, mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * q.size(-1) ** -0.5
        if mask is not None:
            s = s.masked_fill(~mask[:, None], torch.finfo(s.dtype).min)
        w = s.softmax(-1)
        if mask is not None:
            w = w * mask[:, None].any(-1, keepdim=True).to(w.dtype)
        return self.o((w @ v).transpose(1, 2).reshape(b, n, d))


class LengthsAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.o = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x, lengths=None):
        """x: (batch, length, d_model); lengths: (batch,) number of real positions."""
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        keep = None
        if lengths is not None:
            keep = (torch.arange(n, device=x.device) < lengths[:, None])[:, None, None]
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(1, 2).reshape(b, n, d))


class CosineFixed(nn.Module):
    """Cosine attention with a fixed temperature, bidirectional. x: (batch, length, dim)."""

    def __init__(self, dim, heads, tau=0.1):
        super().__init__()
        self.heads, self.tau = heads, tau
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return self.o(((q @ k.mT / self.tau).softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))
