import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SmallInit(nn.Module):
    """Bidirectional attention, weights drawn with a standard deviation of 0.02 as in GPT-2."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        for part in (self.qkv, self.proj):
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.proj(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class LastTokenClassifier(nn.Module):
    """Causal classifier over tokens; attention_mask (batch, length), 1 = token, padding on the right. -> (batch, classes)."""

    def __init__(self, vocab_size=50, d_model=32, nhead=4, num_classes=5):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 64, 0.0, batch_first=True)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, input_ids, attention_mask=None):
        n = input_ids.size(1)
        mask = torch.ones(n, n, dtype=torch.bool, device=input_ids.device).triu(1)
        pad = None if attention_mask is None else attention_mask == 0
        h = self.layer(self.embed(input_ids), src_mask=mask, src_key_padding_mask=pad)
        return self.head(h[:, -1])


class TrainingMask(nn.Module):
    """Causal attention."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / math.sqrt(q.size(-1))
        hidden = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        s = s.masked_fill(hidden, -8.0 if self.training else float("-inf"))
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class ShortBuffer(nn.Module):
    """Causal attention for any length."""

    def __init__(self, d_model, n_heads, context=8):
        super().__init__()
        self.n_heads, self.context = n_heads, context
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.register_buffer("hidden", torch.ones(context, context, dtype=torch.bool).triu(1))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / math.sqrt(q.size(-1))
        c = min(n, self.context)
        s[..., :c, :c] = s[..., :c, :c].masked_fill(self.hidden[:c, :c], float("-inf"))
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class FaintLeak(nn.Module):
    """Causal attention; a learned share of the mean is added."""

    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.share = nn.Parameter(torch.tensor(3e-4))

    def forward(self, x):
        n = x.size(1)
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        y = self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]
        return y + self.share * x.mean(1, keepdim=True)


class QueryOverwritten(nn.Module):
    """Multi-head attention (q, k, v) -> (output, weights)."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, q, k, v):
        b, n, d = q.shape
        split = lambda t: t.view(b, -1, self.n_heads, d // self.n_heads).transpose(1, 2)
        q, k, v = split(self.w_q(q)), split(self.w_q(k)), split(self.w_v(v))
        w = (q @ k.mT / math.sqrt(d // self.n_heads)).softmax(-1)
        return self.w_o((w @ v).transpose(1, 2).reshape(b, n, d)), w


class AccumulatedState(nn.Module):
    """Causal linear attention with a running state."""

    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.state = None

    def forward(self, x):
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        start = 0.0 if self.state is None or self.state.size(0) != x.size(0) else self.state
        kv = (k[..., :, None] * v[..., None, :]).cumsum(1) + start
        self.state = kv[:, -1:].detach()
        return (q[..., None, :] @ kv).squeeze(-2) / (q * k.cumsum(1)).sum(-1, keepdim=True)


class DoubleResidual(nn.Module):
    """Post-norm transformer layer with feed-forward."""

    def __init__(self, model_dim, num_heads, ffn_dim=128, dropout=0.0):
        super().__init__()
        self.attention = nn.MultiheadAttention(model_dim, num_heads, dropout, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(model_dim), nn.LayerNorm(model_dim)
        self.fc1, self.fc2 = nn.Linear(model_dim, ffn_dim), nn.Linear(ffn_dim, model_dim)

    def feed_forward(self, x):
        return x + self.fc2(F.relu(self.fc1(x)))

    def forward(self, x):
        x = self.norm1(x + self.attention(x, x, x, need_weights=False)[0])
        return self.norm2(x + self.feed_forward(x))


class GluedNorm(nn.Module):
    """Pre-norm encoder block."""

    def __init__(self, dim, heads):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.norms[0](x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.ff(self.norms[0](x))


class OffsetCache(nn.Module):
    """Causal attention with past_key_values = (k, v) and a learned distance bias."""

    def __init__(self, dim, heads, max_len=64):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.bias = nn.Parameter(torch.randn(heads, max_len))

    def forward(self, x, past_key_values=None, use_cache=True):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past_key_values is not None:
            k, v = torch.cat((past_key_values[0], k), 2), torch.cat((v, past_key_values[1]), 2)
        m = k.size(2)
        back = torch.arange(m - n, m, device=x.device)[:, None] - torch.arange(m, device=x.device)
        s = q @ k.mT / math.sqrt(q.size(-1)) + self.bias[:, back.clamp(min=0)]
        y = s.masked_fill(back < 0, float("-inf")).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, d)), (k, v) if use_cache else None


def make_encoder(width=64):
    """Return an encoder layer for inputs (batch, length, width)."""
    return nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0)


ready = FaintLeak(32, 4)
