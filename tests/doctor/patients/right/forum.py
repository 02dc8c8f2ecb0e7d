"""Two forum questions, their modules as they should be."""

import torch
import torch.nn.functional as F
from torch import nn


class NoAttentionAttention(nn.Module):
    def __init__(self, emb_size, head_size):
        super().__init__()
        self.linear = nn.Linear(emb_size, head_size)

    def forward(self, x):
        return F.relu(self.linear(x))


class SimpleAttention(nn.Module):
    """Causal attention, one head."""

    def __init__(self, emb_size, head_size):
        super().__init__()
        self.Q, self.K, self.V = (nn.Linear(emb_size, head_size) for _ in range(3))
        self.linear = nn.Linear(head_size, emb_size)

    def forward(self, x):
        seq_len = x.size(1)
        scores = self.Q(x) @ self.K(x).transpose(1, 2) * self.Q.out_features ** (-1 / 2)
        mask = torch.ones(seq_len, seq_len, device=x.device).triu(diagonal=1).bool()
        return self.linear(F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ self.V(x))


class ResidualAttention(nn.Module):
    """Block: causal attention and a feed-forward layer, each with a residual connection and layer norm before it."""

    def __init__(self, emb_size, head_size):
        super().__init__()
        self.attention = SimpleAttention(emb_size, head_size)
        self.norm1, self.norm2 = nn.LayerNorm(emb_size), nn.LayerNorm(emb_size)
        self.linear = nn.Linear(emb_size, emb_size)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + F.relu(self.linear(self.norm2(x)))


class AttentionLayer(nn.Module):
    def __init__(self, in_channels, out_channels, key_channels):
        super().__init__()
        self.conv_Q = nn.Conv1d(in_channels, key_channels, kernel_size=1, bias=False)
        self.conv_K = nn.Conv1d(in_channels, key_channels, kernel_size=1, bias=False)
        self.conv_V = nn.Conv1d(in_channels, out_channels, kernel_size=1, bias=False)

    def forward(self, x):  # [bs x in_channels x seq_len]
        Q, K, V = self.conv_Q(x), self.conv_K(x), self.conv_V(x)
        A = (Q.permute(0, 2, 1) @ K / Q.size(1) ** 0.5).softmax(2)  # [bs x seq_len x seq_len]
        return (A @ V.permute(0, 2, 1)).permute(0, 2, 1)  # [bs x out_channels x seq_len]


def cnn():
    """Five convolutions of width five: they see 21 positions."""
    layers = [nn.Conv1d(1, 16, 5, padding=2), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv1d(16, 16, 5, padding=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv1d(16, 1, 5, padding=2))


class LSTM(nn.Module):
    """An LSTM over x = [bs, seq_len, features]."""

    def __init__(self, b_in, n_out, n_hidden=32, n_layers=1):
        super().__init__()
        self.lstm = nn.LSTM(b_in, n_hidden, n_layers, batch_first=True)
        self.h_o = nn.Linear(n_hidden, n_out)

    def forward(self, x):
        return self.h_o(self.lstm(x)[0])
