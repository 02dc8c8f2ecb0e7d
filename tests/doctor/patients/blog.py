"""The models of a blog post on attention: sequences of 100 numbers, (batch, 1, 100), every size the default one."""

import torch
from torch import nn


def convolutions(ks=5, stride=1):
    middle = [nn.Conv1d(64, 64, ks, stride, padding=ks // 2) for _ in range(3)]
    return nn.Sequential(
        nn.Conv1d(1, 64, ks, stride, padding=ks // 2),
        nn.ReLU(),
        *(step for layer in middle for step in (layer, nn.ReLU())),
        nn.Conv1d(64, 1, ks, stride, padding=ks // 2),
    )


class AttentionLayer(nn.Module):
    def __init__(self, in_channels, out_channels, key_channels):
        super().__init__()
        self.conv_Q = nn.Conv1d(in_channels, key_channels, kernel_size=1, bias=False)
        self.conv_K = nn.Conv1d(in_channels, key_channels, kernel_size=1, bias=False)
        self.conv_V = nn.Conv1d(in_channels, out_channels, kernel_size=1, bias=False)

    def forward(self, x):  # [bs x in_channels x seq_len]
        A = (self.conv_Q(x).permute(0, 2, 1) @ self.conv_K(x)).softmax(2)  # [bs x seq_len x seq_len]
        return (A @ self.conv_V(x).permute(0, 2, 1)).permute(0, 2, 1)  # [bs x out_channels x seq_len]


def convolutions_and_attention(ks=5, stride=1):
    layers = list(convolutions(ks, stride))
    layers[4] = AttentionLayer(in_channels=64, out_channels=64, key_channels=96)
    return nn.Sequential(*layers)


class LSTM(nn.Module):
    def __init__(self, dim_in=(1, 100), n_out=100, n_hidden=128, n_layers=1):
        super().__init__()
        a_in, b_in = dim_in  # input = [a_in, b_in], in our case [1, 100]
        self.lstm = nn.LSTM(b_in, n_hidden, n_layers)
        self.h_o = nn.Linear(n_hidden, n_out)
        self.h = [torch.zeros(n_layers, a_in, n_hidden) for _ in range(2)]

    def forward(self, x):  # x = [bs, 1, 100], e.g. 128 elements of [1, 100] data
        res, h = self.lstm(x, self.h)  # res = [bs, 1, n_hidden]
        self.h = [state.detach() for state in h]
        return self.h_o(res)

    def reset(self):
        for state in self.h:
            state.zero_()
