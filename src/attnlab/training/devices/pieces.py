"""A batch in pieces, each computed by one rank, or one after another: the numbers are those of the whole batch.

The loss of the whole is the mean of the pieces' losses, weighted by the targets of each. What is random is drawn for
the whole batch at every piece, which keeps its own rows: so the numbers do not depend on how the batch was cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.core.contracts import Batch, Task, counts_targets, targets_of
from attnlab.core.errors import SpecError
from attnlab.core.generators import generator_states, restore_generators, seed_generators

FUSED = "scaled_dot_product"
"""In the names of operations that attend and drop weights in one call."""
LARGEST_SEED = 2**31


@final
@dataclass(frozen=True)
class Piece:
    """Hold some rows of a batch."""

    batch: Batch  # these rows
    number: int  # of the piece, from 0
    first: int  # its first row
    rows: int  # of the whole batch
    weight: float  # its part of all targets of the whole batch

    def drawing(self) -> contextlib.AbstractContextManager[object]:
        """The context in which random numbers are those of its rows in the whole batch."""
        return contextlib.nullcontext() if len(self.batch.targets) == self.rows else _DrawnForAll(self)


def cut(task: Task, batch: Batch, count: int, numbers: Sequence[int]) -> list[Piece]:
    """Some of the pieces of a batch that is cut in so many.

    Raises
    ------
    SpecError
        As in `require_divided`.
    """
    rows = len(batch.targets)
    require_divided(task, rows, count)
    starts = [number * rows // count for number in range(count + 1)]
    everything = targets_of(task, batch)
    pieces = []
    for number in numbers:
        part = batch.rows(starts[number], starts[number + 1])
        pieces.append(Piece(part, number, starts[number], rows, targets_of(task, part) / everything))
    return pieces


def require_divided(task: Task, rows: int, count: int) -> None:
    """Check that a batch of so many rows can be cut in so many pieces.

    Raises
    ------
    SpecError
        If the rows cannot be divided, or are fewer than the pieces.
    """
    if rows < count or (rows % count and not counts_targets(task)):
        raise SpecError(
            f"a batch of {rows} rows cannot be divided into {count} equal pieces (devices x accumulate); give the task "
            "a batch that they divide, or use fewer devices"
        )


def drawn_alike(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Pieces one after another, each with the random numbers of the first."""
    states = generator_states() if len(pieces) > 1 else {}
    for piece in pieces:
        restore_generators(states)
        yield piece


@final
class _DrawnForAll(TorchDispatchMode):
    """Do every random operation for a whole batch, and keep the rows of a piece.

    Notes
    -----
    Acts below autograd, on whole tensors. A tensor whose first axis holds each row equally often belongs to rows; a
    random operation on others, such as one number for all, is the same on every piece as it is. Time and memory: that
    of the whole batch for masks, at every piece. Fused attention that drops weights cannot be cut: each piece draws
    its own. Nor can what draws as many numbers as its values ask for, such as ``rrelu``.
    """

    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self._first, self._own, self._all = piece.first, len(piece.batch.targets), piece.rows
        self._number = piece.number

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do one operation."""
        del types
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        if FUSED in func.name():
            return self._attend(func, dict(zip(names, args, strict=False)) | kwargs)
        if "size" in names:
            return self._create(func, args, kwargs, names.index("size"))
        first = args[0] if args else None
        if not isinstance(first, Tensor) or not first.ndim or first.shape[0] % self._own:
            return func(*args, **kwargs)
        return self._transform(func, args, kwargs, first.shape[0])

    def _attend(self, func: Any, named: dict[str, Any]) -> Any:
        """Attend; where weights are dropped, with random numbers of the piece's own."""
        if not named.get("dropout_p"):
            return func(**named)
        seed = int(torch.randint(LARGEST_SEED, ())) + self._number
        cuda = [torch.cuda.current_device()] if named["query"].is_cuda else []
        with torch.random.fork_rng(devices=cuda):
            seed_generators(seed)
            return func(**named)

    def _create(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> Any:
        """Draw a new tensor."""
        size = args[place]
        if not size or size[0] % self._own:
            return func(*args, **kwargs)
        each = size[0] // self._own
        drawn = func(*args[:place], [each * self._all, *size[1:]], *args[place + 1 :], **kwargs)
        return self._kept(drawn, each)

    def _transform(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], length: int) -> Any:
        """Do what changes tensors or makes others of them; those that hold rows take part as a whole batch."""
        each = length // self._own
        enlarged = [
            self._enlarged(one, each) if isinstance(one, Tensor) and one.shape[:1] == (length,) else one for one in args
        ]
        results = func(*enlarged, **kwargs)
        if not func._schema.is_mutable:
            return (
                self._kept(results, each)
                if isinstance(results, Tensor)
                else tuple(self._kept(one, each) for one in results)
            )
        for one, large, argument in zip(args, enlarged, func._schema.arguments, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                one.copy_(self._kept(large, each))
        return args[0]

    def _enlarged(self, tensor: Tensor, each: int) -> Tensor:
        """A tensor for the whole batch in the same order in memory; the rows of other pieces are ones."""
        shape = (each * self._all, *tensor.shape[1:])
        large = torch.empty_permuted(shape, tensor.dim_order(), dtype=tensor.dtype, device=tensor.device).fill_(1)
        self._kept(large, each).copy_(tensor)
        return large

    def _kept(self, tensor: Tensor, each: int) -> Tensor:
        """The rows of the piece."""
        return tensor.narrow(0, each * self._first, each * self._own)
