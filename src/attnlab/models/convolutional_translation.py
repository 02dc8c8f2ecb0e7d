"""Convolutional encoder-decoders: rivals that translate without recurrence, one with attention and one without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.core.sizes import check_positive, repeated
from attnlab.models.translator import AbstractRival, Logits, Source, Target, gather
from attnlab.nn.axes.positions import LearnedPositions
from attnlab.nn.kernels.dropout import Dropout

HALF = math.sqrt(0.5)
"""Keeps the variance of a sum of two."""


@final
class _Convolution(nn.Module):
    """Convolve positions, on both sides or only from the past: (batch, length, d_in) to (batch, length, d_out)."""

    def __init__(self, d_in: int, d_out: int, kernel_size: int, *, causal: bool, dilation: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(d_in, d_out, kernel_size, dilation=dilation)
        reach = (kernel_size - 1) * dilation
        self.pad = (reach, 0) if causal else (reach // 2, reach - reach // 2)

    def forward(self, x: Tensor) -> Tensor:
        """The convolution; what stands outside counts as zero."""
        return self.convolution(F.pad(x.transpose(1, 2), self.pad)).transpose(1, 2)


@final
class ConvS2S(AbstractRival):
    """Translate with gated convolutions, every one of which looks at the source.

    Parameters
    ----------
    d_model : int, default 256
        Width of embeddings and of every layer.
    n_layers : int, default 4
        Convolutions on each side.
    kernel_size : int, default 3
        Positions that one of them sees; odd.
    dropout : float, default 0.1
        Of embeddings and of the input of every convolution.

    Raises
    ------
    SpecError
        If a size is not positive, the kernel is even, or the probability not in [0, 1); when it is called, if a
        sequence is longer than `max_length`.

    Notes
    -----
    ``s = sqrt(1/2)`` keeps the variance of a sum of two. The encoder computes ``h_l = s (glu(conv(h_{l-1})) +
    h_{l-1})``. In the decoder ``h = glu(conv(h_{l-1}))``, ``d_i = s (W h_i + b + g_i)`` with the embedding g of what
    was written, ``a_ij = softmax_j(d_i z_j)``, ``c_i = sqrt(m) sum_j a_ij s (z_j + e_j)`` for m source tokens, and
    ``h_l = s (s (h + c) + h_{l-1})``. Gradients into the encoder are divided by twice the number of decoder layers, as
    the authors' code does. Differs from [1]_: one width, weights not normalized.

    References
    ----------
    .. [1] Gehring et al., 2017, arXiv:1705.03122, section 3.
    """

    reading = (*AbstractRival.reading, "source_positions")

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        max_length: int,
        *,
        pad: int = 0,
        d_model: int = 256,
        n_layers: int = 4,
        kernel_size: int = 3,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(source_vocab_size, target_vocab_size, pad=pad, d_model=d_model, dropout=dropout)
        check_positive({"max_length": max_length, "n_layers": n_layers})
        _check_odd(kernel_size)
        self.source_positions = LearnedPositions(d_model, max_length=max_length)
        self.target_positions = LearnedPositions(d_model, max_length=max_length)
        gated = (d_model, 2 * d_model, kernel_size)
        self.encoder = nn.ModuleList(_Convolution(*gated, causal=False) for _ in range(n_layers))
        self.decoder = nn.ModuleList(_Convolution(*gated, causal=True) for _ in range(n_layers))
        self.queries = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(n_layers))
        self.logits = nn.Linear(d_model, target_vocab_size)
        self._init(1.0 - dropout)

    def _init(self, kept: float) -> None:
        """Draw weights so that the variance stays from layer to layer, section 3.5 of the source."""
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.1)
            elif isinstance(module, nn.Conv1d):
                inputs = module.in_channels * module.kernel_size[0]
                nn.init.normal_(module.weight, std=math.sqrt(4.0 * kept / inputs))
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=math.sqrt(kept / module.in_features))
                nn.init.zeros_(module.bias)

    def answer(self, source: Source, target: Target) -> Logits:
        """The logits of the token after each position of what is written."""
        real = source != self.pad
        keys, values = self._encode(source, real)
        counts = real.sum(dim=1).clamp(min=1).to(keys.dtype)[:, None, None]
        written = self.drop(self.target_positions(self.target_embedding(target)))
        h = written
        for convolution, query in zip(self.decoder, self.queries, strict=True):
            found = F.glu(convolution(self.drop(h)), dim=-1)
            scores = ((query(found) + written) * HALF) @ keys.transpose(1, 2)
            context, _ = gather(scores, values, real)
            h = ((found + context * counts.sqrt()) * HALF + h) * HALF
        return self.logits(self.drop(h))

    def _encode(self, source: Tensor, real: Bool[Tensor, "batch s_len"]) -> tuple[Tensor, Tensor]:
        """What the decoder compares with and what it gathers."""
        mask = real[..., None].to(self.logits.weight.dtype)
        embedded = self.drop(self.source_positions(self.source_embedding(source))) * mask
        h = embedded
        for convolution in self.encoder:
            h = (F.glu(convolution(self.drop(h)), dim=-1) + h) * HALF * mask
        share = 0.5 / len(self.decoder)
        h = h * share + h.detach() * (1.0 - share)
        return h, (h + embedded) * HALF


@final
class ByteNet(AbstractRival):
    """Translate with dilated convolutions stacked on each other, without attention, in time linear in the length.

    Parameters
    ----------
    d_model : int, default 256
        Width of embeddings and of the residual stream; even. Convolutions are half as wide.
    n_sets : int, default 2
        How often the dilations are gone through, on each side.
    dilations : sequence of int, default (1, 2, 4, 8, 16)
        Distances between the positions that the blocks of a set see.
    kernel_size : int, default 3
        Positions that a convolution sees; odd.
    unfold : float, default 1.5
        The encoder's output is so many times as long as the source.
    dropout : float, default 0.1
        Of embeddings and at the end of every block.

    Raises
    ------
    SpecError
        If a size is not positive, the width is odd, the kernel is even, or the probability not in [0, 1).

    Notes
    -----
    A block is ``x + W_2 relu(norm(conv(relu(norm(W_1 relu(norm(x)))))))``. The decoder reads at place t what the
    encoder has at place t: translation and source run side by side, and what is not at its place must come through
    the convolutions. Beyond `unfold` times the source the decoder goes on without. Differs from [1]_: dropout.

    References
    ----------
    .. [1] Kalchbrenner et al., 2016, arXiv:1610.10099, section 3.
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        pad: int = 0,
        d_model: int = 256,
        n_sets: int = 2,
        dilations: Sequence[int] = (1, 2, 4, 8, 16),
        kernel_size: int = 3,
        unfold: float = 1.5,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(source_vocab_size, target_vocab_size, pad=pad, d_model=d_model, dropout=dropout)
        check_positive({"n_sets": n_sets, "dilation": min(dilations, default=0)})
        _check_odd(kernel_size)
        if d_model % 2 or unfold < 1.0:
            raise SpecError(f"d_model must be even and unfold at least 1; got {d_model} and {unfold}")
        self.unfold = unfold
        of_a_set = [(d_model, kernel_size, dilation, dropout) for dilation in dilations]
        blocks = [block for blocks in repeated(of_a_set, n_sets) for block in blocks]
        self.encoder = nn.ModuleList(_DilatedBlock(*block, causal=False) for block in blocks)
        self.join = nn.Linear(2 * d_model, d_model)
        self.decoder = nn.ModuleList(_DilatedBlock(*block, causal=True) for block in blocks)
        self.norm = nn.LayerNorm(d_model)
        self.logits = nn.Linear(d_model, target_vocab_size)

    def answer(self, source: Source, target: Target) -> Logits:
        """The logits of the token after each position of what is written."""
        written = self.drop(self.target_embedding(target))
        x = self.join(torch.cat((written, self._encode(source, target.shape[1])), dim=-1))
        for block in self.decoder:
            x = block(x)
        return self.logits(self.norm(x).relu())

    def _encode(self, source: Int[Tensor, "batch s_len"], t_len: int) -> Float[Tensor, "batch t_len d_model"]:
        """The source as the decoder reads it, a vector per place."""
        real = source != self.pad
        length = max(math.ceil(self.unfold * source.shape[1]), t_len)
        places = torch.arange(length, device=source.device)
        unfolded = (real.sum(dim=1, keepdim=True).double() * self.unfold).ceil()  # as exact as for `length`
        inside = (places < unfolded)[..., None]
        mask = inside.to(self.logits.weight.dtype)
        x = self.drop(self.source_embedding(source)) * real[..., None].to(mask.dtype)
        x = F.pad(x, (0, 0, 0, length - source.shape[1]))
        for block in self.encoder:
            x = block(x, mask)
        return x[:, :t_len]


@final
class _DilatedBlock(nn.Module):
    """The residual block of ByteNet."""

    def __init__(self, d_model: int, kernel_size: int, dilation: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        half = d_model // 2
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in (d_model, half, half))
        self.narrow = nn.Linear(d_model, half)
        self.convolution = _Convolution(half, half, kernel_size, causal=causal, dilation=dilation)
        self.widen = nn.Linear(half, d_model)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor, inside: Tensor | None = None) -> Tensor:
        """The input with what the block makes of it added; zero, and not seen, where `inside` is."""
        shown = 1.0 if inside is None else inside
        first, second, third = self.norms
        y = second(self.narrow(first(x).relu())).relu() * shown
        y = self.widen(third(self.convolution(y)).relu())
        return (x + self.drop(y)) * shown


def _check_odd(kernel_size: int) -> None:
    check_positive({"kernel_size": kernel_size})
    if kernel_size % 2 == 0:
        raise SpecError(f"kernel_size must be odd, so that lengths stay; got {kernel_size}")
