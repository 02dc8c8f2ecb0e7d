import torch
import torch.nn as nn
import torch.nn.functional as F


def layer(d, h):
    return nn.TransformerEncoderLayer(d, h, 4 * d, 0.0, activation="gelu", batch_first=True, norm_first=True)


class TiedLM(nn.Module):
    """Causal language model with tied embeddings."""

    def __init__(self, vocab_size, n_embd=64, n_head=4, n_layer=2, block_size=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(layer(n_embd, n_head) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets=None):
        t = idx.size(1)
        x = self.wte(idx) + self.wpe(torch.arange(t, device=idx.device))
        m = torch.ones(t, t, dtype=torch.bool, device=idx.device).triu(1)
        for b in self.blocks:
            x = b(x, src_mask=m)
        logits = self.lm_head(self.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


class HotLM(nn.Module):
    """Causal language model."""

    def __init__(self, vocab_size, d_model=32, n_heads=2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab_size, d_model), nn.Parameter(torch.randn(64, d_model) * 0.02)
        self.block = layer(d_model, n_heads)
        self.ln, self.out = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size)
        self.temperature = 0.02

    def forward(self, tokens):
        t = tokens.size(1)
        m = torch.ones(t, t, dtype=torch.bool, device=tokens.device).triu(1)
        return self.out(self.ln(self.block(self.emb(tokens) + self.pos[:t], src_mask=m))) / self.temperature


class UnitInitLM(nn.Module):
    """Causal language model."""

    def __init__(self, vocab_size, d_model=48, n_heads=4):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab_size, d_model), nn.Embedding(64, d_model)
        self.block = layer(d_model, n_heads)
        self.ln, self.out = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size)
        nn.init.normal_(self.out.weight)

    def forward(self, tokens):
        t = tokens.size(1)
        m = torch.ones(t, t, dtype=torch.bool, device=tokens.device).triu(1)
        x = self.emb(tokens) + self.pos(torch.arange(t, device=tokens.device))
        return self.out(self.ln(self.block(x, src_mask=m)))


class ProbabilityLM(nn.Module):
    """Causal language model: tokens to logits."""

    def __init__(self, vocab_size, d_model=32, n_heads=2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab_size, d_model), nn.Embedding(64, d_model)
        self.block = layer(d_model, n_heads)
        self.ln, self.out = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        t = tokens.size(1)
        m = torch.ones(t, t, dtype=torch.bool, device=tokens.device).triu(1)
        x = self.emb(tokens) + self.pos(torch.arange(t, device=tokens.device))
        return self.out(self.ln(self.block(x, src_mask=m))).softmax(-1)


class SigmoidLM(nn.Module):
    """Causal language model: tokens to logits over the vocabulary."""

    def __init__(self, vocab_size, d_model=32, n_heads=2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab_size, d_model), nn.Embedding(64, d_model)
        self.block = layer(d_model, n_heads)
        self.ln, self.out = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        t = tokens.size(1)
        m = torch.ones(t, t, dtype=torch.bool, device=tokens.device).triu(1)
        x = self.emb(tokens) + self.pos(torch.arange(t, device=tokens.device))
        return torch.sigmoid(self.out(self.ln(self.block(x, src_mask=m))))


class LogProbOverTime(nn.Module):
    """Causal language model returning log-probabilities (batch, length, vocab)."""

    def __init__(self, vocab_size, d_model=32, n_heads=2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab_size, d_model), nn.Embedding(64, d_model)
        self.block = layer(d_model, n_heads)
        self.ln, self.out = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        t = tokens.size(1)
        m = torch.ones(t, t, dtype=torch.bool, device=tokens.device).triu(1)
        x = self.emb(tokens) + self.pos(torch.arange(t, device=tokens.device))
        return torch.log_softmax(self.out(self.ln(self.block(x, src_mask=m))), dim=1)
