"""torch's own layers."""

import torch
from torch import nn


def multihead_batch_first():
    return nn.MultiheadAttention(64, 4, batch_first=True)


def multihead_sequence_first():
    return nn.MultiheadAttention(64, 4)


def multihead_dropout():
    return nn.MultiheadAttention(embed_dim=64, num_heads=8, dropout=0.1, bias=False, batch_first=True)


def encoder_layer():
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)


def encoder_layer_sequence_first():
    return nn.TransformerEncoderLayer(64, 4, 128, norm_first=True)


def encoder():
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(64), enable_nested_tensor=False)


def decoder_layer():
    return nn.TransformerDecoderLayer(64, 4, 128, batch_first=True)


class CausalEncoderLayer(nn.Module):
    """Causal Transformer layer: torch's encoder layer with the mask of the future."""

    def __init__(self, d_model=64, nhead=4):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 128, 0.1, batch_first=True, norm_first=True)

    def forward(self, x):
        n = x.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(n, device=x.device, dtype=x.dtype)
        return self.layer(x, src_mask=mask, is_causal=True)


class LSTMLayer(nn.Module):
    """Bidirectional LSTM over (batch, length, features)."""

    def __init__(self, input_size=64, hidden_size=32):
        super().__init__()
        self.lstm = nn.LSTM(input_size, hidden_size, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.lstm(x)[0]


class CrossAttention(nn.Module):
    """Attention of a decoder to the encoder's output, given as `memory` (batch, source length, dim)."""

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, x, memory, memory_key_padding_mask=None):
        return self.attn(x, memory, memory, key_padding_mask=memory_key_padding_mask)[0]


class LatentCross(nn.Module):
    """Perceiver-like pooling: learned latents attend to the sequence (batch, length, dim) -> (batch, dim)."""

    def __init__(self, dim=64, num_heads=4, n_latents=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(n_latents, dim) * 0.1)
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        latents = self.latents.expand(x.size(0), -1, -1)
        return self.out(self.attn(latents, x, x, need_weights=False)[0].mean(dim=1))
