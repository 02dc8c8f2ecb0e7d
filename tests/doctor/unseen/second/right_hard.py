import math
from collections import namedtuple
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


class OnlineSoftmax(Core):
    """Exact causal attention computed block by block with a running maximum, as in FlashAttention"""

    def forward(self, x, block=4):
        q, k, v = [t.float() for t in self.proj(x)]
        n = x.size(1)
        i = torch.arange(n, device=x.device)
        m, l, y = q.new_full((*q.shape[:-1], 1), -1e30), q.new_zeros((*q.shape[:-1], 1)), torch.zeros_like(q)
        for a in range(0, n, block):
            s = q @ k[:, :, a : a + block].mT / math.sqrt(self.d)
            s = s.masked_fill(i[None, a : a + block] > i[:, None], float("-inf"))
            mn = torch.maximum(m, s.amax(-1, keepdim=True))
            p, r = torch.exp(s - mn), torch.exp(m - mn)
            l, y, m = l * r + p.sum(-1, keepdim=True), y * r + p @ v[:, :, a : a + block], mn
        return self.join((y / l).to(x.dtype))


class Reversible(nn.Module):
    """Reversible block (Reformer): two streams, y1 = x1 + attn(x2), y2 = x2 + ff(y1); the input is split on the features. Bidirectional"""

    def __init__(self, dim=32):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim // 2), nn.LayerNorm(dim // 2)
        self.attn = nn.MultiheadAttention(dim // 2, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim // 2, dim), nn.GELU(), nn.Linear(dim, dim // 2))

    def forward(self, x):
        a, b = x.chunk(2, -1)
        h = self.n1(b)
        a = a + self.attn(h, h, h, need_weights=False)[0]
        return torch.cat((a, b + self.ff(self.n2(a))), -1)


class GTrXLGate(nn.Module):
    """Gated transformer layer (GTrXL, output gate): x + sigmoid(W x - b) * f(norm(x)). Bidirectional"""

    def __init__(self, dim=32):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.g1, self.g2, self.b = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Parameter(torch.full((2, dim), 2.0))

    def forward(self, x):
        h = self.n1(x)
        x = x + torch.sigmoid(self.g1(x) - self.b[0]) * self.attn(h, h, h, need_weights=False)[0]
        return x + torch.sigmoid(self.g2(x) - self.b[1]) * self.ff(self.n2(x))


Output = namedtuple("Output", "last_hidden_state attentions")


class NamedOut(Core):
    """Bidirectional attention that returns a named tuple with the weights"""

    def forward(self, hidden_states):
        q, k, v = self.proj(hidden_states)
        a = (q @ k.mT / math.sqrt(self.d)).softmax(-1)
        return Output(self.join(a @ v), a)


class AnnotatedAttention(nn.Module):
    """The Annotated Transformer's multi-headed attention.

    query, key, value: (batch, seq, d_model). mask: (batch, 1, seq) or (batch, seq, seq), 0 where attention is forbidden.
    """

    def __init__(self, h=4, d_model=32, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))
        self.attn, self.dropout = None, nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        query, key, value = [
            lin(t).view(t.size(0), -1, self.h, self.d_k).transpose(1, 2)
            for lin, t in zip(self.linears, (query, key, value))
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        self.attn = scores.softmax(dim=-1)
        x = torch.matmul(self.dropout(self.attn), value)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(x.size(0), -1, self.h * self.d_k))


class TCN(nn.Module):
    """Temporal convolutional block, causal and dilated, (batch, time, dim)"""

    def __init__(self, dim=32, k=3, dilation=2):
        super().__init__()
        self.pad = (k - 1) * dilation
        self.c1, self.c2 = nn.Conv1d(dim, dim, k, dilation=dilation), nn.Conv1d(dim, dim, k, dilation=dilation)

    def forward(self, x):
        h = F.relu(self.c1(F.pad(x.transpose(1, 2), (self.pad, 0))))
        return x + self.c2(F.pad(h, (self.pad, 0))).transpose(1, 2)


class BlockLocal(Core):
    """Causal local attention: a query sees its own block and the one before, up to itself"""

    def forward(self, x, w=4):
        q, k, v = self.proj(x)
        i = torch.arange(x.size(1), device=x.device)
        ok = (i[None] <= i[:, None]) & (i[:, None] // w - i[None] // w <= 1)
        return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=ok))


class StackedPast(Core):
    """GPT-2 style causal attention; layer_past is one tensor with keys and values stacked; returns (a, present)"""

    def forward(self, x, layer_past=None):
        q, k, v = self.proj(x)
        if layer_past is not None:
            k, v = torch.cat((layer_past[0], k), -2), torch.cat((layer_past[1], v), -2)
        nd, ns = q.size(-2), k.size(-2)
        b = torch.ones(ns, ns, device=x.device, dtype=torch.bool).tril()[ns - nd : ns]
        s = (q @ k.mT / math.sqrt(self.d)).masked_fill(~b, torch.finfo(q.dtype).min)
        return self.join(s.softmax(-1) @ v), torch.stack((k, v))


class TopKScores(Core):
    """Explicit sparse transformer: only the k largest scores of a row survive, before the softmax. Bidirectional"""

    def forward(self, x, topk=4):
        q, k, v = self.proj(x)
        s = q @ k.mT / math.sqrt(self.d)
        th = s.topk(min(topk, s.size(-1)), -1).values[..., -1:]
        return self.join(s.masked_fill(s < th, float("-inf")).softmax(-1) @ v)


class LlamaBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.d = h, d // h
        self.n1, self.n2 = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.w1, self.w2, self.w3 = (
            nn.Linear(d, 2 * d, bias=False),
            nn.Linear(2 * d, d, bias=False),
            nn.Linear(d, 2 * d, bias=False),
        )

    def rot(self, t):
        f = torch.arange(t.size(2), device=t.device)[:, None] / 10000 ** (
            torch.arange(0, self.d, 2, device=t.device) / self.d
        )
        c, s = f.cos().to(t.dtype), f.sin().to(t.dtype)
        a, b = t.chunk(2, -1)
        return torch.cat((a * c - b * s, a * s + b * c), -1)

    def forward(self, x):
        q, k, v = [split(t, self.h) for t in self.qkv(self.n1(x)).chunk(3, -1)]
        x = x + self.o(
            F.scaled_dot_product_attention(self.rot(q), self.rot(k), v, is_causal=True).transpose(1, 2).flatten(2)
        )
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class TinyLlama(nn.Module):
    """tokens (batch, seq) -> logits; embeddings times sqrt(dim) as in Gemma, tied head, causal"""

    def __init__(self, vocab_size=64, dim=32, n_layers=2, n_heads=4):
        super().__init__()
        self.dim, self.tok = dim, nn.Embedding(vocab_size, dim)
        nn.init.normal_(self.tok.weight, std=0.02)
        self.layers, self.norm = (
            nn.ModuleList(LlamaBlock(dim, n_heads) for _ in range(n_layers)),
            nn.RMSNorm(dim, eps=1e-5),
        )

    def forward(self, tokens):
        x = self.tok(tokens) * math.sqrt(self.dim)
        for l in self.layers:
            x = l(x)
        return F.linear(self.norm(x), self.tok.weight)


class MiniBert(nn.Module):
    """input_ids (batch, seq), attention_mask 1 = token, token_type_ids 0 or 1 -> masked-language-model logits (batch, seq, vocab)"""

    def __init__(self, vocab_size=64, hidden_size=32):
        super().__init__()
        self.word, self.pos, self.typ = (
            nn.Embedding(vocab_size, hidden_size),
            nn.Embedding(128, hidden_size),
            nn.Embedding(2, hidden_size),
        )
        for e in (self.word, self.pos, self.typ):
            nn.init.normal_(e.weight, std=0.02)
        self.ln = nn.LayerNorm(hidden_size)
        self.enc = nn.ModuleList(
            nn.TransformerEncoderLayer(hidden_size, 4, 64, 0.1, "gelu", batch_first=True) for _ in range(2)
        )
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        x = self.ln(
            self.word(input_ids)
            + self.pos(torch.arange(input_ids.size(1), device=input_ids.device))
            + self.typ(token_type_ids)
        )
        pad = None if attention_mask is None else attention_mask == 0
        for l in self.enc:
            x = l(x, src_key_padding_mask=pad)
        return x @ self.word.weight.T + self.bias


class PooledKeys(Core):
    """MViT / PVT: keys and values pooled with stride 2, bidirectional"""

    def forward(self, x):
        q, k, v = self.proj(x)
        k, v = [F.avg_pool1d(t.flatten(0, 1).mT, 2, 2, ceil_mode=True).mT.unflatten(0, (-1, self.h)) for t in (k, v)]
        return self.join(F.scaled_dot_product_attention(q, k, v))


class EfficientAttention(Core):
    """Efficient attention (Shen et al.): queries normalized by a softmax over features, keys by a softmax over positions; linear cost. Bidirectional"""

    def forward(self, x):
        q, k, v = self.proj(x)
        return self.join(q.softmax(-1) @ (k.softmax(-2).mT @ v))


class XCA(Core):
    """Cross-covariance attention (XCiT): the attention map is between channels, d x d, with learned temperature. Bidirectional over tokens"""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, x):
        q, k, v = [t.mT.float() for t in self.proj(x)]
        a = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.temperature).softmax(-1)
        return self.join((a @ v).mT.to(x.dtype))


class Synthesizer(nn.Module):
    """Dense synthesizer, causal: scores come from each token alone, no keys. max_len is fixed, shorter inputs are cut"""

    def __init__(self, dim=32, max_len=64):
        super().__init__()
        self.w1, self.w2, self.v = nn.Linear(dim, dim), nn.Linear(dim, max_len), nn.Linear(dim, dim)

    def forward(self, x):
        n = x.size(1)
        s = self.w2(F.relu(self.w1(x)))[..., :n]
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        return s.softmax(-1) @ self.v(x)


class LightweightConv(nn.Module):
    """Lightweight convolution (Wu et al. 2019), causal: softmax-normalized depthwise kernels shared by head"""

    def __init__(self, dim=32, heads=4, k=5):
        super().__init__()
        self.h, self.k = heads, k
        self.w, self.inp, self.out = (
            nn.Parameter(torch.randn(heads, 1, k)),
            nn.Linear(dim, 2 * dim),
            nn.Linear(dim, dim),
        )

    def forward(self, x):
        b, n, c = x.shape
        y = F.glu(self.inp(x), -1).mT.reshape(-1, self.h, n)
        y = F.conv1d(F.pad(y, (self.k - 1, 0)), self.w.softmax(-1), groups=self.h)
        return self.out(y.reshape(b, c, n).mT)


class Sinkhorn(Core):
    """Sinkformer: attention made doubly stochastic by Sinkhorn iterations in log space, ending with the rows. Bidirectional"""

    def forward(self, x):
        q, k, v = self.proj(x)
        s = (q @ k.mT / math.sqrt(self.d)).float()
        for _ in range(3):
            s = s - s.logsumexp(-2, keepdim=True)
            s = s - s.logsumexp(-1, keepdim=True)
        return self.join(s.exp().to(v.dtype) @ v)


class MyMultiheadAttention(nn.Module):
    """Own version of torch.nn.MultiheadAttention with the same arguments. batch_first=False: (seq, batch, embed)."""

    def __init__(self, embed_dim, num_heads, batch_first=False):
        super().__init__()
        self.h, self.bf = num_heads, batch_first
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = [nn.Linear(embed_dim, embed_dim) for _ in range(4)]

    def forward(self, query, key, value, key_padding_mask=None):
        if not self.bf:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        q, k, v = split(self.q_proj(query), self.h), split(self.k_proj(key), self.h), split(self.v_proj(value), self.h)
        m = None if key_padding_mask is None else ~key_padding_mask[:, None, None]
        y = self.out_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=m).transpose(1, 2).flatten(2))
        return y if self.bf else y.transpose(0, 1)


class ExternalAttention(nn.Module):
    """External attention: tokens attend to S learned memory units; double normalization (softmax over tokens, then l1 over units). Bidirectional"""

    def __init__(self, dim=32, S=16):
        super().__init__()
        self.mk, self.mv = nn.Linear(dim, S, bias=False), nn.Linear(S, dim, bias=False)

    def forward(self, x):
        a = self.mk(x).softmax(1)
        return self.mv(a / (a.sum(2, keepdim=True) + 1e-4))


class DecoderOnlyNoPE(nn.Module):
    """Causal language model without any position information (NoPE). ids (batch, seq) -> logits"""

    def __init__(self, vocab_size=40, dim=32):
        super().__init__()
        self.emb, self.out = nn.Embedding(vocab_size, dim), nn.Linear(dim, vocab_size)
        self.l = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )

    def forward(self, ids):
        x, n = self.emb(ids), ids.size(1)
        m = torch.ones(n, n, dtype=torch.bool, device=ids.device).triu(1)
        for l in self.l:
            x = l(x, src_mask=m)
        return self.out(x)
