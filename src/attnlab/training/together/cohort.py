"""Runs whose steps are one batched step: one forward and backward pass, one clipping, one update call."""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from attnlab.core.contracts import Batch
from attnlab.core.generators import Generators
from attnlab.training.recipe.optim import OptimizerSet
from attnlab.training.run.trainer import Trainer
from attnlab.training.speed.settings import Setting
from attnlab.training.together.stack import ModelStack


@final
class Cohort:
    """Make the steps of several runs together.

    Parameters
    ----------
    trainers : sequence of Trainer
        The runs. Their models' tensors are shared from now on, until `release`.
    device : torch.device
        Where the models are.
    generators : Generators
        Torch's random number generators, shared by the runs.

    Raises
    ------
    ModuleError
        If the models differ in their parameters, or cannot be copied.
    """

    def __init__(self, trainers: Sequence[Trainer], device: torch.device, generators: Generators) -> None:
        self.trainers = list(trainers)
        self.generators = generators
        turns = [functools.partial(generators.give_to, trainer) for trainer in trainers]
        self.stack = ModelStack([trainer.model for trainer in trainers], device, lambda number: turns[number]())
        self._updates = MergedOptimizers([trainer.optimizer for trainer in trainers])

    def backward(self, batches: Sequence[Batch], setting: Setting) -> list[Tensor]:
        """Compute the gradients of one batched step, and return the runs' losses."""
        step = self.trainers[0].state.step + 1
        self.generators.give_to(self.trainers[0])
        outputs = self.stack.outputs(batches, setting, step=step)
        losses = [
            trainer.loss_from(output, batch)
            for trainer, output, batch in zip(self.trainers, outputs, batches, strict=True)
        ]
        self.stack.backward(torch.stack(losses).sum(), batches, step=step)
        return [loss.detach() for loss in losses]

    def compute(self) -> None:
        """Give every run the loss and the gradients of the batch it has taken."""
        losses = self.backward([trainer.batch for trainer in self.trainers], self.trainers[0].state.setting)
        for trainer, loss in zip(self.trainers, losses, strict=True):
            trainer.loss = loss

    def apply(self) -> None:
        """Clip the gradients and update the parameters; a run that is not finite is left out."""
        norms = self.stack.clip([trainer.recipe.clip for trainer in self.trainers])
        for trainer, norm in zip(self.trainers, norms, strict=True):
            with trainer.own_failure():
                trainer.inspect(norm)
        going = [trainer for trainer in self.trainers if trainer.outcome is None]
        whole = len(going) == len(self.trainers)
        updates = self._updates if whole else MergedOptimizers([trainer.optimizer for trainer in going])
        updates.step()
        for trainer in going:
            trainer.count_step()

    def release(self) -> None:
        """Give every model tensors of its own again."""
        self.stack.release()


@final
class MergedOptimizers:
    """Step the optimizers of several runs with one call per kind; each run's state stays its own optimizer's.

    Parameters
    ----------
    sets : sequence of OptimizerSet
        One per run.

    Notes
    -----
    A merged optimizer is a copy of a run's, whose groups hold the parameters of all runs and whose state dictionaries
    are the runs' own. Groups of equal settings, learning rate included, become one group, which torch updates in
    one call; others stay apart. Updates act on one parameter at a time, so the numbers are those of single runs.
    """

    def __init__(self, sets: Sequence[OptimizerSet]) -> None:
        self._sets = list(sets)
        self._sources: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        self._merged: list[torch.optim.Optimizer] = []

    def step(self) -> None:
        """Update the parameters of all runs from their gradients."""
        if not self._still_fits():
            self._merge()
        for merged, sources in self._sources:
            merged["lr"] = sources[0]["lr"]
        for optimizer in self._merged:
            optimizer.step()

    def _still_fits(self) -> bool:
        """Whether groups that were merged still share their learning rate."""
        rates = ([source["lr"] for source in sources] for _, sources in self._sources)
        return bool(self._merged) and all(rate == of_group[0] for of_group in rates for rate in of_group)

    def _merge(self) -> None:
        self._sources, self._merged = [], []
        kinds: dict[tuple[str, type], list[torch.optim.Optimizer]] = defaultdict(list)
        for one in self._sets:
            for name, optimizer in one.members.items():
                kinds[name, type(optimizer)].append(optimizer)
        for optimizers in kinds.values():
            self._merged.append(self._merge_kind(optimizers))

    def _merge_kind(self, optimizers: Sequence[torch.optim.Optimizer]) -> torch.optim.Optimizer:
        merged = copy.copy(optimizers[0])
        merged.state = defaultdict(dict)
        merged.param_groups = []
        alike: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                alike[repr({key: value for key, value in group.items() if key != "params"})].append(group)
                for parameter in group["params"]:
                    merged.state[parameter] = optimizer.state[parameter]  # an empty one before the first step
        for sources in alike.values():
            group = {**sources[0], "params": [parameter for source in sources for parameter in source["params"]]}
            merged.param_groups.append(group)
            self._sources.append((group, sources))
        return merged
