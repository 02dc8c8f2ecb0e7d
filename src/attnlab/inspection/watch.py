"""Recognize attention in the operations of a running module.

An attention is a softmax over the last axis whose result a matrix product then takes as its left factor;
queries and keys are the factors of the product the scores came from. Calls of
``scaled_dot_product_attention`` are recomputed from their arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from attnlab.inspection.fused import FusedCall

SMALLEST_RANK, LARGEST_RANK = 2, 4  # (q_len, k_len) to (batch, heads, q_len, k_len)
SOFTMAX_CALLS = frozenset({"softmax"})
PRODUCT_CALLS = frozenset({"matmul", "bmm", "mm", "__matmul__"})
EINSUM_CALLS = frozenset({"einsum"})
FUSED_CALLS = frozenset({"scaled_dot_product_attention"})
TURNING_CALLS = frozenset({"transpose", "permute", "swapaxes", "t", "__get__"})  # __get__: the properties T, mT


@final
@dataclass(frozen=True)
class Captured:
    """Hold what one call of one attention computed; None where it could not be seen.

    Parameters
    ----------
    q : Tensor, optional
        Queries, (batch, heads, q_len, d_head).
    k : Tensor, optional
        Keys, (batch, kv_heads, k_len, d_head).
    v : Tensor, optional
        Values, (batch, kv_heads, k_len, d_v).
    scores : Tensor, optional
        What went into the normalizer, (batch, heads, q_len, k_len).
    weights : Tensor, optional
        What came out of it, (batch, heads, q_len, k_len).
    head_outputs : Tensor, optional
        Weighted values, (batch, heads, q_len, d_v).
    output : Tensor, optional
        What the module returned.

    Notes
    -----
    A hand-written attention without a head axis gets one of size 1; one that folds heads into the
    batch shows them there.
    """

    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    scores: Tensor | None = None
    weights: Tensor | None = None
    head_outputs: Tensor | None = None
    output: Tensor | None = None


_RUNS_FOR_ITSELF = ContextVar("_RUNS_FOR_ITSELF", default=False)


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Let a model run without anything being filed, because a person did not ask for this run."""
    token = _RUNS_FOR_ITSELF.set(True)
    try:
        yield
    finally:
        _RUNS_FOR_ITSELF.reset(token)


_OPEN: ContextVar[tuple[Recorder, ...]] = ContextVar("_OPEN", default=())


def open_recorders() -> tuple[Recorder, ...]:
    """Those that are watching now."""
    return _OPEN.get()


@final
class Recorder:
    """Know which module runs, and file what is seen under its name.

    Parameters
    ----------
    trace : dict
        Where it is filed.
    """

    def __init__(self, trace: dict[str, Captured]) -> None:
        self.trace = trace
        self._is_paused = False
        self._running: list[tuple[str, list[str]]] = []  # (module, names filed during this call)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be watched."""
        return self._is_paused or _RUNS_FOR_ITSELF.get()

    @property
    def running(self) -> str:
        """The innermost module that runs."""
        return self._running[-1][0] if self._running else "model"

    def enter(self, name: str) -> None:
        """Note that a module starts to run."""
        self._running.append((name, []))

    def leave(self, output: Any) -> None:
        """Note that the innermost module is done, and complete what was filed under it."""
        _, filed = self._running.pop()
        result = output[0] if type(output) is tuple and output else output
        for name in filed:
            if torch.is_tensor(result):
                self.trace[name] = dataclasses.replace(self.trace[name], output=result)

    def file(self, captured: Captured) -> None:
        """Keep what one attention computed, under the innermost running module."""
        if _RUNS_FOR_ITSELF.get():
            return
        name, filed = self._running[-1] if self._running else ("model", [])
        calls = sum(1 for known in self.trace if known.partition("#")[0] == name)
        unique = name if calls == 0 else f"{name}#{calls + 1}"
        self.trace[unique] = captured
        filed.append(unique)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Be found by what changes weights where nobody sees it, while open."""
        token = _OPEN.set((*_OPEN.get(), self))
        try:
            yield
        finally:
            _OPEN.reset(token)

    def correct(self, weights: Mapping[str, Tensor], *, since: int) -> None:
        """Put in the weights that were used in one call of a model, by the names that they have in it.

        Parameters
        ----------
        weights : mapping of str to Tensor
            By name, (batch, heads, q_len, k_len) each.
        since : int
            How many attentions had been filed before that call.
        """
        for name, used in weights.items():
            base, _, number = name.partition("#")
            filed = [one for one in list(self.trace)[since:] if one.partition("#")[0] == base]
            if len(filed) < int(number or 1):
                continue
            place = filed[int(number or 1) - 1]
            seen = self.trace[place]
            same = used if seen.weights is None else used.reshape(seen.weights.shape)  # heads may be in the batch
            self.trace[place] = dataclasses.replace(seen, weights=same)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Watch nothing while a layer reports by itself."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before


@final
@dataclass(frozen=True)
class _Lineage:
    """Say where a tensor comes from: a product of q and k, perhaps already through a softmax."""

    q: Tensor | None = None
    k: Tensor | None = None
    scores: Tensor | None = None
    weights: Tensor | None = None


@final
class WatchAttention(TorchFunctionMode):
    """See every torch function called and file the attentions among them.

    Parameters
    ----------
    recorder : Recorder
        Where they are filed.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self._lineage = WeakTensorKeyDictionary()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        result = func(*args, **named)
        if not self.recorder.is_paused and torch.is_tensor(result):
            with _disable_current_modes():  # what is worked out here is no part of the call
                self._see(getattr(func, "__name__", ""), result, args, named)
        return result

    def _see(self, call: str, result: Tensor, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Follow one call, which may make scores, weights or head outputs, or just change their values."""
        if call in FUSED_CALLS:
            self.recorder.file(_recompute(FusedCall(*args, **named), result))
        elif call in SOFTMAX_CALLS and _over_last_axis(result, args, named):
            self._see_softmax(result, (*args, *named.values())[0])
        elif call in PRODUCT_CALLS:
            self._see_product(result, *[*args, *named.values()][:2])
        elif call in EINSUM_CALLS:
            self._see_einsum(args)
        elif call not in TURNING_CALLS:
            self._inherit(result, args)

    def _see_softmax(self, weights: Tensor, scores: Tensor) -> None:
        origin = self._lineage.get(scores, _Lineage())
        self._lineage[weights] = _Lineage(origin.q, origin.k, scores, weights)

    def _see_product(self, product: Tensor, left: Tensor, right: Tensor) -> None:
        origin = self._lineage.get(left, _Lineage())
        if origin.weights is not None:
            self._file(origin, v=right, head_outputs=product)
        elif left.ndim >= SMALLEST_RANK and right.ndim >= SMALLEST_RANK:
            self._lineage[product] = _Lineage(left, right.transpose(-2, -1))

    def _see_einsum(self, args: Sequence[Any]) -> None:
        """Follow an einsum, whose layout is free: only scores and weights can be told."""
        for factor in _tensors(args):
            origin = self._lineage.get(factor, _Lineage())
            if origin.weights is not None:
                self._file(origin)

    def _inherit(self, result: Tensor, args: Sequence[Any]) -> None:
        """Pass on where a tensor comes from when scaling, masking, dropout or a view changes it."""
        for source in _tensors(args):
            keeps = source.shape[-2:] == result.shape[-2:] and source.numel() == result.numel()
            if keeps and source in self._lineage:
                self._lineage[result] = self._lineage[source]
                return

    def _file(self, origin: _Lineage, v: Tensor | None = None, head_outputs: Tensor | None = None) -> None:
        seen = Captured(origin.q, origin.k, v, origin.scores, origin.weights, head_outputs)
        ranks = {tensor.ndim for tensor in vars(seen).values() if tensor is not None}
        if max(ranks) <= LARGEST_RANK:
            self.recorder.file(Captured(**{name: _with_heads(tensor) for name, tensor in vars(seen).items()}))


def _over_last_axis(result: Tensor, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a softmax call runs over the last axis of something that can be weights."""
    axis = named.get("dim", args[1] if len(args) > 1 else None)
    return result.ndim >= SMALLEST_RANK and axis in (-1, result.ndim - 1)


def _tensors(args: Sequence[Any]) -> list[Tensor]:
    """The tensors among positional arguments, one level of nesting deep."""
    flat = [inner for value in args for inner in (value if type(value) in (tuple, list) else (value,))]
    return [value for value in flat if torch.is_tensor(value)]


def _with_heads(tensor: Tensor | None) -> Tensor | None:
    """Give a tensor without head axis (and batch axis) those of size 1."""
    if tensor is None:
        return None
    while tensor.ndim < LARGEST_RANK:
        tensor = tensor.unsqueeze(-3)  # (batch, heads=1, q_len, k_len)
    return tensor


def _recompute(call: FusedCall, head_outputs: Tensor) -> Captured:
    """Work out scores and weights of a fused call, dropout aside."""
    scores = call.scores()
    weights = scores.softmax(dim=-1).nan_to_num(nan=0.0)  # a row that may attend to nothing gives zeros
    seen = Captured(call.query, call.key, call.value, scores, weights, head_outputs)
    return Captured(**{name: _with_heads(tensor) for name, tensor in vars(seen).items()})
