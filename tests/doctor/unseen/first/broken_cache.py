import torch
import torch.nn.functional as F
from torch import nn


class CachedCausalAttention(nn.Module):
    """Causal attention. past_key_value: (k, v) of earlier positions; returns (output, (k, v))."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)

    def forward(self, x, past_key_value=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, n, d)), (k, v)


class LayerPastAttention(nn.Module):
    """Causal attention with layer_past = (key, value), returns (output, present) if use_cache."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x, layer_past=None, use_cache=False):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, 2))
        present = (k, v)
        if layer_past is not None:
            k, v = torch.cat((layer_past[0], k), -2), torch.cat((layer_past[1], v), -2)
        i = torch.arange(k.size(2) - T, k.size(2), device=x.device)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=i >= torch.arange(k.size(2), device=x.device))
        y = self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return (y, present) if use_cache else (y, None)


class RotaryCached(nn.Module):
    """Causal rotary attention; cache = (k, v), returned anew."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.dh = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def rope(self, t):
        half = self.dh // 2
        f = 10000.0 ** (-torch.arange(half, device=t.device).to(t.dtype) / half)
        a = torch.arange(t.size(2), device=t.device).to(t.dtype)[:, None] * f
        x, y = t.chunk(2, -1)
        return torch.cat((x * a.cos() - y * a.sin(), x * a.sin() + y * a.cos()), -1)

    def forward(self, x, cache=None):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.rope(q), self.rope(k)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        m = torch.ones(n, k.size(2), dtype=torch.bool, device=x.device).tril(k.size(2) - n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=m)
        return self.o(y.transpose(1, 2).reshape(b, n, d)), (k, v)


class CachedLM(nn.Module):
    """Causal language model: (input_ids, past_key_values=None) -> dict(logits, past_key_values)."""

    def __init__(self, vocab_size=50, n_embd=32, n_head=2, n_positions=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(n_positions, n_embd)
        self.n_head = n_head
        self.ln, self.qkv, self.proj = nn.LayerNorm(n_embd), nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.ln_f, self.head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, input_ids, past_key_values=None):
        b, n = input_ids.shape
        x = self.wte(input_ids) + self.wpe(torch.arange(n, device=input_ids.device))
        q, k, v = self.qkv(self.ln(x)).view(b, n, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        if past_key_values is not None:
            k = torch.cat((past_key_values[0][0], k), 2)
            v = torch.cat((past_key_values[0][1], v), 2)
        m = torch.ones(n, k.size(2), dtype=torch.bool, device=x.device).tril(k.size(2) - n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=m).transpose(1, 2).reshape(b, n, -1)
        logits = self.head(self.ln_f(x + self.proj(y)))
        return {"logits": logits, "past_key_values": ((k, v),)}
