import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Head(nn.Module):
    """one head of causal self-attention, input (B, T, C)"""

    def __init__(self, n_embd=32, head_size=16, block_size=128):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size), diagonal=1))

    def forward(self, x):
        B, T, C = x.shape
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ v


class CausalSelfAttention(nn.Module):
    """Multi-head causal self-attention (GPT style)."""

    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = [t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v)]
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.bias[:, :, -T:, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class DecoderAttention(nn.Module):
    """Masked attention for the decoder: position i may look at positions <= i."""

    def __init__(self, d_model=64, num_heads=4):
        super().__init__()
        self.h, self.dk = num_heads, d_model // num_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = [w(x).reshape(b, n, self.h, self.dk).transpose(1, 2) for w in (self.wq, self.wk, self.wv)]
        s = torch.einsum("bhid,bhjd->bhij", q, k) / self.dk**0.5
        look_ahead = torch.triu(torch.ones(n, n, device=x.device, dtype=torch.bool), 1)
        s = s.masked_fill(look_ahead, -50.0)
        o = torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v)
        return self.wo(o.transpose(1, 2).reshape(b, n, d))


class MaskedSelfAttention(nn.Module):
    """Single head causal attention from the course, x: [batch, seq, dim]"""

    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)

    def forward(self, x):
        n = x.size(1)
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.size(2))
        mask = torch.tril(torch.ones(n, n, device=x.device, dtype=x.dtype))
        scores = scores + mask
        return torch.softmax(scores, -1) @ self.v(x)


class LongConvMixer(nn.Module):
    """Hyena-like operator: an implicit long filter applied with the FFT, gated. Causal language modelling. (batch, length, width)"""

    def __init__(self, width=32, max_len=256):
        super().__init__()
        self.proj = nn.Linear(width, 2 * width)
        self.filter = nn.Parameter(torch.randn(max_len, width) / 8)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        T = x.size(1)
        u, gate = self.proj(x).chunk(2, -1)
        dt = u.dtype
        uf = torch.fft.rfft(u.float(), n=T, dim=1)
        hf = torch.fft.rfft(self.filter[:T].float(), n=T, dim=0)
        y = torch.fft.irfft(uf * hf, n=T, dim=1).to(dt)
        return self.out(y * torch.sigmoid(gate))


class TimeMix(nn.Module):
    """RWKV-style channel mix with token shift, autoregressive. x: (B, T, C)"""

    def __init__(self, n_embd=32):
        super().__init__()
        self.time_shift = nn.ZeroPad2d((0, 0, -1, 1))
        self.mix_k = nn.Parameter(torch.rand(n_embd))
        self.mix_r = nn.Parameter(torch.rand(n_embd))
        self.key = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.receptance = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(4 * n_embd, n_embd, bias=False)

    def forward(self, x):
        xx = self.time_shift(x)
        k = self.key(x * self.mix_k + xx * (1 - self.mix_k))
        r = self.receptance(x * self.mix_r + xx * (1 - self.mix_r))
        return torch.sigmoid(r) * self.value(torch.relu(k))


class ConvAttentionBlock(nn.Module):
    """Decoder block: causal attention plus a depthwise convolution, both with skip connections."""

    def __init__(self, dim=48, heads=4, kernel=3):
        super().__init__()
        self.n1, self.n2, self.n3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.conv = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        T = x.size(1)
        m = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=m, need_weights=False)[0]
        x = x + self.conv(self.n2(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ff(self.n3(x))


class CausalLinearAttention(nn.Module):
    """Linear transformer attention (Katharopoulos et al.), autoregressive form with prefix sums."""

    def __init__(self, d_model=32, n_heads=2):
        super().__init__()
        self.h = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.o = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).unbind(2)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bthi,bthj->bthij", k, v).cumsum(1)
        z = torch.einsum("bthi,bhi->bth", q, k.sum(1))
        y = torch.einsum("bthi,bthij->bthj", q, kv) / (z.unsqueeze(-1) + 1e-4)
        return self.o(y.reshape(b, t, d))


class GPTAttention(nn.Module):
    """Causal attention used for pre-training.

    Args: config with hidden size and heads. Input and output (batch, seq, hidden).
    """

    def __init__(self, hidden_size=32, num_attention_heads=4):
        super().__init__()
        self.heads = num_attention_heads
        self.in_proj = nn.Linear(hidden_size, hidden_size * 3)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states):
        B, T, C = hidden_states.shape
        q, k, v = self.in_proj(hidden_states).reshape(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=self.training)
        return self.out_proj(o.transpose(1, 2).reshape(B, T, C))


class ContextNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.g = nn.Parameter(torch.ones(dim))
        self.b = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        mu = x.mean((1, 2), keepdim=True)
        var = x.var((1, 2), keepdim=True, unbiased=False)
        return (x - mu) / torch.sqrt(var + self.eps) * self.g + self.b


class DecoderLayer(nn.Module):
    """Pre-norm autoregressive transformer layer, (batch, time, dim)."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.norm1, self.norm2 = ContextNorm(dim), ContextNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        mask = torch.full((x.size(1), x.size(1)), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        h = self.norm1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(self.norm2(x))


class SlidingWindow(nn.Module):
    """Causal attention over the last `window` positions (banded)."""

    def __init__(self, embed_dim, num_heads, window=8):
        super().__init__()
        self.window, self.nh = window, num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.nh, c // self.nh).permute(2, 0, 3, 1, 4)
        i = torch.arange(t, device=x.device)
        keep = (i[:, None] - i[None, :]).abs() < self.window
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class TinyLM(nn.Module):
    """Character language model, decoder only: predicts the next token at every position."""

    def __init__(self, vocab_size=50, d_model=48, n_layers=2, n_heads=4, max_len=256):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, d_model)
        self.pos = nn.Embedding(max_len, d_model)
        nn.init.normal_(self.tok.weight, std=0.02)
        nn.init.normal_(self.pos.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            d_model, n_heads, 4 * d_model, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, idx):
        T = idx.size(1)
        x = self.tok(idx) + self.pos(torch.arange(T, device=idx.device))
        mask = torch.ones(T, T, device=idx.device, dtype=torch.bool).tril(-1)
        return self.head(self.norm(self.blocks(x, mask=mask)))
