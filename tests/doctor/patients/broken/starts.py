"""Models that start wrong, or cannot learn at all."""

import torch
import torch.nn.functional as F
from torch import nn


class Mixer(nn.Module):
    """Causal attention with a residual connection."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(d_model)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3).unbind(2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


class LanguageModel(nn.Module):
    """Causal language model: (batch, length) token ids -> logits."""

    def __init__(self, vocab_size=53, d_model=32, num_heads=4):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, d_model)
        self.mixer = Mixer(d_model, num_heads)
        self.head = nn.Linear(d_model, vocab_size)

    def hidden(self, tokens):
        return self.mixer(self.emb(tokens))

    def forward(self, tokens):
        return self.head(self.hidden(tokens))


class SoftmaxedLM(LanguageModel):
    """Causal language model."""

    def forward(self, tokens):
        return self.head(self.hidden(tokens)).softmax(dim=-1)


class SigmoidLM(LanguageModel):
    """Causal language model: one score per token of the vocabulary."""

    def forward(self, tokens):
        return torch.sigmoid(self.head(self.hidden(tokens)))


class TiedLM(LanguageModel):
    """Causal language model, input and output tables shared."""

    def __init__(self, vocab_size=53, d_model=256, num_heads=4):
        super().__init__(vocab_size, d_model, num_heads)
        self.head.weight = self.emb.weight

    def hidden(self, tokens):
        return self.mixer(self.emb(tokens) * self.emb.embedding_dim**0.5)


class RectifiedLM(LanguageModel):
    """Causal language model."""

    def __init__(self, vocab_size=53, d_model=32, num_heads=4):
        super().__init__(vocab_size, d_model, num_heads)
        nn.init.constant_(self.head.bias, -20.0)

    def forward(self, tokens):
        return F.relu(self.head(self.hidden(tokens)))


class DetachedLM(LanguageModel):
    """Causal language model."""

    def forward(self, tokens):
        return self.head(self.hidden(tokens)).detach()


class RoundedLM(LanguageModel):
    """Causal language model, its logits rounded to a grid."""

    def forward(self, tokens):
        return (self.head(self.hidden(tokens)) * 8).round() / 8


class InPlaceLM(LanguageModel):
    """Causal language model."""

    def forward(self, tokens):
        x = self.hidden(tokens)
        gate = torch.sigmoid(x)
        y = gate * x
        gate *= 0.5
        return self.head(y)


class NormedToNothing(nn.Module):
    """Self-attention over (batch, length, d_model), scored by one number per position."""

    def __init__(self, d_model=64, num_heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.score = nn.Linear(d_model, 1)
        self.norm = nn.LayerNorm(1)

    def forward(self, x):
        return self.norm(self.score(self.attn(x, x, x, need_weights=False)[0]))
