"""How far a run is through its budget, and what is due there: learning rate, evaluations, records."""

from __future__ import annotations

import math
from typing import NamedTuple, final

from attnlab.training.keeping.result import RunState
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.recipe.schedule import rate_factor
from attnlab.training.speed.settings import Remaining

EVALUATIONS = 10  # where the recipe does not say: enough points for a curve, and cheap beside the training
ROUNDING = 1e-9  # 12 of 20 steps are a fifth of the last half, though (0.6 - 0.5) / 0.5 is a little less than 0.2
RECORDS = 200  # points of the training curve: as many as a chart of usual width can show


@final
class Marks(NamedTuple):
    """Count what is due from the start of a run up to one of its states.

    Parameters
    ----------
    evaluations, records, averages : int
        Evaluations, records of the training curve, points whose weights are averaged.
    """

    evaluations: int
    records: int
    averages: int


@final
class Course:
    """Answer what a state of a run means under a recipe; holds no state itself.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    total_steps : int or None
        Steps the budget buys; None where it is in seconds.
    """

    def __init__(self, recipe: Recipe, total_steps: int | None) -> None:
        self.total_steps = total_steps
        self._lr = recipe.lr
        self._evaluate_every = recipe.evaluate_every
        self._seconds = recipe.budget.seconds or 1.0  # used only where the budget is in seconds
        self._warmup = recipe.warmup_fraction(total_steps)
        self._schedule = recipe.build_schedule()
        self._average = recipe.average

    def progress(self, state: RunState) -> float:
        """How much of the budget is used, in [0, 1]; of seconds, the part that choosing a setting has left."""
        if self.total_steps is not None:
            return state.step / self.total_steps
        trained, left = state.seconds - state.choosing_seconds, self._seconds - state.choosing_seconds
        return min(1.0, trained / left) if left > 0.0 else 1.0

    def remaining(self, state: RunState) -> Remaining:
        """What is left of the budget."""
        if self.total_steps is not None:
            return Remaining(steps=self.total_steps - state.step)
        return Remaining(seconds=self._seconds - state.seconds)

    def learning_rate(self, state: RunState) -> float:
        """The rate at the middle of the coming step, so that neither the first nor the last is zero."""
        half_step = 0.0 if self.total_steps is None else 0.5 / self.total_steps
        return self._lr * rate_factor(self._schedule, self.progress(state) + half_step, self._warmup)

    def marks(self, state: RunState) -> Marks:
        """What is due up to a state."""
        evaluations, records = self._evenly(state, EVALUATIONS), self._evenly(state, RECORDS)
        if self._evaluate_every is not None:
            evaluations = state.step // self._evaluate_every
        return Marks(evaluations, records, self._averages(self.progress(state)))

    def _averages(self, progress: float) -> int:
        """How many points of the averaged part are passed; all of them at the end, and only there."""
        if self._average is None or progress >= 1.0:
            return self._average.points if self._average else 0
        last, points = self._average.last, self._average.points
        return min(points - 1, max(0, math.floor((progress - (1.0 - last)) / last * points + ROUNDING)))

    def _evenly(self, state: RunState, marks: int) -> int:
        if self.total_steps is None:
            return int(self.progress(state) * marks)
        return state.step * marks // self.total_steps  # whole numbers, since 0.29 * 100 is less than 29
