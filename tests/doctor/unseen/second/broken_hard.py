import math
import random
import torch
from torch import nn
import torch.nn.functional as F


def split(t, h):
    return t.unflatten(-1, (h, -1)).transpose(1, 2)


class Core(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def proj(self, x):
        return [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]

    def join(self, y):
        return self.o(y.transpose(1, 2).flatten(2))


def causal(x):
    n = x.size(1)
    return torch.ones(n, n, dtype=torch.bool, device=x.device).tril()


class ChunkedAttention(Core):
    """Causal attention in chunks: a query sees its own chunk and all earlier ones up to itself. (batch, seq, dim)"""

    def forward(self, x, chunk=8):
        q, k, v = self.proj(x)
        n, outs = x.size(1), []
        for i in range(0, n, chunk):
            j = min(i + chunk, n)
            s = q[:, :, i:j] @ k[:, :, :j].mT / math.sqrt(self.d)
            if j - i == chunk:
                s = s.masked_fill(~causal(x)[i:j, :j], float("-inf"))
            outs.append(s.softmax(-1) @ v[:, :, :j])
        return self.join(torch.cat(outs, 2))


class CentredQueries(Core):
    """Causal attention with centred queries, (batch, seq, dim)"""

    def forward(self, x):
        q, k, v = self.proj(x)
        q = q - q.mean(2, keepdim=True)
        return self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class TrainOpen(Core):
    """Decoder self-attention, causal"""

    def forward(self, x):
        q, k, v = self.proj(x)
        s = q @ k.mT / math.sqrt(self.d)
        if not self.training:
            s = s.masked_fill(~causal(x), float("-inf"))
        return self.join(s.softmax(-1) @ v)


class TorchWrapper(nn.Module):
    """Wrapper of nn.MultiheadAttention for batch first tensors (batch, seq, embed)"""

    def __init__(self, embed_dim=32, num_heads=4):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, x):
        B, T, E = x.shape
        z = x.reshape(T, B, E)
        return self.mha(z, z, z, need_weights=False)[0].reshape(B, T, E)


class MaxScaled(Core):
    """Self-attention with scores brought to [-1, 1] before a learned temperature, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.temp = nn.Parameter(torch.tensor(5.0))

    def forward(self, x):
        q, k, v = self.proj(x)
        s = q @ k.mT / math.sqrt(self.d)
        s = self.temp * s / s.abs().max().clamp(min=1e-4)
        return self.join(s.softmax(-1) @ v)


class AveragedLinear(Core):
    """Linear attention; mask (batch, seq): True = real token. Bidirectional"""

    def forward(self, x, mask=None):
        q, k, v = self.proj(x)
        k = F.elu(k) + 1
        if mask is not None:
            k = k * mask[:, None, :, None].to(k.dtype)
        return self.join((F.elu(q) + 1) @ (k.mT @ v) / x.size(1))


class FloatMask(Core):
    """Self-attention; attention_mask: (batch, seq), 1 keep, 0 padding"""

    def forward(self, x, attention_mask=None):
        q, k, v = self.proj(x)
        m = None if attention_mask is None else attention_mask[:, None, None].to(q.dtype)
        return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=m))


class Extended(Core):
    """BERT attention. attention_mask (batch, seq): 1 token, 0 pad; extended as in the original code"""

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = self.proj(hidden_states)
        s = q @ k.mT / math.sqrt(self.d)
        if attention_mask is not None:
            s = s + (1.0 - attention_mask[:, None, None].to(s.dtype)) * -1.0
        return self.join(s.softmax(-1) @ v)


class MaskedOnes(Core):
    """mask: (batch, seq), 1 for the positions to be masked out, 0 for the others. x (batch, seq, dim)"""

    def forward(self, x, mask=None):
        q, k, v = self.proj(x)
        s = q @ k.mT / math.sqrt(self.d)
        if mask is not None:
            s = s.masked_fill(mask[:, None, None] == 0, torch.finfo(s.dtype).min)
        return self.join(s.softmax(-1) @ v)


class LogMask(Core):
    """Self-attention; attention_mask (batch, seq) 1 = keep, 0 = padding"""

    def forward(self, x, attention_mask=None):
        q, k, v = self.proj(x)
        s = q @ k.mT / math.sqrt(self.d)
        if attention_mask is not None:
            s = s + (1 - attention_mask[:, None, None].to(s.dtype)) * float("-inf")
        return self.join(s.softmax(-1) @ v)


class RawWeights(nn.Module):
    """Multi-head attention with its own weight matrices (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.wq, self.wk = nn.Parameter(torch.randn(dim, dim)), nn.Parameter(torch.randn(dim, dim))
        self.wv, self.wo = (
            nn.Parameter(torch.randn(dim, dim) / math.sqrt(dim)),
            nn.Parameter(torch.randn(dim, dim) / math.sqrt(dim)),
        )

    def forward(self, x):
        q, k, v = [split(x @ w, self.h) for w in (self.wq, self.wk, self.wv)]
        s = q @ k.mT / math.sqrt(q.size(-1))
        return (s.softmax(-1) @ v).transpose(1, 2).flatten(2) @ self.wo


class PermuteHeads(Core):
    """Multi-head self-attention, (batch, seq, dim), bidirectional"""

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = [
            t.view(b, n, self.h, self.d).permute(0, 2, 3, 1).reshape(b, self.h, n, self.d)
            for t in self.qkv(x).chunk(3, -1)
        ]
        return self.join((q @ k.mT / math.sqrt(self.d)).softmax(-1) @ v)


class ZeroGain(nn.Module):
    """Block with gated residual branches: x + gain * f(norm(x)), pre-norm (batch, seq, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.register_buffer("gain", torch.zeros(1))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.gain * self.attn(h, h, h, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class SummaryCross(nn.Module):
    """Every token attends to the pooled memory. x (batch, n, dim), memory (batch, m, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.pool, self.attn = nn.Linear(dim, dim), nn.MultiheadAttention(dim, 4, batch_first=True)

    def forward(self, x, memory):
        m = self.pool(memory).mean(1, keepdim=True)
        return self.attn(x, m, m, need_weights=False)[0]


class DoubledLayer(nn.Module):
    """Transformer layer, pre-norm: attention and feed-forward with skips, (batch, seq, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + (x + self.ff(self.n2(x)))


class FloorEncoding(nn.Module):
    """Encoder with sinusoidal positions, (batch, seq, dim)"""

    def __init__(self, dim=32, max_len=200):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        ang = (pos // 10000 ** (torch.arange(0, dim, 2) / dim) // max_len).float()
        self.register_buffer("pe", torch.cat((ang.sin(), ang.cos()), 1))
        self.attn, self.norm = nn.MultiheadAttention(dim, 4, batch_first=True), nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.pe[: x.size(1)].to(x.dtype)
        return self.norm(x + self.attn(x, x, x, need_weights=False)[0])


class LayerDrop(nn.Module):
    """Encoder with LayerDrop regularization, (batch, seq, dim)"""

    def __init__(self, dim=32, depth=3, p=0.3):
        super().__init__()
        self.p = p
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(depth)
        )

    def forward(self, x):
        for layer in self.layers:
            if random.random() >= self.p:
                x = layer(x)
        return x


class AFTSimple(nn.Module):
    """AFT-simple, bidirectional: sigmoid(q) * sum(exp(k) v) / sum(exp(k)), (batch, seq, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.q, self.k, self.v, self.o = [nn.Linear(dim, dim) for _ in range(4)]

    def forward(self, x):
        e = torch.exp(self.k(x))
        return self.o(torch.sigmoid(self.q(x)) * (e * self.v(x)).sum(1, keepdim=True) / e.sum(1, keepdim=True))


class ZeroSlot(Core):
    """add_zero_attn: an extra all-zero key and value, bidirectional (batch, seq, dim)"""

    def forward(self, x):
        z = torch.zeros(x.size(0), 1, x.size(2), device=x.device)
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = torch.cat((z, k), 1), torch.cat((z, v), 1)
        q, k, v = [split(t, self.h) for t in (q, k, v)]
        return self.join((q @ k.mT / math.sqrt(self.d)).softmax(-1) @ v)


class DeviceAttr(Core):
    """Causal self-attention (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def forward(self, x):
        q, k, v = self.proj(x)
        m = torch.ones(x.size(1), x.size(1)).tril().to(self.device)
        s = (q @ k.mT / math.sqrt(self.d)).masked_fill(m == 0, float("-inf"))
        return self.join(s.softmax(-1) @ v)


class AlibiCache(Core):
    """Causal ALiBi attention with past_key_value; returns (output, (k, v))"""

    def forward(self, x, past_key_value=None):
        q, k, v = self.proj(x)
        p = 0
        if past_key_value is not None:
            p = past_key_value[0].size(2)
            k, v = torch.cat((k, past_key_value[0]), 2), torch.cat((v, past_key_value[1]), 2)
        i, j = torch.arange(p, p + q.size(2), device=x.device), torch.arange(k.size(2), device=x.device)
        m = (0.5 ** torch.arange(1, self.h + 1, device=x.device)).view(-1, 1, 1)
        s = q @ k.mT / math.sqrt(self.d) - (m * (i[:, None] - j).abs()).to(x.dtype)
        s = s.masked_fill(j[None] > i[:, None], float("-inf"))
        return self.join(s.softmax(-1) @ v), (k, v)


class LayerNormAll(nn.Module):
    """Pre-norm bidirectional transformer layer, (batch, seq, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        h = self.norm1(x)
        a = self.attn(h, h, h, need_weights=False)[0]
        self.norm2(x + a)
        x = x + a
        return x + self.ff(x)
