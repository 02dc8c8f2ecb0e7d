import math
from dataclasses import dataclass
import torch
from torch import nn
import torch.nn.functional as F


def mha(dim, heads=4):
    return nn.MultiheadAttention(dim, heads, batch_first=True)


def mlp(dim, m=4):
    return nn.Sequential(nn.Linear(dim, m * dim), nn.GELU(), nn.Linear(m * dim, dim))


def tri(x, n):
    return torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)


class ReZero(nn.Module):
    """ReZero transformer block: x + alpha * f(x), alpha starts at zero. Bidirectional"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn, self.ff = mha(dim), mlp(dim)
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        x = x + self.alpha * self.attn(x, x, x, need_weights=False)[0]
        return x + self.alpha * self.ff(x)


class Sandwich(nn.Module):
    """Sandwich-norm block (CogView): norm before and after each sub-layer, then the skip connection"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn, self.ff = mha(dim), mlp(dim)
        self.a, self.b, self.c, self.d = [nn.LayerNorm(dim) for _ in range(4)]

    def forward(self, x):
        h = self.a(x)
        x = x + self.b(self.attn(h, h, h, need_weights=False)[0])
        return x + self.d(self.ff(self.c(x)))


class Parallel(nn.Module):
    """GPT-J style parallel block, one norm, causal"""

    def __init__(self, n_embd=32, n_head=4):
        super().__init__()
        self.ln, self.attn, self.mlp = nn.LayerNorm(n_embd), mha(n_embd, n_head), mlp(n_embd)

    def forward(self, x):
        h = self.ln(x)
        a = self.attn(h, h, h, attn_mask=tri(x, x.size(1)), need_weights=False)[0]
        return x + a + self.mlp(h)


class DeepNorm(nn.Module):
    """DeepNorm post-norm layer: norm(alpha * x + f(x)), alpha = (2 N) ** 0.25"""

    def __init__(self, dim=32, n_layers=6):
        super().__init__()
        self.alpha = (2 * n_layers) ** 0.25
        self.attn, self.ff, self.n1, self.n2 = mha(dim), mlp(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        x = self.n1(self.alpha * x + self.attn(x, x, x, need_weights=False)[0])
        return self.n2(self.alpha * x + self.ff(x))


class Macaron(nn.Module):
    """Conformer-like macaron block: half feed-forward, attention, causal conv, half feed-forward, final norm. Causal"""

    def __init__(self, dim=32, k=3):
        super().__init__()
        self.f1, self.f2, self.attn = mlp(dim), mlp(dim), mha(dim)
        self.conv, self.k = nn.Conv1d(dim, dim, k, groups=dim), k
        self.n1, self.n2, self.n3, self.n4, self.n5 = [nn.LayerNorm(dim) for _ in range(5)]

    def forward(self, x):
        x = x + 0.5 * self.f1(self.n1(x))
        h = self.n2(x)
        x = x + self.attn(h, h, h, attn_mask=tri(x, x.size(1)), need_weights=False)[0]
        x = x + self.conv(F.pad(self.n3(x).transpose(1, 2), (self.k - 1, 0))).transpose(1, 2)
        return self.n5(x + 0.5 * self.f2(self.n4(x)))


class CaiTBlock(nn.Module):
    """LayerScale (1e-5) and stochastic depth per sample, train only"""

    def __init__(self, dim=32, drop_path=0.2, init_values=1e-5):
        super().__init__()
        self.n1, self.n2, self.attn, self.ff = nn.LayerNorm(dim), nn.LayerNorm(dim), mha(dim), mlp(dim)
        self.g1, self.g2 = nn.Parameter(init_values * torch.ones(dim)), nn.Parameter(init_values * torch.ones(dim))
        self.p = drop_path

    def path(self, y):
        if not self.training or self.p == 0:
            return y
        keep = (torch.rand(y.size(0), 1, 1, device=y.device) >= self.p).to(y.dtype)
        return y * keep / (1 - self.p)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.path(self.g1 * self.attn(h, h, h, need_weights=False)[0])
        return x + self.path(self.g2 * self.ff(self.n2(x)))


class ALBERT(nn.Module):
    """ALBERT-like encoder: one layer whose weights are shared by all `num_layers` passes. (batch, seq, dim)"""

    def __init__(self, dim=32, num_layers=4):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.num_layers = num_layers

    def forward(self, x):
        for _ in range(self.num_layers):
            x = self.layer(x)
        return x


class MoEBlock(nn.Module):
    """Block with a soft top-2 mixture of experts in place of the feed-forward. Bidirectional"""

    def __init__(self, dim=32, experts=4):
        super().__init__()
        self.n1, self.n2, self.attn = nn.LayerNorm(dim), nn.LayerNorm(dim), mha(dim)
        self.router = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(mlp(dim, 2) for _ in range(experts))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        h = self.n2(x)
        g = self.router(h).softmax(-1)
        top, idx = g.topk(2, -1)
        w = torch.zeros_like(g).scatter(-1, idx, top / top.sum(-1, keepdim=True))
        return x + sum(w[..., i : i + 1] * e(h) for i, e in enumerate(self.experts))


class LoRALinear(nn.Module):
    def __init__(self, d, r=4):
        super().__init__()
        self.base = nn.Linear(d, d)
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.A, self.B = nn.Parameter(torch.randn(r, d) / math.sqrt(d)), nn.Parameter(torch.zeros(d, r))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T


class LoRAAttention(nn.Module):
    """Attention fine-tuned with LoRA: frozen base weights, B starts at zero. Causal"""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = LoRALinear(dim), LoRALinear(dim), LoRALinear(dim), LoRALinear(dim)

    def forward(self, x):
        q, k, v = [f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class AdapterLayer(nn.Module):
    """Pre-norm layer with Houlsby adapters whose up-projection is zero at the start"""

    def __init__(self, dim=32, r=8):
        super().__init__()
        self.n1, self.n2, self.attn, self.ff = nn.LayerNorm(dim), nn.LayerNorm(dim), mha(dim), mlp(dim)
        self.down, self.up = nn.Linear(dim, r), nn.Linear(r, dim)
        nn.init.zeros_(self.up.weight), nn.init.zeros_(self.up.bias)

    def forward(self, x):
        h = self.n1(x)
        a = self.attn(h, h, h, need_weights=False)[0]
        x = x + a + self.up(F.relu(self.down(a)))
        return x + self.ff(self.n2(x))


class PrefixTuning(nn.Module):
    """Bidirectional attention with p trainable prefix tokens prepended and cut off again"""

    def __init__(self, dim=32, p=4):
        super().__init__()
        self.prefix, self.attn = nn.Parameter(torch.randn(1, p, dim)), mha(dim)

    def forward(self, x):
        z = torch.cat((self.prefix.expand(x.size(0), -1, -1), x), 1)
        return self.attn(z, z, z, need_weights=False)[0][:, self.prefix.size(1) :]


class ViTCls(nn.Module):
    """Patch tokens (batch, n, dim) -> class logits from a learned cls token; pre-norm"""

    def __init__(self, dim=32, num_classes=7, max_tokens=128):
        super().__init__()
        self.cls, self.pos = (
            nn.Parameter(torch.randn(1, 1, dim) * 0.02),
            nn.Parameter(torch.randn(1, max_tokens + 1, dim) * 0.02),
        )
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True, norm_first=True),
            2,
            norm=nn.LayerNorm(dim),
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x):
        x = torch.cat((self.cls.expand(x.size(0), -1, -1), x), 1)
        return self.head(self.enc(x + self.pos[:, : x.size(1)])[:, 0])


class AttnPool(nn.Module):
    """Attention pooling. x (batch, seq, hidden), attention_mask (batch, seq) 1 = token; returns (batch, hidden)"""

    def __init__(self, hidden_size=32):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(hidden_size, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x, attention_mask=None):
        s = self.score(x).squeeze(-1)
        if attention_mask is not None:
            s = s.masked_fill(attention_mask == 0, torch.finfo(s.dtype).min)
        return torch.einsum("bn,bnd->bd", s.softmax(-1), x)


class Pointer(nn.Module):
    """Pointer network head: decoder states (batch, n, dim) and encoder states (batch, m, dim) -> log-probabilities (batch, n, m)"""

    def __init__(self, dim=32):
        super().__init__()
        self.w1, self.w2, self.v = (
            nn.Linear(dim, dim, bias=False),
            nn.Linear(dim, dim, bias=False),
            nn.Linear(dim, 1, bias=False),
        )

    def forward(self, decoder_states, encoder_states):
        u = self.v(torch.tanh(self.w1(encoder_states)[:, None] + self.w2(decoder_states)[:, :, None])).squeeze(-1)
        return F.log_softmax(u, -1)


class PerceiverEncoder(nn.Module):
    """Perceiver: `num_latents` learned latents read (batch, seq, dim) by cross attention; output (batch, num_latents, dim)"""

    def __init__(self, dim=32, num_latents=6):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.cross, self.ff, self.n1, self.n2, self.n3 = (
            mha(dim),
            mlp(dim),
            nn.LayerNorm(dim),
            nn.LayerNorm(dim),
            nn.LayerNorm(dim),
        )

    def forward(self, x):
        z = self.latents.expand(x.size(0), -1, -1)
        h = self.n2(x)
        z = z + self.cross(self.n1(z), h, h, need_weights=False)[0]
        return z + self.ff(self.n3(z))


class MAB(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn, self.ff, self.n1, self.n2 = mha(dim), nn.Linear(dim, dim), nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, q, k):
        h = self.n1(q + self.attn(q, k, k, need_weights=False)[0])
        return self.n2(h + F.relu(self.ff(h)))


class ISAB(nn.Module):
    """Induced set attention block (Set Transformer), (batch, set size, dim), permutation equivariant by design"""

    def __init__(self, dim=32, m=4):
        super().__init__()
        self.I = nn.Parameter(torch.randn(1, m, dim))
        self.a, self.b = MAB(dim), MAB(dim)

    def forward(self, x):
        return self.b(x, self.a(self.I.expand(x.size(0), -1, -1), x))


class PMA(nn.Module):
    """Pooling by multihead attention with k seeds: (batch, n, dim) -> (batch, k, dim)"""

    def __init__(self, dim=32, k=2):
        super().__init__()
        self.S, self.mab = nn.Parameter(torch.randn(1, k, dim)), MAB(dim)

    def forward(self, x):
        return self.mab(self.S.expand(x.size(0), -1, -1), x)


class MemoryCross(nn.Module):
    """Cross attention. tgt (batch, n, dim), memory (batch, m, dim), memory_key_padding_mask (batch, m) True = padding"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn, self.norm = mha(dim), nn.LayerNorm(dim)

    def forward(self, tgt, memory, memory_key_padding_mask=None):
        return self.norm(
            tgt + self.attn(tgt, memory, memory, key_padding_mask=memory_key_padding_mask, need_weights=False)[0]
        )


class MaskKeep(nn.Module):
    """Encoder attention (batch, seq, dim). mask: (batch, seq) bool, True = real token, False = padding. Rows of padding return zeros."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        q, k, v = [t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]
        s = q @ k.mT / math.sqrt(q.size(-1))
        if mask is not None:
            s = s.masked_fill(~mask.bool()[:, None, None], torch.finfo(s.dtype).min)
        y = self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return y if mask is None else y * mask.unsqueeze(-1).to(y.dtype)


class MaskDrop(nn.Module):
    """Attention where mask (batch, seq) marks with 1 the positions to be ignored (padding), 0 elsewhere"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn = mha(dim)

    def forward(self, x, mask=None):
        return self.attn(x, x, x, key_padding_mask=None if mask is None else mask.bool(), need_weights=False)[0]


class LengthMean(nn.Module):
    """Encoder and masked mean. x (batch, time, dim), lengths (batch,) -> (batch, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn, self.norm = mha(dim), nn.LayerNorm(dim)

    def forward(self, x, lengths):
        keep = torch.arange(x.size(1), device=x.device)[None] < lengths[:, None]
        y = self.norm(x + self.attn(x, x, x, key_padding_mask=~keep, need_weights=False)[0])
        y = y.masked_fill(~keep.unsqueeze(-1), 0)
        return y.sum(1) / lengths.clamp(min=1).unsqueeze(-1).to(y.dtype)


class LeftPadCausal(nn.Module):
    """Causal attention; attention_mask (batch, seq) 1 = token, 0 = pad on either side. A token always sees itself."""

    def __init__(self, hidden_size=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)

    def forward(self, x, attention_mask=None):
        t = x.size(1)
        q, k, v = [u.unflatten(-1, (self.h, -1)).transpose(1, 2) for u in self.qkv(x).chunk(3, -1)]
        ok = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()[None, None]
        if attention_mask is not None:
            ok = (ok & attention_mask.bool()[:, None, None]) | torch.eye(t, dtype=torch.bool, device=x.device)
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=ok).transpose(1, 2).flatten(2))


class SeqFirst(nn.Module):
    """Sequence first: x is (seq, batch, dim), as torch's default. Bidirectional encoder layer, post-norm"""

    def __init__(self, d_model=32, nhead=4):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, 64, dropout=0.0)

    def forward(self, x):
        # x: (seq, batch, d_model)
        return self.layer(x)


class SeqFirstLSTM(nn.Module):
    """LSTM with self-attention on top; input (time, batch, features), output the same layout"""

    def __init__(self, features=16):
        super().__init__()
        self.rnn = nn.LSTM(features, features)
        self.attn = nn.MultiheadAttention(features, 2)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.attn(h, h, h, need_weights=False)[0]


class ChannelsFirst(nn.Module):
    """Self-attention on signals of shape (batch, channels, length), Conv1d projections"""

    def __init__(self, in_channels=16, key_channels=8):
        super().__init__()
        self.q, self.k, self.v = (
            nn.Conv1d(in_channels, key_channels, 1),
            nn.Conv1d(in_channels, key_channels, 1),
            nn.Conv1d(in_channels, in_channels, 1),
        )

    def forward(self, x):
        # x: (batch, channels, length)
        a = (self.q(x).transpose(1, 2) @ self.k(x) / self.q.out_channels**0.5).softmax(2)
        return self.v(x) @ a.transpose(1, 2)


class SAGANBlock(nn.Module):
    """SAGAN-like block for (batch, channels, length): x + gamma * attention(x), gamma starts at 0"""

    def __init__(self, channels=32):
        super().__init__()
        self.f, self.g, self.hh = (
            nn.Conv1d(channels, channels // 4, 1),
            nn.Conv1d(channels, channels // 4, 1),
            nn.Conv1d(channels, channels, 1),
        )
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        s = torch.einsum("bci,bcj->bij", self.f(x), self.g(x)) / math.sqrt(self.f.out_channels)
        return x + self.gamma * torch.einsum("bij,bcj->bci", s.softmax(-1), self.hh(x))


@dataclass
class GPTConfig:
    vocab_size: int = 65
    block_size: int = 64
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 32
    dropout: float = 0.1


class GPT(nn.Module):
    """nanoGPT-like decoder, tied embeddings. idx (batch, time) -> logits"""

    def __init__(self, config: GPTConfig = GPTConfig()):
        super().__init__()
        c = self.config = config
        self.wte, self.wpe, self.drop = (
            nn.Embedding(c.vocab_size, c.n_embd),
            nn.Embedding(c.block_size, c.n_embd),
            nn.Dropout(c.dropout),
        )
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(
                c.n_embd, c.n_head, 4 * c.n_embd, c.dropout, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(c.n_layer)
        )
        self.ln_f, self.lm_head = nn.LayerNorm(c.n_embd), nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02), nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, idx):
        t = idx.size(1)
        assert t <= self.config.block_size
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(t, device=idx.device)))
        for b in self.h:
            x = b(x, src_mask=tri(x, t))
        return self.lm_head(self.ln_f(x))


class Keyword(nn.Module):
    """Keyword-only constructor and forward; extra kwargs are ignored. Bidirectional, (batch, seq, dim)"""

    def __init__(self, *, embed_dim=32, num_heads=4, **kwargs):
        super().__init__()
        self.attn = mha(embed_dim, num_heads)

    def forward(self, x, *, key_padding_mask=None, **kwargs):
        out, weights = self.attn(x, x, x, key_padding_mask=key_padding_mask)
        return out, weights


class MLPMixer(nn.Module):
    """MLP-Mixer block for a fixed number of patches"""

    def __init__(self, dim=32, num_patches=16):
        super().__init__()
        self.n1, self.n2, self.tok, self.ch = nn.LayerNorm(dim), nn.LayerNorm(dim), mlp(num_patches, 2), mlp(dim)

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ch(self.n2(x))


class Seq2Seq(nn.Module):
    """nn.Transformer for translation. src (batch, n), tgt (batch, m) token ids -> logits (batch, m, vocab); causal on tgt"""

    def __init__(self, vocab_size=40, d_model=32):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab_size, d_model), nn.Embedding(128, d_model)
        self.tr = nn.Transformer(d_model, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d_model, vocab_size)

    def e(self, ids):
        return self.emb(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))

    def forward(self, src, tgt):
        return self.out(self.tr(self.e(src), self.e(tgt), tgt_mask=tri(src, tgt.size(1))))


def build_encoder(width: int = 32, depth: int = 2):
    """An encoder with three ordinary layers"""
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)


def make_block(dim=32):
    return Parallel(dim, 4)


ready = nn.MultiheadAttention(32, 4, batch_first=True)
frozen_block = Sandwich(32).eval()


class BiGRUAttention(nn.Module):
    """Hierarchical attention network word encoder: bidirectional GRU and context vector. (batch, words, dim) -> (batch, 2 * hidden)"""

    def __init__(self, dim=16, hidden=16):
        super().__init__()
        self.gru = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.w, self.u = nn.Linear(2 * hidden, 2 * hidden), nn.Parameter(torch.randn(2 * hidden) * 0.1)

    def forward(self, x):
        h, _ = self.gru(x)
        a = (torch.tanh(self.w(h)) @ self.u).softmax(1)
        return (a.unsqueeze(-1) * h).sum(1)


class NormFormerNoSkip(nn.Module):
    """A bare attention layer with a norm on the output, used inside a larger model. (batch, seq, dim)"""

    def __init__(self, dim=32):
        super().__init__()
        self.attn, self.norm = mha(dim), nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(self.attn(x, x, x, need_weights=False)[0])


class Loud16(nn.Module):
    """Causal attention with the classic -1e9 constant, which float16 refuses"""

    def __init__(self, dim=32):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        s = self.q(x) @ self.k(x).mT / math.sqrt(x.size(-1))
        return s.masked_fill(tri(x, x.size(1)), -1e9).softmax(-1) @ self.v(x)
