from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


def causal(x):
    return torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)


class ParallelBlock(nn.Module):
    """Causal block with attention and feed-forward in parallel (GPT-J)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        h = self.norm(x)
        return x + self.attn(h, h, h, attn_mask=causal(x), need_weights=False)[0] + self.ff(h)


class SandwichBlock(nn.Module):
    """Encoder block with a norm before and after each sublayer."""

    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.LayerNorm(dim) for _ in range(4))
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        h = self.a(x)
        x = x + self.b(self.attn(h, h, h, need_weights=False)[0])
        return x + self.d(self.ff(self.c(x)))


class ReZeroBlock(nn.Module):
    """ReZero encoder block: no norm, each sublayer behind a gain that starts at zero."""

    def __init__(self, d_model, n_heads, d_ff):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.alpha, self.beta = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        x = x + self.alpha * self.attn(x, x, x, need_weights=False)[0]
        return x + self.beta * self.ff(x)


class PostNormBlock(nn.Module):
    """Post-norm encoder block."""

    def __init__(self, d_model, n_heads, d_ff, dropout=0.1):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        self.norm1, self.norm2, self.drop = nn.LayerNorm(d_model), nn.LayerNorm(d_model), nn.Dropout(dropout)

    def forward(self, x, mask=None):
        """mask: (length, length) bool, True = may not attend."""
        x = self.norm1(x + self.drop(self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]))
        return self.norm2(x + self.drop(self.ff(x)))


@dataclass
class BlockConfig:
    n_embd: int = 48
    n_head: int = 6
    dropout: float = 0.1
    block_size: int = 40
    ff: dict = field(default_factory=dict)


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(config.n_embd, 3 * config.n_embd), nn.Linear(config.n_embd, config.n_embd)
        self.n_head, self.drop = config.n_head, config.dropout
        self.resid = nn.Dropout(config.dropout)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.drop if self.training else 0)
        return self.resid(self.c_proj(y.transpose(1, 2).reshape(B, T, C)))


class GPTBlock(nn.Module):
    def __init__(self, config: BlockConfig):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd),
            nn.GELU(),
            nn.Linear(4 * config.n_embd, config.n_embd),
            nn.Dropout(config.dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class SequenceFirstBlock(nn.Module):
    """Pre-norm encoder block.

    Shapes
    ------
    src : (length, batch, d_model)
    src_key_padding_mask : (batch, length), True = padding
    """

    def __init__(self, d_model, nhead, dim_feedforward=64):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead)
        self.n1, self.n2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, dim_feedforward), nn.ReLU(), nn.Linear(dim_feedforward, d_model))

    def forward(self, src, src_mask=None, src_key_padding_mask=None):
        h = self.n1(src)
        h, _ = self.attn(h, h, h, attn_mask=src_mask, key_padding_mask=src_key_padding_mask, need_weights=False)
        src = src + h
        return src + self.ff(self.n2(src))


class CommentedShapes(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        # x: [seq_len, batch, dim]
        y, _ = self.attn(x, x, x, need_weights=False)  # [seq_len, batch, dim]
        return self.out(y)


class TimeMajorLSTM(nn.Module):
    """Recurrent layer over (T, B, C), time first, as nn.LSTM wants it; causal."""

    def __init__(self, input_size, hidden_size=32):
        super().__init__()
        self.rnn, self.out = nn.LSTM(input_size, hidden_size), nn.Linear(hidden_size, input_size)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


class ChannelsFirst(nn.Module):
    """Self-attention for feature maps of shape (batch, channels, length), with skip, as in a 1-d SAGAN."""

    def __init__(self, channels, inner=16):
        super().__init__()
        self.f, self.g = nn.Conv1d(channels, inner, 1), nn.Conv1d(channels, inner, 1)
        self.h, self.gamma = nn.Conv1d(channels, channels, 1), nn.Parameter(torch.zeros(1))
        self.scale = inner**-0.5

    def forward(self, x):
        w = (self.f(x).transpose(1, 2) @ self.g(x) * self.scale).softmax(-1)  # (batch, length, length)
        return x + self.gamma * (self.h(x) @ w.transpose(1, 2))


class MLPMixer(nn.Module):
    """Mixer block (Tolstikhin et al. 2021) for a fixed number of patches: (batch, patches, dim)."""

    def __init__(self, dim=32, num_patches=16, hidden=48):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tokens = nn.Sequential(nn.Linear(num_patches, hidden), nn.GELU(), nn.Linear(hidden, num_patches))
        self.channels = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.n2(x))


class LayerScaleBlock(nn.Module):
    """Encoder block with layer scale and stochastic depth (per sample, in training only)."""

    def __init__(self, dim, num_heads, mlp_ratio=2.0, drop_path=0.1):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, int(dim * mlp_ratio)), nn.GELU(), nn.Linear(int(dim * mlp_ratio), dim))
        self.g1, self.g2 = nn.Parameter(1e-4 * torch.ones(dim)), nn.Parameter(1e-4 * torch.ones(dim))
        self.p = drop_path

    def drop_path(self, x):
        if not self.training or self.p == 0:
            return x
        keep = torch.rand(x.size(0), 1, 1, device=x.device) >= self.p
        return x * keep.to(x.dtype) / (1 - self.p)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.drop_path(self.g1 * self.attn(h, h, h, need_weights=False)[0])
        return x + self.drop_path(self.g2 * self.mlp(self.norm2(x)))


class ZeroInitBlock(nn.Module):
    """Causal block; the last linear map of each branch starts at zero."""

    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.heads = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.gate, self.down = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        nn.init.zeros_(self.o.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class FNetBlock(nn.Module):
    """Bidirectional block mixing by a Fourier transform (Lee-Thorp et al. 2021), computed in float32."""

    def __init__(self, dim=32, hidden=64):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        wide = x if x.dtype == torch.float64 else x.float()
        mixed = torch.fft.fft(torch.fft.fft(wide, dim=-1), dim=-2).real
        x = self.n1((wide + mixed).to(x.dtype))
        return self.n2(x + self.ff(x))


class CausalConv(nn.Module):
    """Causal gated convolution, left-padded. x: (batch, length, dim)."""

    def __init__(self, dim, kernel=4):
        super().__init__()
        self.kernel = kernel
        self.conv = nn.Conv1d(dim, 2 * dim, kernel)

    def forward(self, x):
        return F.glu(self.conv(F.pad(x.transpose(1, 2), (self.kernel - 1, 0))), dim=1).transpose(1, 2)


class BatchFirstGRU(nn.Module):
    def __init__(self, input_dim, hidden_dim=40, output_dim=24):
        super().__init__()
        self.gru, self.fc = nn.GRU(input_dim, hidden_dim, batch_first=True), nn.Linear(hidden_dim, output_dim)

    def forward(self, x):
        out, state = self.gru(x)
        return self.fc(out), state


class ConvStack(nn.Module):
    """Five convolutions of width 5, (batch, channels, length)."""

    def __init__(self, channels=1, hidden=32, kernel_size=5):
        super().__init__()
        sizes = [channels, hidden, hidden, hidden, hidden, channels]
        parts = [
            m
            for a, b in zip(sizes, sizes[1:])
            for m in (nn.Conv1d(a, b, kernel_size, padding=kernel_size // 2), nn.ReLU())
        ]
        self.net = nn.Sequential(*parts[:-1])

    def forward(self, x):
        return self.net(x)


class NoMixing(nn.Module):
    """No attention at all: one linear map per position."""

    def __init__(self, emb_size, head_size):
        super().__init__()
        self.linear = nn.Linear(emb_size, head_size)

    def forward(self, x):
        return torch.relu(self.linear(x))


class DictBlock(nn.Module):
    """Encoder block returning a dict. attention_mask (batch, length), 1 = token."""

    def __init__(self, hidden_size=32, num_attention_heads=4, intermediate_size=64, *, eps=1e-5):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            hidden_size,
            num_attention_heads,
            intermediate_size,
            0.1,
            layer_norm_eps=eps,
            batch_first=True,
            norm_first=True,
        )

    def forward(self, hidden_states, attention_mask=None):
        pad = None if attention_mask is None else attention_mask == 0
        return {"last_hidden_state": self.layer(hidden_states, src_key_padding_mask=pad), "aux": None}
