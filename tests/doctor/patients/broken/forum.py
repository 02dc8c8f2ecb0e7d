"""Two forum questions: a study of what each part of attention is worth, and shapes found by attention."""

import torch
import torch.nn.functional as F
from torch import nn


class SimpleAttention(nn.Module):
    def __init__(self, emb_size, head_size):
        super().__init__()
        self.emb_size = emb_size
        self.Q = nn.Linear(emb_size, head_size)
        self.K = nn.Linear(emb_size, head_size)
        self.V = nn.Linear(emb_size, head_size)
        self.linear = nn.Linear(head_size, head_size)

    def attend(self, x):
        scores = self.Q(x) @ self.K(x).transpose(1, 2) * self.emb_size ** (-1 / 2)
        seq_len = x.size(1)
        mask = torch.triu(torch.ones(seq_len, seq_len), diagonal=1).bool()
        return F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ self.V(x)

    def forward(self, x):
        return F.relu(self.linear(self.attend(x)))


class ResidualAttention(SimpleAttention):
    def forward(self, x):
        x = x + self.attend(x)
        return F.relu(self.linear(x))


class LayNormResAttention(SimpleAttention):
    def __init__(self, emb_size, head_size):
        super().__init__(emb_size, head_size)
        self.layer_norm = nn.LayerNorm(emb_size)

    def forward(self, x):
        x = self.layer_norm(x + self.attend(x))
        return F.relu(self.linear(x))


class TorchMhAttention(nn.Module):
    def __init__(self, emb_size, head_size, dropout=0.1):
        super().__init__()
        self.emb_size, self.head_size = emb_size, head_size
        self.multihead_attn = nn.MultiheadAttention(emb_size, num_heads=4, dropout=dropout)
        self.layer_norm = nn.LayerNorm(emb_size)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(emb_size, emb_size)

    def forward(self, x):
        x = x.transpose(0, 1)
        seq_len = x.size(0)
        mask = torch.triu(torch.ones(seq_len, seq_len), diagonal=1).bool().to(x.device)
        att_out, _ = self.multihead_attn(x, x, x, attn_mask=mask)
        x = self.layer_norm(x + att_out)
        x = F.relu(self.linear(x))
        return self.dropout(x).transpose(0, 1)


class AttentionLayer(nn.Module):
    def __init__(self, in_channels, out_channels, key_channels):
        super().__init__()
        self.conv_Q = nn.Conv1d(in_channels, key_channels, kernel_size=1, bias=False)
        self.conv_K = nn.Conv1d(in_channels, key_channels, kernel_size=1, bias=False)
        self.conv_V = nn.Conv1d(in_channels, out_channels, kernel_size=1, bias=False)

    def forward(self, x):  # [bs x in_channels x seq_len]
        Q, K, V = self.conv_Q(x), self.conv_K(x), self.conv_V(x)
        A = (Q.permute(0, 2, 1) @ K).softmax(2)  # [bs x seq_len x seq_len]
        return (A @ V.permute(0, 2, 1)).permute(0, 2, 1)  # [bs x out_channels x seq_len]


class LSTM(nn.Module):
    def __init__(self, dim_in, n_out, n_hidden, n_layers):
        super().__init__()
        a_in, b_in = dim_in  # input = [a_in, b_in]
        self.lstm = nn.LSTM(b_in, n_hidden, n_layers)
        self.h_o = nn.Linear(n_hidden, n_out)
        self.h = [torch.zeros(n_layers, a_in, n_hidden) for _ in range(2)]

    def forward(self, x):  # x = [bs, a_in, b_in]
        res, h = self.lstm(x, self.h)
        self.h = [state.detach() for state in h]
        return self.h_o(res)

    def reset(self):
        for state in self.h:
            state.zero_()
