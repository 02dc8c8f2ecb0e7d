"""Modules that look at a memory beside their input, or pool a sequence to a few vectors; all of them are right."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def attention(dim=32, heads=4):
    return nn.MultiheadAttention(dim, heads, batch_first=True)


class CrossLayer(nn.Module):
    """Encoder-decoder attention. tgt (batch, n, dim), memory (batch, m, dim).

    memory_key_padding_mask (batch, m): True = padding.
    """

    def __init__(self, dim=32):
        super().__init__()
        self.attn, self.norm = attention(dim), nn.LayerNorm(dim)

    def forward(self, tgt, memory, memory_key_padding_mask=None):
        attended = self.attn(tgt, memory, memory, key_padding_mask=memory_key_padding_mask, need_weights=False)[0]
        return self.norm(tgt + attended)


class DecoderLayer(nn.Module):
    """Transformer decoder layer, causal, post-norm; encoder_attention_mask (batch, m) is 1 for real encoder states."""

    def __init__(self, dim=32):
        super().__init__()
        self.own, self.cross = attention(dim), attention(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        self.n1, self.n2, self.n3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, encoder_hidden_states, encoder_attention_mask=None):
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        x = self.n1(x + self.own(x, x, x, attn_mask=future, need_weights=False)[0])
        e = encoder_hidden_states
        m = None if encoder_attention_mask is None else encoder_attention_mask == 0
        x = self.n2(x + self.cross(x, e, e, key_padding_mask=m, need_weights=False)[0])
        return self.n3(x + self.ff(x))


class RequiredMasks(nn.Module):
    """Decoder layer: src_mask (batch, m), 1 for what is real in the memory; tgt_mask (n, n), 1 = may attend."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.own, self.cross = attention(dim, heads), attention(dim, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))

    def forward(self, x, memory, src_mask, tgt_mask):
        h = self.norms[0](x)
        hidden = None if tgt_mask is None else tgt_mask == 0
        x = x + self.own(h, h, h, attn_mask=hidden, need_weights=False)[0]
        padded = None if src_mask is None else src_mask == 0
        x = x + self.cross(self.norms[1](x), memory, memory, key_padding_mask=padded, need_weights=False)[0]
        return x + self.ff(self.norms[2](x))


class PointerHead(nn.Module):
    """Pointer: decoder states (batch, n, dim) and encoder states (batch, m, dim) -> log-probabilities (batch, n, m)."""

    def __init__(self, dim=32):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, 1)

    def forward(self, decoder_states, encoder_states):
        joint = self.q(decoder_states)[:, :, None] + self.k(encoder_states)[:, None]
        return F.log_softmax(self.v(joint.tanh()).squeeze(-1), -1)


class AutoencoderDecoderBlock(nn.Module):
    """Decoder block of a masked autoencoder: full attention over all patches, (batch, patches, dim)."""

    def __init__(self, dim=32):
        super().__init__()
        self.attn, self.n1, self.n2 = attention(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class TokenMask(nn.Module):
    """input_ids (batch, seq), attention_mask 1 = token, token_type_ids 0 or 1 -> masked-language-model logits."""

    def __init__(self, vocab_size=64, dim=32):
        super().__init__()
        self.word, self.kind = nn.Embedding(vocab_size, dim), nn.Embedding(2, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.1, batch_first=True)
        self.out = nn.Linear(dim, vocab_size)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        kinds = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        padded = None if attention_mask is None else attention_mask == 0
        return self.out(self.layer(self.word(input_ids) + self.kind(kinds), src_key_padding_mask=padded))


class Latents(nn.Module):
    """Learned latents read a sequence (batch, length, dim); output (batch, n_latents, dim)."""

    def __init__(self, dim=32, n_latents=5):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(n_latents, dim))
        self.cross, self.norm, self.out = attention(dim), nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x):
        z = self.latents.expand(x.size(0), -1, -1)
        return self.out(self.norm(z + self.cross(z, x, x, need_weights=False)[0]))


class Seeds(nn.Module):
    """Pool a set by attention with seeds: x (batch, n, dim), mask (batch, n) True = real -> (batch, k, dim)."""

    def __init__(self, dim=32, k=2):
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(k, dim))
        self.kv, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        k, v = self.kv(x).chunk(2, -1)
        s = self.seeds @ k.mT / math.sqrt(x.size(-1))
        if mask is not None:
            s = s.masked_fill(~mask[:, None], torch.finfo(s.dtype).min)
        return self.out(s.softmax(-1) @ v)
