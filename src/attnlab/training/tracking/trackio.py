"""Show a run in trackio, in its own folder (``TRACKIO_DIR``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from attnlab.training.tracking.tracker import AbstractTracker, TrackedRun


@final
class TrackioTracker(AbstractTracker):
    """Hand numbers to trackio, which writes them in a thread of its own."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        resume = "allow" if run.resumed else "never"
        self._run = trackio.init(
            project=run.project, name=run.name, config=dict(run.config), resume=resume, embed=False
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers of a step."""
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """Do nothing: trackio writes twice a second."""

    def close(self, *, failed: bool) -> None:
        """Wait until all is written."""
        del failed
        self._run.finish()
