"""Evaluate a model on a held-out part: evaluation mode, no gradients, every number finite."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch, Judge, Predict, Task, accuracy_of
from attnlab.core.errors import DataError
from attnlab.training.keeping.diagnosis import NonFiniteError
from attnlab.training.run.step import Caller, without_bfloat16
from attnlab.training.speed.settings import Setting

TRAIN_ACCURACY = "train_accuracy"
"""The metric of the training part that runs of tasks with right and wrong answers end with."""


def predictor(caller: Caller, setting: Setting, *, step: int = 0) -> Predict:
    """A model as a task's `evaluate` wants it."""

    def predict(batch: Batch) -> Tensor:
        outputs = caller.outputs(batch.to(caller.device), setting.eager(), step=step)
        return without_bfloat16(outputs).to(batch.targets.device)

    return predict


def evaluate(caller: Caller, task: Task, part: str, setting: Setting, *, step: int = 0) -> dict[str, float]:
    """The metrics of one held-out part; the model is afterwards in training mode.

    Notes
    -----
    Uses ``no_grad`` and not ``inference_mode``: a module that fills a table at its first call could not be trained
    with it afterwards.
    """
    return _measured(caller.model, lambda: task.evaluate(predictor(caller, setting, step=step), part), step)


def training_accuracy(
    caller: Caller, task: Task, batches: Iterable[Batch], setting: Setting, *, step: int
) -> dict[str, float]:
    """The accuracy in batches that were trained on, where the task has one; the model is then in training mode."""

    def measure() -> dict[str, float]:
        found = accuracy_of(task, predictor(caller, setting, step=step), batches)
        return {} if found is None else {TRAIN_ACCURACY: found}

    return _measured(caller.model, measure, step)


def judged(caller: Caller, judge: Judge, *, step: int) -> tuple[dict[str, float], float]:
    """What a judge measures of a trained model, and sentences written a second; the model is then in training mode."""
    began = time.perf_counter()
    with _evaluating(caller.model):
        found = judge(caller.model)
    return _finite(found.metrics, step), found.written / (time.perf_counter() - began)


def _measured(model: nn.Module, measure: Callable[[], Mapping[str, float]], step: int) -> dict[str, float]:
    """Finite metrics of a model in evaluation mode, without gradients."""
    with _evaluating(model):
        metrics = measure()
    return _finite(metrics, step)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Keep a model in evaluation mode, without gradients; afterwards it is in training mode."""
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train()


def _finite(metrics: Mapping[str, float], step: int) -> dict[str, float]:
    """Metrics that are all finite."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteError(f"after step {step}: {name} is {value} though the training loss is finite", step=step)
    return {name: float(value) for name, value in metrics.items()}


def is_better(task: Task, new: dict[str, float], best: dict[str, float]) -> bool:
    """Whether new metrics of the first part beat the best so far."""
    metric = task.metrics[0]
    if metric.name not in new:
        raise DataError(
            f"the task's first metric is '{metric.name}', but evaluating '{task.parts[0]}' gave {sorted(new)}"
        )
    return not best or metric.improves(new[metric.name], best[metric.name])
