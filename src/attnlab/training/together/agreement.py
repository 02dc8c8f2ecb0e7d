"""Whether a batched step of several runs is the same as their single steps: losses, gradients, buffers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch
from attnlab.core.errors import ModuleError
from attnlab.training.run.step import Caller
from attnlab.training.run.trainer import Trainer
from attnlab.training.speed.choosing import untouched
from attnlab.training.speed.settings import Setting
from attnlab.training.together.cohort import Cohort

Computed = dict[str, dict[str, Tensor]]
"""Tensors of one step by name, in groups by what is said where they differ."""

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
            found = [_computed(trainer.model, loss) for trainer, loss in zip(trainers, losses, strict=True)]
        generators.go_back(bookmark)
        for trainer, batch, step in zip(trainers, batches, found, strict=True):
            generators.give_to(trainer)
            _check_equal(step, _single_step(trainer, batch), type(trainer.model).__name__)
    finally:
        generators.go_back(bookmark)


def _single_step(trainer: Trainer, batch: Batch) -> Computed:
    """What a run's model computes alone; the model itself stays untouched."""
    model = copy.deepcopy(trainer.model)
    caller, step = Caller(model, model, trainer.caller.device), trainer.state.step + 1
    loss = trainer.loss_from(caller.outputs(batch, Setting(), step=step), batch)
    caller.backward(loss, batch, step=step)
    return _computed(model, loss)


def _computed(model: nn.Module, loss: Tensor) -> Computed:
    """What a model holds after a backward pass, before its update."""
    return {
        "another loss": {"": loss.detach()},
        "other gradients": {name: one.grad for name, one in model.named_parameters() if one.grad is not None},
        "other buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
    }


def _check_equal(batched: Computed, single: Computed, name: str) -> None:
    """Compare a batched step with the single one, where that is finite."""
    if not torch.isfinite(single["another loss"][""]):
        return
    for what, expected in single.items():
        if not _are_near(batched[what], expected):
            raise ModuleError(f"{name} has {what} batched over seeds than alone")


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
