import torch
import torch.nn.functional as F
from torch import nn


class PaddedCausalAttention(nn.Module):
    """Causal attention with padding on either side. attention_mask: (batch, length), 1 = real."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, attention_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / q.size(-1) ** 0.5
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        if attention_mask is not None:
            s = s.masked_fill(attention_mask[:, None, None] == 0, float("-inf"))
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class BothSidesMasked(nn.Module):
    """Encoder attention. key_padding_mask: (batch, length), True = padding."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / q.size(-1) ** 0.5
        if key_padding_mask is not None:
            real = ~key_padding_mask
            s = s.masked_fill(~(real[:, None, :, None] & real[:, None, None, :]), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class ForgivingAttention(nn.Module):
    """Causal attention; key_padding_mask True = padding, which may come first. Empty rows give zeros."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / q.size(-1) ** 0.5
        hidden = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)[None]
        if key_padding_mask is not None:
            hidden = hidden | key_padding_mask[:, None]
        s = s + torch.zeros_like(hidden, dtype=x.dtype).masked_fill(hidden, float("-inf"))[:, None]
        w = s.softmax(-1).nan_to_num(0.0)
        return self.out((w @ v).transpose(1, 2).reshape(b, n, d))


class CausalLinearAttention(nn.Module):
    """Causal linear attention. attention_mask: (batch, length), 1 = real; padding may be left or right."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, attention_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if attention_mask is not None:
            k = k * attention_mask[:, None, :, None].to(k.dtype)
        kv = (k[..., :, None] * v[..., None, :]).cumsum(2)
        y = (q[..., None, :] @ kv).squeeze(-2) / (q * k.cumsum(2)).sum(-1, keepdim=True)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class StrictPast(nn.Module):
    """Causal attention to strictly earlier positions."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / q.size(-1) ** 0.5
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(0), float("-inf"))
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class OptionalContext(nn.Module):
    """Attention over pairs.

    mask: bool (batch, length, length), True = may attend. A row that may attend to nothing is allowed and gives zero.
    """

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / q.size(-1) ** 0.5
        if mask is not None:
            s = s.masked_fill(~mask[:, None], float("-inf"))
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))
