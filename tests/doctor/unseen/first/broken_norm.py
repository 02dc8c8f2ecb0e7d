import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim=64, heads=4, mlp_ratio=2):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * mlp_ratio), nn.GELU(), nn.Linear(dim * mlp_ratio, dim))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(x)


class PostNormLayer(nn.Module):
    """Post-norm encoder layer."""

    def __init__(self, d_model, nhead, dim_feedforward=128):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(d_model, dim_feedforward), nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, src):
        src = src + self.self_attn(src, src, src, need_weights=False)[0]
        self.norm1(src)
        src = src + self.linear2(F.relu(self.linear1(src)))
        return self.norm2(src)


class PlainNormBlock(nn.Module):
    """Pre-norm block; norms without gain."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(width, elementwise_affine=False)
        self.ln2 = nn.LayerNorm(width, elementwise_affine=False)
        self.attn = nn.MultiheadAttention(width, n_heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        h = self.ln1(x)
        h = self.attn(x, x, x, need_weights=False)[0]
        x = x + h
        h = self.ln2(x)
        return x + self.mlp(h)


class NormedLM(nn.Module):
    def __init__(self, vocab_size, hidden_size=32, num_layers=2, max_len=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, hidden_size), nn.Embedding(max_len, hidden_size)
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(hidden_size, 2, 64, 0.0, batch_first=True, norm_first=True)
            for _ in range(num_layers)
        )
        self.ln_f = nn.LayerNorm(hidden_size)
        self.lm_head = nn.Linear(hidden_size, vocab_size)

    def forward(self, input_ids):
        n = input_ids.size(1)
        x = self.wte(input_ids) + self.wpe.weight[:n]
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        for layer in self.h:
            x = layer(x, src_mask=mask)
        self.ln_f(x)
        return self.lm_head(x)
