"""Evaluate a model on a held-out part: evaluation mode, no gradients, every number finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch, Judge, Predict, Task
from attnlab.core.errors import DataError
from attnlab.training.keeping.diagnosis import NonFiniteError
from attnlab.training.run.step import Caller, without_bfloat16
from attnlab.training.speed.settings import Setting


def predictor(caller: Caller, setting: Setting, *, step: int = 0) -> Predict:
    """Return a model as a task's `evaluate` wants it.

    Parameters
    ----------
    caller : Caller
        The model.
    setting : Setting
        How the model is computed in training; here it is not compiled (see ``compilation.py``).
    step : int
        Updates made, for error texts.

    Returns
    -------
    callable
        From a batch to the model's outputs, on the device of the batch's targets, in float32 where they were bfloat16.
    """

    def predict(batch: Batch) -> Tensor:
        outputs = caller.outputs(batch.to(caller.device), setting.eager(), step=step)
        return without_bfloat16(outputs).to(batch.targets.device)

    return predict


def evaluate(caller: Caller, task: Task, part: str, setting: Setting, *, step: int = 0) -> dict[str, float]:
    """Return the metrics of one held-out part; the model is afterwards in training mode.

    Parameters
    ----------
    caller : Caller
        The model.
    task : Task
        Whose part.
    part : str
        One of ``task.parts``.
    setting : Setting
        How the model is computed in training; here it is not compiled (see ``compilation.py``).
    step : int
        Updates made, for error texts.

    Returns
    -------
    dict of str to float
        The metrics.

    Raises
    ------
    NonFiniteError
        If a metric is NaN or infinite.

    Notes
    -----
    Uses ``no_grad`` and not ``inference_mode``: a module that fills a table at its first call could not be trained
    with it afterwards.
    """
    return _measured(caller.model, lambda: task.evaluate(predictor(caller, setting, step=step), part), step)


def judged(caller: Caller, judge: Judge, *, step: int) -> dict[str, float]:
    """Return what a judge measures of a trained model; the model is afterwards in training mode.

    Parameters
    ----------
    caller : Caller
        The model.
    judge : callable
        From the model, in evaluation mode and without gradients, to metrics.
    step : int
        Updates made, for error texts.

    Returns
    -------
    dict of str to float
        The metrics.

    Raises
    ------
    NonFiniteError
        If a metric is NaN or infinite.
    """
    return _measured(caller.model, lambda: judge(caller.model), step)


def _measured(model: nn.Module, measure: Callable[[], Mapping[str, float]], step: int) -> dict[str, float]:
    """Return finite metrics of a model in evaluation mode, without gradients."""
    model.eval()
    try:
        with torch.no_grad():
            metrics = measure()
    finally:
        model.train()
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteError(f"after step {step}: {name} is {value} though the training loss is finite", step=step)
    return {name: float(value) for name, value in metrics.items()}


def is_better(task: Task, new: dict[str, float], best: dict[str, float]) -> bool:
    """Return whether new metrics of the first part beat the best so far.

    Parameters
    ----------
    task : Task
        Whose first metric decides.
    new, best : dict of str to float
        Metrics; `best` is empty before the first evaluation.

    Returns
    -------
    bool
        True at the first evaluation, then where the first metric improves.

    Raises
    ------
    DataError
        If the task's evaluation does not give its first metric.
    """
    metric = task.metrics[0]
    if metric.name not in new:
        raise DataError(
            f"the task's first metric is '{metric.name}', but evaluating '{task.parts[0]}' gave {sorted(new)}"
        )
    return not best or metric.improves(new[metric.name], best[metric.name])
