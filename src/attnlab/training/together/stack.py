"""Several models of one architecture as one: stacked parameters, one batched call, gradients for each."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attnlab.core.contracts import Batch
from attnlab.core.errors import ModuleError
from attnlab.training.run.step import Caller
from attnlab.training.speed.settings import Setting
from attnlab.training.together.batching import BatchingRules, OwnRandomNumbers, TakeTurn

NORM_EPSILON = 1e-6
"""Added to a norm that is divided by, as ``torch.nn.utils.clip_grads_with_norm_`` does."""


@final
class ModelStack:
    """Hold the parameters and buffers of several models in shared tensors, each model's as a slice.

    Parameters
    ----------
    models : sequence of nn.Module
        Models of one architecture. Their parameters and buffers become views of the shared tensors, so that
        optimizers, evaluation and checkpoints work on the models as before.
    device : torch.device
        Where they are.
    take_turn : callable
        Gives the random number generators to the model of a number.

    Raises
    ------
    ModuleError
        If the models differ in the names, shapes or types of their parameters, or cannot be copied.

    Notes
    -----
    The call runs in a copy of the first model (the frame), into which ``torch.func.functional_call`` puts slices
    under ``torch.vmap``; tied parameters stay tied.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device, take_turn: TakeTurn) -> None:
        _check_alike(models)
        self.frame = _copy(models[0]).train()
        self.device = device
        self.caller = Caller(self.frame, self._run, device)
        random = OwnRandomNumbers(len(models), take_turn)
        self._rules: tuple[OwnRandomNumbers | BatchingRules, ...] = (random, BatchingRules(random))
        self.gradients: list[Tensor] = []
        self._own_parameters = [dict(model.named_parameters()) for model in models]
        self._own_buffers = [dict(model.named_buffers()) for model in models]
        self.parameters = _stacked(self._own_parameters)
        self.buffers = _stacked(self._own_buffers)
        for name, parameter in self._own_parameters[0].items():
            self.parameters[name].requires_grad_(parameter.requires_grad)

    def outputs(self, batches: Sequence[Batch], setting: Setting, *, step: int) -> tuple[Tensor, ...]:
        """What every model answers to its own batch."""
        with contextlib.nullcontext() if setting.compile else self._active_rules():
            outputs = self.caller.outputs(stacked_batch(batches), setting, step=step).unbind()
        if not setting.compile:  # what the first call had no use for is not watched for any more
            self._rules = tuple(rule for rule in self._rules if rule.seen)
        return outputs

    def backward(self, loss: Tensor, batches: Sequence[Batch], *, step: int) -> None:
        """Compute the gradients of a sum of losses, and hand every model its own."""
        self.caller.backward(loss, batches[0], step=step)
        self.gradients = []
        for name, stacked in self.parameters.items():
            if stacked.grad is None:
                continue
            for own, gradient in zip(self._own_parameters, stacked.grad.unbind(), strict=True):
                own[name].grad = gradient
            self.gradients.append(stacked.grad)
            stacked.grad = None

    def clip(self, limits: Sequence[float | None]) -> tuple[Tensor, ...]:
        """Scale every model's gradients down to a longest length of its own."""
        lengths = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in self.gradients]
        norms = torch.linalg.vector_norm(torch.stack(lengths), dim=0)  # (models,)
        if any(limit is not None for limit in limits):
            longest = torch.tensor([math.inf if limit is None else limit for limit in limits], device=self.device)
            factors = (longest / (norms + NORM_EPSILON)).clamp(max=1.0)
            for gradient in self.gradients:
                gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)).to(gradient.dtype))
        return norms.unbind()

    def release(self) -> None:
        """Give every model tensors of its own again."""
        for own in (*self._own_parameters, *self._own_buffers):
            for tensor in own.values():
                tensor.data = tensor.data.clone()

    @contextlib.contextmanager
    def _active_rules(self) -> Iterator[None]:
        with contextlib.ExitStack() as active:
            for rule in self._rules:
                active.enter_context(rule)
            yield

    def _run(self, *inputs: Tensor) -> Tensor:
        """Call the frame once for all models; the first axis of everything is the models'."""
        batched: Callable[..., Tensor] = torch.vmap(self._call_frame, randomness="different")
        return batched(self.parameters, self.buffers, *inputs)

    def _call_frame(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], *inputs: Tensor) -> Tensor:
        return functional_call(self.frame, (parameters, buffers), inputs)


def stacked_batch(batches: Sequence[Batch]) -> Batch:
    """Batches as one, with a new first axis."""
    shapes = [[tensor.shape for tensor in (*batch.inputs, batch.targets)] for batch in batches]
    if any(shape != shapes[0] for shape in shapes):
        raise ModuleError("batches of different runs differ in shape")
    inputs = tuple(torch.stack(tensors) for tensors in zip(*(batch.inputs for batch in batches), strict=True))
    return Batch(inputs, torch.stack([batch.targets for batch in batches]))


def _check_alike(models: Sequence[nn.Module]) -> None:
    """Raise a `ModuleError` unless all models have parameters and buffers of the same names, shapes and types."""
    forms = [_form(model) for model in models]
    if any(form != forms[0] for form in forms):
        raise ModuleError("the models differ in the names, shapes or types of their parameters")


def _form(model: nn.Module) -> list[Any]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in named]


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # what a person's module holds may refuse in any way
        raise ModuleError(f"{type(model).__name__} cannot be copied: {error}") from error


def _stacked(owned: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stack tensors of equal names, and make each a view of its slice."""
    shared = {name: torch.stack([own[name].detach() for own in owned]) for name in owned[0]}
    for name, stacked in shared.items():
        for own, view in zip(owned, stacked.unbind(), strict=True):
            own[name].data = view
    return shared
