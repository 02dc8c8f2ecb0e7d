"""What mixes positions without softmax attention."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class LinearAttention(nn.Module):
    """Linear attention with the feature map elu + 1, bidirectional; sums are kept in float32."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        wide = torch.promote_types(x.dtype, torch.float32)
        q, k, v = F.elu(q.to(wide)) + 1, F.elu(k.to(wide)) + 1, v.to(wide)
        kv = torch.einsum("bhnd,bhne->bhde", k, v)
        norm = torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2))
        out = torch.einsum("bhnd,bhde->bhne", q, kv) / norm.unsqueeze(-1)
        return self.to_out(out.to(x.dtype).transpose(1, 2).reshape(b, n, d))


class CausalLinearAttention(nn.Module):
    """Linear attention, autoregressive: prefix sums of keys times values."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        wide = torch.promote_types(x.dtype, torch.float32)
        q, k, v = F.elu(q.to(wide)) + 1, F.elu(k.to(wide)) + 1, v.to(wide)
        kv = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(dim=2)  # (b, heads, n, d_head, d_head)
        norm = (q * k.cumsum(dim=2)).sum(-1, keepdim=True)
        out = torch.einsum("bhnd,bhnde->bhne", q, kv) / norm
        return self.to_out(out.to(x.dtype).transpose(1, 2).reshape(b, n, d))


class EfficientAttention(nn.Module):
    """Efficient attention: softmax of the queries over features, of the keys over positions."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        context = k.softmax(dim=-2).transpose(-1, -2) @ v
        return self.to_out((q.softmax(dim=-1) @ context).transpose(1, 2).flatten(2))


class Retention(nn.Module):
    """Retention in its parallel form (causal): weights decay with the distance into the past."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.register_buffer("gamma", 1 - 2.0 ** -(5.0 + torch.arange(n_heads)))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (w(x).view(b, n, self.n_heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        steps = torch.arange(n, device=x.device)
        distance = (steps[:, None] - steps[None, :]).clamp(min=0)
        decay = (self.gamma[:, None, None] ** distance).tril()  # (heads, n, n)
        weights = (q @ k.transpose(-1, -2)) * (d // self.n_heads) ** -0.5 * decay
        return self.wo((weights @ v).transpose(1, 2).reshape(b, n, d))


class MixerBlock(nn.Module):
    """Block of the MLP-Mixer: an MLP over the positions, an MLP over the features, both with pre-norm and skip."""

    def __init__(self, d_model=64, seq_len=16, tokens_hidden=32):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.tokens = nn.Sequential(nn.Linear(seq_len, tokens_hidden), nn.GELU(), nn.Linear(tokens_hidden, seq_len))
        self.channels = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.GELU(), nn.Linear(2 * d_model, d_model))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class GatedMLP(nn.Module):
    """gMLP block: half of the features gate the other half across positions."""

    def __init__(self, d_model=64, d_ffn=128, seq_len=16):
        super().__init__()
        self.norm, self.gate_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_ffn // 2)
        self.proj_in, self.proj_out = nn.Linear(d_model, d_ffn), nn.Linear(d_ffn // 2, d_model)
        self.spatial = nn.Conv1d(seq_len, seq_len, 1)
        nn.init.constant_(self.spatial.bias, 1.0)

    def forward(self, x):
        u, v = F.gelu(self.proj_in(self.norm(x))).chunk(2, dim=-1)
        v = self.spatial(self.gate_norm(v))
        return x + self.proj_out(u * v)


class FourierMixing(nn.Module):
    """FNet block: a two-dimensional Fourier transform in place of attention, then a feed-forward layer (post-norm)."""

    def __init__(self, dim=64, hidden=128):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        wide = torch.promote_types(x.dtype, torch.float32)
        mixed = torch.fft.fft2(x.to(wide), norm="ortho").real.to(x.dtype)
        x = self.norm1(x + mixed)
        return self.norm2(x + self.ff(x))


class GRUMixer(nn.Module):
    """A GRU over (batch, length, features), then a linear map."""

    def __init__(self, input_size, hidden_size=32):
        super().__init__()
        self.rnn = nn.GRU(input_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, input_size)

    def forward(self, x):
        y, _ = self.rnn(x)
        return self.out(y)


class SelectiveScan(nn.Module):
    """A small selective state space layer in the manner of Mamba, causal, written as a loop over time."""

    def __init__(self, d_model=64, d_state=4, expand=1):
        super().__init__()
        inner = expand * d_model
        self.in_proj, self.out_proj = nn.Linear(d_model, 2 * inner, bias=False), nn.Linear(inner, d_model, bias=False)
        self.conv = nn.Conv1d(inner, inner, 3, groups=inner)
        self.to_step, self.to_bc = nn.Linear(inner, inner), nn.Linear(inner, 2 * d_state, bias=False)
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))

    def forward(self, x):
        u, gate = self.in_proj(x).chunk(2, dim=-1)
        u = F.silu(self.conv(F.pad(u.transpose(1, 2), (2, 0))).transpose(1, 2))
        step = F.softplus(self.to_step(u)).unsqueeze(-1)  # (batch, n, inner, 1)
        b, c = self.to_bc(u).chunk(2, dim=-1)
        decay = torch.exp(-step * self.A_log.exp())
        drive = step * u.unsqueeze(-1) * b.unsqueeze(2)
        state, outputs = torch.zeros_like(drive[:, 0]), []
        for t in range(x.size(1)):
            state = decay[:, t] * state + drive[:, t]
            outputs.append((state * c[:, t].unsqueeze(1)).sum(-1))
        y = torch.stack(outputs, dim=1) + self.D * u
        return self.out_proj(y * F.silu(gate))


class CausalConv(nn.Module):
    """A causal convolution over time: (batch, length, dim) in and out."""

    def __init__(self, dim=64, kernel_size=5):
        super().__init__()
        self.past = kernel_size - 1
        self.conv = nn.Conv1d(dim, dim, kernel_size)

    def forward(self, x):
        return self.conv(F.pad(x.transpose(1, 2), (self.past, 0))).transpose(1, 2)


class TokenShift(nn.Module):
    """RWKV's channel mixing: every token is blended with the one before it (causal)."""

    def __init__(self, n_embd=64):
        super().__init__()
        self.mix = nn.Parameter(torch.full((n_embd,), 0.5))
        self.key = nn.Linear(n_embd, 2 * n_embd, bias=False)
        self.receptance = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(2 * n_embd, n_embd, bias=False)

    def forward(self, x):
        previous = F.pad(x, (0, 0, 1, -1))
        mixed = x * self.mix + previous * (1 - self.mix)
        k = torch.relu(self.key(mixed)) ** 2
        return torch.sigmoid(self.receptance(mixed)) * self.value(k)


class ConformerConv(nn.Module):
    """Convolution module of the Conformer: norm, gated pointwise map, depthwise convolution, skip."""

    def __init__(self, dim=64, kernel_size=5):
        super().__init__()
        self.norm, self.after = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.expand, self.project = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)

    def forward(self, x):
        h = F.glu(self.expand(self.norm(x)), dim=-1)
        h = self.depthwise(h.transpose(1, 2)).transpose(1, 2)
        return x + self.project(F.silu(self.after(h)))


class AttentionFree(nn.Module):
    """Attention-free transformer layer (AFT-simple): a weighted average of the values, gated by the queries."""

    def __init__(self, dim=64):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.project = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        average = (k.softmax(dim=1) * v).sum(dim=1, keepdim=True)
        return self.project(torch.sigmoid(q) * average)


class PoolMixer(nn.Module):
    """PoolFormer block on sequences: average pooling over neighbours in place of attention, then an MLP."""

    def __init__(self, dim=64, pool_size=3):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.pool = nn.AvgPool1d(pool_size, stride=1, padding=pool_size // 2, count_include_pad=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.pool(h.transpose(1, 2)).transpose(1, 2) - h
        return x + self.mlp(self.norm2(x))


class FixedFeatures(nn.Module):
    """Performer-like linear attention: positive random features, drawn once, approximate the softmax kernel."""

    def __init__(self, dim=64, heads=4, features=32):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.register_buffer("projection", torch.randn(dim // heads, features))

    def feature_map(self, x, over):
        x = x * x.size(-1) ** -0.25
        logits = x @ self.projection - x.square().sum(-1, keepdim=True) / 2
        return torch.exp(logits - logits.amax(dim=over, keepdim=True)) + 1e-4

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        q, k = self.feature_map(q, over=(-1,)), self.feature_map(k, over=(-1, -2))
        out = q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(dim=-2).unsqueeze(-1))
        return self.to_out(out.transpose(1, 2).flatten(2))


class ScaledDotInPlace(nn.Module):
    """Luong's general attention over a sequence, scores q^T W k, scaled; one head."""

    def __init__(self, dim=64):
        super().__init__()
        self.bilinear = nn.Parameter(torch.randn(dim, dim) / dim**0.5)
        self.value = nn.Linear(dim, dim)

    def forward(self, x):
        scores = x @ self.bilinear @ x.transpose(1, 2) / math.sqrt(x.size(-1))
        return scores.softmax(-1) @ self.value(x)
