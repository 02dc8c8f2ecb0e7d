"""What a study's folder keeps of its task, so that a report needs neither the data nor the floors computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from attnlab.core.contracts import Floor, Metric, ReportedTask


@final
@dataclass
class TaskRecord:
    """Hold what a report needs of a task."""

    name: str  # of the task
    causal: bool  # as in `ReportedTask`, like all that follows
    metrics: tuple[Metric, ...]  # of the evaluations
    judged: tuple[Metric, ...]  # of the trained model
    known: tuple[Floor, ...]  # what `floors` returns
    suspicions: tuple[str, ...]  # what `alarms` returns
    data: Mapping[str, Any]  # what `describe` returns

    @classmethod
    def of(cls, task: ReportedTask) -> TaskRecord:
        """The record of a task."""
        said = (task.metrics, task.judged, task.floors(), task.alarms(), task.describe())
        return cls(task.name, task.causal, *said)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TaskRecord:
        """The record that was saved."""
        metrics, judged = (tuple(Metric(**fields) for fields in content[key]) for key in ("metrics", "judged"))
        known = tuple(Floor(**fields) for fields in content["known"])
        suspicions = tuple(content["suspicions"])
        return cls(content["name"], content["causal"], metrics, judged, known, suspicions, content["data"])

    def floors(self) -> tuple[Floor, ...]:
        """Chance, limits and best known results."""
        return self.known

    def alarms(self) -> tuple[str, ...]:
        """What is suspicious about the data itself."""
        return self.suspicions

    def describe(self) -> dict[str, Any]:
        """What identifies the data."""
        return dict(self.data)
