"""How the gradients of a step are computed and applied: run by run. ``batched.py`` has the other way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

from attnlab.training.run.trainer import Trainer


class AbstractGradients(ABC):
    """Compute the losses and gradients of one step of one run or of several, and update the parameters."""

    @abstractmethod
    def start(self, trainers: Sequence[Trainer]) -> None:
        """Choose how the runs' steps are computed, and begin them."""

    @abstractmethod
    def compute(self, trainers: Sequence[Trainer]) -> None:
        """Give every run that has taken its batch its loss and gradients; a failure is that run's outcome."""

    @abstractmethod
    def apply(self, trainers: Sequence[Trainer]) -> None:
        """Clip the gradients and update the parameters of every run; a failure is that run's outcome."""


@final
class OneByOne(AbstractGradients):
    """Call every model on its own batch."""

    def start(self, trainers: Sequence[Trainer]) -> None:
        """Let every run choose its setting."""
        for trainer in trainers:
            with trainer.own_failure():
                trainer.start(trainer.choose_setting())

    def compute(self, trainers: Sequence[Trainer]) -> None:
        """Call one model after the other."""
        for trainer in trainers:
            with trainer.own_failure():
                trainer.compute_gradients()

    def apply(self, trainers: Sequence[Trainer]) -> None:
        """Update one model after the other."""
        for trainer in trainers:
            with trainer.own_failure():
                trainer.inspect(trainer.clip())
                trainer.optimizer.step()
                trainer.count_step()
