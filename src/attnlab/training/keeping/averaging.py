"""The mean of a model's weights over the end of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from attnlab.core.sharded import placed_like

AVERAGE = "average."
"""Before the names of the means, beside those of the optimizers in a checkpoint."""


@final
class WeightAverage:
    """Hold the mean of a model's parameters at several points of its training.

    Buffers, such as a batch norm's running statistics, are not averaged.
    """

    def __init__(self) -> None:
        self._means: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, model: nn.Module, count: int) -> None:
        """Take in the parameters as they are now."""
        for name, parameter in model.named_parameters():
            mean = self._means.setdefault(name, torch.zeros_like(parameter))
            mean.lerp_(parameter, 1.0 / count)

    @torch.no_grad()
    def put_into(self, model: nn.Module) -> None:
        """Replace the model's parameters by their means."""
        for name, parameter in model.named_parameters():
            parameter.copy_(self._means[name])

    def state_tensors(self) -> dict[str, Tensor]:
        """The means, under names that begin with `AVERAGE`."""
        return {AVERAGE + name: mean for name, mean in self._means.items()}

    def load_state_tensors(self, tensors: Mapping[str, Tensor], model: nn.Module) -> None:
        """Restore what `state_tensors` returned, the means of a model's parameters."""
        like = dict(model.named_parameters())
        found = {name.removeprefix(AVERAGE): mean for name, mean in tensors.items() if name.startswith(AVERAGE)}
        self._means = {name: placed_like(mean.to(like[name].device), like[name]) for name, mean in found.items()}
