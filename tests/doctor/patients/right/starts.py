"""Models that start strangely, on purpose."""

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


class LogProbabilities(LanguageModel):
    """Causal language model, for nll_loss."""

    def forward(self, tokens):
        return F.log_softmax(self.head(self.hidden(tokens)), dim=-1)


class Probabilities(LanguageModel):
    """Causal language model: returns the probabilities of the next token, for sampling."""

    def forward(self, tokens):
        return self.head(self.hidden(tokens)).softmax(dim=-1)


class TiedLM(LanguageModel):
    """Causal language model, input and output tables shared and small."""

    def __init__(self, vocab_size=53, d_model=64, num_heads=4):
        super().__init__(vocab_size, d_model, num_heads)
        nn.init.normal_(self.emb.weight, std=0.02)
        self.head.weight = self.emb.weight


class ZeroHead(LanguageModel):
    """Causal language model that starts as a uniform guess."""

    def __init__(self, vocab_size=53, d_model=32, num_heads=4):
        super().__init__(vocab_size, d_model, num_heads)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


class SoftCapped(LanguageModel):
    """Causal language model, its logits capped softly at 30."""

    def forward(self, tokens):
        return 30 * torch.tanh(self.head(self.hidden(tokens)) / 30)


class FrequentTokens(LanguageModel):
    """Causal language model whose bias starts at the logarithm of how often each token occurs."""

    def __init__(self, vocab_size=53, d_model=32, num_heads=4):
        super().__init__(vocab_size, d_model, num_heads)
        with torch.no_grad():
            counts = 1 / torch.arange(1, vocab_size + 1)
            self.head.bias.copy_((counts / counts.sum()).log())


class UnitOutput(nn.Module):
    """Self-attention over (batch, length, d_model), its output of unit length as in a metric space."""

    def __init__(self, d_model=64, num_heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, num_heads, batch_first=True)

    def forward(self, x):
        return F.normalize(self.attn(x, x, x, need_weights=False)[0], dim=-1)
