"""The course of a run: progress, learning rate, and what is due."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.training.tiny import TinyTask, recipe

from attnlab.training.keeping.result import RunState
from attnlab.training.run.course import Course


def course(steps: int = 29, **fields) -> Course:
    made = recipe(steps, **fields)
    return Course(made, made.total_steps(TinyTask()))


def test_marks_are_evenly_spread_and_end_at_the_end():
    marks = [course(29).marks(RunState(step=step))[0] for step in range(30)]
    assert marks[0] == 0
    assert marks[-1] == 10
    assert all(0 <= after - before <= 1 for before, after in pairwise(marks))


def test_evaluate_every_is_taken_literally():
    every = course(29, evaluate_every=5)
    assert [step for step in range(1, 30) if every.marks(RunState(step=step)) > every.marks(RunState(step=step - 1))]
    assert every.marks(RunState(step=14))[0] == 2


def test_neither_first_nor_last_rate_is_zero():
    linear = course(11, schedule="linear", warmup=3)
    rates = [linear.learning_rate(RunState(step=step)) for step in range(11)]
    assert min(rates) > 0.0
    assert max(rates) <= 0.01


def test_budget_in_seconds_counts_time():
    timed = course(budget={"seconds": 4.0})
    assert timed.progress(RunState(step=100, seconds=1.0)) == pytest.approx(0.25)
    assert timed.progress(RunState(seconds=9.0)) == 1.0
    assert timed.marks(RunState(seconds=1.0)) == (2, 50, 0)


@pytest.mark.parametrize("steps", [20, 29, 3])
def test_points_that_are_averaged_are_evenly_spread_over_the_last_part(steps):
    averaging = course(steps, average={"last": 0.5, "points": 5})
    counts = [averaging.marks(RunState(step=step)).averages for step in range(steps + 1)]
    taken = [step for step in range(1, steps + 1) if counts[step] > counts[step - 1]]
    assert taken == {20: [12, 14, 16, 18, 20], 29: [18, 21, 24, 27, 29], 3: [2, 3]}[steps]


def test_nothing_is_averaged_unless_asked_for():
    assert {course(7).marks(RunState(step=step)).averages for step in range(8)} == {0}
