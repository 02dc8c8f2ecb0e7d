"""Layers that are not batch first."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class SequenceFirst(nn.Module):
    """Self-attention for sequence-first tensors."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):  # x: (T, B, C)
        T, B, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(T, B * self.heads, C // self.heads).transpose(0, 1) for t in (q, k, v))
        w = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(C // self.heads), dim=-1)  # (B * heads, T, T)
        y = (w @ v).transpose(0, 1).reshape(T, B, C)
        return self.out(y)


class TorchSequenceFirst(nn.Module):
    """Post-norm encoder layer around nn.MultiheadAttention; src: (seq_len, batch, d_model)."""

    def __init__(self, d_model, nhead, dim_feedforward=128, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.linear1, self.linear2 = nn.Linear(d_model, dim_feedforward), nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, src_mask=None, src_key_padding_mask=None):
        attended = self.self_attn(
            src, src, src, attn_mask=src_mask, key_padding_mask=src_key_padding_mask, need_weights=False
        )[0]
        src = self.norm1(src + self.dropout(attended))
        return self.norm2(src + self.dropout(self.linear2(F.relu(self.linear1(src)))))


class TransposedInside(nn.Module):
    """Self-attention for (batch, length, embed_dim); turns its input for nn.MultiheadAttention, which is time first."""

    def __init__(self, embed_dim, num_heads, dropout=0.1):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout)

    def forward(self, x):
        x = x.transpose(0, 1)
        out, _ = self.attn(x, x, x)
        return out.transpose(0, 1)


class ChannelsFirst(nn.Module):
    """Attention with convolutions of width one; x: [batch, channels, length]."""

    def __init__(self, in_channels, key_channels=16):
        super().__init__()
        self.conv_q = nn.Conv1d(in_channels, key_channels, kernel_size=1, bias=False)
        self.conv_k = nn.Conv1d(in_channels, key_channels, kernel_size=1, bias=False)
        self.conv_v = nn.Conv1d(in_channels, in_channels, kernel_size=1, bias=False)

    def forward(self, x):
        q, k, v = self.conv_q(x), self.conv_k(x), self.conv_v(x)  # [batch, key_channels, length]
        a = (q.transpose(1, 2) @ k / math.sqrt(q.size(1))).softmax(dim=2)  # [batch, length, length]
        return (a @ v.transpose(1, 2)).transpose(1, 2)


class ConvStack(nn.Module):
    """Residual convolutions over [batch, channels, length] that see the whole of a short sequence."""

    def __init__(self, channels=64, kernel_size=5, layers=3):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel_size, padding="same", dilation=2**i) for i in range(layers)
        )

    def forward(self, x):
        for conv in self.convs:
            x = x + F.relu(conv(x))
        return x
