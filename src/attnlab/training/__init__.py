"""One training loop for every model and task, and the run folders it writes.

The names below are loaded when they are first used, so that reading the tables of optimizers and schedules does
not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.core.machine import environment, usable_cores
    from attnlab.training.keeping.checkpoints import load_model_weights
    from attnlab.training.keeping.result import Result, read_result
    from attnlab.training.keeping.runs import lock, open_run, read_failure, read_metrics
    from attnlab.training.recipe.optim import OPTIMIZERS
    from attnlab.training.recipe.recipe import Budget, EarlyStop, Recipe
    from attnlab.training.recipe.schedule import SCHEDULES
    from attnlab.training.run.events import OnEvent, ignore_event
    from attnlab.training.run.loop import train
    from attnlab.training.run.tensorboard import tensorboard_events
    from attnlab.training.together.together import train_together

__getattr__, __dir__ = contents(
    __name__,
    {
        "OPTIMIZERS": "attnlab.training.recipe.optim",
        "SCHEDULES": "attnlab.training.recipe.schedule",
        "Budget": "attnlab.training.recipe.recipe",
        "EarlyStop": "attnlab.training.recipe.recipe",
        "OnEvent": "attnlab.training.run.events",
        "Recipe": "attnlab.training.recipe.recipe",
        "Result": "attnlab.training.keeping.result",
        "environment": "attnlab.core.machine",
        "ignore_event": "attnlab.training.run.events",
        "load_model_weights": "attnlab.training.keeping.checkpoints",
        "lock": "attnlab.training.keeping.runs",
        "open_run": "attnlab.training.keeping.runs",
        "read_failure": "attnlab.training.keeping.runs",
        "read_metrics": "attnlab.training.keeping.runs",
        "read_result": "attnlab.training.keeping.result",
        "tensorboard_events": "attnlab.training.run.tensorboard",
        "train": "attnlab.training.run.loop",
        "train_together": "attnlab.training.together.together",
        "usable_cores": "attnlab.core.machine",
    },
)

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
