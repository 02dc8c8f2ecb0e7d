"""What one step of a run is divided into, tried before the first one: pieces of the batch, parts of the model."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch, Task
from attnlab.core.errors import SpecError
from attnlab.core.generators import generator_states, restore_generators
from attnlab.core.machine import usable_cores
from attnlab.core.sharded import whole
from attnlab.inspection.memory import kept_bytes
from attnlab.training.devices.pieces import Piece, cut, drawn_alike
from attnlab.training.devices.ranks import AbstractRanks, Alone
from attnlab.training.devices.spread import (
    AUTO,
    FULL,
    TENSOR,
    AbstractSpread,
    Replicated,
    Sharded,
    Undivided,
    what_fits,
)
from attnlab.training.recipe.recipe import SAME_ROWS, Recipe
from attnlab.training.speed.choosing import untouched

NEAR = 1e-4
"""Relative difference up to which the loss of two rows is that of one and one: far above rounding in float32 (1e-6)."""

MORE_THAN_ROUNDING = 64
"""How many times as far as without random numbers, or by one rounding, losses lie apart if they are other numbers."""

LossOf = Callable[..., Tensor]
"""From a batch to the loss of a model on it; perhaps of what is called in its place, times a weight."""


@final
@dataclass(frozen=True)
class Division:
    """Say how a run's steps are divided among ranks, and into pieces one after another."""

    spread: AbstractSpread  # how the model lies on the devices
    ranks: AbstractRanks  # who divide a batch among them
    accumulate: int = 1  # pieces that each rank computes one after another
    note: str = ""  # how, in words; empty where nothing is divided
    cuts_positions: bool = False  # whether ranks divide the positions of each row among them, and not the rows

    @property
    def is_plain(self) -> bool:
        """Whether the model itself is called with whole batches."""
        return self.count == 1 and isinstance(self.spread, Undivided)

    @property
    def count(self) -> int:
        """Into how many pieces a batch is cut."""
        return self.ranks.count * self.accumulate

    def recorded(self) -> dict[str, str]:
        """What a result says of it beside its machine."""
        return {"division": self.note} if self.note else {}

    def pieces(self, task: Task, batch: Batch) -> list[Piece]:
        """The pieces of a batch that this rank computes."""
        if self.cuts_positions:
            from attnlab.training.devices.context import cut_positions

            return cut_positions(task, batch, self.accumulate, self.ranks)
        mine = range(self.ranks.number * self.accumulate, (self.ranks.number + 1) * self.accumulate)
        return cut(task, batch, self.count, mine)


def divide(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    ranks: AbstractRanks,
    *,
    loss: LossOf,
    first: Batch,
    device: torch.device,
) -> Division:
    """Lay a model on the devices of its ranks.

    Parameters
    ----------
    model, task, recipe
        Of the run; the model lies on the device.
    ranks : AbstractRanks
        Who trains it.
    loss : callable
        The loss of the model on a batch; perhaps of what is called in its place, times a weight.
    first : Batch
        A training batch on the device.
    device : torch.device
        Where.

    Raises
    ------
    SpecError
        If the batch cannot be divided, the loss of a batch is not that of its rows, or something is asked for that only
        an undivided run has.
    """
    if recipe.compile is True:
        raise SpecError("steps on several devices or in several pieces are not compiled; set compile: false or auto")
    if recipe.sharding in SAME_ROWS and ranks.count > 1:
        return _divide_rows_alike(model, task, recipe, ranks, loss=loss, first=first, device=device)
    count = ranks.count * recipe.accumulate
    cut(task, first, count, range(count))
    with untouched(model, device):
        trial = _try(model, task, loss, unlike_rows(first))
    if ranks.count == 1:
        return Division(Undivided(model), ranks, recipe.accumulate, _in_words(recipe, trial.draws_differ, "", device))
    kept = trial.bytes_a_row * math.ceil(len(first.targets) / count)
    sharding, why = what_fits(model, kept, ranks, device) if recipe.sharding == AUTO else (recipe.sharding, "")
    if sharding == FULL and recipe.watch:
        raise _cannot_watch()
    words = "parameters sharded" if sharding == FULL else "parameters whole on each"
    note = _in_words(recipe, trial.draws_differ, f"{ranks.count} devices, {words}{f' ({why})' if why else ''}", device)
    if sharding == FULL:
        return Division(Sharded(model, recipe.precision, device), ranks, recipe.accumulate, note)
    return Division(Replicated(model, some_unused=trial.some_unused), ranks, recipe.accumulate, note)


def require_shares(model: nn.Module, batch: Batch, sharding: str, count: int) -> None:
    """Raise unless ranks that compute the same rows can divide a model, or the positions of a batch, among them.

    Parameters
    ----------
    model : nn.Module
        The model, perhaps on the meta device; it is of no use afterwards.
    batch : Batch
        A training batch.
    sharding : {"tensor", "context"}
        What they divide.
    count : int
        How many they are.

    Raises
    ------
    SpecError
        If they cannot; it names the part.
    """
    if sharding == TENSOR:
        from attnlab.training.devices.tensor import take_shares

        take_shares(model, 0, count)
    else:
        from attnlab.training.devices.context import divided_length, take_positions

        take_positions(model, 0, count, lambda x: x)
        divided_length(batch, count)


def _cannot_watch() -> SpecError:
    return SpecError("watch needs a whole model on one device; set sharding: none, or leave out watch")


def _divide_rows_alike(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    ranks: AbstractRanks,
    *,
    loss: LossOf,
    first: Batch,
    device: torch.device,
) -> Division:
    """Divide each layer, or the positions of each sequence, among ranks, all of which compute every row."""
    if recipe.watch:
        raise _cannot_watch()
    cut(task, first, recipe.accumulate, range(recipe.accumulate))
    rows, draws_differ = unlike_rows(first), False
    if recipe.accumulate > 1:
        with untouched(model, device):
            draws_differ = _try(model, task, loss, rows).draws_differ
    expected = _measured(Division(Undivided(model), Alone()), task, loss, rows, device)
    what = "heads and hidden features" if recipe.sharding == TENSOR else "positions"
    note = _in_words(recipe, draws_differ, f"{ranks.count} devices, {what} divided", device)
    division = _laid_out(model, recipe, ranks, device, note)
    found = _measured(replace(division, accumulate=1), task, loss, rows, device)
    if not _is_near(found, expected):
        raise SpecError(
            f"loss and gradient of {type(model).__name__} with {what} divided are {_shown(found)}, and whole "
            f"{_shown(expected)}; train it with sharding: none or full"
        )
    return division


def _laid_out(model: nn.Module, recipe: Recipe, ranks: AbstractRanks, device: torch.device, note: str) -> Division:
    """A model on ranks that compute all rows."""
    if recipe.sharding == TENSOR:
        from attnlab.training.devices.tensor import TensorParallel

        return Division(TensorParallel(model, ranks, device), Alone(), recipe.accumulate, note)
    from attnlab.training.devices.context import ContextParallel

    return Division(ContextParallel(model, ranks), ranks, recipe.accumulate, note, cuts_positions=True)


def _measured(division: Division, task: Task, loss: LossOf, rows: Batch, device: torch.device) -> Tensor:
    """The loss of some rows, and the length of its gradient."""
    spread, losses = division.spread, []
    with untouched(spread.owner, device):
        for piece in division.pieces(task, rows):
            with piece.drawing():
                losses.append(loss(piece.batch, spread.called, piece.weight))
            (losses[-1] * division.ranks.count).backward()
        with spread.updating():
            norm = whole(
                torch.nn.utils.get_total_norm([one.grad for one in spread.owner.parameters() if one.grad is not None])
            )
    return torch.stack((division.ranks.total(torch.stack(losses).sum().detach()), norm.detach()))


def _shown(measured: Tensor) -> str:
    return " and ".join(f"{one:.6g}" for one in measured.tolist())


def _in_words(recipe: Recipe, draws_differ: bool, on_devices: str, device: torch.device) -> str:
    here = int(os.environ.get("LOCAL_WORLD_SIZE", recipe.devices))
    crowded = device.type == "cpu" and here > usable_cores()
    notes = {
        on_devices: bool(on_devices),
        f"{here} processes share {usable_cores()} cores": crowded,
        f"{recipe.accumulate} pieces one after another": recipe.accumulate > 1,
        "not compiled: a batch in pieces is not": recipe.compile == AUTO,
        "random numbers are others than in one piece": draws_differ,
    }
    return "; ".join(text for text, holds in notes.items() if holds)


@final
@dataclass(frozen=True)
class _Trial:
    """Hold what was seen of a model on two rows."""

    bytes_a_row: float  # kept between forward and backward pass
    some_unused: bool  # whether a parameter had no gradient
    draws_differ: bool  # whether what is random depends on how a batch is cut


def _try(model: nn.Module, task: Task, loss: LossOf, rows: Batch) -> _Trial:
    """See whether rows one by one are what they are together; random numbers and gradients change."""
    states, buffers = generator_states(), {name: buffer.clone() for name, buffer in model.named_buffers()}
    together = loss(rows)
    together.backward()
    together = together.detach()
    some_unused = any(one.grad is None for one in model.parameters() if one.requires_grad)
    is_random = any(not torch.equal(state, states[name]) for name, state in generator_states().items())
    changed = [name for name, buffer in model.named_buffers() if not _is_same(buffer, buffers.get(name))]
    restore_generators(states)
    apart = _by_rows(task, loss, rows)
    draws_differ = not _is_near(apart, together)
    if draws_differ or is_random:
        model.eval()
        with torch.no_grad():
            calm, calm_together = _by_rows(task, loss, rows), loss(rows)
        model.train()
        if draws_differ and not (is_random and not changed and _is_near(calm, calm_together)):
            raise _sees_other_rows(model, len(rows.targets), changed)
        rounding = max(float((calm - calm_together).abs()), torch.finfo(together.dtype).eps * float(together.abs()))
        draws_differ = float((apart - together).abs()) > MORE_THAN_ROUNDING * rounding
    with kept_bytes(model) as total:
        loss(rows)
    return _Trial(total() / len(rows.targets), some_unused, draws_differ)


def _is_same(buffer: Tensor, before: Tensor | None) -> bool:
    return before is not None and torch.equal(buffer, before)


def _sees_other_rows(model: nn.Module, rows: int, changed: Sequence[str]) -> SpecError:
    """That the loss of a batch is not that of its rows, and why that may be."""
    keeps = f"; what it keeps changes as it reads ({changed[0]}), by which rows may see each other" if changed else ""
    return SpecError(
        f"the loss of {rows} rows is not the mean of the losses of each, so {type(model).__name__} cannot be trained "
        f"on pieces of a batch{keeps}; a task whose rows do not all have as many targets needs a method "
        "targets_of(batch)"
    )


def unlike_rows(batch: Batch) -> Batch:
    """The two rows that repeat their last token most and least often: a model may cut their padding off."""
    tokens = [one for one in batch.inputs if one.ndim == 2 and not one.is_floating_point()]
    repeated = sum((one == one[:, -1:]).flip(1).cumprod(1).sum(1) for one in tokens)
    few, many = (0, 0) if isinstance(repeated, int) else (int(repeated.argmin()), int(repeated.argmax()))
    both = sorted((few, many)) if few != many else list(range(min(2, len(batch.targets))))
    return Batch(tuple(one[both] for one in batch.inputs), batch.targets[both])


def _by_rows(task: Task, loss: LossOf, rows: Batch) -> Tensor:
    """The loss of rows from the losses of each, cut as a step cuts them."""
    count = len(rows.targets)
    found = torch.zeros(())
    with torch.no_grad():
        for piece in drawn_alike(cut(task, rows, count, range(count))):
            with piece.drawing():
                mean = loss(piece.batch)
            found = found.to(mean.device) + (piece.weight * mean if piece.weight else 0.0)
    return found


def _is_near(found: Tensor, expected: Tensor) -> bool:
    """Whether two losses differ by rounding alone."""
    return bool(torch.isclose(found, expected.detach(), rtol=NEAR, atol=NEAR).all())
