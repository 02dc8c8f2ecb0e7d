"""The random start a library gives its modules, where that is not given by their own constructors.

Hugging Face initializes a part when it builds a whole model: `T5Attention` alone starts with torch's default, under
which its logits, which have no scale, are far too large. ``torch.nn.utils.spectral_norm`` divides by a random number
until it has run in training mode.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm

from attnlab.core.modes import evaluating

_LIBRARY = "transformers."
_ROUNDING = 1.001  # of the bound of a uniform start
_POWER_ITERATIONS = 15  # as many as torch's parametrization of the same name starts with


def start_as_library_does(module: nn.Module) -> None:
    """Initialize a part of a Hugging Face model as its model would, in place, unless that has been done already.

    Spectral norms find their norm, as in the first steps of training.
    """
    _find_spectral_norms(module)
    if not type(module).__module__.startswith(_LIBRARY) or not _starts_as_torch_does(module):
        return
    config = next((part.config for part in module.modules() if hasattr(part, "config")), None)
    base = _base_of(type(module))
    if config is None or base is None or isinstance(module, base):
        return
    try:
        module.apply(base(config)._init_weights)
    except (AttributeError, TypeError, ValueError):  # another version of the library
        return


def fill_lazy_layers(module: nn.Module, width: int) -> None:
    """Give lazy layers their sizes, in place, as a first call gives them; those that it does not reach get a width.

    Parameters
    ----------
    module : nn.Module
        What may have layers such as ``nn.LazyLinear``, which have no sizes before their first call.
    width : int
        Of what the call is given.
    """
    if not any(map(is_lazy, module.parameters())):
        return
    wanted = [one for one in inspect.signature(module.forward).parameters.values() if one.default is one.empty]
    with evaluating(module), torch.no_grad():
        for given in (torch.zeros(2, 4, width), torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, width)):
            if any(map(is_lazy, module.parameters())):
                with contextlib.suppress(Exception):  # what was reached until then has its sizes
                    module(*[given] * len(wanted))
        for part in [part for part in module.modules() if isinstance(part, nn.LazyLinear)]:  # the others are linear now
            part(torch.zeros(2, width))


def uninitialized(build: Callable[[], nn.Module]) -> tuple[str, ...]:
    """The parameters that a constructor never fills: torch is told to put NaN into memory that is not initialized."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # its one attribute is set at run time
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = True
    try:
        module = build()
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = filled
    floating = ((name, one) for name, one in module.named_parameters() if one.is_floating_point() and one.numel())
    return tuple(name for name, one in floating if bool(one.isnan().all()))


def initialize(module: nn.Module, names: Sequence[str]) -> None:
    """Start parameters as torch starts a linear map, uniform within the root of the number of inputs, in place."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name in names:
            bound = parameters[name].shape[-1:].numel() ** -0.5
            parameters[name].uniform_(-bound, bound)


def _find_spectral_norms(module: nn.Module) -> None:
    for part in module.modules():
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                for _ in range(_POWER_ITERATIONS):
                    hook.compute_weight(part, do_power_iteration=True)


def _base_of(part: type) -> Any:
    """The class of models in the file of a part that knows how to initialize it."""
    namespace = vars(sys.modules[part.__module__])
    bases = [
        value for name, value in namespace.items() if name.endswith("PreTrainedModel") and name != "PreTrainedModel"
    ]
    return bases[0] if bases and hasattr(bases[0], "_init_weights") else None


def _starts_as_torch_does(module: nn.Module) -> bool:
    """Whether every linear map is uniform within torch's default bound."""
    linears = [part for part in module.modules() if isinstance(part, nn.Linear) and not part.weight.is_meta]
    return bool(linears) and all(_is_uniform(part.weight.detach()) for part in linears)


def _is_uniform(weight: torch.Tensor) -> bool:
    """Whether weights fill the interval of torch's default start, 1 / sqrt(inputs) to either side."""
    bound = weight.size(1) ** -0.5
    largest = float(weight.abs().max())
    return 0.9 * bound <= largest <= _ROUNDING * bound and abs(float(weight.std()) - bound / 3**0.5) < 0.1 * bound
