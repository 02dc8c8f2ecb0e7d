"""Where a training step went wrong: the layer in which a number stopped being finite, the module that raised."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch
from attnlab.core.errors import ModuleError, TrainingError, text_of

BEFORE_UPDATES = "no weight has been changed yet, so no setting of training is the cause"
"""Said of a loss that is not finite in the first step."""


@final
class NonFiniteError(TrainingError):
    """Report a step whose loss, gradient or metric is NaN or infinite.

    Parameters
    ----------
    message : str
        What happened, where, and what to try.
    step : int
        The step, counted from 1.
    layer : str
        Name of the module or parameter where it began; empty if unknown.
    """

    def __init__(self, message: str, *, step: int, layer: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.layer = layer


def first_non_finite_layer(model: nn.Module, batch: Batch) -> str:
    """Run a batch again and name the module in which the first NaN or infinity appears.

    Notes
    -----
    A module's inputs are looked at too: if they are the first thing that is not finite, the code between the
    modules made them, and the module that holds that code is named. Tensors that no gradient flows through,
    such as additive masks with -inf, are not looked at.
    """
    if not all(_finite(tensor) for tensor in batch.inputs):
        return "inputs"
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return name
    found: list[str] = []
    handles = [handle for name, module in model.named_modules() for handle in _watch(name, module, found)]
    try:
        with torch.enable_grad():
            model(*batch.inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else ""


def _watch(name: str, module: nn.Module, found: list[str]) -> Iterator[Any]:
    """The hooks that note a module as soon as something it gets or gives is not finite."""
    parent = name.rpartition(".")[0]

    def before(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not found and not all(_finite(tensor) for tensor in _computed(inputs)):
            found.append(_title(parent))

    def after(_module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
        if not found and not all(_finite(tensor) for tensor in _computed(output)):
            found.append(_title(name))

    yield module.register_forward_pre_hook(before)
    yield module.register_forward_hook(after)


def _title(name: str) -> str:
    return name or "the model's own forward"


def _computed(value: Any) -> Iterator[Tensor]:
    """The tensors in an argument or output that a gradient flows through."""
    if isinstance(value, Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _computed(item)


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def first_non_finite_gradient(model: nn.Module) -> str:
    """Name the first parameter whose gradient holds a NaN or an infinity."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not _finite(parameter.grad):
            return name
    return ""


def non_finite_step(model: nn.Module, batch: Batch | None, *, step: int, loss: float, norm: float) -> NonFiniteError:
    """Describe a step whose loss or gradient is not finite."""
    bad_loss = not math.isfinite(loss)
    what = f"the loss is {loss:g}" if bad_loss else f"the gradient's norm is {norm:g}"
    layer, where = _begin_of_non_finite(model, batch, bad_loss=bad_loss)
    hint = "a lower lr, a longer warmup or a smaller clip may help"
    if bad_loss and step == 1:
        hint = BEFORE_UPDATES
    return NonFiniteError(f"step {step}: {what}; {where}; {hint}", step=step, layer=layer)


def _begin_of_non_finite(model: nn.Module, batch: Batch | None, *, bad_loss: bool) -> tuple[str, str]:
    """The name of what went wrong first, and a sentence about it."""
    if batch is None:
        return "", "noticed only after the update, so the layer is unknown"
    layer = first_non_finite_layer(model, batch)
    if layer:
        return layer, f"it begins in '{layer}'"
    if bad_loss:
        return "loss", "the model's outputs are finite, so it begins in the loss itself"
    layer = first_non_finite_gradient(model)
    return layer, f"it begins in the gradient of '{layer}'" if layer else "no single gradient is to blame"


def module_error(model: nn.Module, batch: Batch, error: Exception, *, step: int) -> ModuleError:
    """Describe an exception raised in a model's forward pass."""
    shapes = ", ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in batch.inputs)
    name = type(model).__name__
    inner = _innermost(model, error)
    kind, _, text = text_of(error).partition(": ")
    return ModuleError(f"{name}{inner} raised {kind} in step {step}: {text} (called with {shapes})")


def _innermost(model: nn.Module, error: Exception) -> str:
    """The deepest of the model's modules that was running, with its source line."""
    names = {id(module): f"'{name}' ({type(module).__name__})" for name, module in model.named_modules() if name}
    inner = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        owner = names.get(id(frame.f_locals.get("self")))
        if owner and frame.f_code.co_name == "forward":
            inner = f", in {owner}, {frame.f_code.co_filename}:{line},"
    return inner
