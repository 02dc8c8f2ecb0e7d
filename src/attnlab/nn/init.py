"""Init: how the parameters of a finished model start. Every entry uses torch's global generator.

A person's own module keeps the start it gives itself: it stands in a model unchanged. Which of its matrices start far
above the size that keeps what they are given as large as it is, is measured.
"""

# ruff: noqa: ARG001 -- entries share one signature; not every entry needs all of it

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.core.errors import SpecError
from attnlab.nn.key_values import AbstractMixer

GPT_STD = 0.02  # source: Radford et al., 2018, "Improving Language Understanding", section 4.1
RESIDUAL_OUTPUT = "to_residual"  # what every linear layer whose output joins the residual stream is called

FAR_ABOVE = 3.0
"""Times the usual size from which on a matrix starts far above it; He's start has 1.4 times, torch's 0.6 times."""
ABOVE = 1.5
"""The same of what is brought to the usual size beside such a matrix: who draws one too large draws all in one way."""
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "linear"})
_COPIES = frozenset({"clone", "_to_copy"})


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


# How large the matrices of any model start


def start_far_above(model: nn.Module, inputs: Sequence[Tensor]) -> dict[str, float]:
    """How many times the usual size the matrices of a model have that start above it, by name, if one is far above.

    Parameters
    ----------
    model : nn.Module
        Any model; a copy of it is called, to see which of its weights multiply something.
    inputs : sequence of Tensor
        What it reads.

    Returns
    -------
    dict
        Of every such matrix. Tables of which rows are read or added start at one, and are none.
    """
    one = copy.deepcopy(model).train()
    multiplied = _Multiplied(one)
    with torch.no_grad(), multiplied:
        one(*inputs)
    found = [each for each in _weights(one) if multiplied.has(each[2])]
    if not any(_times_usual(part, weight) > FAR_ABOVE for _, part, weight in found):
        return {}
    return {name: times for name, part, weight in found if (times := _times_of_inputs(part, weight)) > ABOVE}


@torch.no_grad()
def bring_to_usual(module: nn.Module, names: Sequence[str]) -> None:
    """Scale the weights of a module that start above the usual size to it.

    Parameters
    ----------
    module : nn.Module
        Any module.
    names : sequence of str
        Which weights: their names, or those that they have in a model around the module.
    """
    for name, part, weight in _weights(module):
        named = any(f".{one}".endswith(f".{name}") for one in names)
        if named and not weight.is_meta and (times := _times_of_inputs(part, weight)) > ABOVE:
            weight.div_(times)


def _weights(model: nn.Module) -> list[tuple[str, nn.Module, nn.Parameter]]:
    """The weights that may be matrices, with the parts that hold them."""
    named = [(f"{place}.{name}" if place else name, part, weight) for place, part in model.named_modules()
             for name, weight in part.named_parameters(recurse=False)]  # fmt: skip
    return [(name, part, weight) for name, part, weight in named if weight.ndim > 1 and weight.is_floating_point()]


def _times_usual(part: nn.Module, weight: Tensor) -> float:
    """The size of a matrix, or of several of one shape, over one by the root of the fewer of its rows and columns."""
    if isinstance(part, nn.modules.conv._ConvNd):
        seen = weight[0, 0].numel()
        fewest = min(weight.shape[0] * seen, weight.shape[1] * seen)
    else:
        fewest = min(weight.shape[-2:])
    return float(weight.detach().double().square().mean().sqrt()) * fewest**0.5


def _times_of_inputs(part: nn.Module, weight: Tensor) -> float:
    """The same over one by the root of its columns, where it is sure that these are for what it is given."""
    if isinstance(part, nn.Linear):
        return float(weight.detach().double().square().mean().sqrt()) * weight.shape[1] ** 0.5
    return _times_usual(part, weight)


@final
class _Multiplied(TorchDispatchMode):
    """Note what multiplies something, as a matrix or as a kernel."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._weights = {_storage(weight): _storage(weight) for weight in model.parameters()}  # and that of copies
        self._kept: list[Tensor] = []  # copies, lest others are stored where they were
        self._noted: set[int] = set()

    def has(self, weight: Tensor) -> bool:
        """Whether a weight did, a view or a copy of it."""
        return _storage(weight) in self._noted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operation, and note what it multiplies."""
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        weights = [self._weights[_storage(one)] for one in args if _storage(one) in self._weights]
        if name in _PRODUCTS:
            self._noted |= {*weights}
        elif name in _COPIES and weights:
            self._weights[_storage(result)] = weights[0]
            self._kept.append(result)
        return result


def _storage(one: Any) -> int:
    return one.untyped_storage().data_ptr() if isinstance(one, Tensor) else 0
