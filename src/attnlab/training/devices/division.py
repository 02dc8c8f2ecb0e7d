"""What one step of a run is divided into, tried before the first one: pieces of the batch, parts of the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch, Task
from attnlab.core.errors import SpecError
from attnlab.core.generators import generator_states, restore_generators
from attnlab.core.machine import usable_cores
from attnlab.inspection.memory import kept_bytes
from attnlab.training.devices.pieces import Piece, cut, drawn_alike
from attnlab.training.devices.ranks import AbstractRanks
from attnlab.training.devices.spread import AUTO, FULL, AbstractSpread, Replicated, Sharded, Undivided, what_fits
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.speed.choosing import untouched

NEAR = 1e-4
"""Relative difference up to which the loss of two rows is that of one and one: far above rounding in float32 (1e-6)."""
ROWS = 2  # that are tried

LossOf = Callable[[Batch], Tensor]
"""From a batch to the loss of a model on it."""


@final
@dataclass(frozen=True)
class Division:
    """Say how a run's steps are divided among ranks, and into pieces one after another."""

    spread: AbstractSpread  # how the model lies on the devices
    ranks: AbstractRanks  # who computes
    accumulate: int = 1  # pieces that each rank computes one after another
    note: str = ""  # how, in words; empty where nothing is divided

    @property
    def count(self) -> int:
        """Into how many pieces a batch is cut."""
        return self.ranks.count * self.accumulate

    def recorded(self) -> dict[str, str]:
        """What a result says of it beside its machine."""
        return {"division": self.note} if self.note else {}

    def pieces(self, task: Task, batch: Batch) -> list[Piece]:
        """The pieces of a batch that this rank computes."""
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
        The loss of the model on a batch.
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
    count = ranks.count * recipe.accumulate
    cut(task, first, count, range(count))
    with untouched(model, device):
        trial = _try(model, task, loss, first.rows(0, ROWS))
    if ranks.count == 1:
        return Division(Undivided(model), ranks, recipe.accumulate, _in_words(recipe, trial, "", device))
    kept = trial.bytes_a_row * math.ceil(len(first.targets) / count)
    sharding, why = what_fits(model, kept, ranks, device) if recipe.sharding == AUTO else (recipe.sharding, "")
    if sharding == FULL and recipe.watch:
        raise SpecError("watch needs a whole model on one device; set sharding: none, or leave out watch")
    words = "parameters sharded" if sharding == FULL else "parameters whole on each"
    note = _in_words(recipe, trial, f"{ranks.count} devices, {words}{f' ({why})' if why else ''}", device)
    if sharding == FULL:
        return Division(Sharded(model, recipe.precision, device), ranks, recipe.accumulate, note)
    return Division(Replicated(model, some_unused=trial.some_unused), ranks, recipe.accumulate, note)


def _in_words(recipe: Recipe, trial: _Trial, on_devices: str, device: torch.device) -> str:
    crowded = device.type == "cpu" and recipe.devices > usable_cores()
    notes = {
        on_devices: bool(on_devices),
        f"{recipe.devices} processes share {usable_cores()} cores": crowded,
        f"{recipe.accumulate} pieces one after another": recipe.accumulate > 1,
        "not compiled: a batch in pieces is not": recipe.compile == AUTO,
        "random numbers are others than in one piece": trial.draws_differ,
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
    states, buffers = generator_states(), [buffer.clone() for buffer in model.buffers()]
    together = loss(rows)
    together.backward()
    some_unused = any(one.grad is None for one in model.parameters() if one.requires_grad)
    is_random = any(not torch.equal(state, states[name]) for name, state in generator_states().items())
    keeps = any(not torch.equal(*pair) for pair in zip(model.buffers(), buffers, strict=True))
    restore_generators(states)
    draws_differ = not _is_near(_by_rows(task, loss, rows), together)
    if draws_differ:
        model.eval()
        with torch.no_grad():
            agrees = is_random and not keeps and _is_near(_by_rows(task, loss, rows), loss(rows))
        model.train()
        if not agrees:
            raise SpecError(
                f"the loss of {len(rows.targets)} rows is not the mean of the losses of each, so "
                f"{type(model).__name__} cannot be trained on pieces of a batch; a task whose rows do not all have as "
                "many targets needs a method targets_of(batch)"
            )
    with kept_bytes(model) as total:
        loss(rows)
    return _Trial(total() / len(rows.targets), some_unused, draws_differ)


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
    return bool(torch.isclose(found, expected.detach(), rtol=NEAR, atol=NEAR))
