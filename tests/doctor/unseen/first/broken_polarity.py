import torch
import torch.nn as nn
import torch.nn.functional as F


class EncoderAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.p = num_heads, dropout
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(3))
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, key_padding_mask=None):
        split = lambda t: t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        q, k, v = split(self.q_proj(query)), split(self.k_proj(key)), split(self.v_proj(value))
        mask = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.p if self.training else 0.0)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class BertishAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.heads = num_attention_heads
        self.query, self.key, self.value, self.dense = (nn.Linear(hidden_size, hidden_size) for _ in range(4))

    def forward(self, hidden_states, attention_mask=None):
        b, n, d = hidden_states.shape
        q, k, v = (
            f(hidden_states).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        s = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
        if attention_mask is not None:
            s = s.masked_fill(attention_mask[:, None, None].bool(), torch.finfo(s.dtype).min)
        return self.dense((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class DocumentedMask(nn.Module):
    """Self-attention.

    Args:
        x: (batch, length, dim)
        mask: bool (batch, length), True marks padding, which is ignored.
    """

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * q.size(-1) ** -0.5
        if mask is not None:
            s = s.masked_fill(~mask[:, None, None], -1e4)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class PairMasked(nn.Module):
    """Attention with a mask over pairs.

    mask: (length, length), 1 where a query may look at a key, 0 where it may not.
    """

    def __init__(self, model_dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(model_dim, 3 * model_dim)
        self.proj = nn.Linear(model_dim, model_dim)

    def forward(self, x, mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * q.size(-1) ** -0.5
        if mask is not None:
            s = s.masked_fill(mask == 1, -1e4)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class WrappedEncoder(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward=96):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward, batch_first=True, norm_first=True)

    def forward(self, src, src_mask=None, src_key_padding_mask=None):
        if src_key_padding_mask is not None:
            src_key_padding_mask = ~src_key_padding_mask
        return self.layer(src, src_mask=src_mask, src_key_padding_mask=src_key_padding_mask)


class DropIn(nn.Module):
    """A drop-in for nn.MultiheadAttention.

    Parameters
    ----------
    attn_mask : bool Tensor (L, S), optional
        True where attending is not allowed, as in nn.MultiheadAttention.
    """

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, q, k, v, attn_mask=None):
        q, k, v = (
            f(t).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for f, t in ((self.wq, q), (self.wk, k), (self.wv, v))
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.wo(y.transpose(1, 2).flatten(2))
