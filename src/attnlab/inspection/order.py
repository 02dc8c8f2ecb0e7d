"""Whether a model tells in which order its inputs stand: all of it, or the layers of its stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

ROUNDING = 1e-8
"""Of the differences between outputs: what sums of float64 differ by when they are made in another order."""


def by_chance(model: nn.Module, x: Tensor) -> bool:
    """Whether two calls with one input give different outputs, by more than rounding."""
    with torch.no_grad():
        return not _alike(model(x), model(x))


def sees_order(model: nn.Module, layers: Sequence[nn.Module], x: Tensor, *, causal: bool) -> bool:
    """Whether the order of the inputs matters to a model, and to its layers where it has some.

    A model whose layers are blind to order is so too, whatever else it does with positions: what is added behind the
    layers comes too late, and what two layers tell by their causal mask alone is little.

    Parameters
    ----------
    model : nn.Module
        A model in evaluation, of float64, that does not answer by chance.
    layers : sequence of nn.Module
        The layers of its stack; none where it has none.
    x : Tensor
        Its input, (batch, length) or (batch, length, width).
    causal : bool
        Whether outputs depend on nothing behind them. Then the last output alone is looked at, while the inputs before
        it change places.

    Returns
    -------
    bool
        False where every output is the same, in the new order of the inputs.
    """
    length = x.shape[1]
    order = torch.randperm(length - causal, generator=torch.Generator().manual_seed(0))
    order = torch.cat((order, torch.tensor([length - 1]))) if causal else order
    one, calls = _run(model, layers, x)
    other, again = _run(model, layers, x[:, order])
    if not _differ(one, other, order, 1, causal=causal):
        return False
    if not (layers and len(calls) == len(again) == len(layers)):
        return True
    axis = {(length, x.shape[0]): 0, x.shape[:2]: 1}.get(calls[0].given.shape[:2])
    if axis is None or _differ(calls[0].given, again[0].given, order, axis, causal=False):
        return True
    return any(_tells(call, order, axis, causal=causal) for call in calls)


@final
@dataclass(frozen=True)
class _Call:
    """The first call of a layer."""

    layer: nn.Module
    given: Tensor
    others: tuple[Any, ...]
    named: dict[str, Any]
    output: Tensor


def _run(model: nn.Module, layers: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, list[_Call]]:
    """What a model gives, and how it calls its layers with a tensor, in the order in which it does."""
    calls: dict[nn.Module, _Call] = {}

    def note(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if args and isinstance(args[0], Tensor):
            calls.setdefault(layer, _Call(layer, args[0], args[1:], named, _first(output)))

    hooks = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    with torch.no_grad():
        output = model(x)
    for hook in hooks:
        hook.remove()
    return output, list(calls.values())


def _tells(call: _Call, order: Tensor, axis: int, *, causal: bool) -> bool:
    """Whether a layer by itself gives other outputs when its inputs change places."""
    if call.given.shape[axis] != len(order) or call.output.shape != call.given.shape:
        return True
    with torch.no_grad():
        other = _first(call.layer(call.given.index_select(axis, order), *call.others, **call.named))
    return _differ(call.output, other, order, axis, causal=causal)


def _differ(one: Tensor, other: Tensor, order: Tensor, axis: int, *, causal: bool) -> bool:
    """Whether outputs differ from those of the new order by more than rounding; one answer of all has no order."""
    if one.ndim == 3 and one.shape[axis] == len(order):
        one = one.index_select(axis, order)
        one, other = (y.select(axis, -1).unsqueeze(axis) if causal else y for y in (one, other))
    return not _alike(one, other)


def _alike(one: Tensor, other: Tensor) -> bool:
    if torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True):
        return True
    across = 1 if one.ndim >= 3 and one.shape[1] > 1 else 0  # over positions where there are several, else samples
    return float((one - other).abs().max()) <= ROUNDING * float((one - one.mean(across, keepdim=True)).abs().max())


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple | list) else output
