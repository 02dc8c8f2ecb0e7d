import math
import torch
from torch import nn
import torch.nn.functional as F


def split(t, h):
    return t.view(t.size(0), t.size(1), h, -1).transpose(1, 2)


class DropAttention(nn.Module):
    """Self-attention with attention dropout, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4, dropout=0.1):
        super().__init__()
        self.h, self.p = heads, dropout
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p)
        return self.o(y.transpose(1, 2).flatten(2))


class NoDrop(nn.Module):
    """BERT-like self-attention with dropout on the attention probabilities, (batch, seq, hidden)"""

    def __init__(self, hidden_size=32, num_heads=4, attention_probs_dropout_prob=0.2):
        super().__init__()
        self.h = num_heads
        self.query, self.key, self.value = [nn.Linear(hidden_size, hidden_size) for _ in range(3)]
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    def forward(self, hidden_states):
        q, k, v = [split(f(hidden_states), self.h) for f in (self.query, self.key, self.value)]
        p = F.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)), dim=-1)
        return (p @ v).transpose(1, 2).flatten(2)


class MemoryAttention(nn.Module):
    """Self-attention whose keys and values also cover a summary of the text. x: (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.summary = None

    def forward(self, x):
        if self.summary is None or self.summary.shape[0] != x.shape[0]:
            self.summary = x.mean(1, keepdim=True).detach()
        mem = torch.cat([self.summary.to(x), x], 1)
        y = self.attn(x, mem, mem, need_weights=False)[0]
        self.summary = y.mean(1, keepdim=True).detach()
        return y


class FavorAttention(nn.Module):
    """Performer attention with positive random features, (batch, seq, dim), bidirectional"""

    def __init__(self, dim=32, heads=4, nb_features=64):
        super().__init__()
        self.h, self.m = heads, nb_features
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def feat(self, t, w, dims):
        t = t * t.size(-1) ** -0.25
        u = t @ w.T - t.pow(2).sum(-1, keepdim=True) / 2
        return torch.exp(u - u.amax(dims, keepdim=True)) + 1e-3

    def forward(self, x):
        q, k, v = [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]
        w = torch.randn(self.m, q.size(-1), device=x.device, dtype=x.dtype)
        q, k = self.feat(q, w, -1), self.feat(k, w, (-1, -2))
        y = q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(-2).unsqueeze(-1))
        return self.o(y.transpose(1, 2).flatten(2))


class CachedMaskAttention(nn.Module):
    """Attention with padding. key_padding_mask (batch, seq), True = padding"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.bias = None

    def forward(self, x, key_padding_mask=None):
        q, k, v = [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]
        s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if key_padding_mask is not None:
            if self.bias is None or self.bias.shape != key_padding_mask.shape:
                self.bias = key_padding_mask.clone()
            s = s.masked_fill(self.bias.to(s.device)[:, None, None], torch.finfo(s.dtype).min)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class EMANormAttention(nn.Module):
    """Self-attention over inputs centred with a running mean, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4, momentum=0.1):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.momentum = momentum
        self.register_buffer("mu", torch.zeros(dim))

    def forward(self, x):
        with torch.no_grad():
            self.mu.mul_(1 - self.momentum).add_(self.momentum * x.mean((0, 1)))
        x = x - self.mu
        return self.attn(x, x, x, need_weights=False)[0]


# numbers -----------------------------------------------------------------


class ExpAttention(nn.Module):
    """Attention, softmax spelled out for teaching, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]
        e = torch.exp(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)))
        y = (e / e.sum(-1, keepdim=True)) @ v
        return self.o(y.transpose(1, 2).flatten(2))


class SoftplusLinear(nn.Module):
    """Linear attention with an exponential feature map, (batch, seq, dim), bidirectional"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]
        q, k = torch.log(1 + torch.exp(q)), torch.log(1 + torch.exp(k))
        y = q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(-2, keepdim=True).transpose(-1, -2) + 1e-4)
        return self.o(y.transpose(1, 2).flatten(2))


class Retention(nn.Module):
    """Retention with per-head decay, parallel form, causal. x: (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.register_buffer("gamma", 1 - 2.0 ** (-1.0 - torch.arange(heads)))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = [split(u, self.h) for u in self.qkv(x).chunk(3, -1)]
        n = torch.arange(t, device=x.device)
        g = self.gamma.to(x.dtype).view(1, -1, 1, 1)
        q = q * g ** n.view(1, 1, -1, 1) * q.size(-1) ** -0.5
        k = k * g ** -n.view(1, 1, -1, 1)
        a = (q @ k.transpose(-1, -2)).tril()
        return self.o((a @ v).transpose(1, 2).flatten(2))


class SwishLayer(nn.Module):
    """Pre-norm-free feed-forward layer after attention with a skip connection, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        x = x + self.attn(x, x, x, need_weights=False)[0]
        h = self.up(x)
        return x + self.down(h * torch.exp(h) / (1 + torch.exp(h)))


# devices -----------------------------------------------------------------


class HomeworkHead(nn.Module):
    """causal attention head, x (batch, time, channels)"""

    def __init__(self, emb_size=32, head_size=32):
        super().__init__()
        self.Q, self.K, self.V = [nn.Linear(emb_size, head_size) for _ in range(3)]

    def forward(self, x):
        att = self.Q(x) @ self.K(x).transpose(1, 2) * self.K.out_features**-0.5
        mask = torch.triu(torch.ones(x.size(1), x.size(1)), diagonal=1).bool()
        return F.softmax(att.masked_fill(mask, float("-inf")), dim=-1) @ self.V(x)


class PEAttention(nn.Module):
    """Encoder attention with sinusoidal positions added to the input, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4, max_len=512):
        super().__init__()
        p = torch.arange(max_len).unsqueeze(1) * torch.exp(torch.arange(0, dim, 2) * (-math.log(1e4) / dim))
        self.pe = torch.cat((p.sin(), p.cos()), 1)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        x = x + self.pe[: x.size(1)]
        return self.attn(x, x, x, need_weights=False)[0]


class Fp32Softmax(nn.Module):
    """Llama-like attention: the softmax is computed in float32 for stability. (batch, seq, dim), causal"""

    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.h = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = [
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4)
        ]

    def forward(self, x):
        q, k, v = [split(f(x), self.h) for f in (self.q_proj, self.k_proj, self.v_proj)]
        s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        s = s.masked_fill(torch.ones(x.size(1), x.size(1), device=x.device, dtype=torch.bool).triu(1), float("-inf"))
        p = F.softmax(s, dim=-1, dtype=torch.float32)
        return self.o_proj(torch.matmul(p, v).transpose(1, 2).flatten(2))


class PosIdsModel(nn.Module):
    """Encoder from token ids (batch, seq) to features (batch, seq, dim)"""

    def __init__(self, vocab_size=64, dim=32, max_len=256):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab_size, dim), nn.Embedding(max_len, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True)

    def forward(self, input_ids):
        positions = torch.arange(input_ids.size(1))
        return self.layer(self.tok(input_ids) + self.pos(positions))


class RelBias(nn.Module):
    """Self-attention plus a decaying distance bias, (batch, seq, dim), bidirectional"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        n = x.size(1)
        q, k, v = [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]
        i = torch.arange(n)
        bias = -0.1 * (i[:, None] - i[None]).abs().float()
        s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + bias
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


# caches ------------------------------------------------------------------


class CacheAttention(nn.Module):
    """Causal attention with a key/value cache. x: (batch, seq, dim); layer_past: (k, v) or None"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, layer_past=None, use_cache=False):
        q, k, v = [split(t, self.h) for t in self.c_attn(x).chunk(3, -1)]
        if layer_past is not None:
            k, v = torch.cat((layer_past[0], k), 2), torch.cat((layer_past[1], v), 2)
        ok = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=x.device).tril()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=ok)
        y = self.c_proj(y.transpose(1, 2).flatten(2))
        return (y, (k, v)) if use_cache else y


class RopeCacheAttention(nn.Module):
    """Causal rotary attention with past_key_value cache, (batch, seq, dim). Returns (output, present)."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, self.d, 2).float() / self.d))

    def rope(self, t):
        f = torch.outer(torch.arange(t.size(2), device=t.device).float(), self.inv_freq.float())
        cos, sin = f.cos().to(t.dtype), f.sin().to(t.dtype)
        a, b = t.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x, past_key_value=None):
        q, k, v = [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]
        q, k = self.rope(q), self.rope(k)
        p = 0
        if past_key_value is not None:
            p = past_key_value[0].size(2)
            k, v = torch.cat((past_key_value[0], k), 2), torch.cat((past_key_value[1], v), 2)
        ok = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=x.device).tril(p)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=ok)
        return self.o(y.transpose(1, 2).flatten(2)), (k, v)


class StepAttention(nn.Module):
    """Decoder self-attention for generation; cache is a tuple (k, v) of earlier steps. Causal, (batch, seq, dim)."""

    def __init__(self, d_model=32, n_heads=4):
        super().__init__()
        self.h = n_heads
        self.q, self.k, self.v, self.o = [nn.Linear(d_model, d_model) for _ in range(4)]

    def forward(self, x, cache=None):
        q, k, v = [split(f(x), self.h) for f in (self.q, self.k, self.v)]
        new = (k, v)
        p = 0
        if cache is not None:
            p = cache[0].size(2)
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        s = s.masked_fill(~torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=x.device).tril(p), float("-inf"))
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), new


class CachedGPT(nn.Module):
    """Decoder-only model with learned positions. input_ids (batch, seq) -> logits, past_key_values."""

    def __init__(self, vocab_size=50, n_embd=32, n_head=4, n_positions=256):
        super().__init__()
        self.h = n_head
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(n_positions, n_embd)
        nn.init.normal_(self.wte.weight, std=0.02), nn.init.normal_(self.wpe.weight, std=0.02)
        self.ln, self.ln_f = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv, self.o = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, input_ids, past_key_values=None):
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.size(1), device=input_ids.device))
        q, k, v = [split(t, self.h) for t in self.qkv(self.ln(x)).chunk(3, -1)]
        p = 0
        if past_key_values is not None:
            p = past_key_values[0].size(2)
            k, v = torch.cat((past_key_values[0], k), 2), torch.cat((past_key_values[1], v), 2)
        ok = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=x.device).tril(p)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=ok).transpose(1, 2).flatten(2))
        return self.head(self.ln_f(x)), (k, v)
