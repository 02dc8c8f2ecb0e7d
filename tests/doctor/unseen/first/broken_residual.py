import torch
import torch.nn as nn
import torch.nn.functional as F


class ResidualBlock(nn.Module):
    """Transformer block: causal attention, skip connection, linear layer."""

    def __init__(self, emb_size, head_size):
        super().__init__()
        self.Q, self.K, self.V = (
            nn.Linear(emb_size, head_size),
            nn.Linear(emb_size, head_size),
            nn.Linear(emb_size, head_size),
        )
        self.linear = nn.Linear(head_size, head_size)

    def forward(self, x):
        a = F.scaled_dot_product_attention(self.Q(x), self.K(x), self.V(x), is_causal=True)
        return torch.relu(self.linear(x + a))


class EncoderBlock(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        x = self.norm1(x)
        x, _ = self.attn(x, x, x)
        return self.mlp(self.norm2(x))


class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.mha = nn.MultiheadAttention(d, h, batch_first=True)

    def forward(self, x):
        h = self.norm(x)
        return x + self.mha(h, h, h, need_weights=False)[0]


class TransformerBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, d_model=64, n_heads=4, d_ff=None):
        super().__init__()
        self.attn = Attn(d_model, n_heads)
        self.norm = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, d_ff or 2 * d_model), nn.SiLU(), nn.Linear(d_ff or 2 * d_model, d_model)
        )

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.ff(self.norm(x))


class DecoderBlock(nn.Module):
    """Causal block with feed-forward."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = nn.MultiheadAttention(n_embd, n_head, batch_first=True)
        self.fc, self.proj = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        T = x.size(1)
        mask = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return self.proj(F.gelu(self.fc(self.ln_2(x))))


class EncLayer(nn.Module):
    """Encoder layer with feed-forward."""

    def __init__(self, d_model, n_heads, d_ff, dropout=0.0):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_heads, dropout=dropout, batch_first=True)
        self.lin1, self.lin2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.n1, self.n2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, src, src_mask=None, src_key_padding_mask=None):
        h = self.n1(src)
        a = self.attn(h, h, h, attn_mask=src_mask, key_padding_mask=src_key_padding_mask, need_weights=False)[0]
        x = F.relu(src + a)
        return F.relu(x + self.lin2(F.relu(self.lin1(self.n2(x)))))
