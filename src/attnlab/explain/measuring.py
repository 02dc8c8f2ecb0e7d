"""Measure the number that is explained, of any set-ups, within the time that there is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from attnlab.explain.case import Case
from attnlab.explain.rates import FACTORS
from attnlab.explain.setups import Runs, Setup

Setups = Mapping[str, Setup]
"""A set-up for each variant."""


@final
@dataclass
class Measuring:
    """Make runs, and read the number that is explained off them.

    Parameters
    ----------
    case : Case
        What is explained.
    runs : Runs
        Makes the runs.
    seeds : sequence of int
        The seeds of every set-up.
    fraction : float
        Part of their steps with which runs are made.
    deadline : float
        When to end, on the monotonic clock.
    workers : int
        How many runs are made at a time.
    """

    case: Case
    runs: Runs
    seeds: Sequence[int]
    fraction: float
    deadline: float
    workers: int

    @property
    def comparable(self) -> bool:
        """Whether runs can be held against what was seen."""
        return self.fraction == 1 and self.case.scale is None

    def quantity(self, setups: Setups) -> dict[int, float]:
        """The number that is explained, of one set-up for each variant it is about, by seed."""
        asked, metric = self.case.quantity, self.case.quantity.metric
        runs = self.runs.of(list(setups.values()), self.seeds)
        rows = {
            seed: {
                name: {metric.name: runs[setup.name][seed].value(metric, self.case.reported)}
                for name, setup in setups.items()
            }
            for seed in self.seeds
        }
        return {seed: asked.value(row) for seed, row in rows.items()}

    def late(self, setups: Sequence[Setup], *, searched: bool = False) -> bool:
        """Whether runs of set-ups, with a search of their rates before, would end after the deadline."""
        steps = self.runs.missing_steps(setups, self.seeds)
        steps += sum(setup.steps for setup in setups) * len(FACTORS) if searched else 0
        needed = self.runs.seconds_per_step() * steps / self.workers
        return time.monotonic() + needed > self.deadline
