"""Mixers: what lets positions speak with each other inside a block.

Attention is one of them; the others have no (q_len, k_len) matrix and are its rivals. All are called as
``mixer(x, memory=None, padding=None)`` and return the shape of `x`. Padding is True at real positions, which
stand on the left. Recurrent and linear-time mixers are in `attnlab.nn.recurrences`.
"""

# ruff: noqa: ARG002 -- entries of an axis share one signature; not every entry needs all of it

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch.nn.functional as F
from torch import nn

from attnlab.core.build import Spec, build, class_of, is_path, is_ready, name_of
from attnlab.core.layouts import Activations, Memory, Real
from attnlab.core.sizes import check_positive
from attnlab.nn.attention import Attention
from attnlab.nn.fitting import check_fit
from attnlab.nn.key_values import AbstractKeylessMixer, AbstractMixer
from attnlab.nn.mended import MendedMixer
from attnlab.nn.recurrences import Fastformer, LinearAttention, LstmMixer, refuse_memory


@final
class NoMixer(AbstractKeylessMixer):
    """Mix nothing; a block leaves the whole sublayer out.

    Notes
    -----
    ``y = x``. No parameters. What a stack of these reaches is what position-wise layers alone are worth.
    """

    def forward(self, x: Activations, memory: Memory | None = None, padding: Real | None = None) -> Activations:
        """Return `x` as it is."""
        refuse_memory(memory, "none")
        return x


@final
class PositionWise(AbstractKeylessMixer):
    """Map every position on its own with one linear layer and a ReLU.

    Notes
    -----
    ``y = relu(W x + b)``; ``d_model^2`` weights. It cannot mix positions: the control for "is attention
    worth more than a layer of any kind?".
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        check_positive({"d_model": d_model})
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x: Activations, memory: Memory | None = None, padding: Real | None = None) -> Activations:
        """The rectified map of every position."""
        refuse_memory(memory, "position-wise")
        return F.relu(self.linear(x))


@final
class ConvolutionMixer(AbstractKeylessMixer):
    """Mix a fixed neighborhood with a convolution.

    Parameters
    ----------
    kernel_size : int
        Number of positions that are seen.
    dilation : int
        Distance between them.

    Notes
    -----
    ``y_p = sum_o W_o x_{p + o} + b``; ``kernel_size * d_model^2`` weights, time linear in the length. No
    nonlinearity: the feed-forward sublayer has one. Padded positions count as zero.

    References
    ----------
    .. [1] Gehring et al., 2017, arXiv:1705.03122, section 3.2; dilation: van den Oord et al., 2016,
       arXiv:1609.03499, section 2.1.
    """

    def __init__(self, d_model: int, *, kernel_size: int = 5, dilation: int = 1, causal: bool = False) -> None:
        super().__init__()
        check_positive({"d_model": d_model, "kernel_size": kernel_size, "dilation": dilation})
        self.convolution = nn.Conv1d(d_model, d_model, kernel_size, dilation=dilation)
        reach = (kernel_size - 1) * dilation
        before = reach if causal else (kernel_size - 1) // 2 * dilation
        self.pad = (before, reach - before)

    def forward(self, x: Activations, memory: Memory | None = None, padding: Real | None = None) -> Activations:
        """The convolved sequence."""
        refuse_memory(memory, "convolution")
        if padding is not None:
            x = x.masked_fill(~padding.unsqueeze(-1), 0)
        x = F.pad(x.transpose(1, 2), self.pad)  # (batch, d_model, length + reach)
        return self.convolution(x).transpose(1, 2)


MIXERS: Mapping[str, Callable[..., AbstractMixer]] = {
    "none": NoMixer,
    "position-wise": PositionWise,
    "convolution": ConvolutionMixer,
    "lstm": LstmMixer,
    "attention": Attention,
    "linear-attention": LinearAttention,
    "fastformer": Fastformer,
    "mended": MendedMixer,
}


def build_mixer(spec: Spec, offered: Mapping[str, Any]) -> nn.Module:
    """Build a mixer by name or class, or fit a person's own module into its place."""
    if not is_ready(spec) and is_path(name_of(spec, MIXERS, "mixer")):
        from attnlab.nn.foreign import build_foreign

        return build_foreign(spec, offered)
    made = build(spec, MIXERS, axis="mixer", offered=offered)
    if not issubclass(class_of(spec, MIXERS, "mixer"), AbstractMixer):
        from attnlab.nn.foreign import adapt

        return adapt(made, **{name: offered[name] for name in ("d_model", "causal", "max_length") if name in offered})
    if is_ready(spec):
        check_fit(made, d_model=offered["d_model"], causal=bool(offered.get("causal")))
    return made
