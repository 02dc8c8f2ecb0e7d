"""What people would pick instead: the same decoder from torch, x-transformers, transformers, and written by hand.

Every peer takes tokens and returns logits. Sizes are equal; what cannot be made equal is said in `Peer.differs`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab.models.stacks import Decoder


@final
@dataclass(frozen=True)
class PeerSizes:
    """State the sizes of a decoder and of its batch."""

    name: str  # what the tables call it
    n_layers: int
    d_model: int
    n_heads: int
    """Blocks, width, heads."""
    length: int
    batch: int
    """Tokens in a sequence, sequences in a batch."""
    vocab_size: int = 65  # number of distinct tokens

    def __str__(self) -> str:
        return (
            f"({self.name}) {self.n_layers} layers, width {self.d_model}, {self.n_heads} heads,"
            f" batch {self.batch} x {self.length}"
        )


SIZES: dict[str, PeerSizes] = {
    "a": PeerSizes("a", n_layers=4, d_model=128, n_heads=4, length=64, batch=12),
    "b": PeerSizes("b", n_layers=6, d_model=256, n_heads=8, length=128, batch=64),
    "c": PeerSizes("c", n_layers=6, d_model=384, n_heads=6, length=256, batch=64),
}
"""From seconds to minutes on a CPU; (a) and (c) are nanoGPT's character recipes for CPU and GPU."""


@final
@dataclass(frozen=True)
class Peer:
    """Name one way to get the same model."""

    name: str  # what the tables call it
    build: Callable[[PeerSizes], nn.Module]  # from sizes to a module, tokens to logits
    package: str | None = None  # what has to be installed
    differs: str = ""  # what could not be made equal, in words; empty where nothing

    @property
    def is_installed(self) -> bool:
        """Whether what it needs is there."""
        return self.package is None or importlib.util.find_spec(self.package) is not None


def attnlab_decoder(sizes: PeerSizes) -> nn.Module:
    """The lab's own decoder."""
    mixer = {"name": "attention", "n_heads": sizes.n_heads}
    return Decoder(sizes.vocab_size, sizes.length, d_model=sizes.d_model, n_layers=sizes.n_layers, mixer=mixer)


@final
class HandWritten(nn.Module):
    """A decoder as a good engineer writes it in one sitting: pre-norm, fused attention, tied embedding.

    Parameters
    ----------
    sizes : PeerSizes
        Its sizes.
    """

    def __init__(self, sizes: PeerSizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocab_size, sizes.d_model)
        self.positions = nn.Embedding(sizes.length, sizes.d_model)
        self.blocks = nn.ModuleList(HandWrittenBlock(sizes.d_model, sizes.n_heads) for _ in range(sizes.n_layers))
        self.norm = nn.LayerNorm(sizes.d_model)
        self.apply(_start_small)

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab_size"]:
        """The logits of the token after each position."""
        x = self.embedding(tokens) + self.positions.weight[: tokens.size(1)]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


@final
class HandWrittenBlock(nn.Module):
    """Causal attention and a feed-forward of four times the width, each behind a norm.

    Parameters
    ----------
    d_model, n_heads : int
        Width and number of heads.
    """

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.before_attention, self.before_feedforward = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv, self.project = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.up, self.down = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """The residual stream after both sublayers."""
        batch, length, width = x.shape
        packed = self.qkv(self.before_attention(x)).view(batch, length, 3, self.n_heads, width // self.n_heads)
        q, k, v = packed.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, d_head)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.before_feedforward(x))))


def _start_small(part: nn.Module) -> None:
    if isinstance(part, nn.Linear | nn.Embedding):
        nn.init.normal_(part.weight, std=0.02)
    if isinstance(part, nn.Linear):
        nn.init.zeros_(part.bias)


@final
class TorchEncoderStack(nn.Module):
    """A decoder from ``torch.nn.TransformerEncoderLayer``: the class that people take with a causal mask.

    Parameters
    ----------
    sizes : PeerSizes
        Its sizes.
    """

    def __init__(self, sizes: PeerSizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocab_size, sizes.d_model)
        self.positions = nn.Embedding(sizes.length, sizes.d_model)
        layer = nn.TransformerEncoderLayer(
            sizes.d_model,
            sizes.n_heads,
            4 * sizes.d_model,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        norm = nn.LayerNorm(sizes.d_model)
        self.layers = nn.TransformerEncoder(layer, sizes.n_layers, norm=norm, enable_nested_tensor=False)
        self.apply(_start_small)
        mask = nn.Transformer.generate_square_subsequent_mask(sizes.length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab_size"]:
        """The logits of the token after each position."""
        x = self.embedding(tokens) + self.positions.weight[: tokens.size(1)]
        return F.linear(self.layers(x, mask=self.mask, is_causal=True), self.embedding.weight)


def x_transformer(sizes: PeerSizes) -> nn.Module:
    """The decoder of the package x-transformers."""
    from x_transformers import Decoder as Layers
    from x_transformers import TransformerWrapper

    layers = Layers(
        dim=sizes.d_model,
        depth=sizes.n_layers,
        heads=sizes.n_heads,
        attn_dim_head=sizes.d_model // sizes.n_heads,
        attn_flash=True,
    )
    return TransformerWrapper(
        num_tokens=sizes.vocab_size, max_seq_len=sizes.length, attn_layers=layers, tie_embedding=True
    )


@final
class Gpt2(nn.Module):
    """GPT-2 of the package transformers, without dropout and cache.

    Parameters
    ----------
    sizes : PeerSizes
        Its sizes.
    """

    def __init__(self, sizes: PeerSizes) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=sizes.vocab_size,
            n_positions=sizes.length,
            n_embd=sizes.d_model,
            n_layer=sizes.n_layers,
            n_head=sizes.n_heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.model = GPT2LMHeadModel(config)

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab_size"]:
        """The logits of the token after each position."""
        return self.model(tokens).logits


OURS = Peer("attnlab", attnlab_decoder)
PLAIN = Peer("plain loop", HandWritten)
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        OURS,
        PLAIN,
        Peer("torch.nn.TransformerEncoder", TorchEncoderStack),
        Peer("x-transformers", x_transformer, "x_transformers", "its projections and norms have no biases"),
        Peer("transformers GPT-2", Gpt2, "transformers", "its GELU is the tanh approximation"),
    )
}
"""attnlab first, the reference second, then the others."""


def parameter_count(model: nn.Module) -> int:
    """The number of parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
