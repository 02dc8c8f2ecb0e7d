"""One training loop for every model and task, and the run folders it writes.

The names below are loaded when they are first used, so that reading the tables of optimizers and schedules does
not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.training.checkpoints import load_model_weights
    from attnlab.training.environment import environment, usable_cores
    from attnlab.training.events import OnEvent, ignore_event
    from attnlab.training.loop import train
    from attnlab.training.optim import OPTIMIZERS
    from attnlab.training.recipe import Budget, EarlyStop, Recipe
    from attnlab.training.result import Result, read_result
    from attnlab.training.runs import lock, open_run, read_failure, read_metrics
    from attnlab.training.schedule import SCHEDULES
    from attnlab.training.tensorboard import tensorboard_events
    from attnlab.training.together import train_together

_HOME = {
    "OPTIMIZERS": "optim",
    "SCHEDULES": "schedule",
    "Budget": "recipe",
    "EarlyStop": "recipe",
    "OnEvent": "events",
    "Recipe": "recipe",
    "Result": "result",
    "environment": "environment",
    "ignore_event": "events",
    "load_model_weights": "checkpoints",
    "lock": "runs",
    "open_run": "runs",
    "read_failure": "runs",
    "read_metrics": "runs",
    "read_result": "result",
    "tensorboard_events": "tensorboard",
    "train": "loop",
    "train_together": "together",
    "usable_cores": "environment",
}

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Budget",
    "EarlyStop",
    "OnEvent",
    "Recipe",
    "Result",
    "environment",
    "ignore_event",
    "load_model_weights",
    "lock",
    "open_run",
    "read_failure",
    "read_metrics",
    "read_result",
    "tensorboard_events",
    "train",
    "train_together",
    "usable_cores",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its file."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
