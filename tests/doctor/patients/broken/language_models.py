"""Language models and their layers."""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn


class Sinusoids(nn.Module):
    def __init__(self, d_model, max_len=64):
        super().__init__()
        angle = torch.arange(max_len)[:, None] * torch.exp(torch.arange(0, d_model, 2) * (-math.log(1e4) / d_model))
        self.register_buffer("pe", torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1))

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class Decoder(nn.Module):
    """GPT-like: (batch, length) token ids -> logits over the next token."""

    def __init__(self, vocab_size=53, d_model=64, num_heads=4):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.positions = Sinusoids(d_model)
        self.norm = nn.LayerNorm(d_model)
        self.attn = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.out = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        n = tokens.size(1)
        x = self.positions(self.embedding(tokens))
        mask = torch.triu(torch.ones(n, n, device=tokens.device)).bool()
        h = self.norm(x)
        return self.out(x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0])


class BooleanMask(nn.Module):
    """Autoregressive attention, one head."""

    def __init__(self, d_in, d_out, context_length=64):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_in, d_out, bias=False) for _ in range(3))
        self.register_buffer("mask", torch.tril(torch.ones(context_length, context_length)).bool())

    def forward(self, x):
        n = x.shape[1]
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = queries @ keys.transpose(1, 2)
        scores = scores.masked_fill(self.mask[:n, :n], torch.finfo(scores.dtype).min)
        return torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1) @ values


class BigramMixer(nn.Module):
    """Language model that mixes the embedding of each token with that of its neighbour, then runs a GRU (causal)."""

    def __init__(self, vocab_size=53, emb_dim=64):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, emb_dim)
        self.mix = nn.Linear(2 * emb_dim, emb_dim)
        self.rnn = nn.GRU(emb_dim, emb_dim, batch_first=True)
        self.head = nn.Linear(emb_dim, vocab_size)

    def forward(self, idx):
        x = self.embed(idx)
        neighbour = F.pad(x[:, 1:], (0, 0, 0, 1))
        y, _ = self.rnn(torch.tanh(self.mix(torch.cat([x, neighbour], dim=-1))))
        return self.head(y)


class RecurrentLM(nn.Module):
    """Next-token model: embedding, recurrent layer, output. tokens: (batch, time)."""

    def __init__(self, vocab_size=53, dim=64):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.rnn = nn.LSTM(dim, dim // 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        """Return the logits of the next token; position t knows tokens up to t only (causal)."""
        return self.out(self.rnn(self.embed(tokens))[0])


class TrimmedConv(nn.Module):
    """Causal dilated convolution as in WaveNet; x: (batch, channels, time)."""

    def __init__(self, channels=64, kernel_size=3, dilation=2):
        super().__init__()
        self.reach = (kernel_size - 1) * dilation
        self.conv = nn.Conv1d(channels, channels, kernel_size, padding=self.reach, dilation=dilation)

    def forward(self, x):
        y = self.conv(x)
        return y[:, :, self.reach :]


class JointNormBlock(nn.Module):
    """Causal decoder block, pre-norm."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.gain, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.norm2 = nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        h = F.layer_norm(x, x.shape[1:]) * self.gain + self.bias
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.ff(self.norm2(x))


class CompressedMemory(nn.Module):
    """Causal attention to the last positions and to averages of chunks of the sequence (a compressed memory)."""

    def __init__(self, dim=64, window=4, chunk=4):
        super().__init__()
        self.window, self.chunk = window, chunk
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        n = x.size(1)
        q, k, v = self.q(x), self.k(x), self.v(x)
        step = torch.arange(n, device=x.device)
        near = (step[:, None] >= step) & (step[:, None] - step < self.window)  # (n, n)
        n_chunks = -(-n // self.chunk)
        member = (step // self.chunk == torch.arange(n_chunks, device=x.device)[:, None]).to(x.dtype)
        average = member / member.sum(-1, keepdim=True)  # (chunks, n)
        started = step[:, None] >= torch.arange(n_chunks, device=x.device) * self.chunk  # (n, chunks)
        k, v = torch.cat([k, average @ k], dim=1), torch.cat([v, average @ v], dim=1)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~torch.cat([near, started], dim=1), float("-inf"))
        return self.o(scores.softmax(-1) @ v)


class SymmetricWindow(nn.Module):
    """Local attention of a decoder: causal, at most `window` positions away."""

    def __init__(self, d_model, n_heads, window=4):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        step = torch.arange(x.size(1), device=x.device)
        allowed = (step[:, None] - step).abs() < self.window
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(y.transpose(1, 2).flatten(2))


class LayerDropLM(nn.Module):
    """Decoder-only language model with LayerDrop."""

    def __init__(self, vocab_size=53, d_model=64, nhead=4, num_layers=6, layerdrop=0.5):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab_size, d_model), Sinusoids(d_model)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d_model, nhead, 128, 0.0, batch_first=True, norm_first=True)
            for _ in range(num_layers)
        )
        self.out = nn.Linear(d_model, vocab_size)
        self.layerdrop = layerdrop

    def forward(self, tokens):
        x = self.positions(self.embed(tokens))
        n = tokens.size(1)
        mask = torch.ones(n, n, dtype=torch.bool, device=tokens.device).triu(1)
        for layer in self.layers:
            if random.random() >= self.layerdrop:
                x = layer(x, src_mask=mask)
        return self.out(x)


class ForgottenEncoding(nn.Module):
    """Bidirectional encoder of token ids with sinusoidal positions; (batch, length) -> (batch, length, d_model)."""

    def __init__(self, vocab_size=53, d_model=64, nhead=4):
        super().__init__()
        self.embed, self.pos_encoder = nn.Embedding(vocab_size, d_model), Sinusoids(d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 128, 0.1, batch_first=True)

    def forward(self, src):
        x = self.embed(src)
        self.pos_encoder(x)
        return self.layer(x)


class RoundedPositions(nn.Module):
    """Encoder of token ids (bidirectional) whose learned positions are relative to the length of the text."""

    def __init__(self, vocab_size=53, dim=64, heads=4, n_positions=32):
        super().__init__()
        self.embed, self.position = nn.Embedding(vocab_size, dim), nn.Embedding(n_positions, dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.n_positions = n_positions

    def forward(self, ids):
        n = ids.size(1)
        index = (torch.arange(n, device=ids.device) / n).long() * self.n_positions
        x = self.embed(ids) + self.position(index)
        return self.norm(x + self.attn(x, x, x, need_weights=False)[0])
