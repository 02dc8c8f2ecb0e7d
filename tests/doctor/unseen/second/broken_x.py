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


def causal(x):
    n = x.size(1)
    return torch.ones(n, n, dtype=torch.bool, device=x.device).tril()


class SpanPool(Core):
    """Question answering head: query (batch, n, dim) against context (batch, m, dim); context_mask (batch, m), 1 = token, 0 = pad"""

    def forward(self, query, context, context_mask=None):
        q = split(self.qkv(query).chunk(3, -1)[0], self.h)
        k, v = [split(t, self.h) for t in self.qkv(context).chunk(3, -1)[1:]]
        s = q @ k.mT / math.sqrt(self.d)
        if context_mask is not None:
            s = s.masked_fill(context_mask[:, None, None] < 0, torch.finfo(s.dtype).min)
        return self.join(s.softmax(-1) @ v)


class CrossNorm(Core):
    """Cross attention of queries (batch, n, dim) over context (batch, m, dim)"""

    def forward(self, x, context):
        q = split(self.qkv(x).chunk(3, -1)[0], self.h)
        k, v = [split(t, self.h) for t in self.qkv(context).chunk(3, -1)[1:]]
        return self.join((q @ k.mT / math.sqrt(self.d)).softmax(-2) @ v)


class CrossSame(nn.Module):
    """Encoder-decoder attention. x: (batch, n, dim), memory: (batch, m, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn, self.norm = nn.MultiheadAttention(dim, 4, batch_first=True), nn.LayerNorm(dim)

    def forward(self, x, memory):
        return self.norm(x + self.attn(x, x, x, need_weights=False)[0])


class CrossBatch(nn.Module):
    """Cross attention for batch first tensors: tgt (batch, n, dim), memory (batch, m, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 4)

    def forward(self, tgt, memory):
        y, _ = self.attn(tgt, memory, memory)
        return tgt + y


class OneMinus(Core):
    """Focus attention: a softened complement of the attention map is used to weigh values, then normalized over the keys. (batch, seq, dim)"""

    def forward(self, x):
        q, k, v = self.proj(x)
        a = (q @ k.mT / math.sqrt(self.d)).softmax(-1)
        w = 1 - 0.5 * a
        return self.join(w / w.sum(-2, keepdim=True) @ v)


class WeightClamp(Core):
    """Causal attention; weights under a threshold are cut off and every row sums to one. (batch, seq, dim)"""

    def forward(self, x):
        q, k, v = self.proj(x)
        s = (q @ k.mT / math.sqrt(self.d)).masked_fill(~causal(x), float("-inf"))
        a = torch.relu(s.softmax(-1) - 0.05)
        return self.join(a @ v)


class PrefixLM(Core):
    """Decoder with a sliding cache of summaries: causal, queries see block means of earlier blocks and their own block up to themselves"""

    def forward(self, x, w=4):
        q, k, v = self.proj(x)
        n = x.size(1)
        i = torch.arange(n, device=x.device)
        km, vm = [F.avg_pool1d(t.flatten(0, 1).mT, w, w, ceil_mode=True).mT.unflatten(0, (-1, self.h)) for t in (k, v)]
        blocks = torch.arange(km.size(2), device=x.device)
        far = blocks[None] <= i[:, None] // w
        near = (i[None] <= i[:, None]) & (i[None] // w == i[:, None] // w)
        s = torch.cat((q @ km.mT, q @ k.mT), -1) / math.sqrt(self.d)
        s = s.masked_fill(~torch.cat((far, near), -1), float("-inf"))
        return self.join(s.softmax(-1) @ torch.cat((vm, v), 2))


class DownUp(nn.Module):
    """Causal U-shaped mixer: average pooling by 2, attention, upsampling, skip connection. Causal, (batch, seq, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)

    def forward(self, x):
        n = x.size(1)
        h = F.avg_pool1d(x.mT, 2, 2, ceil_mode=True).mT
        m = torch.ones(h.size(1), h.size(1), dtype=torch.bool, device=x.device).triu(1)
        y = self.attn(h, h, h, attn_mask=m, need_weights=False)[0].repeat_interleave(2, 1)[:, :n]
        return x + y


class BiLSTMDecoder(nn.Module):
    """Language model: LSTM layer and causal attention. tokens (batch, seq) -> logits"""

    def __init__(self, vocab_size=40, dim=32):
        super().__init__()
        self.emb, self.out = nn.Embedding(vocab_size, dim), nn.Linear(dim, vocab_size)
        self.rnn = nn.LSTM(dim, dim // 2, batch_first=True, bidirectional=True)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)

    def forward(self, tokens):
        h, _ = self.rnn(self.emb(tokens))
        m = torch.ones(h.size(1), h.size(1), dtype=torch.bool, device=h.device).triu(1)
        return self.out(h + self.attn(h, h, h, attn_mask=m, need_weights=False)[0])


class TokenModel(nn.Module):
    """Encoder from input_ids (batch, seq) with attention_mask (1 = token) to a sentence vector: mean of the hidden states over the tokens"""

    def __init__(self, vocab_size=40, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True)

    def forward(self, input_ids, attention_mask=None):
        pad = None if attention_mask is None else attention_mask == 0
        h = self.layer(self.emb(input_ids), src_key_padding_mask=pad)
        if attention_mask is None:
            return h.mean(1)
        return h.sum(1) / attention_mask.sum(1, keepdim=True).to(h.dtype)


class TiedNorms(nn.Module):
    """Encoder of two post-norm layers, (batch, seq, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn = nn.ModuleList(nn.MultiheadAttention(dim, 4, batch_first=True) for _ in range(2))
        self.ff = nn.ModuleList(nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(4))

    def forward(self, x):
        for i in range(2):
            x = self.norms[i](x + self.attn[i](x, x, x, need_weights=False)[0])
            x = self.norms[i](x + self.ff[i](x))
        return x


class DeadHeadSlice(Core):
    """Multi-head attention with one head per feature group; (batch, seq, dim), bidirectional"""

    def forward(self, x):
        q, k, v = self.proj(x)
        a = (q @ k.mT / math.sqrt(self.d)).softmax(-1)
        heads = [a[:, i] @ v[:, i] for i in range(self.h)]
        heads[-1] = heads[0]
        return self.o(torch.cat(heads, -1))


class SharedKV(nn.Module):
    """Self-attention with three separate projections for queries, keys and values, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        proj = nn.Linear(dim, dim)
        self.query, self.key, self.value, self.out = proj, proj, nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = [split(f(x), self.h) for f in (self.query, self.key, self.value)]
        return self.out(((q @ k.mT / math.sqrt(q.size(-1))).softmax(-1) @ v).transpose(1, 2).flatten(2))


class RopeConst(Core):
    """Causal attention with rotary embeddings, (batch, seq, dim)"""

    def rot(self, t):
        pos = torch.full((t.size(2),), t.size(2), device=t.device)
        f = pos[:, None] / 10000 ** (torch.arange(0, self.d, 2, device=t.device) / self.d)
        c, s = f.cos().to(t.dtype), f.sin().to(t.dtype)
        a, b = t.chunk(2, -1)
        return torch.cat((a * c - b * s, a * s + b * c), -1)

    def forward(self, x):
        q, k, v = self.proj(x)
        return self.join(F.scaled_dot_product_attention(self.rot(q), self.rot(k), v, is_causal=True))


class GlobalSeed(Core):
    """Sparse random attention: every query sees itself and random keys, (batch, seq, dim), bidirectional"""

    def forward(self, x):
        torch.manual_seed(0)
        q, k, v = self.proj(x)
        n = x.size(1)
        ok = (torch.rand(n, n, device=x.device) < 0.5) | torch.eye(n, dtype=torch.bool, device=x.device)
        return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=ok))


class CallCounter(Core):
    """Attention with a temperature that is annealed during training, (batch, seq, dim), bidirectional"""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.step = 0

    def forward(self, x):
        self.step += 1
        q, k, v = self.proj(x)
        return self.join((q @ k.mT / math.sqrt(self.d) / (1 + 1 / self.step)).softmax(-1) @ v)
