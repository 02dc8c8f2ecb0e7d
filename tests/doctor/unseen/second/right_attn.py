import math
import torch
from torch import nn
import torch.nn.functional as F


def split(t, h):
    return t.view(t.size(0), t.size(1), h, -1).transpose(1, 2)


def merge(t):
    return t.transpose(1, 2).flatten(2)


class Base(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def proj(self, x):
        return [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]


class Longformer(Base):
    """Sliding window of +-w tokens plus a global first token. Bidirectional, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4, w=3):
        super().__init__(dim, heads)
        self.w = w

    def forward(self, x):
        q, k, v = self.proj(x)
        i = torch.arange(x.size(1), device=x.device)
        ok = ((i[:, None] - i).abs() <= self.w) | (i[:, None] == 0) | (i[None] == 0)
        return self.o(merge(F.scaled_dot_product_attention(q, k, v, attn_mask=ok)))


class BigBird(Base):
    """Window, global and fixed random links (drawn once with an own generator). Bidirectional."""

    def __init__(self, dim=32, heads=4, max_len=128, r=2):
        super().__init__(dim, heads)
        g = torch.Generator().manual_seed(0)
        i = torch.arange(max_len)
        ok = ((i[:, None] - i).abs() <= 1) | (i[:, None] < 2) | (i[None] < 2)
        ok |= torch.rand(max_len, max_len, generator=g) < r / max_len
        self.register_buffer("ok", ok, persistent=False)

    def forward(self, x):
        n = x.size(1)
        q, k, v = self.proj(x)
        s = (q @ k.mT / math.sqrt(self.d)).masked_fill(~self.ok[:n, :n], float("-inf"))
        return self.o(merge(s.softmax(-1) @ v))


class CausalWindow(Base):
    """Causal banded attention: the last four positions, itself included."""

    def forward(self, x):
        q, k, v = self.proj(x)
        ok = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril().triu(-3)
        return self.o(merge(F.scaled_dot_product_attention(q, k, v, attn_mask=ok)))


class Alibi(Base):
    """Causal attention with ALiBi slopes"""

    def forward(self, x):
        q, k, v = self.proj(x)
        n = x.size(1)
        i = torch.arange(n, device=x.device)
        m = 2.0 ** (-8.0 * torch.arange(1, self.h + 1, device=x.device) / self.h)
        bias = -(m.view(-1, 1, 1) * (i[:, None] - i).to(m.dtype)).to(x.dtype)
        s = q @ k.mT / math.sqrt(self.d) + bias
        s = s.masked_fill(i[None] > i[:, None], float("-inf"))
        return self.o(merge(s.softmax(-1) @ v))


class RopeInterleaved(Base):
    """Rotary embedding, interleaved pairs as in GPT-J; causal"""

    def rot(self, t):
        f = torch.arange(t.size(2), device=t.device)[:, None] / 10000 ** (
            torch.arange(0, self.d, 2, device=t.device) / self.d
        )
        c, s = f.cos().to(t.dtype), f.sin().to(t.dtype)
        a, b = t[..., ::2], t[..., 1::2]
        return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)

    def forward(self, x):
        q, k, v = self.proj(x)
        return self.o(merge(F.scaled_dot_product_attention(self.rot(q), self.rot(k), v, is_causal=True)))


class RopePartial(Base):
    """Bidirectional; rotary embedding on the first half of every head only (GPT-NeoX, rotary_pct=0.5)"""

    def rot(self, t):
        r = self.d // 2
        f = torch.arange(t.size(2), device=t.device)[:, None] / 10000 ** (torch.arange(0, r, 2, device=t.device) / r)
        f = torch.cat((f, f), -1)
        a, rest = t[..., :r], t[..., r:]
        half = torch.cat((-a[..., r // 2 :], a[..., : r // 2]), -1)
        return torch.cat((a * f.cos().to(t.dtype) + half * f.sin().to(t.dtype), rest), -1)

    def forward(self, x):
        q, k, v = self.proj(x)
        return self.o(merge(F.scaled_dot_product_attention(self.rot(q), self.rot(k), v)))


class XPos(Base):
    """xPos: rotary with an exponential decay that depends on i - j; causal"""

    def rot(self, t, sign):
        p = torch.arange(t.size(2), device=t.device)[:, None].float()
        j = torch.arange(0, self.d, 2, device=t.device)
        f = p / 10000 ** (j / self.d)
        z = ((j + 0.4 * self.d) / (1.4 * self.d)) ** (sign * p / 512)
        c, s = (f.cos() * z).to(t.dtype), (f.sin() * z).to(t.dtype)
        a, b = t.chunk(2, -1)
        return torch.cat((a * c - b * s, a * s + b * c), -1)

    def forward(self, x):
        q, k, v = self.proj(x)
        return self.o(merge(F.scaled_dot_product_attention(self.rot(q, 1), self.rot(k, -1), v, is_causal=True)))


class T5Attention(nn.Module):
    """T5 self-attention: no division by sqrt(d), that is folded into the initialization; bucketed relative bias. Bidirectional"""

    def __init__(self, d_model=64, num_heads=4, buckets=16):
        super().__init__()
        self.h, self.nb = num_heads, buckets
        d_kv = d_model // num_heads
        self.q, self.k, self.v, self.o = [nn.Linear(d_model, d_model, bias=False) for _ in range(4)]
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        for m in (self.k, self.v, self.o):
            nn.init.normal_(m.weight, std=d_model**-0.5)
        self.relative_attention_bias = nn.Embedding(buckets, num_heads)

    def forward(self, hidden_states):
        i = torch.arange(hidden_states.size(1), device=hidden_states.device)
        rel = i[None] - i[:, None]
        half = self.nb // 2
        bucket = (rel > 0).long() * half + rel.abs().clamp(max=half - 1)
        bias = self.relative_attention_bias(bucket).permute(2, 0, 1)
        q, k, v = [split(f(hidden_states), self.h) for f in (self.q, self.k, self.v)]
        return self.o(merge((q @ k.mT + bias).softmax(-1) @ v))


class ShawAttention(Base):
    """Relative position representations on keys (Shaw et al. 2018), clipped at max_rel. Bidirectional"""

    def __init__(self, dim=32, heads=4, max_rel=8):
        super().__init__(dim, heads)
        self.m = max_rel
        self.rel_k = nn.Embedding(2 * max_rel + 1, dim // heads)
        nn.init.normal_(self.rel_k.weight, std=0.5)

    def forward(self, x):
        q, k, v = self.proj(x)
        i = torch.arange(x.size(1), device=x.device)
        r = self.rel_k((i[None] - i[:, None]).clamp(-self.m, self.m) + self.m)
        s = (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, r)) / math.sqrt(self.d)
        return self.o(merge(s.softmax(-1) @ v))


class TransformerXL(Base):
    """Transformer-XL relative attention with u and v biases and the shift trick; causal"""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.r = nn.Linear(dim, dim, bias=False)
        self.u, self.vb = (
            nn.Parameter(torch.randn(heads, dim // heads) * 0.1),
            nn.Parameter(torch.randn(heads, dim // heads) * 0.1),
        )
        self.register_buffer("inv", 1 / 10000 ** (torch.arange(0, dim, 2).float() / dim))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.proj(x)
        p = torch.arange(n - 1, -1, -1, device=x.device).float()[:, None] * self.inv.float()
        r = self.r(torch.cat((p.sin(), p.cos()), -1).to(x.dtype)).view(n, self.h, self.d).permute(1, 0, 2)
        ac = (q + self.u[:, None]) @ k.mT
        bd = (q + self.vb[:, None]) @ r.mT
        bd = F.pad(bd, (1, 0)).view(b, self.h, n + 1, n)[:, :, 1:].reshape(b, self.h, n, n)
        s = (ac + bd) / math.sqrt(self.d)
        s = s.masked_fill(torch.ones(n, n, device=x.device, dtype=torch.bool).triu(1), float("-inf"))
        return self.o(merge(s.softmax(-1) @ v))


class Disentangled(Base):
    """DeBERTa-like: content-content, content-position and position-content terms over sqrt(3 d). Bidirectional"""

    def __init__(self, dim=32, heads=4, k=8):
        super().__init__(dim, heads)
        self.k = k
        self.rel = nn.Parameter(torch.randn(2 * k, dim))
        self.pk, self.pq = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, kk, v = self.proj(x)
        i = torch.arange(x.size(1), device=x.device)
        idx = (i[:, None] - i[None]).clamp(-self.k, self.k - 1) + self.k
        pk, pq = self.pk(self.rel).view(-1, self.h, self.d)[idx], self.pq(self.rel).view(-1, self.h, self.d)[idx.T]
        s = q @ kk.mT + torch.einsum("bhid,ijhd->bhij", q, pk) + torch.einsum("bhjd,jihd->bhij", kk, pq)
        return self.o(merge((s / math.sqrt(3 * self.d)).softmax(-1) @ v))


class QKNorm(Base):
    """Cosine attention with a learned temperature per head, bidirectional"""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(heads, 1, 1)))

    def forward(self, x):
        q, k, v = self.proj(x)
        s = (
            F.normalize(q, dim=-1, eps=1e-4)
            @ F.normalize(k, dim=-1, eps=1e-4).mT
            * self.logit_scale.clamp(max=4.6).exp()
        )
        return self.o(merge(s.softmax(-1) @ v))


class SigmoidAttention(Base):
    """Sigmoid attention with bias -log n, causal; rows are not meant to sum to one"""

    def forward(self, x):
        q, k, v = self.proj(x)
        n = x.size(1)
        s = q @ k.mT / math.sqrt(self.d) - math.log(16.0)
        s = s.masked_fill(torch.ones(n, n, device=x.device, dtype=torch.bool).triu(1), float("-inf"))
        return self.o(merge(torch.sigmoid(s) @ v))


class QuietAttention(Base):
    """softmax-off-by-one (quiet attention): a zero logit that takes part in the denominator. Bidirectional"""

    def forward(self, x):
        q, k, v = self.proj(x)
        s = F.pad(q @ k.mT / math.sqrt(self.d), (1, 0))
        return self.o(merge(s.softmax(-1)[..., 1:] @ v))


class SparsemaxAttention(Base):
    """Attention with sparsemax instead of softmax. Bidirectional"""

    @staticmethod
    def sparsemax(z):
        z = z.float()
        z = z - z.amax(-1, keepdim=True)
        srt = z.sort(-1, descending=True)[0]
        cs = srt.cumsum(-1)
        k = torch.arange(1, z.size(-1) + 1, device=z.device)
        m = ((1 + k * srt) > cs).sum(-1, keepdim=True)
        tau = (cs.gather(-1, m - 1) - 1) / m
        return (z - tau).clamp(min=0)

    def forward(self, x):
        q, k, v = self.proj(x)
        return self.o(merge(self.sparsemax(q @ k.mT / math.sqrt(self.d)).to(v.dtype) @ v))


class TalkingHeads(Base):
    """Talking-heads attention: heads are mixed before and after the softmax"""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.pre, self.post = (
            nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads)),
            nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads)),
        )

    def forward(self, x):
        q, k, v = self.proj(x)
        s = torch.einsum("bhij,gh->bgij", q @ k.mT / math.sqrt(self.d), self.pre).softmax(-1)
        return self.o(merge(torch.einsum("bhij,gh->bgij", s, self.post) @ v))


class MQA(nn.Module):
    """Multi-query attention: one key/value head shared by all query heads. Causal"""

    def __init__(self, dim, n_head):
        super().__init__()
        self.h, self.d = n_head, dim // n_head
        self.wq, self.wkv, self.wo = (
            nn.Linear(dim, dim, bias=False),
            nn.Linear(dim, 2 * self.d, bias=False),
            nn.Linear(dim, dim, bias=False),
        )

    def forward(self, x):
        q = split(self.wq(x), self.h)
        k, v = self.wkv(x).unsqueeze(1).chunk(2, -1)
        n = x.size(1)
        s = torch.einsum("bhid,bojd->bhij", q, k) * self.d**-0.5
        s = s.masked_fill(torch.ones(n, n, device=x.device, dtype=torch.bool).triu(1), torch.finfo(s.dtype).min)
        return self.wo(merge(s.softmax(-1) @ v))


class GQA(nn.Module):
    """Grouped-query attention with n_kv_heads < n_heads, past_key_value cache; causal"""

    def __init__(self, hidden_size=32, n_heads=4, n_kv_heads=2):
        super().__init__()
        self.h, self.kv, self.d = n_heads, n_kv_heads, hidden_size // n_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj, self.v_proj = [nn.Linear(hidden_size, n_kv_heads * self.d, bias=False) for _ in range(2)]
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states, past_key_value=None, use_cache=False):
        q, k, v = (
            split(self.q_proj(hidden_states), self.h),
            split(self.k_proj(hidden_states), self.kv),
            split(self.v_proj(hidden_states), self.kv),
        )
        past = 0
        if past_key_value is not None:
            past = past_key_value[0].size(2)
            k, v = torch.cat((past_key_value[0], k), 2), torch.cat((past_key_value[1], v), 2)
        kk, vv = k.repeat_interleave(self.h // self.kv, 1), v.repeat_interleave(self.h // self.kv, 1)
        ok = torch.ones(q.size(2), k.size(2), device=q.device, dtype=torch.bool).tril(past)
        y = self.o_proj(merge(F.scaled_dot_product_attention(q, kk, vv, attn_mask=ok)))
        return (y, (k, v)) if use_cache else y


class MLA(nn.Module):
    """Latent attention: keys and values from a low-rank latent, decoupled rotary part shared by the heads. Causal"""

    def __init__(self, dim=64, heads=4, rank=32, rope_dim=8):
        super().__init__()
        self.h, self.d, self.r = heads, dim // heads, rope_dim
        self.q, self.qr = nn.Linear(dim, dim, bias=False), nn.Linear(dim, heads * rope_dim, bias=False)
        self.down, self.kr = nn.Linear(dim, rank, bias=False), nn.Linear(dim, rope_dim, bias=False)
        self.norm = nn.LayerNorm(rank)
        self.up, self.o = nn.Linear(rank, 2 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def rot(self, t):
        f = torch.arange(t.size(2), device=t.device)[:, None] / 10000 ** (
            torch.arange(0, self.r, 2, device=t.device) / self.r
        )
        c, s = f.cos().to(t.dtype), f.sin().to(t.dtype)
        a, b = t.chunk(2, -1)
        return torch.cat((a * c - b * s, a * s + b * c), -1)

    def forward(self, x):
        b, n, _ = x.shape
        k, v = [split(t, self.h) for t in self.up(self.norm(self.down(x))).chunk(2, -1)]
        q = torch.cat((split(self.q(x), self.h), self.rot(split(self.qr(x), self.h))), -1)
        k = torch.cat((k, self.rot(self.kr(x).unsqueeze(1)).expand(b, self.h, n, self.r)), -1)
        return self.o(merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class Differential(nn.Module):
    """Differential attention: the difference of two softmax maps with a learned lambda. Causal"""

    def __init__(self, embed_dim=32, num_heads=2, lambda_init=0.8):
        super().__init__()
        self.h, self.d, self.li = num_heads, embed_dim // num_heads // 2, lambda_init
        self.q, self.k, self.v, self.o = [nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(4)]
        self.lq, self.lk = nn.Parameter(torch.randn(2, self.d) * 0.1), nn.Parameter(torch.randn(2, self.d) * 0.1)
        self.norm = nn.RMSNorm(2 * self.d, eps=1e-5)

    def forward(self, x):
        b, n, _ = x.shape
        q, k = split(self.q(x), 2 * self.h), split(self.k(x), 2 * self.h)
        v = split(self.v(x), self.h)
        s = q @ k.mT / math.sqrt(self.d)
        a = (
            s.masked_fill(torch.ones(n, n, device=x.device, dtype=torch.bool).triu(1), float("-inf"))
            .softmax(-1)
            .view(b, self.h, 2, n, n)
        )
        l = (self.lq * self.lk).sum(-1).exp()
        lam = l[0] - l[1] + self.li
        y = self.norm((a[:, :, 0] - lam * a[:, :, 1]) @ v) * (1 - self.li)
        return self.o(merge(y))


class SharedQK(nn.Module):
    """Reformer-style attention with shared queries and keys (shared-QK, keys normalized to unit length, a token sees itself only if there is nothing else). Bidirectional"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.toqk, self.tov, self.o = [nn.Linear(dim, dim) for _ in range(3)]

    def forward(self, x):
        qk, v = split(self.toqk(x), self.h), split(self.tov(x), self.h)
        s = qk @ F.normalize(qk, dim=-1, eps=1e-4).mT
        s = s.masked_fill(torch.eye(x.size(1), dtype=torch.bool, device=x.device), -5e4)
        return self.o(merge(s.softmax(-1) @ v))


class Bahdanau(nn.Module):
    """Additive attention: query (batch, n, dim), keys (batch, m, dim), values (batch, m, dim)"""

    def __init__(self, dim=32, hidden=32):
        super().__init__()
        self.w, self.u, self.v = (
            nn.Linear(dim, hidden, bias=False),
            nn.Linear(dim, hidden),
            nn.Linear(hidden, 1, bias=False),
        )

    def forward(self, query, keys, values):
        s = self.v(torch.tanh(self.w(query)[:, :, None] + self.u(keys)[:, None])).squeeze(-1)
        return s.softmax(-1) @ values


class Axial(Base):
    """Axial attention over a square grid flattened to (batch, side * side, dim): rows, then columns. `side` is fixed."""

    def __init__(self, dim=32, heads=4, side=4):
        super().__init__(dim, heads)
        self.side = side

    def forward(self, x):
        b, n, c = x.shape
        assert n == self.side**2, f"expected {self.side**2} tokens"
        g = [t.view(b, self.h, self.side, self.side, self.d) for t in self.proj(x)]
        y = F.scaled_dot_product_attention(*g)
        z = F.scaled_dot_product_attention(*[t.transpose(2, 3) for t in g]).transpose(2, 3)
        return self.o(merge((y + z).reshape(b, self.h, n, self.d)))


class ShiftedWindow(Base):
    """Swin-like 1d: windows of size w on a sequence cyclically shifted by w // 2, borders masked. Bidirectional"""

    def __init__(self, dim=32, heads=4, w=4):
        super().__init__(dim, heads)
        self.w = w

    def forward(self, x):
        b, n, c = x.shape
        w, pad = self.w, (-x.size(1)) % self.w
        idx = torch.arange(n + pad, device=x.device).roll(-(w // 2))
        xs = F.pad(x, (0, 0, 0, pad))[:, idx]
        win = idx.view(-1, w)
        ok = ((win[:, :, None] - win[:, None]).abs() < w) & (win < n)[:, None]
        ok = ok | torch.eye(w, device=x.device, dtype=torch.bool)
        q, k, v = [t.view(b, -1, w, self.h, self.d).transpose(2, 3) for t in self.qkv(xs).chunk(3, -1)]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=ok[None, :, None])
        y = y.transpose(2, 3).reshape(b, n + pad, c)
        return self.o(y[:, idx.argsort()][:, :n])


class MemoryTokens(Base):
    """Persistent learned memory key/values (all-attention) next to the sequence; causal over the sequence"""

    def __init__(self, dim=32, heads=4, m=3):
        super().__init__(dim, heads)
        self.mk, self.mv = (
            nn.Parameter(torch.randn(1, heads, m, dim // heads) * 0.5),
            nn.Parameter(torch.randn(1, heads, m, dim // heads) * 0.5),
        )

    def forward(self, x):
        q, k, v = self.proj(x)
        b, n, m = x.size(0), x.size(1), self.mk.size(2)
        k, v = torch.cat((self.mk.expand(b, -1, -1, -1), k), 2), torch.cat((self.mv.expand(b, -1, -1, -1), v), 2)
        ok = torch.ones(n, n + m, device=x.device, dtype=torch.bool).tril(m)
        return self.o(merge(F.scaled_dot_product_attention(q, k, v, attn_mask=ok)))
