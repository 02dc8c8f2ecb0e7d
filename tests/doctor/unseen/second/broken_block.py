import math
import torch
from torch import nn
import torch.nn.functional as F


class Stack(nn.Module):
    """Encoder of `depth` pre-norm layers, (batch, seq, dim)"""

    def __init__(self, dim=32, depth=3, heads=4):
        super().__init__()
        self.inp = nn.Linear(dim, dim)
        self.layers = [
            nn.TransformerEncoderLayer(dim, heads, 64, 0.0, batch_first=True, norm_first=True) for _ in range(depth)
        ]
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class QKV(nn.Module):
    """Single-head attention with separate projections, (batch, seq, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.to_q, self.to_k, self.to_v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.to_q(x), self.to_q(x), self.to_v(x)
        return (q @ k.transpose(1, 2) / math.sqrt(q.size(-1))).softmax(-1) @ v


class LoopHeads(nn.Module):
    """Multi-head attention written with a loop over heads. x: (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = [nn.Linear(dim, dim) for _ in range(4)]

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        out = torch.zeros_like(x)
        for i in range(1, self.h):
            s = slice(i * self.d, (i + 1) * self.d)
            a = (q[..., s] @ k[..., s].transpose(1, 2) / math.sqrt(self.d)).softmax(-1)
            out[..., s] = a @ v[..., s]
        return self.o(out)


class FrozenScores(nn.Module):
    """Self-attention that also keeps the weights for plotting, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-1, -2) * q.size(-1) ** -0.5).softmax(-1).detach()
        return self.o((attn @ v).transpose(1, 2).reshape(b, n, c))


class FeedForwardLayer(nn.Module):
    """Transformer encoder layer, pre-norm, residual (batch, seq, d_model)"""

    def __init__(self, d_model=32, nhead=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(d_model, 64), nn.Linear(64, d_model)
        self.n1, self.n2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        h = self.n2(x)
        y = self.fc2(F.relu(self.fc1(h)))
        return x + h


class DeepEncoder(nn.Module):
    """A stack of transformer layers over (batch, seq, dim)"""

    def __init__(self, dim=32, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(depth)
        )

    def forward(self, x):
        for layer in self.layers:
            out = layer(x)
        return out


class GatedAttention(nn.Module):
    """Attention whose output passes an output gate computed from the input, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.gate = nn.Linear(dim, 1)

    def forward(self, x):
        y = self.attn(x, x, x, need_weights=False)[0]
        g = torch.softmax(self.gate(x), dim=-1)
        return y * g


# residual ----------------------------------------------------------------


class EncoderBlock(nn.Module):
    """Transformer block: attention and a feed-forward network. x: (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        h = self.norm1(x)
        h = self.attn(h, h, h, need_weights=False)[0]
        return self.mlp(self.norm2(h))


class SkipBlock(nn.Module):
    """Transformer block with attention, skip connection and a dense feed-forward layer."""

    def __init__(self, d_model=32, nhead=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x):
        a = self.attn(x, x, x, need_weights=False)[0]
        return torch.relu(self.linear(x + a))


class HalfBlock(nn.Module):
    """Pre-norm transformer block (batch, seq, dim): self-attention followed by the feed-forward part."""

    def __init__(self, dim=32, num_heads=4):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.fc, self.proj = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return self.proj(F.gelu(self.fc(self.ln_2(x))))


class ResidualMHA(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        h = self.norm(x)
        return x + self.attn(h, h, h, need_weights=False)[0]


class BlockTwo(nn.Module):
    """Transformer encoder block (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.attn = ResidualMHA(dim, heads)
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.ff(self.norm(x))


# norms -------------------------------------------------------------------


class LayerA(nn.Module):
    """Pre-norm transformer encoder layer"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        self.norm2(x)
        return x + self.ff(x)


class LayerB(nn.Module):
    """Post-norm transformer encoder layer, (batch, seq, d_model)"""

    def __init__(self, d_model=32, nhead=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d_model, 64), nn.ReLU(), nn.Linear(64, d_model))
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, x):
        x = self.norm1(x + self.attn(x, x, x, need_weights=False)[0])
        return self.norm1(x + self.ff(x))


class ViTEncoder(nn.Module):
    """Pre-norm encoder with a final norm, (batch, tokens, dim)"""

    def __init__(self, dim=32, depth=2, heads=4):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 64, 0.0, batch_first=True, norm_first=True) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        out = self.norm(x)
        return x


class LayerC(nn.Module):
    """Transformer layer, RMS pre-norm, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.attn_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.w1, self.w2 = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        h = self.attn_norm(x)
        q, k, v = self.qkv(x).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c))
        return x + self.w2(F.silu(self.w1(self.ffn_norm(x))))


# positions ---------------------------------------------------------------


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=500):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(0)]


class PosClassifier(nn.Module):
    """Token ids (batch, seq) -> per-token features (batch, seq, d_model), with sinusoidal positions"""

    def __init__(self, vocab_size=60, d_model=32, nhead=4):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, d_model)
        self.pos = PositionalEncoding(d_model)
        self.enc = nn.TransformerEncoderLayer(d_model, nhead, 64, 0.0, batch_first=True)

    def forward(self, input_ids):
        return self.enc(self.pos(self.emb(input_ids)))


class LearnedPos(nn.Module):
    """Bidirectional encoder with learned position embeddings, x: (batch, seq, dim)"""

    def __init__(self, dim=32, max_len=128):
        super().__init__()
        self.position_embeddings = nn.Embedding(max_len, dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        ids = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        h = x + self.position_embeddings(ids)
        return self.norm(h + self.attn(h, h, h, need_weights=False)[0])


class AlibiAttention(nn.Module):
    """Bidirectional self-attention with linear position biases (ALiBi), (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        dist = torch.arange(t, device=x.device, dtype=x.dtype).view(1, t, 1)
        s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) - self.slopes.to(x.dtype).view(-1, 1, 1) * dist
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class RotaryAttention(nn.Module):
    """Bidirectional attention with rotary position embedding, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, self.d, 2).float() / self.d))

    def rope(self, t):
        f = torch.outer(torch.arange(t.size(1), device=t.device).float(), self.inv_freq.float())
        cos, sin = f.cos().to(t.dtype)[None, :, None], f.sin().to(t.dtype)[None, :, None]
        a, b = t.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v)
        return self.o(y.transpose(1, 2).reshape(b, n, c))


class SinusoidEncoder(nn.Module):
    """Encoder layer with fixed sinusoidal position encoding, (batch, seq, dim)"""

    def __init__(self, dim=32, max_len=256):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        pe = torch.stack((torch.sin(pos * div), torch.cos(pos * div)), -1).flatten(1)
        self.register_buffer("pe", pe)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True)

    def forward(self, x):
        pe = self.pe[: x.size(1)].to(x.dtype)
        h = x + pe
        return self.layer(x)
