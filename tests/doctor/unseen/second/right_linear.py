"""Efficient and recurrent token mixers."""

import math
import torch
from torch import nn
import torch.nn.functional as F


def split(t, h):
    return t.view(t.size(0), t.size(1), h, -1).transpose(1, 2)


class Linformer(nn.Module):
    """Linformer: keys and values projected from seq_len down to k rows. Fixed length `seq_len`; x (batch, seq_len, dim)."""

    def __init__(self, dim=32, seq_len=16, k=8, heads=4):
        super().__init__()
        self.h, self.seq_len = heads, seq_len
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.E = nn.Parameter(torch.randn(k, seq_len) / math.sqrt(seq_len))
        self.Fp = nn.Parameter(torch.randn(k, seq_len) / math.sqrt(seq_len))

    def forward(self, x):
        if x.size(1) != self.seq_len:
            raise ValueError(f"Linformer was built for seq_len={self.seq_len}, got {x.size(1)}")
        q = split(self.q(x), self.h)
        k, v = self.kv(x).chunk(2, -1)
        k, v = split(self.E @ k, self.h), split(self.Fp @ v, self.h)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).flatten(2))


class PerformerAttention(nn.Module):
    """FAVOR+ with fixed random features held in a buffer. Bidirectional, (batch, seq, dim)."""

    def __init__(self, dim=32, heads=4, nb_features=32):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("w", torch.randn(nb_features, dim // heads))

    def phi(self, t, dims):
        t = t.float() * t.size(-1) ** -0.25
        u = t @ self.w.float().T - t.pow(2).sum(-1, keepdim=True) / 2
        return torch.exp(u - u.amax(dims, keepdim=True)) + 1e-3

    def forward(self, x):
        q, k, v = [split(t, self.h) for t in self.qkv(x).chunk(3, -1)]
        q, k = self.phi(q, -1), self.phi(k, (-1, -2))
        y = q @ (k.transpose(-1, -2) @ v.float()) / (q @ k.sum(-2).unsqueeze(-1))
        return self.o(y.to(x.dtype).transpose(1, 2).flatten(2))


class CosFormer(nn.Module):
    """cosFormer: relu features with cosine re-weighting, bidirectional, (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = [nn.Linear(dim, dim) for _ in range(4)]

    def forward(self, x):
        n = x.size(1)
        q, k, v = (
            F.relu(split(self.q(x), self.h)).float(),
            F.relu(split(self.k(x), self.h)).float(),
            split(self.v(x), self.h).float(),
        )
        a = (math.pi / 2 / n * torch.arange(1, n + 1, device=x.device)).view(1, 1, n, 1)
        q, k = torch.cat((q * a.sin(), q * a.cos()), -1), torch.cat((k * a.sin(), k * a.cos()), -1)
        z = (q @ k.sum(-2).unsqueeze(-1)).clamp(min=1e-3)
        return self.o((q @ (k.transpose(-1, -2) @ v) / z).to(x.dtype).transpose(1, 2).flatten(2))


class AFT(nn.Module):
    """Attention free transformer (full), causal, (batch, seq, dim), position biases w[t, t']"""

    def __init__(self, dim=32, max_len=128):
        super().__init__()
        self.q, self.k, self.v, self.o = [nn.Linear(dim, dim) for _ in range(4)]
        self.w = nn.Parameter(torch.randn(max_len, max_len) * 0.1)

    def forward(self, x):
        t = x.size(1)
        q, k, v = self.q(x), self.k(x), self.v(x)
        keep = torch.ones(t, t, device=x.device, dtype=torch.bool).tril()
        s = k.unsqueeze(1) + self.w[:t, :t, None]
        s = s.masked_fill(~keep[None, :, :, None], float("-inf")).softmax(2)
        return self.o(torch.sigmoid(q) * torch.einsum("bijd,bjd->bid", s, v))


class SpatialGatingUnit(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.proj = nn.Conv1d(n, n, 1)
        nn.init.normal_(self.proj.weight, std=1e-2)
        nn.init.ones_(self.proj.bias)

    def forward(self, x):
        u, v = x.chunk(2, -1)
        return u * self.proj(self.norm(v))


class GMLPBlock(nn.Module):
    """gMLP block with a spatial gating unit; fixed number of tokens seq_len. (batch, seq_len, dim)"""

    def __init__(self, dim=32, seq_len=16, expansion=2):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * expansion * dim), nn.Linear(expansion * dim, dim)
        self.sgu = SpatialGatingUnit(expansion * dim, seq_len)

    def forward(self, x):
        return x + self.down(self.sgu(F.gelu(self.up(self.norm(x)))))


class Hyena(nn.Module):
    """Hyena-like operator, causal: long implicit filter by zero-padded FFT, gated. (batch, length, dim)"""

    def __init__(self, dim=32, max_len=256):
        super().__init__()
        self.inp, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.short = nn.Conv1d(3 * dim, 3 * dim, 3, groups=3 * dim, padding=2)
        self.filter = nn.Parameter(torch.randn(max_len, dim) * torch.exp(-torch.arange(max_len) / 20.0)[:, None] / 4)

    def forward(self, x):
        t = x.size(1)
        z = self.short(self.inp(x).transpose(1, 2))[..., :t].transpose(1, 2)
        a, b, v = z.chunk(3, -1)
        u = (torch.tanh(a) * v).float()
        y = torch.fft.irfft(
            torch.fft.rfft(u, n=2 * t, dim=1) * torch.fft.rfft(self.filter[:t].float(), n=2 * t, dim=0), n=2 * t, dim=1
        )[:, :t]
        return self.out(torch.tanh(b) * y.to(x.dtype))


class RetNet(nn.Module):
    """Multi-scale retention, parallel form, causal, with group norm over heads and a swish gate."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.dim = heads, dim
        self.qkv, self.g, self.o = (
            nn.Linear(dim, 3 * dim, bias=False),
            nn.Linear(dim, dim, bias=False),
            nn.Linear(dim, dim, bias=False),
        )
        self.register_buffer("gamma", 1 - 2.0 ** (-5.0 - torch.arange(heads)))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = [split(u, self.h).float() for u in self.qkv(x).chunk(3, -1)]
        i = torch.arange(t, device=x.device)
        d = (i[:, None] - i[None]).clamp(min=0)
        decay = (self.gamma.float().view(-1, 1, 1) ** d).tril()
        y = (q @ k.transpose(-1, -2) * q.size(-1) ** -0.5 * decay) @ v
        y = F.layer_norm(y, y.shape[-1:]).to(x.dtype).transpose(1, 2).flatten(2)
        return self.o(F.silu(self.g(x)) * y)


class SelectiveScan(nn.Module):
    """Mamba-ish block: causal depthwise conv, input dependent decay, sequential scan, gate and skip connection."""

    def __init__(self, d_model=16, d_state=4, d_conv=4):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.in_proj = nn.Linear(d_model, 2 * d_model)
        self.conv = nn.Conv1d(d_model, d_model, d_conv, groups=d_model, padding=d_conv - 1)
        self.bc, self.dt = nn.Linear(d_model, 2 * d_state), nn.Linear(d_model, d_model)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, d_state + 1).float()).repeat(d_model, 1))
        self.D = nn.Parameter(torch.ones(d_model))
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        t = x.size(1)
        u, z = self.in_proj(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :t].transpose(1, 2))
        b, c = self.bc(u).chunk(2, -1)
        dt = F.softplus(self.dt(u))
        a = torch.exp(-dt.unsqueeze(-1) * torch.exp(self.A_log))
        bu = (dt * u).unsqueeze(-1) * b.unsqueeze(2)
        s, ys = torch.zeros_like(bu[:, 0]), []
        for i in range(t):
            s = a[:, i] * s + bu[:, i]
            ys.append((s * c[:, i].unsqueeze(1)).sum(-1))
        y = torch.stack(ys, 1) + self.D * u
        return x + self.out(y * F.silu(z))


class RWKVChannelMix(nn.Module):
    """Causal token shift and squared relu, as in RWKV. (B, T, C)"""

    def __init__(self, n_embd=32):
        super().__init__()
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.mix_k, self.mix_r = nn.Parameter(torch.rand(n_embd)), nn.Parameter(torch.rand(n_embd))
        self.key, self.value = nn.Linear(n_embd, 2 * n_embd, bias=False), nn.Linear(2 * n_embd, n_embd, bias=False)
        self.receptance = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x):
        xx = self.time_shift(x)
        k = torch.relu(self.key(x * self.mix_k + xx * (1 - self.mix_k))) ** 2
        return torch.sigmoid(self.receptance(x * self.mix_r + xx * (1 - self.mix_r))) * self.value(k)


class CausalLinear(nn.Module):
    """Causal linear attention with prefix sums of keys and values"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = [split(t, self.h).float() for t in self.qkv(x).chunk(3, -1)]
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bhti,bhtj->bhtij", k, v).cumsum(2)
        z = (q * k.cumsum(2)).sum(-1, keepdim=True) + 1e-4
        y = torch.einsum("bhti,bhtij->bhtj", q, kv) / z
        return self.o(y.to(x.dtype).transpose(1, 2).flatten(2))


class Nystrom(nn.Module):
    """Nystromformer-like attention with mean landmarks, bidirectional. (batch, seq, dim)"""

    def __init__(self, dim=32, heads=4, landmarks=4, iters=6):
        super().__init__()
        self.h, self.m, self.iters = heads, landmarks, iters
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = [split(t, self.h).float() for t in self.qkv(x).chunk(3, -1)]
        q = q * q.size(-1) ** -0.5
        ql, kl = F.adaptive_avg_pool2d(q, (self.m, q.size(-1))), F.adaptive_avg_pool2d(k, (self.m, k.size(-1)))
        a1, a2, a3 = (q @ kl.mT).softmax(-1), (ql @ kl.mT).softmax(-1), (ql @ k.mT).softmax(-1)
        eye = torch.eye(self.m, device=x.device)
        z = a2.mT / (a2.abs().sum(-1).amax(-1)[..., None, None] * a2.abs().sum(-2).amax(-1)[..., None, None])
        for _ in range(self.iters):
            az = a2 @ z
            z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
        return self.o((a1 @ z @ (a3 @ v)).to(x.dtype).transpose(1, 2).flatten(2))


class FNet(nn.Module):
    """FNet block: Fourier mixing over both axes, post-norm, feed-forward. Bidirectional."""

    def __init__(self, dim=32):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        y = torch.fft.fft2(x.float(), dim=(1, 2), norm="ortho").real.to(x.dtype)
        x = self.n1(x + y)
        return self.n2(x + self.ff(x))


class GAU(nn.Module):
    """Gated attention unit with squared relu attention (FLASH), skip connection, single head, bidirectional."""

    def __init__(self, dim=32, s=16, e=2):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.uv, self.z, self.o = nn.Linear(dim, 2 * e * dim), nn.Linear(dim, s), nn.Linear(e * dim, dim)
        self.gamma, self.beta = nn.Parameter(torch.randn(2, s) * 0.1 + 1), nn.Parameter(torch.zeros(2, s))

    def forward(self, x):
        h = self.norm(x)
        u, v = F.silu(self.uv(h)).chunk(2, -1)
        z = F.silu(self.z(h)).unsqueeze(2) * self.gamma + self.beta
        q, k = z.unbind(2)
        a = torch.relu(q @ k.mT / math.sqrt(q.size(-1))) ** 2 / x.size(1)
        return x + self.o(u * (a @ v))
