"""A run ends at its target: at the first evaluation that reaches it, with the time that it took."""

from __future__ import annotations

import math

import pytest
from tests.training.tiny import TinyTask, recipe, tiny_model

from attnlab.core.contracts import Metric
from attnlab.core.errors import SpecError
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.recipe.target import SECONDS_TO_TARGET, is_reached, seconds_to_target
from attnlab.training.run.loop import train

STEPS = 60


def run(target: dict[str, float] | None, **fields):
    return train(tiny_model(0.0), TinyTask(), recipe(STEPS, evaluate_every=5, stop_at=target, **fields))


@pytest.fixture(scope="module")
def whole():
    """Return a run that has no target."""
    return run(None)


def evaluations(result) -> list[tuple[int, float]]:
    return [(line["step"], line["val_mse"]) for line in result.curve if "val_mse" in line]


def test_it_ends_at_the_first_evaluation_that_reaches_the_target(whole):
    values = evaluations(whole)
    target = values[len(values) // 2][1]
    first = next(step for step, value in values if value <= target)
    result = run({"val_mse": target})
    assert result.stopped == "target"
    assert result.steps == first < whole.steps
    assert evaluations(result) == [(step, value) for step, value in values if step <= first]


def test_the_time_is_that_of_training_and_evaluation_until_then(whole):
    result = run({"val_mse": evaluations(whole)[1][1]})
    assert 0 < result.seconds < result.metrics[SECONDS_TO_TARGET] <= result.seconds + result.evaluation_seconds
    assert result.curve[-1][SECONDS_TO_TARGET] == result.metrics[SECONDS_TO_TARGET]
    assert "test_mse" in result.metrics


def test_a_run_that_misses_its_target_uses_its_budget_and_has_no_time(whole):
    result = run({"val_mse": 1e-9})
    assert (result.stopped, result.steps) == ("budget", STEPS)
    assert SECONDS_TO_TARGET not in result.metrics
    assert result.metrics == whole.metrics


def test_a_target_that_is_reached_by_the_last_evaluation_counts(whole):
    last = whole.metrics["val_mse"]
    assert all(value > last for _, value in evaluations(whole)[:-1])
    assert run({"val_mse": last}).stopped == "target"


def test_the_direction_is_the_metric_s():
    class Task(TinyTask):
        metrics = (Metric("accuracy", "fraction", "higher"), Metric("loss", "nats", "lower"))

    found = {"accuracy": 0.5, "loss": 2.0}
    reached = [is_reached({"accuracy": value}, Task().metrics, found) for value in (0.4, 0.5, 0.6)]
    assert reached == [True, True, False]
    assert [is_reached({"loss": value}, Task().metrics, found) for value in (1.9, 2.0, 2.1)] == [False, True, True]


def test_the_metric_says_what_it_measures():
    metric = seconds_to_target({"val_loss": 1.88})
    assert (metric.title, metric.unit) == ("time to val_loss 1.88", "s")
    assert metric.improves(1.0, 2.0)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"val_msa": 1.0}, "stop_at: the task has no metric 'val_msa'; did you mean 'val_mse'?"),
        ({"test_mse": 1.0}, "stop_at: 'test_mse' is measured on the test part; stop at a validation metric"),
    ],
)
def test_a_target_that_is_not_measured(target, expected):
    with pytest.raises(SpecError) as caught:
        run(target)
    assert str(caught.value) == expected


def test_a_target_of_another_part():
    class Task(TinyTask):
        metrics = (*TinyTask.metrics, Metric("late_mse", "squared", "lower"))

    with pytest.raises(SpecError, match=r"stop_at: 'late_mse' is not measured on 'validation'.*; that has val_mse"):
        train(tiny_model(), Task(), recipe(stop_at={"late_mse": 1.0}))


@pytest.mark.parametrize("target", [{}, {"a": 1.0, "b": 2.0}, {"a": math.inf}, {"a": "low"}, 1.9])
def test_a_target_that_is_none(target):
    with pytest.raises(SpecError, match="stop_at"):
        Recipe.parse({"budget": {"steps": 1}, "stop_at": target})
