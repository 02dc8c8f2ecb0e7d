"""Runs whose steps are one batched step: one forward and backward pass, one clipping, one update."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from attnlab.core.contracts import Batch
from attnlab.core.generators import Generators
from attnlab.training.run.trainer import Trainer
from attnlab.training.speed.settings import Setting
from attnlab.training.together.merging import MergedOptimizers
from attnlab.training.together.stack import Stack


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
        self.stack = Stack([trainer.model for trainer in trainers], device, lambda number: turns[number]())
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
