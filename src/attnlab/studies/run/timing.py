"""How long a training step takes in this process: of one run, and of one of several that train together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch, Metric, Predict, StudyTask, reads_bfloat16
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.training.keeping.result import Result
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.loop import train
from attnlab.training.together.together import train_together

WARM_UP_STEPS = 2
TIMED_STEPS = 6
MOST_TIMED = 4
"""Runs timed together: what they save grows little with more of them."""
ARITHMETIC_S = 0.1
"""A step of this length is all arithmetic on a CPU, which is not less for being done together, so that is not timed:
already at 0.034 s (4 layers, width 128) only 4 % were gained on two cores."""


class _Unjudged:
    """A task as it is in training; evaluating it costs nothing and means nothing."""

    metrics: tuple[Metric, ...] = (Metric("nothing", "", "lower"),)
    parts: tuple[str, ...] = ("nothing",)

    def __init__(self, task: StudyTask) -> None:
        self._task = task
        self.tokens_per_step = task.tokens_per_step
        self.reads_bfloat16 = reads_bfloat16(task)

    def train_batch(self, step: int, seed: int) -> Batch:
        """The task's batch."""
        return self._task.train_batch(step, seed)

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The task's loss."""
        return self._task.loss(outputs, batch, label_smoothing)

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """Nothing of interest."""
        del predict, part
        return {"nothing": 0.0}


def step_times(spec: Mapping[str, Any], together: int) -> tuple[float, float | None]:
    """Time a few training steps of a cell on the CPU, in its precision but not compiled."""
    task = build_task(spec["task"])
    recipes = [_recipe(spec["recipe"], precision) for precision in _precisions(spec["recipe"])]
    alone = min(_seconds([train(_model(spec, task, 0), _Unjudged(task), recipe)]) for recipe in recipes)
    count = min(together, MOST_TIMED)
    if count < 2 or alone >= ARITHMETIC_S:
        return alone, None
    found = [_together(spec, task, recipe, count) for recipe in recipes]
    return alone, min((seconds for seconds in found if seconds is not None), default=None)


def _together(spec: Mapping[str, Any], task: StudyTask, recipe: Recipe, count: int) -> float | None:
    models = [_model(spec, task, seed) for seed in range(count)]
    results = train_together(models, _Unjudged(task), [recipe] * count, seeds=range(count))
    done = [result for result in results if isinstance(result, Result) and result.together == count]
    return _seconds(done) / count if len(done) == count else None


def _seconds(results: Sequence[Result]) -> float:
    """The seconds of a step after the first ones, summed over runs."""
    return sum(_step_seconds(result) for result in results)


def _step_seconds(result: Result) -> float:
    warm, last = result.curve[WARM_UP_STEPS - 1], result.curve[-1]
    return (last["seconds"] - warm["seconds"]) / TIMED_STEPS


def _model(spec: Mapping[str, Any], task: StudyTask, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build_model(spec["model"], task)


def _precisions(recipe: Mapping[str, Any]) -> Sequence[str]:
    return ("float32", "bf16") if recipe.get("precision") == "auto" else (recipe.get("precision", "float32"),)


def _recipe(recipe: Mapping[str, Any], precision: str) -> Recipe:
    steps = WARM_UP_STEPS + TIMED_STEPS
    ends = {"budget": {"steps": steps}, "evaluate_every": steps, "stop_at": None, "early_stop": None}
    return Recipe.parse({**recipe, **ends, "checkpoint_every": None, "precision": precision, "compile": False})
