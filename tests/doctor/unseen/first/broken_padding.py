import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PaddedAttention(nn.Module):
    """x (batch, length, dim); key_padding_mask (batch, length), True = padding."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        if key_padding_mask is not None:
            y = y.masked_fill(key_padding_mask[..., None], 0.0)
        return y


class SentenceEncoder(nn.Module):
    """One vector per sequence: attention, then the mean. attention_mask (batch, length): 1 = token, 0 = padding."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)
        self.proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x, attention_mask):
        h = self.attn(x, x, x, key_padding_mask=attention_mask == 0, need_weights=False)[0]
        return self.proj(h.mean(dim=1))


class MaskedMeanEncoder(nn.Module):
    """One vector per sequence. attention_mask (batch, length): 1 = token, 0 = padding."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)
        self.proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x, attention_mask):
        h = self.attn(x, x, x, key_padding_mask=attention_mask == 0, need_weights=False)[0]
        h = h * attention_mask[..., None].to(h.dtype)
        return self.proj(h.sum(1) / h.size(1))


class LengthAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = [nn.Linear(d_model, d_model) for _ in range(4)]

    def forward(self, x, lengths):
        """x: (batch, length, d_model); lengths: (batch,) number of real positions."""
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.n_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        keep = torch.arange(n, device=x.device)[None] <= lengths[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])
        return self.o(y.transpose(1, 2).reshape(b, n, d))


class LongestAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = [nn.Linear(d_model, d_model) for _ in range(4)]

    def forward(self, x, lengths):
        """x: (batch, length, d_model); lengths: (batch,) number of real positions."""
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.n_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        keep = torch.arange(n, device=x.device) < lengths.max()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[None, None, None].expand(b, 1, 1, n))
        return self.o(y.transpose(1, 2).reshape(b, n, d))


class SharedMask(nn.Module):
    """Encoder attention; attention_mask is (batch, length) with ones for words."""

    def __init__(self, d_model: int, nhead: int):
        super().__init__()
        self.nhead = nhead
        self.to_q, self.to_k, self.to_v = (
            nn.Linear(d_model, d_model),
            nn.Linear(d_model, d_model),
            nn.Linear(d_model, d_model),
        )
        self.fc = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        b, n, d = x.shape
        h = self.nhead
        q, k, v = (t(x).reshape(b, n, h, d // h).transpose(1, 2) for t in (self.to_q, self.to_k, self.to_v))
        s = torch.einsum("bhqd,bhkd->bhqk", q, k) * (d // h) ** -0.5
        s = s.masked_fill(attention_mask[0] == 0, torch.finfo(s.dtype).min)
        return self.fc(torch.einsum("bhqk,bhkd->bqhd", s.softmax(-1), v).reshape(b, n, d))


class FromTheEnd(nn.Module):
    """Attention with learned positions. key_padding_mask: (batch, length), True for padding (at the end)."""

    def __init__(self, dim, heads, max_len=64):
        super().__init__()
        self.pos = nn.Parameter(torch.randn(max_len, dim))
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x, key_padding_mask=None):
        n = x.size(1)
        x = x + self.pos[torch.arange(n - 1, -1, -1, device=x.device)]
        return self.attn(x, x, x, key_padding_mask=key_padding_mask, need_weights=False)[0]


class SoftPadding(nn.Module):
    """Attention of an encoder. attention_mask: 1 for real tokens."""

    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.h = num_attention_heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in "qkv")
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        b, n, d = hidden_states.shape
        q, k, v = (f(hidden_states).view(b, n, self.h, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        s = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
        if attention_mask is not None:
            s = s + (1 - attention_mask.to(s.dtype))[:, None, None] * -8
        return (self.dense((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)),)


class MaxPoolClassifier(nn.Module):
    """Classify a padded token sequence; src_key_padding_mask True = padding. Returns (batch, n_classes)."""

    def __init__(self, vocab_size=50, d_model=32, nhead=4, n_classes=5):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.encoder = nn.TransformerEncoderLayer(d_model, nhead, 64, 0.1, batch_first=True)
        self.head = nn.Linear(d_model, n_classes)

    def forward(self, tokens, src_key_padding_mask=None):
        h = self.encoder(self.embed(tokens), src_key_padding_mask=src_key_padding_mask)
        return self.head(h.amax(1))


class PaddedConvAttention(nn.Module):
    """Attention and a local convolution. key_padding_mask (batch, length) True = padding."""

    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)

    def forward(self, x, key_padding_mask=None):
        a = self.attn(x, x, x, key_padding_mask=key_padding_mask, need_weights=False)[0]
        return a + self.conv(x.transpose(1, 2)).transpose(1, 2)
