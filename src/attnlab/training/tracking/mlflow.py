"""Show a run in MLflow, where ``MLFLOW_TRACKING_URI`` says; by default in ``mlflow.db`` in the current folder."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import filelock

from attnlab.training.tracking.tracker import AbstractTracker, TrackedRun, flat, keep_identity, known_identity

MOST_METRICS, MOST_PARAMETERS = 1000, 100
"""In one call; MLflow's own limits."""
LOCK = "attnlab-mlflow.lock"
"""Held while a run is opened: the first one makes the tables, which several processes cannot at once."""
MILLISECONDS = 1000


@final
class MlflowTracker(AbstractTracker):
    """Collect numbers and write them in batches, since each takes a database milliseconds."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric: Any = Metric
        self._waiting: list[Any] = []
        with filelock.FileLock(Path(tempfile.gettempdir()) / LOCK):
            self._client = MlflowClient()
            self._id = known_identity(run, "mlflow") or self._create(run)
            self._client.update_run(self._id, status="RUNNING")
        parameters = [Param(_allowed(name), text) for name, text in flat(run.config).items()]
        for first in range(0, 0 if run.resumed else len(parameters), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[first : first + MOST_PARAMETERS])
        keep_identity(run, "mlflow", self._id)

    def _create(self, run: TrackedRun) -> str:
        found = self._client.get_experiment_by_name(run.project)
        experiment = found.experiment_id if found else self._client.create_experiment(run.project)
        return self._client.create_run(experiment, run_name=run.name).info.run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers of a step."""
        now = int(time.time() * MILLISECONDS)
        self._waiting += [self._metric(_allowed(name), value, now, step) for name, value in values.items()]

    def flush(self) -> None:
        """Write what was taken."""
        waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), MOST_METRICS):
            self._client.log_batch(self._id, metrics=waiting[first : first + MOST_METRICS])

    def close(self, *, failed: bool) -> None:
        """Write the rest, and say how the run ended."""
        self.flush()
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _allowed(name: str) -> str:
    """A name in the characters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name)
