"""Whether a batched step of several runs is the same as their single steps: losses, gradients, buffers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch
from attnlab.core.errors import ModuleError
from attnlab.training.run.step import Caller
from attnlab.training.run.trainer import Trainer
from attnlab.training.speed.choosing import untouched
from attnlab.training.speed.settings import Setting
from attnlab.training.together.cohort import Cohort

TOLERANCE = 1e-3
"""Relative difference up to which two steps are the same: far above rounding (1e-6), far below any mistake."""


def check_agreement(cohort: Cohort, device: torch.device) -> None:
    """Raise a `ModuleError` unless a batched step gives what single steps give; nothing is changed by it."""
    trainers, generators = cohort.trainers, cohort.generators
    bookmark = generators.bookmark()
    batches = [trainer.task.train_batch(trainer.state.step, trainer.seed).to(device) for trainer in trainers]
    models = nn.ModuleList(trainer.model for trainer in trainers)
    try:
        with untouched(models, device), no_attribute_changed(cohort.stack.frame):
            losses = cohort.backward(batches, Setting())
            found = [StepTaken.of(trainer.model, loss) for trainer, loss in zip(trainers, losses, strict=True)]
        generators.go_back(bookmark)
        for trainer, batch, step in zip(trainers, batches, found, strict=True):
            generators.give_to(trainer)
            step.check_equal(_single_step(trainer, batch))
    finally:
        generators.go_back(bookmark)


def _single_step(trainer: Trainer, batch: Batch) -> StepTaken:
    """What a run's model computes alone; the model itself stays untouched."""
    model = copy.deepcopy(trainer.model)
    caller, step = Caller(model, model, trainer.caller.device), trainer.state.step + 1
    loss = trainer.loss_from(caller.outputs(batch, Setting(), step=step), batch)
    caller.backward(loss, batch, step=step)
    return StepTaken.of(model, loss)


@final
@dataclass(frozen=True)
class StepTaken:
    """Hold what one step computed, before its update.

    Parameters
    ----------
    name : str
        Name of the model, for error texts.
    loss : Tensor
        The loss.
    gradients : dict of str to Tensor
        Gradients of the parameters that have one.
    buffers : dict of str to Tensor
        The buffers after the step.
    """

    name: str
    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, loss: Tensor) -> StepTaken:
        """What a model holds after a backward pass."""
        gradients = {name: tensor.grad for name, tensor in model.named_parameters() if tensor.grad is not None}
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        return cls(type(model).__name__, loss.detach(), gradients, buffers)

    def check_equal(self, single: StepTaken) -> None:
        """Compare a batched step with the single one."""
        if not torch.isfinite(single.loss):
            return
        compared = {
            "another loss": ({"": self.loss}, {"": single.loss}),
            "other gradients": (self.gradients, single.gradients),
            "other buffers": (self.buffers, single.buffers),
        }
        for what, (found, expected) in compared.items():
            if not _are_near(found, expected):
                raise ModuleError(f"{self.name} has {what} batched over seeds than alone")


def _are_near(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    """Whether two sets of tensors differ by little, measured by the length of all together."""
    if found.keys() != expected.keys():
        return False
    difference = sum(float((found[name].double() - expected[name].double()).square().sum()) for name in found)
    length = sum(float(tensor.double().square().sum()) for tensor in expected.values())
    return difference <= TOLERANCE**2 * length + torch.finfo(torch.float32).tiny


@contextlib.contextmanager
def no_attribute_changed(model: nn.Module) -> Iterator[None]:
    """Check that calls in the body leave nothing on a module: such a state would be shared by all runs."""
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    yield
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute not in before[name] or before[name][attribute] is not value:
                place = f"{name}.{attribute}" if name else attribute
                raise ModuleError(f"{type(model).__name__} keeps '{place}' from call to call")
