import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class RecurrentAttention(nn.Module):
    """LSTM encoder followed by attention pooling over time. x: (batch, time, features) -> (batch, features)"""

    def __init__(self, input_dim=16, hidden_dim=16):
        super().__init__()
        self.lstm = nn.LSTM(input_dim, hidden_dim)
        self.score = nn.Linear(hidden_dim, 1)

    def forward(self, x):
        h, _ = self.lstm(x)
        w = torch.softmax(self.score(h), dim=1)
        return (w * h).sum(1)


class BNEncoderLayer(nn.Module):
    """Transformer encoder layer for time series, (batch, time, d_model)"""

    def __init__(self, d_model=32, nhead=4, dim_feedforward=64):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d_model, dim_feedforward), nn.GELU(), nn.Linear(dim_feedforward, d_model))
        self.norm1 = nn.BatchNorm1d(d_model)
        self.norm2 = nn.BatchNorm1d(d_model)

    def forward(self, src):
        src = src + self.self_attn(src, src, src, need_weights=False)[0]
        src = self.norm1(src.transpose(1, 2)).transpose(1, 2)
        src = src + self.ff(src)
        return self.norm2(src.transpose(1, 2)).transpose(1, 2)


class AttentionPool(nn.Module):
    """Kaggle attention head. Input: (batch_size, seq_len, hidden); output: (batch_size, hidden)."""

    def __init__(self, hidden_size=32):
        super().__init__()
        self.attention = nn.Sequential(nn.Linear(hidden_size, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, hidden):
        w = F.softmax(self.attention(hidden), dim=0)
        return torch.sum(w * hidden, dim=1)


class TextClassifier(nn.Module):
    """Sentiment classifier. input ids (batch, seq_len) -> logits (batch, num_classes)"""

    def __init__(self, vocab_size=100, d_model=32, nhead=4, num_classes=5):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, d_model)
        enc = nn.TransformerEncoderLayer(d_model, nhead, 64, dropout=0.0)
        self.encoder = nn.TransformerEncoder(enc, 2)
        self.fc = nn.Linear(d_model, num_classes)

    def forward(self, input_ids):
        x = self.encoder(self.emb(input_ids))
        return self.fc(x.mean(1))


class InputStandardizedAttention(nn.Module):
    """Bidirectional attention over standardized features, shape (batch, length, dim)."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        x = (x - x.mean()) / (x.std() + 1e-5)
        return self.attn(x, x, x, need_weights=False)[0]


class BmmAttention(nn.Module):
    """Multi-head attention with heads folded into the batch.

    x: (batch, seq, embed); key_padding_mask: (batch, seq), True = ignore
    """

    def __init__(self, embed_dim=32, num_heads=4):
        super().__init__()
        self.nh, self.dh = num_heads, embed_dim // num_heads
        self.q, self.k, self.v, self.o = [nn.Linear(embed_dim, embed_dim) for _ in range(4)]

    def fold(self, t):
        B, T, _ = t.shape
        return t.view(B, T, self.nh, self.dh).transpose(1, 2).reshape(B * self.nh, T, self.dh)

    def forward(self, x, key_padding_mask=None):
        B, T, E = x.shape
        q, k, v = self.fold(self.q(x)), self.fold(self.k(x)), self.fold(self.v(x))
        s = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.dh)
        if key_padding_mask is not None:
            s = s.masked_fill(key_padding_mask.repeat(self.nh, 1)[:, None, :], torch.finfo(s.dtype).min)
        o = torch.bmm(s.softmax(-1), v).view(B, self.nh, T, self.dh).transpose(1, 2)
        return self.o(o.reshape(B, T, E))


# ---------------------------------------------------------------- with masks


class MaskMulAttention(nn.Module):
    """Self attention. mask: (batch, seq), 1 for real tokens and 0 for padding."""

    def __init__(self, dim=32):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, mask):
        s = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.size(-1))
        s = s * mask[:, None, :].to(s.dtype)
        return torch.softmax(s, -1) @ self.v(x)


class SentenceEncoder(nn.Module):
    """Sentence embedding. x (batch, seq, dim), attention_mask (batch, seq) 1 = token, 0 = pad. Returns (batch, dim)."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, attention_mask):
        keep = attention_mask.bool()
        y = self.attn(x, x, x, key_padding_mask=~keep, need_weights=False)[0]
        y = self.norm(x + y)
        y = y * keep.unsqueeze(-1).to(y.dtype)
        return y.mean(dim=1)


class BertSelfAttention(nn.Module):
    """hidden_states (batch, seq, hidden); attention_mask (batch, seq): 1 keep, 0 pad"""

    def __init__(self, hidden_size=32, num_attention_heads=4):
        super().__init__()
        self.n, self.d = num_attention_heads, hidden_size // num_attention_heads
        self.query, self.key, self.value = [nn.Linear(hidden_size, hidden_size) for _ in range(3)]

    def split(self, t):
        return t.view(t.size(0), t.size(1), self.n, self.d).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (
            self.split(self.query(hidden_states)),
            self.split(self.key(hidden_states)),
            self.split(self.value(hidden_states)),
        )
        s = q @ k.transpose(-1, -2) / math.sqrt(self.d)
        if attention_mask is not None:
            s = s.masked_fill(attention_mask[:, None, :, None] == 0, torch.finfo(s.dtype).min)
        ctx = (s.softmax(-1) @ v).permute(0, 2, 1, 3)
        return ctx.reshape(hidden_states.shape)


class LengthAttention(nn.Module):
    """x: (batch, max_len, dim), lengths: (batch,) number of valid steps in each sample."""

    def __init__(self, dim=24):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.scale = dim**-0.5

    def forward(self, x, lengths):
        q, k, v = self.qkv(x).chunk(3, -1)
        s = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        valid = torch.arange(x.size(1), device=x.device)[None] <= lengths[:, None]
        s = s.masked_fill(~valid[:, None, :], float("-inf"))
        return s.softmax(-1) @ v


class EncoderStack(nn.Module):
    """Encoder, pre-norm. src_key_padding_mask: (batch, seq) bool, True at padding."""

    def __init__(self, d_model=32, nhead=4, num_layers=3):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(d_model, nhead, 64, 0.0, batch_first=True, norm_first=True)
                for _ in range(num_layers)
            ]
        )

    def forward(self, src, src_key_padding_mask=None):
        for i, layer in enumerate(self.layers):
            src = layer(src, src_key_padding_mask=src_key_padding_mask if i == 0 else None)
        return src


class ConvFrontAttention(nn.Module):
    """Speech encoder layer: conv module, then self-attention. x (batch, frames, dim); key_padding_mask True = padded frame."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, 5, padding=2)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x, key_padding_mask=None):
        h = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.attn(h, h, h, key_padding_mask=key_padding_mask, need_weights=False)[0]


class LinearAttention(nn.Module):
    """Non-causal linear attention. mask: (batch, seq) bool, True where the token is real."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.to_q, self.to_k, self.to_v, self.to_out = [nn.Linear(dim, dim) for _ in range(4)]

    def forward(self, x, mask=None):
        b, n, d = x.shape
        q, k, v = [f(x).view(b, n, self.h, -1).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v)]
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if mask is not None:
            v = v * mask[:, None, :, None].to(v.dtype)
        ctx = k.transpose(-1, -2) @ v
        den = (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True) + 1e-4
        return self.to_out((q @ ctx / den).transpose(1, 2).reshape(b, n, d))


class LastStepClassifier(nn.Module):
    """x (batch, time, dim) padded on the right; lengths (batch,). Logits from the final valid step."""

    def __init__(self, dim=32, num_classes=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.fc = nn.Linear(dim, num_classes)

    def forward(self, x, lengths):
        pad = torch.arange(x.size(1), device=x.device)[None, :] >= lengths[:, None]
        h = x + self.attn(x, x, x, key_padding_mask=pad, need_weights=False)[0]
        return self.fc(h[:, -1])


# ---------------------------------------------------------------- polarity


class KPMAttention(nn.Module):
    """Drop-in multi-head self-attention, input (batch, seq, embed)."""

    def __init__(self, embed_dim=32, num_heads=4):
        super().__init__()
        self.h = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, key_padding_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        m = key_padding_mask[:, None, None, :] if key_padding_mask is not None else None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=m)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class RobertaAttention(nn.Module):
    """Self-attention with Hugging Face style arguments. hidden_states: (batch, seq, hidden)"""

    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.mha = nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)

    def forward(self, hidden_states, attention_mask=None):
        pad = attention_mask.bool() if attention_mask is not None else None
        return self.mha(hidden_states, hidden_states, hidden_states, key_padding_mask=pad, need_weights=False)[0]


class TutorialAttention(nn.Module):
    """Scaled dot-product self-attention.

    Args:
        x: (batch, seq, d_model)
        mask: (batch, seq) boolean, True for tokens to keep, False for padding
    """

    def __init__(self, d_model=32):
        super().__init__()
        self.w_q, self.w_k, self.w_v = [nn.Linear(d_model, d_model) for _ in range(3)]

    def forward(self, x, mask=None):
        s = torch.einsum("bid,bjd->bij", self.w_q(x), self.w_k(x)) / math.sqrt(x.shape[-1])
        if mask is not None:
            s = s.masked_fill(mask.unsqueeze(1).bool(), torch.finfo(s.dtype).min)
        return torch.einsum("bij,bjd->bid", s.softmax(-1), self.w_v(x))


class PostEncoder(nn.Module):
    """Two layer encoder. src: (batch, seq, d_model)."""

    def __init__(self, d_model=32, nhead=4):
        super().__init__()
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d_model, nhead, 64, 0.0, batch_first=True), 2, enable_nested_tensor=False
        )

    def forward(self, src, src_key_padding_mask=None):
        if src_key_padding_mask is not None:
            src_key_padding_mask = torch.logical_not(src_key_padding_mask)
        return self.enc(src, src_key_padding_mask=src_key_padding_mask)


# ---------------------------------------------------------------- rows


class StrictPastAttention(nn.Module):
    """Causal attention to strictly earlier tokens (the current one is excluded). (batch, seq, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        n = x.size(1)
        s = self.q(x) @ self.k(x).transpose(-1, -2) / math.sqrt(x.size(-1))
        s = s.masked_fill(torch.ones(n, n, device=x.device, dtype=torch.bool).triu(0), float("-inf"))
        return s.softmax(-1) @ self.v(x)


class GenerationAttention(nn.Module):
    """Causal attention for batched generation; prompts are padded on the left.

    attention_mask: (batch, seq), 1 = token, 0 = pad.
    """

    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.h = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.o = nn.Linear(hidden_size, hidden_size)

    def forward(self, x, attention_mask=None):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        ok = torch.ones(t, t, device=x.device, dtype=torch.bool).tril()[None, None]
        if attention_mask is not None:
            ok = ok & attention_mask[:, None, None, :].bool()
        s = s.masked_fill(~ok, float("-inf"))
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class SafeCausalAttention(nn.Module):
    """Causal self-attention; attention_mask (batch, seq) with 1 = real and 0 = pad on either side."""

    def __init__(self, d_model=32):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x, attention_mask=None):
        t = x.size(1)
        s = self.q(x) @ self.k(x).transpose(1, 2) * x.size(-1) ** -0.5
        s = s + torch.full((t, t), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        if attention_mask is not None:
            s = s + torch.zeros_like(s).masked_fill(attention_mask[:, None] == 0, float("-inf"))
        return torch.nan_to_num(s.softmax(-1)) @ self.v(x)


class WindowEncoder(nn.Module):
    """Bidirectional attention in a window of +-w tokens. key_padding_mask: True = padding."""

    def __init__(self, dim=32, heads=4, w=2):
        super().__init__()
        self.w, self.h = w, heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        i = torch.arange(t, device=x.device)
        bad = ((i[:, None] - i).abs() > self.w)[None, None]
        if key_padding_mask is not None:
            bad = bad | key_padding_mask[:, None, None]
        s = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).masked_fill(bad, float("-inf"))
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
