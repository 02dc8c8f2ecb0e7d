import math
import torch
from torch import nn
import torch.nn.functional as F


def split(t, h):
    return t.unflatten(-1, (h, -1)).transpose(1, 2)


class CommentedLayout(nn.Module):
    def __init__(self, d_model=32, nhead=4):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, src, src_key_padding_mask=None):
        # src: (S, N, E)   src_key_padding_mask: (N, S), True = padding
        a, _ = self.self_attn(src, src, src, key_padding_mask=src_key_padding_mask)
        return self.norm(src + a)  # (S, N, E)


class TutorialLM(nn.Module):
    """The language model of the PyTorch tutorial.

    src: Tensor, shape [seq_len, batch_size]; output: Tensor of shape [seq_len, batch_size, ntoken]
    """

    def __init__(self, ntoken=50, d_model=32, nhead=4, nlayers=2, dropout=0.1, max_len=256):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("pe", pe)
        self.drop = nn.Dropout(dropout)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d_model, nhead, 64, dropout), nlayers, enable_nested_tensor=False
        )
        self.embedding, self.d_model, self.linear = nn.Embedding(ntoken, d_model), d_model, nn.Linear(d_model, ntoken)
        self.embedding.weight.data.uniform_(-0.1, 0.1)
        self.linear.weight.data.uniform_(-0.1, 0.1)
        self.linear.bias.data.zero_()

    def forward(self, src):
        x = self.drop(self.embedding(src) * math.sqrt(self.d_model) + self.pe[: src.size(0)])
        m = torch.full((src.size(0), src.size(0)), float("-inf"), device=src.device, dtype=x.dtype).triu(1)
        return self.linear(self.enc(x, mask=m))


class Temperature(nn.Module):
    """Attention with a learned temperature per head, started at sqrt(d)"""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.tau = nn.Parameter(torch.full((heads, 1, 1), math.sqrt(dim // heads)))

    def forward(self, x):
        q, k, v = [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]
        return self.o(((q @ k.mT / self.tau).softmax(-1) @ v).transpose(1, 2).flatten(2))


class ScaledInit(nn.Module):
    """No division by sqrt(d) in forward: the query weights are divided by it at initialization, as in Mesh-TensorFlow. (batch, seq, dim)"""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = [nn.Linear(dim, dim, bias=False) for _ in range(4)]
        with torch.no_grad():
            self.q.weight /= math.sqrt(dim // heads)

    def forward(self, x):
        q, k, v = [split(f(x), self.h) for f in (self.q, self.k, self.v)]
        return self.o(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


class QuarterScale(nn.Module):
    """q and k each multiplied by d ** -0.25 (OpenAI's diffusion code, safer in half precision). Channels first: (batch, channels, length)"""

    def __init__(self, channels=32, num_heads=4):
        super().__init__()
        self.norm, self.qkv, self.proj = (
            nn.GroupNorm(4, channels),
            nn.Conv1d(channels, 3 * channels, 1),
            nn.Conv1d(channels, channels, 1),
        )
        self.h = num_heads
        nn.init.zeros_(self.proj.weight), nn.init.zeros_(self.proj.bias)

    def forward(self, x):
        b, c, t = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b * self.h, -1, t).chunk(3, 1)
        s = q.size(1) ** -0.25
        w = torch.einsum("bct,bcs->bts", q * s, k * s).float().softmax(-1).to(x.dtype)
        return x + self.proj(torch.einsum("bts,bcs->bct", w, v).reshape(b, c, t))


class Undeclared(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        q, k, v = [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]
        s = q @ k.mT / math.sqrt(q.size(-1))
        if mask is not None:
            s = s.masked_fill(mask == 0, torch.finfo(s.dtype).min)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class AdditiveMask(nn.Module):
    """attn_mask: float (seq, seq), added to the scores: 0 keeps, -inf removes. x (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x, attn_mask=None):
        return self.attn(x, x, x, attn_mask=attn_mask, need_weights=False)[0]


class ReluInside(nn.Module):
    """Transformer block whose branches end in relu: x + relu(linear(attn)), then a feed-forward. Pre-norm"""

    def __init__(self, dim=32):
        super().__init__()
        self.n1, self.n2, self.attn = (
            nn.LayerNorm(dim),
            nn.LayerNorm(dim),
            nn.MultiheadAttention(dim, 4, batch_first=True),
        )
        self.lin, self.ff = nn.Linear(dim, dim), nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))

    def forward(self, x):
        h = self.n1(x)
        x = x + torch.relu(self.lin(self.attn(h, h, h, need_weights=False)[0]))
        return x + self.ff(self.n2(x))


class SoftmaxFloat(nn.Module):
    """Llama-like causal attention: softmax in float32, cast back"""

    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.h = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = [
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4)
        ]

    def forward(self, hidden_states):
        q, k, v = [split(f(hidden_states), self.h) for f in (self.q_proj, self.k_proj, self.v_proj)]
        s = q @ k.mT / math.sqrt(q.size(-1))
        n = s.size(-1)
        s = s + torch.full((n, n), torch.finfo(s.dtype).min, dtype=s.dtype, device=s.device).triu(1)
        return self.o_proj((F.softmax(s, -1, dtype=torch.float32).to(v.dtype) @ v).transpose(1, 2).flatten(2))


class RopeCache(nn.Module):
    """Causal rotary attention with cache=(k, v); returns (output, cache)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, self.d, 2).float() / self.d))

    def rope(self, t, start):
        f = torch.outer(torch.arange(start, start + t.size(2), device=t.device).float(), self.inv_freq.float())
        c, s = f.cos().to(t.dtype), f.sin().to(t.dtype)
        a, b = t.chunk(2, -1)
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    def forward(self, x, cache=None):
        p = 0 if cache is None else cache[0].size(2)
        q, k, v = [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]
        q, k = self.rope(q, p), self.rope(k, p)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        ok = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=x.device).tril(p)
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=ok).transpose(1, 2).flatten(2)), (k, v)


class NewestFirst(nn.Module):
    """Encoder for event logs, padded on either side; attention_mask 1 = event. Positions are counted over real events."""

    def __init__(self, dim=32, max_len=128):
        super().__init__()
        self.pos, self.attn = nn.Embedding(max_len, dim), nn.MultiheadAttention(dim, 4, batch_first=True)

    def forward(self, x, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
        ids = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
        x = x + self.pos(ids)
        keep = attention_mask.bool()
        m = keep[:, None] | torch.eye(x.size(1), dtype=torch.bool, device=x.device)
        return self.attn(x, x, x, attn_mask=(~m).repeat_interleave(4, 0), need_weights=False)[0]


class EmptyMemory(nn.Module):
    """Cross attention; memory may be wholly padded for a sample, which then gets zeros. memory_key_padding_mask True = padding"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim, bias=False)

    def forward(self, x, memory, memory_key_padding_mask=None):
        q = split(self.q(x), self.h)
        k, v = [split(t, self.h) for t in self.kv(memory).chunk(2, -1)]
        s = q @ k.mT / math.sqrt(q.size(-1))
        if memory_key_padding_mask is None:
            return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
        s = s.masked_fill(memory_key_padding_mask[:, None, None], torch.finfo(s.dtype).min)
        y = self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return y.masked_fill(memory_key_padding_mask.all(1)[:, None, None], 0.0)


class CrossViTDecoder(nn.Module):
    """Decoder block: causal self-attention, cross attention to memory, feed-forward; pre-norm. tgt (b, n, d), memory (b, m, d)"""

    def __init__(self, dim=32):
        super().__init__()
        self.sa, self.ca = (
            nn.MultiheadAttention(dim, 4, batch_first=True),
            nn.MultiheadAttention(dim, 4, batch_first=True),
        )
        self.n = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.ff = nn.Sequential(nn.Linear(dim, 64), nn.SiLU(), nn.Linear(64, dim))

    def forward(self, tgt, memory):
        t = tgt.size(1)
        h = self.n[0](tgt)
        m = torch.ones(t, t, dtype=torch.bool, device=tgt.device).triu(1)
        tgt = tgt + self.sa(h, h, h, attn_mask=m, need_weights=False)[0]
        tgt = tgt + self.ca(self.n[1](tgt), memory, memory, need_weights=False)[0]
        return tgt + self.ff(self.n[2](tgt))
