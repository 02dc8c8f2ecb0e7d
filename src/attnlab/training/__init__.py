"""One training loop for every model and task, and the run folders it writes.

The names below are loaded when they are first used, so that reading the tables of optimizers and schedules does
not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.core.machine import environment, usable_cores
    from attnlab.training.devices.launching import on_devices
    from attnlab.training.keeping.checkpoints import load_model_weights
    from attnlab.training.keeping.result import Result, read_result
    from attnlab.training.keeping.runs import lock, open_run, read_failure, read_metrics
    from attnlab.training.recipe.objectives import OBJECTIVES
    from attnlab.training.recipe.optim import OPTIMIZERS
    from attnlab.training.recipe.recipe import Budget, EarlyStop, Recipe
    from attnlab.training.recipe.schedule import SCHEDULES
    from attnlab.training.run.events import OnEvent, ignore_event
    from attnlab.training.run.loop import train
    from attnlab.training.together.together import train_together
    from attnlab.training.tracking.tracking import TRACKERS, tracking

__getattr__, __dir__, __all__ = contents(__name__)
