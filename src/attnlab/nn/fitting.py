"""Whether objects that a person put together fit each other: found out by calling them once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnlab.core.errors import AttnlabError, SpecError
from attnlab.core.modes import evaluating
from attnlab.nn.key_values import AbstractMixer

LENGTH = 2  # positions: the fewest of which one is before another


@torch.no_grad()
def check_fit(layer: nn.Module, *, d_model: int, causal: bool) -> None:
    """Raise a `SpecError` if a layer cannot read the width of the model, or sees the future where it must not."""
    parameters = list(layer.parameters())
    if any(one.is_meta for one in parameters) or len({(one.dtype, one.device) for one in parameters}) > 1:
        return  # nothing can be compared on meta, and types that differ may be made equal later
    like = parameters[0] if parameters else torch.empty(0)
    inputs = torch.randn(2, LENGTH, d_model, generator=torch.Generator().manual_seed(0)).to(like)
    inputs[1, 0] = inputs[0, 0]  # two sequences that differ in their last position alone
    outputs = _called(layer, inputs)
    if outputs.shape != inputs.shape:
        raise SpecError(f"{_name(layer)} must keep the shape {tuple(inputs.shape)}; got {tuple(outputs.shape)}")
    if causal and not torch.allclose(outputs[0, 0], outputs[1, 0], rtol=1e-2, atol=1e-4):
        raise SpecError(f"{_name(layer)} lets a position see later ones, which this place forbids; give it causal=True")


def check_unshared(*roots: nn.Module) -> None:
    """Raise a `SpecError` if one object with parameters stands in several places."""
    seen: set[int] = set()
    for part in (part for root in roots for part in _places(root)):
        if id(part) in seen:
            raise SpecError(
                f"one {_name(part)} stands in several places, which would share its weights; give its class or a"
                " functools.partial of it, so that every place makes its own, or a list with one object per layer"
            )
        if any(True for _ in part.parameters(recurse=False)):
            seen.add(id(part))


def _places(part: nn.Module) -> Iterator[nn.Module]:
    """Yield the object of every place, those of a person's own module left out."""
    yield part
    if not (isinstance(part, AbstractMixer) and part.starts_itself):
        for child in part._modules.values():
            yield from _places(child) if child is not None else ()


def _called(layer: nn.Module, inputs: Tensor) -> Tensor:
    """What a layer makes of inputs in evaluation mode, so that no random number is drawn."""
    try:
        with evaluating(layer):
            return layer(inputs)
    except (RuntimeError, AttnlabError, TypeError, AttributeError) as error:
        raise SpecError(f"{_name(layer)} does not fit a width of {inputs.shape[-1]}: {error}") from error


def _name(layer: nn.Module) -> str:
    return type(layer).__name__
