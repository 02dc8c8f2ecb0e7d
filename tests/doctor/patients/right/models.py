"""Models from tokens to logits or labels, and encoders of embedded sequences."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, dim, heads, causal, dropout=0.0):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=p)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """A small GPT; returns (logits, loss), loss is None without targets."""

    def __init__(self, vocab_size=53, n_embd=64, n_head=4, n_layer=2, block_size=64, dropout=0.1):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(Layer(n_embd, n_head, causal=True, dropout=dropout) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx, targets=None):
        T = idx.size(1)
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(T, device=idx.device)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


def sinusoids(length, dim):
    angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    table = torch.zeros(length, dim)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table


class SinusoidalLM(nn.Module):
    """Decoder-only language model with sinusoidal positions."""

    def __init__(self, vocab_size=53, d_model=64, n_heads=4, n_layers=2, max_len=128):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.register_buffer("pe", sinusoids(max_len, d_model), persistent=False)
        layer = nn.TransformerEncoderLayer(d_model, n_heads, 2 * d_model, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.out = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        n = tokens.size(1)
        x = self.embed(tokens) + self.pe[:n]
        future = torch.ones(n, n, dtype=torch.bool, device=tokens.device).triu(1)
        return self.out(self.encoder(x, mask=future))


class MaskedLM(nn.Module):
    """BERT in small: bidirectional; attention_mask: 1 = keep, 0 = padding."""

    def __init__(self, vocab_size=53, hidden_size=64, num_attention_heads=4, max_position_embeddings=64):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden_size)
        self.position_embeddings = nn.Embedding(max_position_embeddings, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(hidden_size, num_attention_heads, 128, 0.1, "gelu", batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(hidden_size, vocab_size)

    def forward(self, input_ids, attention_mask=None):
        where = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.norm(self.word_embeddings(input_ids) + self.position_embeddings(where))
        ignore = None if attention_mask is None else attention_mask == 0
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=ignore)
        return self.head(x)


class SharedLayers(nn.Module):
    """Encoder in the manner of ALBERT: one layer, its weights shared by all num_layers passes on purpose."""

    def __init__(self, d_model=64, nhead=4, num_layers=3):
        super().__init__()
        self.layer = Layer(d_model, nhead, causal=False)
        self.num_layers = num_layers
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x):
        for _ in range(self.num_layers):
            x = self.layer(x)
        return self.norm(x)


class UniversalTransformer(nn.Module):
    """Universal Transformer: the same block is applied again and again (shared weights), with a step embedding."""

    def __init__(self, dim=64, heads=4, steps=3):
        super().__init__()
        self.block = Layer(dim, heads, causal=False)
        self.step_embedding = nn.Parameter(torch.randn(steps, dim) * 0.02)

    def forward(self, x):
        for step in self.step_embedding:
            x = self.block(x + step)
        return x


class VisionTransformer(nn.Module):
    """ViT head on embedded patches (batch, patches, dim): class token, learned positions, two layers -> classes."""

    def __init__(self, dim=64, num_heads=4, depth=2, num_classes=10, max_patches=64):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, max_patches + 1, dim))
        self.blocks = nn.ModuleList(Layer(dim, num_heads, causal=False) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, num_classes)

    def forward(self, x):
        x = torch.cat([self.cls_token.expand(x.size(0), -1, -1), x], dim=1)
        x = x + self.pos_embed[:, : x.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


class Registers(nn.Module):
    """Encoder layer with register tokens that are put in front and taken away again."""

    def __init__(self, d_model=64, n_heads=4, n_registers=3):
        super().__init__()
        self.registers = nn.Parameter(torch.randn(n_registers, d_model) * 0.02)
        self.layer = Layer(d_model, n_heads, causal=False)

    def forward(self, x):
        registers = self.registers.expand(x.size(0), -1, -1)
        return self.layer(torch.cat([registers, x], dim=1))[:, registers.size(1) :]


class LSTMLanguageModel(nn.Module):
    """Recurrent language model: (batch, length) tokens -> (batch, length, vocab) logits; causal by construction."""

    def __init__(self, vocab_size=53, emb_dim=64, hidden_size=64):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim)
        self.lstm = nn.LSTM(emb_dim, hidden_size, batch_first=True)
        self.fc = nn.Linear(hidden_size, vocab_size)

    def forward(self, tokens):
        out, _ = self.lstm(self.embedding(tokens))
        return self.fc(out)


class FirstTokenClassifier(nn.Module):
    """Token classifier without positions: the first token's output is classified; src_key_padding_mask: True = padding.

    The padding stands on the right.
    """

    def __init__(self, vocab_size=53, d_model=64, nhead=4, num_labels=4):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.encoder = nn.TransformerEncoderLayer(d_model, nhead, 128, 0.1, batch_first=True, norm_first=True)
        self.head = nn.Sequential(nn.Linear(d_model, d_model), nn.Tanh(), nn.Linear(d_model, num_labels))

    def forward(self, src, src_key_padding_mask=None):
        return self.head(self.encoder(self.embed(src), src_key_padding_mask=src_key_padding_mask)[:, 0])
