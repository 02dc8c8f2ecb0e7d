"""Measure the number that is explained, of any set-ups, within the time that there is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from attnlab.core.contracts import Metric
from attnlab.explain.case import Case
from attnlab.explain.trials.effects import Estimate, mean_of
from attnlab.explain.trials.setups import Runs, Setup

Setups = Mapping[str, Setup]
"""A set-up for each variant."""


@final
@dataclass(frozen=True)
class Measuring:
    """Make runs, and read the number that is explained off them."""

    case: Case  # what is explained
    runs: Runs  # makes the runs
    seeds: Sequence[int]  # those of every set-up
    fraction: float  # part of their steps with which runs are made
    deadline: float  # when to end, on the monotonic clock

    @property
    def comparable(self) -> bool:
        """Whether runs can be held against what was seen."""
        return self.fraction == 1 and self.case.scale is None

    @property
    def seconds_left(self) -> float:
        """How long there is until the deadline."""
        return self.deadline - time.monotonic()

    def values(self, setups: Setups, metric: Metric, seeds: Sequence[int] | None = None) -> dict[str, dict[int, float]]:
        """A metric of set-ups, as it is reported, by their variants and by seed; by default all seeds."""
        runs = self.runs.of(list(setups.values()), self.seeds if seeds is None else seeds)
        return {
            name: {seed: run.value(metric, self.case.reported) for seed, run in runs[setup.name].items()}
            for name, setup in setups.items()
        }

    def quantity(self, setups: Setups, seeds: Sequence[int] | None = None) -> dict[int, float]:
        """The number that is explained, of one set-up for each variant it is about, by seed; by default all seeds."""
        asked = self.case.quantity
        found = self.values({name: setups[name] for name in asked.variants}, asked.metric, seeds)
        return {seed: asked.value({name: row[seed] for name, row in found.items()}) for seed in found[asked.variant]}

    def mean(self, setups: Setups, seeds: Sequence[int] | None = None) -> Estimate | None:
        """The mean of the number that is explained, of runs that finished; None without any."""
        return mean_of(self.quantity(setups, seeds), self.case.quantity.limits)

    def at_once(self, setups: Sequence[Setup]) -> Sequence[int]:
        """The first seeds: as many as can be run side by side for all the set-ups, one at least."""
        return self.seeds[: max(1, self.runs.workers // max(1, len(setups)))]

    def late(self, setups: Sequence[Setup], seeds: Sequence[int] | None = None) -> bool:
        """Whether runs of set-ups, by default with all seeds, would end after the deadline."""
        return self.runs.seconds_of(setups, self.seeds if seeds is None else seeds) > self.seconds_left

    def shortened(self, setup: Setup) -> Setup:
        """A set-up with the part of its steps with which runs are made."""
        if self.fraction == 1:
            return setup
        shorter: dict[str, Any] = {"budget": {"steps": max(1, round(setup.steps * self.fraction))}}
        every = setup.training.get("evaluate_every")
        if every and self.case.reported == "best":
            shorter["evaluate_every"] = max(1, round(every * self.fraction))
        return setup.changed({"training": shorter})
