"""The positions of a sequence divided among ranks (context parallel): each computes some, and sees the keys of all.

How a model computes some positions it knows itself, by a method ``take_positions(share, gather)``. Experimental.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attnlab.core.contracts import Batch, Task, counts_targets, targets_of
from attnlab.core.errors import SpecError
from attnlab.core.sharded import RankShare
from attnlab.training.devices.pieces import Piece, cut
from attnlab.training.devices.ranks import AbstractRanks
from attnlab.training.devices.spread import AbstractSpread, Replicated

POSITIONS = -2
"""The axis of positions of queries, of activations, and of what is drawn for them."""


@final
class ContextParallel(AbstractSpread):
    """Train a whole model on every rank, each of which computes some positions of every row.

    Parameters
    ----------
    model : nn.Module
        The model; it waits on the CPU, and is read again where something needs it whole.
    ranks : AbstractRanks
        Who trains it.

    Raises
    ------
    SpecError
        If the model, or a part of it, cannot compute some positions alone.

    Notes
    -----
    Keys and values of all positions are gathered in every layer, and their gradients added up on the way back. Each
    rank keeps its part of the activations and of the scores, and all keys.
    """

    def __init__(self, model: nn.Module, ranks: AbstractRanks) -> None:
        self._model = model
        self.owner = copy.deepcopy(model)
        take_positions(self.owner, ranks.number, ranks.count, lambda x: _Gather.apply(x, self._group))
        self._group = dist.new_group()  # of its own, as gradients are exchanged at the same time
        self._replicated = Replicated(self.owner, some_unused=False)
        self.called = self._replicated.called
        model.cpu()

    def exchanging(self, *, last: bool) -> contextlib.AbstractContextManager[object]:
        """No exchange of gradients before the last pass of a step."""
        return self._replicated.exchanging(last=last)

    @torch.no_grad()
    def give_back(self) -> None:
        """Copy the weights."""
        self._model.load_state_dict(self.owner.state_dict())


def take_positions(model: nn.Module, number: int, count: int, gather: Callable[[Tensor], Tensor]) -> None:
    """Let a model compute a rank's positions alone.

    Raises
    ------
    SpecError
        If it, or a part of it, cannot.
    """
    take: Callable[..., None] | None = getattr(model, "take_positions", None)
    if take is None:
        raise SpecError(f"sharding: context: {type(model).__name__} cannot be computed at some positions alone")
    try:
        take(RankShare(POSITIONS, number, count), gather)
    except SpecError as error:
        raise SpecError(f"sharding: context: {error}") from None


@final
class _Gather(torch.autograd.Function):
    """What ranks have at their positions, side by side; the gradient of each is the sum over all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """Gather."""
        ctx.group, ctx.length = group, x.shape[POSITIONS]
        found = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
        dist.all_gather(found, x.contiguous(), group=group)
        return torch.cat(found, dim=POSITIONS)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Add up, and keep this rank's part."""
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total.narrow(POSITIONS, dist.get_rank(ctx.group) * ctx.length, ctx.length), None


def divided_length(batch: Batch, count: int) -> int:
    """The length of the sequences of a batch, which so many ranks divide; a `SpecError` where they do not."""
    lengths = {tensor.shape[1] if tensor.ndim > 1 else 1 for tensor in (*batch.inputs, batch.targets)}
    if len(lengths) > 1:
        raise SpecError("sharding: context: inputs and targets must be sequences of one length, cut at the same places")
    (length,) = lengths
    if length % count:
        raise SpecError(f"sharding: context: {length} positions cannot be divided among {count} devices")
    return length


def cut_positions(task: Task, batch: Batch, accumulate: int, ranks: AbstractRanks) -> list[Piece]:
    """Some positions of a batch, in pieces of its rows.

    Raises
    ------
    SpecError
        If inputs and targets are not sequences of one length that the ranks divide, or the rows are not divided.
    """
    length = divided_length(batch, ranks.count)
    start, end = (number * length // ranks.count for number in (ranks.number, ranks.number + 1))
    pieces = []
    for piece in cut(task, batch, accumulate, range(accumulate)):
        inputs = tuple(tensor[:, start:end] for tensor in piece.batch.inputs)
        part = Batch(inputs, piece.batch.targets[:, start:end])
        alike = piece.weight / ranks.count
        weight = targets_of(task, part) / targets_of(task, batch) if counts_targets(task) else alike
        pieces.append(Piece(part, piece.number, piece.first, piece.rows, weight))
    return pieces
