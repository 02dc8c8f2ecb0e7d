"""What a study measures, and which of it decides: the task's metrics, and the time to a target where there is one."""

from __future__ import annotations

from typing import Literal

from attnlab.core.contracts import Metric, ReportedTask
from attnlab.core.errors import SpecError, nearest
from attnlab.studies.define.rules import LENGTH
from attnlab.studies.define.study import Study
from attnlab.training.recipe.target import SECONDS_TO_TARGET, seconds_to_target

SHORTEST = Metric(LENGTH, "of the budget", "lower", "length with which the target is reached")
"""What tuning looks at where it tunes the length of runs."""


def study_metrics(study: Study, task: ReportedTask) -> tuple[Metric, ...]:
    """Everything that a study measures."""
    target = study.rules.target
    first = (seconds_to_target(target),) if target else ()
    return (*first, *task.metrics, *task.judged)


def rules_metric(study: Study, task: ReportedTask, key: Literal["metric", "tune_by"]) -> Metric:
    """The metric that a key of the rules names."""
    metrics = {metric.name: metric for metric in study_metrics(study, task)}
    name = {"metric": study.rules.metric, "tune_by": study.rules.tune_by}[key]
    if key == "tune_by":
        if LENGTH in study.rules.tune:
            return SHORTEST
        metrics.pop(SECONDS_TO_TARGET, None)  # runs of one length differ in seconds by what else the machine does
        name = name or next(iter(study.rules.target or ()), None)
    if name is None:
        return next(iter(metrics.values()))
    if name not in metrics:
        raise SpecError(f"rules.{key}: task '{task.name}' has no metric '{name}'; {nearest(name, metrics)}")
    return metrics[name]
