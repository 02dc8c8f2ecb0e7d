"""Copies of modules in float64, which compute as exactly as that whatever formats the modules ask for by themselves."""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MASK = 3  # place of the mask among what fused attention is given
_SHORT = frozenset({torch.float32, torch.float16, torch.bfloat16})
_SHORTENING = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})


@final
class MasksAsExact(TorchFunctionMode):
    """Give torch's attention the masks that it adds to scores in the precision of its queries.

    A module makes them in float32, in a copy of it in float64 too, and there the fused kernel for CPUs takes them and
    reads other numbers (torch 2.13): what they hide is not hidden.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return _with_exact_masks(func, args, dict(kwargs or {}))


@final
class InFloat64(TorchFunctionMode):
    """Compute in float64 what a module in float64 asks for in a shorter format, or makes in torch's own.

    Softmax in float32, norms that begin with ``x.float()`` and states that ``torch.zeros`` makes are as usual as they
    are right; beside float64 their products fail, or lose what is measured. Masks are given as `MasksAsExact` does.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func in _SHORTENING:
            func, args, kwargs = Tensor.double, args[:1], None
        named = {name: _long(one) for name, one in (kwargs or {}).items()}
        result = _with_exact_masks(func, tuple(map(_long, args)), named)
        made = isinstance(result, Tensor) and result.dtype in _SHORT and not any(result is one for one in args)
        return result.double() if made else result


def _with_exact_masks(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What a function of torch gives; attention with its masks in the precision of its queries."""
    if func in (F.scaled_dot_product_attention, F.multi_head_attention_forward):
        query = named["query"] if "query" in named else args[0]
        named = {name: _as_exact(one, query) if "mask" in name else one for name, one in named.items()}
        if func is F.scaled_dot_product_attention and len(args) > _MASK:
            args = (*args[:_MASK], _as_exact(args[_MASK], query), *args[_MASK + 1 :])
    return func(*args, **named)


def _long(given: Any) -> Any:
    """The longest format for a shorter one; anything else as it is."""
    return torch.float64 if isinstance(given, torch.dtype) and given in _SHORT else given


def _as_exact(given: Any, query: Tensor) -> Any:
    """A mask that is added in the precision of the queries; anything else as it is."""
    is_added = isinstance(given, Tensor) and given.is_floating_point()
    return given.to(query.dtype) if is_added else given
