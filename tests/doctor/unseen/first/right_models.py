import torch
import torch.nn as nn
import torch.nn.functional as F


class SmallGPT(nn.Module):
    """Causal language model with a fixed context: (idx, targets=None) -> (logits, loss)."""

    def __init__(self, vocab_size=65, n_embd=32, n_head=2, n_layer=2, block_size=16, dropout=0.1):
        super().__init__()
        self.block_size = block_size
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, dropout, "gelu", batch_first=True, norm_first=True)
            for _ in range(n_layer)
        )
        self.ln_f, self.lm_head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, idx, targets=None):
        t = idx.size(1)
        if t > self.block_size:
            raise ValueError(f"at most {self.block_size} tokens, got {t}")
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(t, device=idx.device)))
        mask = torch.ones(t, t, dtype=torch.bool, device=idx.device).triu(1)
        for block in self.h:
            x = block(x, src_mask=mask)
        logits = self.lm_head(self.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


class CachedGPT(nn.Module):
    """Causal language model: (input_ids, past_key_values=None, use_cache=False) -> (logits, past_key_values)."""

    def __init__(self, vocab_size=50, n_embd=32, n_head=2, n_positions=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(n_positions, n_embd)
        self.n_head = n_head
        self.ln, self.qkv, self.proj = nn.LayerNorm(n_embd), nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.ln_f, self.head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        b, n = input_ids.shape
        past = 0 if past_key_values is None else past_key_values[0].size(2)
        x = self.wte(input_ids) + self.wpe(torch.arange(past, past + n, device=input_ids.device))
        q, k, v = self.qkv(self.ln(x)).view(b, n, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        if past_key_values is not None:
            k, v = torch.cat((past_key_values[0], k), 2), torch.cat((past_key_values[1], v), 2)
        m = torch.ones(n, past + n, dtype=torch.bool, device=x.device).tril(past)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=m).transpose(1, 2).reshape(b, n, -1)
        logits = self.head(self.ln_f(x + self.proj(y)))
        return (logits, (k, v)) if use_cache else (logits, None)


class MaskedClassifier(nn.Module):
    """Classify padded tokens; attention_mask (batch, length), 1 = token; the mean runs over tokens alone."""

    def __init__(self, vocab_size=50, d_model=32, nhead=4, num_classes=6):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.encoder = nn.TransformerEncoderLayer(d_model, nhead, 64, 0.1, batch_first=True)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, input_ids, attention_mask=None):
        pad = None if attention_mask is None else attention_mask == 0
        h = self.encoder(self.embed(input_ids), src_key_padding_mask=pad)
        if attention_mask is None:
            return self.head(h.mean(1))
        m = attention_mask.to(h.dtype).unsqueeze(-1)
        return self.head((h * m).sum(1) / m.sum(1).clamp(min=1))


class ClsPooling(nn.Module):
    """One vector per sequence: a learned query attends to (batch, length, dim). key_padding_mask True = padding."""

    def __init__(self, dim, heads):
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, dim) * 0.5)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x, key_padding_mask=None):
        q = self.query.expand(x.size(0), -1, -1)
        return self.attn(q, x, x, key_padding_mask=key_padding_mask, need_weights=False)[0][:, 0]


class ScoredPooling(nn.Module):
    """Attention pooling with one score per position, (batch, length, dim) -> (batch, dim)."""

    def __init__(self, hidden_size):
        super().__init__()
        self.score = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.Tanh(), nn.Linear(hidden_size, 1, bias=False)
        )
        self.value = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        w = torch.softmax(self.score(x), dim=1)  # (batch, length, 1), over the length
        return (w * self.value(x)).sum(1)


class PlainEncoderLM(nn.Module):
    """Bidirectional encoder from tokens to logits, without positions on purpose."""

    def __init__(self, vocab_size=40, dim=32, heads=2):
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        self.layer = nn.TransformerEncoderLayer(dim, heads, 64, 0.0, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        return self.head(self.norm(self.layer(self.token(tokens))))


class SeqFirstEncoder(nn.Module):
    """Encoder over tokens (length, batch), as in the tutorial on language modelling; logits (length, batch, vocab).

    Causal.
    """

    def __init__(self, ntoken=40, d_model=32, nhead=2, max_len=100):
        super().__init__()
        self.embedding = nn.Embedding(ntoken, d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 64, 0.1, norm_first=True)
        self.norm, self.linear = nn.LayerNorm(d_model), nn.Linear(d_model, ntoken)
        angle = torch.arange(max_len).unsqueeze(1) / 10000 ** (torch.arange(0, d_model, 2) / d_model)
        self.register_buffer("pe", torch.stack((angle.sin(), angle.cos()), -1).flatten(1).unsqueeze(1))

    def forward(self, src):
        n = src.size(0)
        x = self.embedding(src) + self.pe[:n]
        mask = torch.ones(n, n, dtype=torch.bool, device=src.device).triu(1)
        return self.linear(self.norm(self.layer(x, src_mask=mask)))


class WordTagger(nn.Module):
    """Bidirectional LSTM tagger: tokens to tag scores, d_out differs from the vocabulary."""

    def __init__(self, vocab_size=30, embed_dim=24, hidden_dim=20, n_tags=7):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, embed_dim)
        self.lstm = nn.LSTM(embed_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden_dim, n_tags)

    def forward(self, tokens):
        return self.out(self.lstm(self.embed(tokens))[0])


def small_gpt(n_layer=1):
    """Return a causal language model of one layer over 30 tokens."""
    return SmallGPT(vocab_size=30, n_layer=n_layer, block_size=32, dropout=0.0)
