"""How many runs of how many steps fit the time, as is kept in the case's folder."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from attnlab.core.errors import SpecError
from attnlab.core.files import read_json, write_json
from attnlab.explain.answer import HALF
from attnlab.explain.causes.cause import LEAKING, OVERFITTING, Cause, phase_of
from attnlab.explain.causes.known import Known, setups_of
from attnlab.explain.stages.knowing import Tell
from attnlab.explain.stages.removing import FOLLOWED, MATTERS, without
from attnlab.explain.stages.repeating import Held
from attnlab.explain.stages.suspecting import OF_LENGTH
from attnlab.explain.trials.measuring import Measuring
from attnlab.explain.trials.setups import Setup

MOST_SEEDS, SEEDS = 5, 3
"""Runs of every set-up: five where there is time, three else."""
OF_ALL_STEPS = frozenset({OVERFITTING, LEAKING})
"""Causes that do not show in shorter runs."""
FEWEST_STEPS = 30
"""Of a shortened run; fewer say nothing."""
NEARLY = 0.8
"""Part of the plan that fits the time, from which runs are not shortened: what is over is left out at the end."""
AT_FIRST = 0.4
"""Part of the time that runs of the case as it is may take before others are shortened."""
ANOTHER = -1
"""A seed of which no run is made."""


@final
@dataclass(frozen=True)
class Pacing:
    """Choose runs that fit the time."""

    kept: Path  # the file of the case's folder that keeps what was chosen, beside what was found before training
    minutes: float  # how long all may take
    seeds: int | None  # runs of every set-up, where a person says how many
    planned: Mapping[str, float]  # by variant the seconds of a run, as a few of its steps took
    tell: Tell  # of the plan

    def leaves_time(self, measuring: Measuring, known: Mapping[str, Known]) -> bool:
        """Whether runs of the case as it is may be made first; those that run side by side are made on the way."""
        seen, there_is = list(setups_of(known, measuring.case.saw).values()), measuring.seconds_left
        at_once = measuring.at_once(seen)
        for seeds in (at_once, measuring.seeds):  # runs tell better how long others take
            used = there_is - measuring.seconds_left
            if not measuring.comparable or used + self._missing(measuring, seen, seeds) > AT_FIRST * there_is:
                return False
            measuring.runs.of(seen, at_once)
        return True

    def chosen(
        self, measuring: Measuring, known: Mapping[str, Known], causes: Sequence[Cause], entire: Held
    ) -> Measuring:
        """It with the seeds, and the part of the steps, with which the plan fits the time."""
        kept, asked = read_json(self.kept), [self.minutes, self.seeds]
        if kept.get("plan", {}).get("asked") == asked:  # a command that goes on has the same runs
            return replace(measuring, seeds=range(kept["plan"]["seeds"]), fraction=kept["plan"]["fraction"])
        variants, seconds = measuring.case.quantity.variants, measuring.seconds_left
        explained = sum(self._takes(measuring, known[name].setup) for name in variants)
        seen = list(setups_of(known, measuring.case.saw).values())

        def cost(runs: int, causes: Sequence[Cause]) -> float:
            return self._missing(measuring, seen, range(runs)) + after(runs, causes)

        def after(runs: int, causes: Sequence[Cause]) -> float:
            of_all = (FOLLOWED * runs + sum(one.costs for one in causes)) / measuring.runs.workers
            return explained * max(of_all, len({phase_of(one) for one in causes}))  # phases follow one another

        runs = self.seeds or (MOST_SEEDS if cost(MOST_SEEDS, causes) <= seconds else SEEDS)
        spared = [cause for cause in causes if cause.name not in OF_LENGTH]
        shorten = seconds < NEARLY * cost(runs, spared) and not _wants_all_steps(measuring, known, causes, entire)
        base = explained * max(1.0, runs / measuring.runs.workers)
        needed = base + after(runs, spared)  # shortened runs are not held against what was seen of others
        fraction = min(NEARLY, seconds / needed) if shorten and needed else 1.0
        shortest = min(one.setup.steps for one in known.values())
        if fraction < 1 and shortest * fraction < FEWEST_STEPS:
            used = self.minutes - seconds / 60
            shortened = used + needed * min(1.0, FEWEST_STEPS / shortest) / 60
            whole = used + cost(runs, causes) / 60
            raise SpecError(
                f"{self.minutes:g} minutes are too few: with {FEWEST_STEPS} steps a run the plan takes "
                f"about {math.ceil(shortened)} min, with all {shortest} about {math.ceil(whole)} min"
                f"{_failed(measuring, seen)}"
            )
        write_json(self.kept, kept | {"plan": {"asked": asked, "seeds": runs, "fraction": fraction}})
        part = "" if fraction == 1 else f", shortened to {fraction:.2g} of their steps"
        most = min(cost(runs, causes) if fraction == 1 else needed * fraction, seconds) / 60
        self.tell(f"plan: {runs} runs of every set-up{part}; about {most:.1f} minutes at most")
        return replace(measuring, seeds=range(runs), fraction=fraction)

    def affords_after(self, measuring: Measuring, known: Mapping[str, Known], causes: Sequence[Cause]) -> int | None:
        """How many causes from the first on there is time to remove with all steps, after runs that were shortened.

        None where there is no time for runs of the case as it is.
        """
        if measuring.fraction == 1:
            return None
        kept = read_json(self.kept)
        if "removed_with_all_steps" in kept["plan"]:  # a command that goes on has the same runs
            return kept["plan"]["removed_with_all_steps"]
        explained = setups_of(known, measuring.case.quantity.variants).values()
        takes = sum(self._takes(measuring, one) for one in explained) / measuring.runs.workers
        costs = [takes * (len(measuring.seeds) - 1 + cause.costs) for cause in causes]
        left = measuring.seconds_left
        left -= self._missing(measuring, setups_of(known, measuring.case.saw).values(), measuring.seeds)
        afforded = sum(total <= left for total in itertools.accumulate(costs)) if left >= 0 else None
        write_json(self.kept, kept | {"plan": {**kept["plan"], "removed_with_all_steps": afforded}})
        return afforded

    def lengthened(self, measuring: Measuring, known: Mapping[str, Known]) -> Measuring:
        """It with more steps, or all, where a run with all has the surprise and a shorter one has none."""
        quantity, first = measuring.case.quantity, measuring.seeds[:1]
        base = setups_of(known, quantity.variants)
        if measuring.fraction == 1:
            return measuring

        def shortened(fraction: float) -> dict[str, Setup]:
            return {name: replace(measuring, fraction=fraction).shortened(setup) for name, setup in base.items()}

        def shows(fraction: float, part: float) -> bool:
            found = measuring.mean(shortened(fraction), first)
            return found is not None and quantity.surprises(found.mean, part)

        entire, left = list(base.values()), measuring.seconds_left
        if shows(measuring.fraction, MATTERS) or measuring.runs.seconds_of(entire, first) > HALF * left:
            return measuring
        measuring.runs.of(entire, measuring.at_once(entire))
        if not shows(1.0, HALF):
            return measuring
        doubled = (measuring.fraction * 2**times for times in itertools.count(1))
        longer = list(itertools.takewhile(lambda one: one <= HALF, doubled))  # together no longer than one with all
        size = max(1, measuring.runs.workers // len(base))
        for begin in range(0, len(longer), size):
            some = longer[begin : begin + size]
            measuring.runs.of([setup for one in some for setup in shortened(one).values()], first)
            if fraction := next((one for one in some if shows(one, HALF)), 0.0):
                break
        else:
            fraction = 1.0
        part = "all steps" if fraction == 1 else f"{fraction:.2g} of them"
        self.tell(f"shortened runs do not show what was seen: runs have {part}, as far as there is time")
        kept = read_json(self.kept)
        write_json(self.kept, kept | {"plan": {**kept["plan"], "fraction": fraction}})
        return replace(measuring, fraction=fraction)

    def _missing(self, measuring: Measuring, setups: Iterable[Setup], seeds: Sequence[int]) -> float:
        """Seconds that those runs of set-ups take which are not made yet, side by side."""
        missing = [one for one in setups for seed in seeds if not measuring.runs.are_made([one], [seed])]
        takes = sorted((self._takes(measuring, one) for one in missing), reverse=True)
        return sum(takes[:: measuring.runs.workers])

    def _takes(self, measuring: Measuring, setup: Setup) -> float:
        """Seconds that one run of a variant takes: as runs before took, or as a few of its steps did."""
        return measuring.runs.seconds_of([setup], [ANOTHER]) or self.planned[setup.name]


def _failed(measuring: Measuring, setups: Sequence[Setup]) -> str:
    """Which run of the case as it is failed already, and why; empty where none did."""
    made = [one for one in setups if measuring.runs.are_made([one], measuring.seeds[:1])]
    runs = measuring.runs.of(made, measuring.seeds[:1])
    errors = {name: run.error for name, by_seed in runs.items() for run in by_seed.values() if run.error}
    return "".join(f". A run of '{name}' failed: {error}" for name, error in errors.items())


def _wants_all_steps(measuring: Measuring, known: Mapping[str, Known], causes: Sequence[Cause], entire: Held) -> bool:
    """Whether runs with all steps tell most already, or come nearer to the expected without what shorter ones lack.

    Shorter runs learn neither training items by heart nor what a split lets them see of the held-out ones.
    """
    if entire.found is None:
        return False
    quantity = measuring.case.quantity
    if entire.otherwise or not quantity.surprises(entire.found.mean, MATTERS):
        return True
    toward, matters = math.copysign(1.0, quantity.distance), MATTERS * abs(quantity.distance)
    for cause in (one for one in causes if one.name in OF_ALL_STEPS):
        removed = without(setups_of(known, quantity.variants), [(cause, cause.changes)])
        once = measuring.mean(removed, measuring.seeds[:1])
        if once is not None and (entire.found.mean - once.mean) * toward > matters:
            return True
    return False
