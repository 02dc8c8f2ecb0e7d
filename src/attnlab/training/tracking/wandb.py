"""Show a run in Weights & Biases; offline, in the run's folder, where no key is set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, final

from attnlab.training.tracking.tracker import AbstractTracker, TrackedRun, keep_identity, known_identity

STEP = "step"
"""What its charts have below; its own step must never go back, which that of a run does that goes on."""


@final
class WandbTracker(AbstractTracker):
    """Hand numbers to the process that Weights & Biases starts beside this one."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "online")
        if mode == "online" and not wandb.login(prompt=False):
            mode = "offline"
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            config=dict(run.config),
            id=known_identity(run, "wandb"),
            resume="allow",
            mode=mode,
            dir=os.environ.get("WANDB_DIR", run.folder),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric=STEP)
        keep_identity(run, "wandb", self._run.id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers of a step."""
        self._run.log({STEP: step, **values})

    def flush(self) -> None:
        """Do nothing: the other process writes by itself."""

    def close(self, *, failed: bool) -> None:
        """Wait until all is written."""
        self._run.finish(exit_code=int(failed))
