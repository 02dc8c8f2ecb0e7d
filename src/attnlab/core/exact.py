"""Attention of torch in a copy of a module in float64, exactly as the module means it."""

from __future__ import annotations

from typing import Any, final

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MASK = 3  # place of the mask among what fused attention is given


@final
class MasksAsExact(TorchFunctionMode):
    """Give torch's attention the masks that it adds to scores in the precision of its queries.

    A module makes them in float32, in a copy of it in float64 too, and there the fused kernel for CPUs takes them and
    reads other numbers (torch 2.13): what they hide is not hidden.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        named = dict(kwargs or {})
        if func in (F.scaled_dot_product_attention, F.multi_head_attention_forward):
            query = named["query"] if "query" in named else args[0]
            named = {name: _as_exact(one, query) if "mask" in name else one for name, one in named.items()}
            if func is F.scaled_dot_product_attention and len(args) > _MASK:
                args = (*args[:_MASK], _as_exact(args[_MASK], query), *args[_MASK + 1 :])
        return func(*args, **named)


def _as_exact(given: Any, query: Tensor) -> Any:
    """A mask that is added in the precision of the queries; anything else as it is."""
    is_added = isinstance(given, Tensor) and given.is_floating_point()
    return given.to(query.dtype) if is_added else given
