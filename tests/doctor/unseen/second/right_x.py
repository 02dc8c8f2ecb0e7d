import math
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


class WordsInDoc(nn.Module):
    """Used inside a masked autoencoder. The future work section of the paper mentions a causal variant; this one is bidirectional.

    Args:
        x: hidden states of the decoder, (batch, seq, dim)
    """

    def __init__(self, dim=32):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


class MaeDecoderBlock(nn.Module):
    """Decoder block of a masked autoencoder (ViT): full attention over all patches, pre-norm. (batch, patches, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class IgnoreIndexDoc(Core):
    """Encoder attention. attention_mask: 1 for tokens that are not masked, 0 for tokens that are masked (padding). (batch, seq)"""

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = self.proj(hidden_states)
        s = q @ k.mT / math.sqrt(self.d)
        if attention_mask is not None:
            s = s + (1.0 - attention_mask[:, None, None].to(s.dtype)) * -10000.0
        return self.join(s.softmax(-1) @ v)


class PaddingOnes(Core):
    """pad_mask (batch, seq): True where the input is padding. x (batch, seq, dim)"""

    def forward(self, x, pad_mask=None):
        q, k, v = self.proj(x)
        s = q @ k.mT / math.sqrt(self.d)
        if pad_mask is not None:
            s = s.masked_fill(pad_mask[:, None, None], torch.finfo(s.dtype).min)
        return self.join(s.softmax(-1) @ v)


class SeqFirstByName(Core):
    """Rows are time steps: x has shape (T, B, C). Causal."""

    def forward(self, x):
        T, B, C = x.shape
        q, k, v = [t.reshape(T, B, self.h, self.d).permute(1, 2, 0, 3) for t in self.qkv(x).chunk(3, -1)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.permute(2, 0, 1, 3).reshape(T, B, C))


class ShortcutPool(nn.Module):
    """Post-norm block of the Funnel kind without pooling: feed-forward after attention, both with skips, final dropout"""

    def __init__(self, dim=32, dropout=0.1):
        super().__init__()
        self.attn, self.n1, self.n2 = (
            nn.MultiheadAttention(dim, 4, dropout=dropout, batch_first=True),
            nn.LayerNorm(dim),
            nn.LayerNorm(dim),
        )
        self.ff, self.drop = (
            nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Dropout(dropout), nn.Linear(64, dim)),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = self.n1(x + self.drop(self.attn(x, x, x, need_weights=False)[0]))
        return self.n2(x + self.drop(self.ff(x)))


class TopKRenorm(Core):
    """Top-k attention: weights under the k-th are cut after the softmax and the row is normalized again. Bidirectional"""

    def forward(self, x, topk=3):
        q, k, v = self.proj(x)
        p = (q @ k.mT / math.sqrt(self.d)).softmax(-1)
        p = p.masked_fill(p < p.topk(min(topk, p.size(-1)), -1).values[..., -1:], 0.0)
        return self.join(p / p.sum(-1, keepdim=True) @ v)


class GumbelTrain(Core):
    """Gumbel noise on the scores in training, none in evaluation. Bidirectional"""

    def forward(self, x):
        q, k, v = self.proj(x)
        s = q @ k.mT / math.sqrt(self.d)
        if self.training:
            u = torch.rand(s.shape, device=s.device, dtype=torch.float32).clamp(1e-6, 1 - 1e-6)
            s = s + (-torch.log(-torch.log(u))).to(s.dtype)
        return self.join(s.softmax(-1) @ v)


class MaskBuffer(Core):
    """Causal attention; the mask is built at the first call and kept per length (a cache of constants only)"""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self._masks = {}

    def forward(self, x):
        key = (x.size(1), x.device)
        if key not in self._masks:
            self._masks[key] = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        q, k, v = self.proj(x)
        return self.join((q @ k.mT / math.sqrt(self.d)).masked_fill(self._masks[key], float("-inf")).softmax(-1) @ v)


class ChunkMeanCausal(Core):
    """Causal: full attention in the own block, means of earlier whole blocks beyond it"""

    def forward(self, x, w=4):
        q, k, v = self.proj(x)
        i = torch.arange(x.size(1), device=x.device)
        km, vm = [F.avg_pool1d(t.flatten(0, 1).mT, w, w, ceil_mode=True).mT.unflatten(0, (-1, self.h)) for t in (k, v)]
        far = torch.arange(km.size(2), device=x.device)[None] < i[:, None] // w
        near = (i[None] <= i[:, None]) & (i[None] // w == i[:, None] // w)
        s = (torch.cat((q @ km.mT, q @ k.mT), -1) / math.sqrt(self.d)).masked_fill(
            ~torch.cat((far, near), -1), float("-inf")
        )
        return self.join(s.softmax(-1) @ torch.cat((vm, v), 2))


class PrefixBidirectional(Core):
    """Prefix language model: the first prefix_len positions see each other freely, the rest is causal."""

    def __init__(self, dim=32, heads=4, prefix_len=4):
        super().__init__(dim, heads)
        self.p = prefix_len

    def forward(self, x):
        q, k, v = self.proj(x)
        i = torch.arange(x.size(1), device=x.device)
        ok = (i[None] <= i[:, None]) | (i[None] < self.p)
        return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=ok))


class InterleavedBlocks(nn.Module):
    """Alternating local and global layers as in Gemma 2, pre and post RMS norm, logit soft-capping; causal"""

    def __init__(self, dim=32, heads=4, depth=2, window=4, cap=30.0):
        super().__init__()
        self.h, self.cap, self.win = heads, cap, window
        self.qkv, self.o = (
            nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(depth)),
            nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth)),
        )
        self.n = nn.ModuleList(nn.RMSNorm(dim, eps=1e-5) for _ in range(2 * depth))

    def forward(self, x):
        i = torch.arange(x.size(1), device=x.device)
        for l in range(len(self.o)):
            q, k, v = [split(t, self.h) for t in self.qkv[l](self.n[2 * l](x)).chunk(3, -1)]
            s = q @ k.mT / math.sqrt(q.size(-1))
            s = self.cap * torch.tanh(s / self.cap)
            bad = i[None] > i[:, None]
            if l % 2 == 0:
                bad = bad | (i[:, None] - i[None] >= self.win)
            y = (s.masked_fill(bad, float("-inf")).softmax(-1) @ v).transpose(1, 2).flatten(2)
            x = x + self.n[2 * l + 1](self.o[l](y))
        return x


class ConvTransformer(nn.Module):
    """Conv1d projections over a (batch, channels, length) signal with a residual feed-forward made of 1x1 convolutions"""

    def __init__(self, channels=32, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v = [nn.Conv1d(channels, channels, 3, padding=1, groups=channels) for _ in range(3)]
        self.o, self.ff = (
            nn.Conv1d(channels, channels, 1),
            nn.Sequential(nn.Conv1d(channels, 64, 1), nn.GELU(), nn.Conv1d(64, channels, 1)),
        )
        self.n1, self.n2 = nn.LayerNorm(channels), nn.LayerNorm(channels)

    def forward(self, x):
        h = self.n1(x.mT).mT
        q, k, v = [f(h).unflatten(1, (self.h, -1)) for f in (self.q, self.k, self.v)]
        a = (q.mT @ k / math.sqrt(q.size(2))).softmax(-1)
        x = x + self.o((v @ a.mT).flatten(1, 2))
        return x + self.ff(self.n2(x.mT).mT)


class SwinGateless(Core):
    """Keys only self-gate: local window w on both sides, clamp of the scores at 50 for half precision. Bidirectional"""

    def forward(self, x, w=3):
        q, k, v = self.proj(x)
        i = torch.arange(x.size(1), device=x.device)
        s = (q @ k.mT / math.sqrt(self.d)).clamp(-50, 50)
        return self.join(s.masked_fill((i[:, None] - i).abs() > w, float("-inf")).softmax(-1) @ v)


class LearnedQueryScale(Core):
    """Per-dimension learned query scale (PaLM/Gemma style): softplus(s) / sqrt(d), s starts at softplus^-1(1). Bidirectional"""

    def __init__(self, dim=64, heads=4):
        super().__init__(dim, heads)
        self.s = nn.Parameter(torch.full((dim // heads,), math.log(math.e - 1)))

    def forward(self, x):
        q, k, v = self.proj(x)
        return self.join((q * F.softplus(self.s) / math.sqrt(self.d) @ k.mT).softmax(-1) @ v)


class NormalQKV(nn.Module):
    """GPT-2 initialization: weights N(0, 0.02), zero biases; causal attention in a pre-norm block with feed-forward"""

    def __init__(self, n_embd=64, n_head=4):
        super().__init__()
        self.h = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj, self.fc, self.proj = (
            nn.Linear(n_embd, 3 * n_embd),
            nn.Linear(n_embd, n_embd),
            nn.Linear(n_embd, 4 * n_embd),
            nn.Linear(4 * n_embd, n_embd),
        )
        for m in (self.c_attn, self.c_proj, self.fc, self.proj):
            nn.init.normal_(m.weight, std=0.02), nn.init.zeros_(m.bias)

    def forward(self, x):
        q, k, v = [split(t, self.h) for t in self.c_attn(self.ln_1(x)).chunk(3, -1)]
        x = x + self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x))))


class XavierAttention(nn.Module):
    """nn.Parameter weights with xavier init, einsum notation, per-head tensors (h, dim, d). Bidirectional"""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        d = dim // heads
        self.wq, self.wk, self.wv = [nn.Parameter(torch.randn(heads, dim, d) / math.sqrt(dim)) for _ in range(3)]
        self.wo = nn.Parameter(torch.randn(heads, d, dim) / math.sqrt(dim))

    def forward(self, x):
        q, k, v = [torch.einsum("bnc,hcd->bhnd", x, w) for w in (self.wq, self.wk, self.wv)]
        a = (torch.einsum("bhnd,bhmd->bhnm", q, k) * q.size(-1) ** -0.5).softmax(-1)
        return torch.einsum("bhnm,bhmd,hdc->bnc", a, v, self.wo)
