"""Init: how the parameters of a finished model start. Every entry uses torch's global generator.

A person's own module keeps the start it gives itself: it stands in a model unchanged.
"""

# ruff: noqa: ARG001 -- entries share one signature; not every entry needs all of it

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

from attnlab.core.errors import SpecError
from attnlab.nn.key_values import AbstractMixer

GPT_STD = 0.02  # source: Radford et al., 2018, "Improving Language Understanding", section 4.1
RESIDUAL_OUTPUT = "to_residual"  # what every linear layer whose output joins the residual stream is called


def leave(module: nn.Module, n_layers: int) -> None:
    """Leave every parameter as its layer made it: torch's defaults.

    Notes
    -----
    Linear layers: uniform with bound ``1 / sqrt(fan_in)``, standard deviation ``1 / sqrt(3 fan_in)``: behind each
    such layer without a skip, the signal shrinks.
    """


@torch.no_grad()
def gpt(module: nn.Module, n_layers: int) -> None:
    """Draw weights from N(0, 0.02), smaller where a layer writes to the residual stream; biases are zero.

    References
    ----------
    .. [1] Radford et al., 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
    """
    if n_layers < 1:
        raise SpecError(f"n_layers must be positive; got {n_layers}")
    for name, part in _own_parts(module):
        if isinstance(part, nn.Linear | nn.Embedding):
            writes = name.rpartition(".")[2] == RESIDUAL_OUTPUT
            part.weight.normal_(0.0, GPT_STD / math.sqrt(2 * n_layers) if writes else GPT_STD)
        if isinstance(part, nn.Linear) and part.bias is not None:
            part.bias.zero_()


@torch.no_grad()
def gpt_zero(module: nn.Module, n_layers: int) -> None:
    """Draw weights as `gpt`, and start what writes to the residual stream at zero: every block begins as the identity.

    Notes
    -----
    Where a block adds nothing to its input, the gradient of what stands before its last layer is zero in the first
    step, and no longer in the second.

    References
    ----------
    .. [1] Goyal et al., 2017, arXiv:1706.02677, section 5.1 (the last layer of a residual branch, scaled by zero).
    .. [2] Zhang, Dauphin, Ma, 2019, arXiv:1901.09321, section 3 (its last weights zero, in networks without norms).
    """
    gpt(module, n_layers)
    for name, part in _own_parts(module):
        if isinstance(part, nn.Linear) and name.rpartition(".")[2] == RESIDUAL_OUTPUT:
            part.weight.zero_()


@torch.no_grad()
def xavier(module: nn.Module, n_layers: int) -> None:
    """Draw linear weights so that the signal keeps its variance forward and backward; biases are zero.

    Notes
    -----
    Uniform with bound ``sqrt(6 / (fan_in + fan_out))``. Queries, keys and values are one packed matrix, whose
    fan_out counts all three, as in torch's ``nn.MultiheadAttention``.

    References
    ----------
    .. [1] Glorot, Bengio, 2010, "Understanding the difficulty of training deep feedforward neural networks",
       equation 16.
    """
    for _, part in _own_parts(module):
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                part.bias.zero_()


def _own_parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts of a model with their names, those within a person's own modules left out."""
    mixers = [(name, part) for name, part in module.named_modules() if isinstance(part, AbstractMixer)]
    foreign = tuple(name + "." for name, mixer in mixers if mixer.starts_itself)
    for name, part in module.named_modules():
        if not name.startswith(foreign):
            yield name, part


INITS: Mapping[str, Callable[[nn.Module, int], None]] = {
    "torch": leave,
    "gpt": gpt,
    "gpt-zero": gpt_zero,
    "xavier": xavier,
}
