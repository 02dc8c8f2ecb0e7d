import math
import torch
from torch import nn


class DecoderCross(nn.Module):
    """Encoder-decoder attention. tgt (batch, n, dim), memory (batch, m, dim), memory_key_padding_mask (batch, m): True = padding"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn, self.norm = nn.MultiheadAttention(dim, 4, batch_first=True), nn.LayerNorm(dim)

    def forward(self, tgt, memory, memory_key_padding_mask=None):
        m = None if memory_key_padding_mask is None else ~memory_key_padding_mask
        return self.norm(tgt + self.attn(tgt, memory, memory, key_padding_mask=m, need_weights=False)[0])


class ContextReader(nn.Module):
    """Cross attention. x (batch, n, dim), context (batch, m, dim), context_mask (batch, m): 1 = real, 0 = padding"""

    def __init__(self, dim=32):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, context, context_mask=None):
        s = self.q(x) @ self.k(context).transpose(1, 2) / math.sqrt(x.size(-1))
        if context_mask is not None:
            s = s * context_mask[:, None].to(s.dtype)
        return s.softmax(-1) @ self.v(context)


class QKVMask(nn.Module):
    """Scaled dot-product attention with projections; q (b, n, d), k and v (b, m, d); mask (b, n, m): 1 where attention is allowed, 0 where it is not"""

    def __init__(self, d_model=32):
        super().__init__()
        self.wq, self.wk, self.wv = (
            nn.Linear(d_model, d_model),
            nn.Linear(d_model, d_model),
            nn.Linear(d_model, d_model),
        )

    def forward(self, q, k, v, mask=None):
        s = self.wq(q) @ self.wk(k).transpose(1, 2) / math.sqrt(q.size(-1))
        if mask is not None:
            s = s.masked_fill(mask.bool(), torch.finfo(s.dtype).min)
        return s.softmax(-1) @ self.wv(v)
