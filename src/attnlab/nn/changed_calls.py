"""What a module passes to softmax, fused attention, rectifiers and dropout, noted or changed while its code runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnlab.core.generators import DROPOUTS
from attnlab.nn.axes.positions import sinusoids
from attnlab.nn.kernels.dot_products import is_mapped

SOFTMAX = frozenset({torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax})
RECTIFIERS = frozenset({torch.relu, F.relu, Tensor.relu, torch.relu_, Tensor.relu_})
DROPPING = DROPOUTS | {torch.dropout, torch.alpha_dropout, torch.feature_alpha_dropout, torch.feature_dropout}
"""Functions that drop values, called as ``f(x, p, training)``."""
ENTRIES = frozenset({F.embedding, F.linear})
"""Functions that take a model's input in."""
_LIMITED = """
relu relu_ relu6 sigmoid sigmoid_ hardsigmoid logsigmoid tanh tanh_ hardtanh softsign softplus elu selu celu gelu silu
clamp clip clamp_min clamp_max abs
"""
BOUNDED = frozenset(
    getattr(where, name) for name in _LIMITED.split() for where in (torch, F, Tensor) if hasattr(where, name)
)
"""Functions of single numbers that do not give every number."""
NEARLY_AS_LONG = 2
"""Difference to the length up to which an axis may be that of positions, with some put before or behind them."""
FAR = 1e4
"""What is as large is taken for as large as can be."""
DETACHING = frozenset({Tensor.detach, torch.detach})
WITH_INNER_CALLS = (F.multi_head_attention_forward,)
"""Functions in Python whose calls within are what is changed."""
PRODUCTS = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum})
_KEEPING = """
mul div truediv add sub neg masked_fill where transpose permute swapaxes view reshape squeeze unsqueeze flatten
unflatten get getitem contiguous float to clone clamp tanh
"""
KEEPING = frozenset(_KEEPING.split())
"""Functions behind which scores are scores still."""


def later(scores: Tensor) -> Tensor:
    """Where a key stands behind its query, as bool (q_len, k_len)."""
    return torch.ones(*scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)


@final
class ChangedCalls(TorchFunctionMode):
    """Change scores and what is rectified in every call of torch within.

    Parameters
    ----------
    scores : callable
        What is normalized over its last axis, to what is normalized instead.
    rectified : callable, optional
        What is rectified, to the result; None leaves rectifiers as they are.
    over_keys : bool
        Whether scores are normalized over their last axis, whatever axis is named.
    dropping : bool
        Whether dropout acts.
    given : Tensor, optional
        What the module was given; the first of it that is embedded or mapped at every position is its input.
    entry_times : float
        What it is multiplied by as soon as it is embedded or mapped.
    positions : bool
        Whether positions are added to it then.
    attached : bool
        Whether gradients pass where the code within cuts them off.
    over_channels : bool
        Whether layer norms of (batch, channels, length) are over the channels, where they are over all positions.
    following : bool
        Whether products of what the module computed are told from other tensors (`are_products`).
    """

    def __init__(
        self,
        scores: Callable[[Tensor], Tensor],
        rectified: Callable[[Tensor], Tensor] | None,
        *,
        over_keys: bool = False,
        dropping: bool = True,
        given: Tensor | None = None,
        entry_times: float = 1.0,
        positions: bool = False,
        attached: bool = False,
        over_channels: bool = False,
        following: bool = False,
    ) -> None:
        super().__init__()
        self._following = following
        self._entry_times, self._positions = entry_times, positions
        self._scores, self._rectified = scores, rectified
        self._over_keys, self._dropping, self._given, self._attached = over_keys, dropping, given, attached
        self._instead: dict[Any, Callable[..., Tensor]] = {one: partial(self._dropout, one) for one in DROPPING}
        self._instead |= {F.scaled_dot_product_attention: self._fused, F.layer_norm: self._layer_norm}
        self._taken_in = False
        self.across = False  # whether scores were normalized over another axis than their last
        self._over_channels = over_channels
        self.over_positions = False  # whether a layer norm was over all positions of each channel
        self.dropped = 0.0  # the largest share that was dropped at once

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch with what it should have been given."""
        given = dict(kwargs or {})
        if func in WITH_INNER_CALLS:
            changed = {"softmax": self._softmax, "scaled_dot_product_attention": self._fused}
            with _in_place_of(changed | {"dropout": self._instead[torch.dropout]}):
                return func(*args, **given)
        if func in SOFTMAX:
            x = args or (given.pop("input"),)
            return self._softmax(*x, **given)
        if func in self._instead:
            return self._instead[func](*args, **given)
        first: Any = args[0] if args else given.get("input")
        if func in RECTIFIERS and self._rectified:
            return self._rectified(first)
        result = self._result(func, first, args, given)
        if self._following and isinstance(result, Tensor) and _leads_to_scores(func, (*args, *given.values())):
            result._of_products = True  # pyrefly: ignore
        return self._entered(result) if func in ENTRIES and self._takes_in(result) else result

    def _layer_norm(self, x: Tensor, normalized_shape: Sequence[int], *affine: Any, **named: Any) -> Tensor:
        """Layer norm, which of (batch, channels, length) may be over channels; what it multiplies by stays as it is."""
        given_whole = self._given
        known = given_whole is not None and given_whole.ndim > 1 and x.ndim == 3 and len(x) == len(given_whole)
        length = given_whole.shape[1] if known else 0
        if tuple(normalized_shape) != (length,) or abs(x.shape[1] - length) <= NEARLY_AS_LONG:
            return self._result(F.layer_norm, x, (x, normalized_shape, *affine), named)
        self.over_positions = True
        if not self._over_channels:
            return self._result(F.layer_norm, x, (x, normalized_shape, *affine), named)
        given = dict(zip(("weight", "bias", "eps"), affine, strict=False)) | named
        weight, bias = given.get("weight"), given.get("bias")
        normed = F.layer_norm(x.mT, x.shape[1:2], eps=given.get("eps", 1e-5)).mT
        normed = normed if weight is None else normed * weight
        return normed if bias is None else normed + bias

    def _takes_in(self, result: Tensor) -> bool:
        """Whether this is the first that has a vector for every position of what the module was given."""
        if self._taken_in or self._given is None or result.ndim != 3 or result.shape[:2] != self._given.shape[:2]:
            return False
        self._taken_in = True
        return True

    def _entered(self, x: Tensor) -> Tensor:
        """The input, embedded or mapped, as it should have been."""
        x = x if self._entry_times == 1 else x * self._entry_times
        return x + sinusoids(x.shape[1], x.shape[2], dtype=x.dtype, device=x.device) if self._positions else x

    def _result(self, func: Any, first: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        """What a function gives, with its gradient where gradients are cut off nowhere."""
        if not self._attached:
            return func(*args, **given)
        if func in DETACHING:
            return first
        with contextlib.suppress(RuntimeError), torch.enable_grad():
            return func(*args, **given)
        with torch.no_grad():  # a weight that is changed in place has no gradient of that
            return func(*args, **given)

    def _softmax(self, x: Tensor, dim: int | None = None, *rest: Any, **named: Any) -> Tensor:
        """Softmax, of changed scores where it is over the last axis."""
        if dim is None:  # which axis that is depends on the number of axes: left as it is
            return F.softmax(x, dim, *rest, **named)
        dtype = next((one for one in rest if isinstance(one, torch.dtype)), named.get("dtype"))
        if dim not in (-1, x.ndim - 1) and x.ndim > 2 and x.shape[-1] == x.shape[-2]:
            self.across, dim = True, -1 if self._over_keys else dim
        return torch.softmax(self._scores(x) if dim in (-1, x.ndim - 1) else x, dim, dtype=dtype)

    def _dropout(self, func: Any, input: Tensor, p: float = 0.5, *rest: Any, **named: Any) -> Tensor:  # noqa: A002 - torch's name
        """Dropout of one kind, where it acts."""
        unsaid = func not in (F.alpha_dropout, F.feature_alpha_dropout)
        acts = rest[0] if rest else named.get("training", named.get("train", unsaid))
        if not acts:
            return input
        self.dropped = max(self.dropped, p)
        return self._result(func, input, (input, p, True), {}) if self._dropping else input

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Tensor:
        """Fused attention with changed scores: in plain steps, which may be changed."""
        given = dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False)) | named
        if given.get("enable_gqa"):
            group = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
        scale, mask, dropped = given.get("scale"), given.get("attn_mask"), given.get("dropout_p", 0.0)
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if given.get("is_causal"):
            scores = scores.masked_fill(later(scores), float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        scores._of_products = True  # pyrefly: ignore
        weights = torch.softmax(self._scores(scores), -1).nan_to_num(0.0)  # as torch has it, where nothing is allowed
        return self._dropout(torch.dropout, weights, dropped) @ value if dropped else weights @ value


def are_products(scores: Tensor) -> bool:
    """Whether scores were multiplied of two things that a module computed, as queries and keys are."""
    return getattr(scores, "_of_products", False)


def _leads_to_scores(func: Any, given: Sequence[Any]) -> bool:
    """Whether a function of torch multiplies two things that were computed, or leaves such products what they are."""
    tensors = [one for one in given if isinstance(one, Tensor)]
    if func in PRODUCTS:
        return not any(isinstance(one, nn.Parameter) for one in tensors)
    name = getattr(func, "__name__", "").strip("_")  # such as ``rmul`` of a number before a tensor
    return not {name, name.removeprefix("r")}.isdisjoint(KEEPING) and any(are_products(one) for one in tensors)


@final
class LastBounded(TorchFunctionMode):
    """Note the last call of a function of single numbers that does not give every number."""

    def __init__(self) -> None:
        super().__init__()
        self._call: tuple[Any, tuple[Any, ...], Mapping[str, Any]] | None = None
        self._given = self._result = torch.empty(0)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch as it is."""
        given = dict(kwargs or {})
        first = args[0] if args else given.pop("input", None)
        if func not in BOUNDED or not isinstance(first, Tensor) or not first.is_floating_point():
            return func(*args, **(kwargs or {}))
        self._given = first.clone()  # the function may write over it
        self._result = func(first, *args[1:], **given)
        self._call = func, args[1:], given
        return self._result

    def gave(self, output: Tensor) -> bool:
        """Whether an output is what that function gave, in whatever shape."""
        if is_mapped(output):  # which has no storage of its own
            return output is self._result
        same = output.untyped_storage().data_ptr() == self._result.untyped_storage().data_ptr()
        return same and output.numel() == self._result.numel() and output.is_contiguous()

    def before(self, output: Tensor) -> Tensor:
        """What that function was given, if an output is what it gave; else the output."""
        return self._given.reshape(output.shape) if self.gave(output) else output

    def limits(self) -> tuple[float, float]:
        """The least and the largest number that it gives; infinite where it grows without end."""
        if self._call is None:
            return -math.inf, math.inf
        func, rest, named = self._call
        values = func(torch.linspace(-FAR, FAR, 20_001, dtype=torch.float64), *rest, **named)
        low, high = float(values.min()), float(values.max())
        return -math.inf if low <= -FAR / 10 else low, math.inf if high >= FAR / 10 else high


@contextlib.contextmanager
def _in_place_of(functions: Mapping[str, Callable[..., Tensor]]) -> Iterator[None]:
    """Let functions of `torch.nn.functional` call others by names of theirs."""
    originals = {name: getattr(F, name) for name in functions}
    vars(F).update(functions)
    try:
        yield
    finally:
        vars(F).update(originals)
