"""Transformer blocks: skips and norms."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attn(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).softmax(-1)
        return self.out((w @ v).transpose(1, 2).reshape(b, n, d))


class FeedForward(nn.Sequential):
    def __init__(self, dim, hidden):
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))


class EncoderBlock(nn.Module):
    """Encoder block: self-attention and feed-forward, each normalized."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.attn, self.ff = Attn(dim, heads), FeedForward(dim, 4 * dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        x = self.norm1(self.attn(x))
        return self.norm2(self.ff(x))


class PreNormBlock(nn.Module):
    """Pre-norm Transformer block."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.attn, self.ff = Attn(dim, heads), FeedForward(dim, 4 * dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return self.ff(self.norm2(x))


class AddNormAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(dim), Attn(dim, heads)

    def forward(self, x):
        return x + self.attn(self.norm(x))


class TransformerBlock(nn.Module):
    """One block: attention, then feed-forward, with residual connections."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.attn = AddNormAttention(dim, heads)
        self.norm, self.ff = nn.LayerNorm(dim), FeedForward(dim, 2 * dim)

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.ff(self.norm(x))


class SkipAttention(nn.Module):
    """Causal attention with a residual connection, one head. Stacked six times as the blocks of a character model."""

    def __init__(self, emb_size, head_size):
        super().__init__()
        self.to_q = nn.Linear(emb_size, head_size)
        self.to_k = nn.Linear(emb_size, head_size)
        self.to_v = nn.Linear(emb_size, head_size)
        self.feed_forward = nn.Linear(head_size, head_size)

    def forward(self, x):
        n = x.size(1)
        scores = self.to_q(x) @ self.to_k(x).transpose(1, 2) / math.sqrt(self.to_q.out_features)
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        attended = scores.masked_fill(future, float("-inf")).softmax(-1) @ self.to_v(x)
        return F.relu(self.feed_forward(x + attended))


class ResidualBlock(nn.Module):
    """Transformer layer, pre-norm, residual around each sublayer."""

    def __init__(self, hidden_size, num_heads=4, dropout=0.1):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.attention = Attn(hidden_size, num_heads)
        self.mlp = FeedForward(hidden_size, 4 * hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states):
        hidden_states = self.attention(self.ln_1(hidden_states))
        residual = hidden_states
        hidden_states = residual + self.dropout(hidden_states)
        residual = hidden_states
        return residual + self.dropout(self.mlp(self.ln_2(hidden_states)))


class MultiplicativeBlock(nn.Module):
    """Transformer block with skip connections around attention and MLP."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.norm_attn, self.norm_mlp = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn, self.mlp = Attn(d_model, n_heads), FeedForward(d_model, 2 * d_model)

    def forward(self, x):
        x = x * self.attn(self.norm_attn(x))
        return x + self.mlp(self.norm_mlp(x))


class RectifiedBlock(nn.Module):
    """Encoder layer (attention, add, feed-forward, add)."""

    def __init__(self, d_model, nhead=4, dim_feedforward=128):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.mix = nn.Linear(d_model, d_model)
        self.ff = FeedForward(d_model, dim_feedforward)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x):
        h = self.norm1(x)
        x = F.gelu(self.mix(x + self.self_attn(h, h, h, need_weights=False)[0]))
        return x + self.ff(self.norm2(x))


class OneNormBlock(nn.Module):
    """Pre-norm block of a decoder (causal)."""

    def __init__(self, n_embd=64, n_head=4):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.n_head = n_head
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.ffwd = FeedForward(n_embd, 4 * n_embd)

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.attend(self.ln1(x))
        return x + self.ffwd(self.ln1(x))


class CalledNorm(nn.Module):
    """Transformer block, norm first."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn, self.ff = Attn(dim, heads), FeedForward(dim, 4 * dim)

    def forward(self, x):
        self.norm1(x)
        x = x + self.attn(x)
        return x + self.ff(self.norm2(x))


class NamedNorm(nn.Module):
    """Post-norm encoder layer, as in the original paper."""

    def __init__(self, d_model, nhead, dim_feedforward=128, dropout=0.1):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)
        self.ff = FeedForward(d_model, dim_feedforward)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, src):
        x = src + self.drop(self.attn(src, src, src, need_weights=False)[0])
        x = self.norm1(x)
        out = x + self.drop(self.ff(x))
        normed = self.norm2(out)  # noqa: F841
        return out


class FinalNormModel(nn.Module):
    """GPT: pre-norm blocks and a final layer norm before the head. tokens (B, T) -> logits (B, T, vocab)."""

    def __init__(self, vocab_size=53, n_embd=64, n_head=4, n_layer=2, block_size=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, 0.0, F.gelu, batch_first=True, norm_first=True)
            for _ in range(n_layer)
        )
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, tokens):
        T = tokens.size(1)
        x = self.wte(tokens) + self.wpe(torch.arange(T, device=tokens.device))
        future = torch.ones(T, T, dtype=torch.bool, device=tokens.device).triu(1)
        for block in self.blocks:
            x = block(x, src_mask=future)
        return self.lm_head(x)


class NormPerBlock(nn.Module):
    """Residual feed-forward block with RMS norm and attention (norm before each)."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.attn_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention, self.feed_forward = Attn(dim, heads), FeedForward(dim, 2 * dim)

    def forward(self, x):
        h = self.attn_norm(x)
        x = x + self.attention(x)
        h = self.ffn_norm(x)
        return x + self.feed_forward(h)
