"""What a study measures, and which of it decides: the task's metrics, and the time to a target where there is one."""

from __future__ import annotations

from typing import Literal

from attnlab.core.contracts import Metric, ReportedTask
from attnlab.core.errors import SpecError, nearest
from attnlab.studies.define.study import Study
from attnlab.training.recipe.target import seconds_to_target


def study_metrics(study: Study, task: ReportedTask) -> tuple[Metric, ...]:
    """Everything that a study measures."""
    target = study.rules.target
    first = (seconds_to_target(target),) if target else ()
    return (*first, *task.metrics, *task.judged)


def rules_metric(study: Study, task: ReportedTask, key: Literal["metric", "tune_by"]) -> Metric:
    """The metric that a key of the rules names."""
    metrics = {metric.name: metric for metric in study_metrics(study, task)}
    name = {"metric": study.rules.metric, "tune_by": study.rules.tune_by}[key]
    if name is None:
        return next(iter(metrics.values()))
    if name not in metrics:
        raise SpecError(f"rules.{key}: task '{task.name}' has no metric '{name}'; {nearest(name, metrics)}")
    return metrics[name]
