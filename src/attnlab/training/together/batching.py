"""What ``torch.vmap`` lacks for training: fused attention in one call, and random numbers of each run's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.core.generators import DROPOUTS

TakeTurn = Callable[[int], None]
"""Give torch's random number generators to the run of a number."""

MATRIX_AXES = 2
FACTORIES = {"aten::rand": 0, "aten::randn": 0, "aten::randint": 1, "aten::randint.low": 2}
"""Random operations that take no tensor, and which argument is their shape."""
FUSED = "scaled_dot_product"
"""In the names of operations that count as random since they can drop weights; `BatchingRules` sees to those."""


@final
class BatchingRules(TorchFunctionMode):
    """Call fused attention once for all runs, and dropout once for each.

    Parameters
    ----------
    random : OwnRandomNumbers
        Where the runs take turns.

    Attributes
    ----------
    seen : bool
        Whether anything was called so far that has a rule here.
    """

    def __init__(self, random: OwnRandomNumbers) -> None:
        super().__init__()
        self.random = random
        self.seen = False

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function by its rule, if it has one."""
        del types
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self.seen = True
            return self._attend(*args, **kwargs)
        if func in DROPOUTS:
            self.seen = True
            return self._drop(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        options = dict(zip(("dropout_p", "is_causal"), args, strict=False)) | kwargs
        return _Attention.apply(query, key, value, attn_mask, options, self.random)

    def _drop(self, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002 torch's name
        if not training or p == 0.0:
            return input
        del inplace  # what it returns is the same; a slice of all runs' values cannot be overwritten
        return _Dropout.apply(input, lambda own: func(own, p, training), self.random)


@final
class _Attention(torch.autograd.Function):
    """Fused attention with a rule for vmap; its derivative is that of the operations in the rule."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        """Attend where nothing depends on a run."""
        query, key, value, mask, options, _ = arguments
        return F.scaled_dot_product_attention(query, key, value, mask, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
        """Attend for all runs; where weights are dropped, run by run."""
        *tensors, mask, options, random = arguments
        runs = info.batch_size
        query, key, value = (_runs_first(*one, runs) for one in zip(tensors, in_dims, strict=False))
        if mask is not None:
            mask = _runs_first(mask, in_dims[len(tensors)], runs)
        if options.get("dropout_p"):
            masks = [None] * runs if mask is None else mask
            outputs = [
                F.scaled_dot_product_attention(query[run], key[run], value[run], masks[run], **options)
                for run in random.turns()
            ]
            return torch.stack(outputs), 0
        if query.ndim <= MATRIX_AXES + 1:  # (runs, length, width): the runs are the batch
            return F.scaled_dot_product_attention(query, key, value, mask, **options), 0
        if mask is not None:
            mask = _with_batch(mask, query).flatten(0, 1)
        query, key, value = (tensor.flatten(0, 1) for tensor in (query, key, value))
        output = F.scaled_dot_product_attention(query, key, value, mask, **options)
        return output.unflatten(0, (runs, -1)), 0


@final
class _Dropout(torch.autograd.Function):
    """Dropout with a rule for vmap; its derivative is that of the operations in the rule."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        """Drop values that depend on no run."""
        x, drop, _ = arguments
        return drop(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
        """Drop run by run: memory is laid out as in a single run, so the same values are dropped."""
        x, drop, random = arguments
        own = _runs_first(x, in_dims[0], info.batch_size).unbind()
        return torch.stack([drop(own[run]) for run in random.turns()]), 0


def _runs_first(tensor: Tensor, axis: int | None, runs: int) -> Tensor:
    return tensor.expand(runs, *tensor.shape) if axis is None else tensor.movedim(axis, 0)


def _with_batch(mask: Tensor, query: Tensor) -> Tensor:
    """Give a mask with fewer axes than the queries the missing ones, and their batch."""
    missing = query.ndim - mask.ndim
    mask = mask.reshape(mask.shape[0], *[1] * missing, *mask.shape[1:])
    return mask.expand(-1, query.shape[1], *[-1] * (mask.ndim - 2))


@final
class OwnRandomNumbers(TorchDispatchMode):
    """Let every run draw what it would draw alone, wherever random numbers are drawn without a rule of their own.

    Parameters
    ----------
    runs : int
        Number of runs; the first axis of what is drawn holds them one after the other.
    take_turn : callable
        Called with the number of a run before its numbers are drawn.

    Attributes
    ----------
    seen : bool
        Whether anything random was drawn so far that has no rule of its own.

    Notes
    -----
    Acts below vmap and autograd, on whole tensors: a random operation is done piece by piece along the first axis.
    An operation of another form is done as a whole, so that its numbers are not those of single runs.
    """

    def __init__(self, runs: int, take_turn: TakeTurn) -> None:
        super().__init__()
        self.runs = runs
        self.take_turn = take_turn
        self.seen = False
        self._in_turn = False

    def turns(self) -> Iterator[int]:
        """The number of every run when it is its turn; what is drawn then is its own, whatever its form."""
        with self._whole():
            for run in range(self.runs):
                self.take_turn(run)
                yield run

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        self._in_turn = True
        try:
            yield
        finally:
            self._in_turn = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do one operation; a random one run by run."""
        del types
        kwargs = kwargs or {}
        if self._in_turn or torch.Tag.nondeterministic_seeded not in func.tags or FUSED in func.name():
            return func(*args, **kwargs)
        self.seen = True
        pieces = self._pieces(func, args)
        if pieces is None:
            return func(*args, **kwargs)
        results = [func(*pieces[run], **kwargs) for run in self.turns()]
        return args[0] if func._schema.is_mutable else _join(results)

    def _pieces(self, func: Any, args: tuple[Any, ...]) -> list[tuple[Any, ...]] | None:
        """The arguments of each run's part of an operation; None where it has no such parts."""
        first = args[0] if args else None
        if isinstance(first, Tensor) and first.ndim and len(first) % self.runs == 0:
            split = [
                arg.chunk(self.runs)
                if isinstance(arg, Tensor) and arg.shape[:1] == first.shape[:1]
                else [arg] * self.runs
                for arg in args
            ]
            return list(zip(*split, strict=True))
        place = FACTORIES.get(func.name())
        if place is None or args[place][0] % self.runs:
            return None
        size = [args[place][0] // self.runs, *args[place][1:]]
        return [(*args[:place], size, *args[place + 1 :])] * self.runs


def _join(results: Sequence[Any]) -> Any:
    """Put the runs' results together along the first axis; several outputs one by one."""
    if isinstance(results[0], Tensor):
        return torch.cat(list(results))
    return tuple(torch.cat(outputs) for outputs in zip(*results, strict=True))
