"""Transformer blocks: where norms and skips may stand."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attn(nn.Module):
    def __init__(self, dim, heads, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    def __init__(self, dim, hidden):
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))


class PreNorm(nn.Module):
    """Decoder block, pre-norm, causal."""

    def __init__(self, n_embd=64, n_head=4, dropout=0.1):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.sa, self.ffwd = Attn(n_embd, n_head, causal=True), FeedForward(n_embd, 4 * n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.sa(self.ln1(x)))
        return x + self.dropout(self.ffwd(self.ln2(x)))


class PostNorm(nn.Module):
    """Encoder block as in the original paper: layer norm after each sum."""

    def __init__(self, d_model=64, nhead=4, dim_feedforward=128):
        super().__init__()
        self.attn, self.ff = Attn(d_model, nhead), FeedForward(d_model, dim_feedforward)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x):
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.ff(x))


class ReZero(nn.Module):
    """Block without norms; every sublayer is weighted by a gain that starts at zero (ReZero)."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.attn, self.ff = Attn(dim, heads), FeedForward(dim, 4 * dim)
        self.alpha = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        x = x + self.alpha[0] * self.attn(x)
        return x + self.alpha[1] * self.ff(x)


class DeepNorm(nn.Module):
    """Post-norm block whose skip is scaled up (DeepNet), for a stack of n_layers."""

    def __init__(self, d_model=64, n_heads=4, n_layers=6):
        super().__init__()
        self.alpha = (2 * n_layers) ** 0.25
        self.attn, self.ff = Attn(d_model, n_heads), FeedForward(d_model, 4 * d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        beta = (8 * n_layers) ** -0.25
        for linear in (self.attn.out, self.ff[0], self.ff[2]):
            nn.init.xavier_normal_(linear.weight, gain=beta)

    def forward(self, x):
        x = self.norm1(self.alpha * x + self.attn(x))
        return self.norm2(self.alpha * x + self.ff(x))


class Sandwich(nn.Module):
    """Block with a norm before and after each sublayer."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.attn, self.ff = Attn(dim, heads), FeedForward(dim, 2 * dim)
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(4))

    def forward(self, x):
        x = x + self.norms[1](self.attn(self.norms[0](x)))
        return x + self.norms[3](self.ff(self.norms[2](x)))


class Parallel(nn.Module):
    """Parallel block in the manner of GPT-J: attention and MLP read the same normed input."""

    def __init__(self, hidden_size=64, num_heads=4):
        super().__init__()
        self.ln = nn.LayerNorm(hidden_size)
        self.attn, self.mlp = Attn(hidden_size, num_heads, causal=True), FeedForward(hidden_size, 4 * hidden_size)

    def forward(self, x):
        h = self.ln(x)
        return x + self.attn(h) + self.mlp(h)


class LayerScaled(nn.Module):
    """Vision transformer block with LayerScale: (B, N, C)."""

    def __init__(self, dim=64, num_heads=4, init_values=1e-4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn, self.mlp = Attn(dim, num_heads), FeedForward(dim, 4 * dim)
        self.gamma_1 = nn.Parameter(init_values * torch.ones(dim))
        self.gamma_2 = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x):
        x = x + self.gamma_1 * self.attn(self.norm1(x))
        return x + self.gamma_2 * self.mlp(self.norm2(x))


class Gated(nn.Module):
    """Transformer block with gated residuals (a highway): the gate says how much of the new is let in."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn, self.ff = Attn(d_model, n_heads), FeedForward(d_model, 2 * d_model)
        self.gate1, self.gate2 = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        nn.init.constant_(self.gate1.bias, -2.0)
        nn.init.constant_(self.gate2.bias, -2.0)

    def forward(self, x):
        g = torch.sigmoid(self.gate1(x))
        x = (1 - g) * x + g * self.attn(self.norm1(x))
        g = torch.sigmoid(self.gate2(x))
        return (1 - g) * x + g * self.ff(self.norm2(x))


class SwiGLU(nn.Module):
    """Llama-like decoder layer: RMS norm, causal attention, gated feed-forward."""

    def __init__(self, hidden_size=64, num_attention_heads=4, intermediate_size=128):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(hidden_size), nn.RMSNorm(hidden_size)
        self.self_attn = Attn(hidden_size, num_attention_heads, causal=True)
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.self_attn(self.input_layernorm(hidden_states))
        h = self.post_attention_layernorm(hidden_states)
        return hidden_states + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class MixtureOfExperts(nn.Module):
    """Transformer block whose feed-forward layer is a mixture of experts: each token chooses its top_k."""

    def __init__(self, dim=64, heads=4, num_experts=4, top_k=2):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attn(dim, heads)
        self.router = nn.Linear(dim, num_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(dim, 2 * dim) for _ in range(num_experts))
        self.top_k = top_k

    def moe(self, x):
        logits = self.router(x)
        threshold = logits.topk(self.top_k, dim=-1).values[..., -1:]
        gates = logits.masked_fill(logits < threshold, float("-inf")).softmax(dim=-1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)  # (batch, n, dim, experts)
        return (outputs * gates.unsqueeze(-2)).sum(dim=-1)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.moe(self.norm2(x))


class CapacityExperts(nn.Module):
    """Transformer block of switched experts: each takes as many tokens as it has room for, the others go past it."""

    def __init__(self, dim=64, heads=4, num_experts=4, capacity_factor=1.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attn(dim, heads)
        self.router = nn.Linear(dim, num_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(dim, 2 * dim) for _ in range(num_experts))
        self.capacity_factor = capacity_factor

    def switch(self, x):
        flat = x.flatten(0, 1)
        gates, chosen = self.router(flat).softmax(dim=-1).max(dim=-1)
        room = int(self.capacity_factor * len(flat) / len(self.experts))
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            taken = (chosen == number).nonzero().flatten()[:room]
            out[taken] = gates[taken, None] * expert(flat[taken])
        return out.view_as(x)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.switch(self.norm2(x))


class CrossBlock(nn.Module):
    """Decoder layer: causal self-attention, attention to the memory, feed-forward; pre-norm.

    x: (batch, length, dim), memory: (batch, source length, dim).
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))
        self.self_attn = Attn(dim, num_heads, causal=True)
        self.cross_attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.ff = FeedForward(dim, 2 * dim)

    def forward(self, x, memory):
        x = x + self.self_attn(self.norm1(x))
        x = x + self.cross_attn(self.norm2(x), memory, memory, need_weights=False)[0]
        return x + self.ff(self.norm3(x))


class StochasticDepth(nn.Module):
    """Pre-norm block with stochastic depth: in training a sublayer is skipped with probability drop_path."""

    def __init__(self, dim=64, num_heads=4, drop_path=0.2):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn, self.mlp = Attn(dim, num_heads), FeedForward(dim, 2 * dim)
        self.drop_path = drop_path

    def keep(self, x):
        if not self.training:
            return x
        alive = torch.rand(x.size(0), 1, 1, device=x.device) >= self.drop_path
        return x * alive.to(x.dtype) / (1 - self.drop_path)

    def forward(self, x):
        x = x + self.keep(self.attn(self.norm1(x)))
        return x + self.keep(self.mlp(self.norm2(x)))


class ScaledSum(nn.Module):
    """Pre-norm block whose sums are divided by sqrt(2), so that the signal keeps its size."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.attn, self.ff = Attn(dim, heads), FeedForward(dim, 4 * dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        x = (x + self.attn(self.norm1(x))) / math.sqrt(2)
        return (x + self.ff(self.norm2(x))) / math.sqrt(2)
