"""Show a run in TensorBoard, with event files in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import final

from attnlab.training.tracking.tracker import AbstractTracker, TrackedRun


@final
class TensorboardTracker(AbstractTracker):
    """Write TensorBoard scalars; what a run that was killed wrote after its checkpoint is no longer shown."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder), purge_step=run.step + 1 if run.resumed else None)
        shown = json.dumps(run.config, indent=2)
        self._writer.add_text("config", "\n".join(f"    {line}" for line in shown.splitlines()))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write to the disk."""
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        """Close the file."""
        del failed
        self._writer.close()
