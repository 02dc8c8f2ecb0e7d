"""The target of a run: the value of a metric at which training ends, and the time that it took to get there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attnlab.core.contracts import Metric, Task
from attnlab.core.errors import SpecError, nearest

SECONDS_TO_TARGET = "seconds_to_target"
"""Name of the metric that a run which reached its target has beside those of its task."""


def seconds_to_target(target: Mapping[str, float]) -> Metric:
    """The metric "time to the target".

    Examples
    --------
    >>> seconds_to_target({"val_loss": 1.88}).title
    'time to val_loss 1.88'
    """
    ((name, value),) = target.items()
    return Metric(SECONDS_TO_TARGET, "s", "lower", f"time to {name} {value:g}")


def check_target(target: Mapping[str, float], task: Task, where: str = "stop_at") -> None:
    """Refuse a target that the evaluations of a run do not measure."""
    (name,) = target
    known = [metric.name for metric in task.metrics]
    if name not in known:
        raise SpecError(f"{where}: the task has no metric '{name}'; {nearest(name, known)}")
    if name.startswith("test_"):
        raise SpecError(f"{where}: '{name}' is measured on the test part; stop at a validation metric")


def check_measured(target: Mapping[str, float], task: Task, metrics: Mapping[str, float]) -> None:
    """Refuse a target that the part which is evaluated in training does not have."""
    (name,) = target
    if name not in metrics:
        raise SpecError(
            f"stop_at: '{name}' is not measured on '{task.parts[0]}', the part that is evaluated in training; "
            f"that has {', '.join(metrics)}"
        )


def is_reached(target: Mapping[str, float], known: Iterable[Metric], measured: Mapping[str, float]) -> bool:
    """Whether a target, one of the known metrics, was measured and is reached."""
    ((name, value),) = target.items()
    if name not in measured:
        return False
    metric = next(metric for metric in known if metric.name == name)
    return measured[name] == value or metric.improves(measured[name], value)
