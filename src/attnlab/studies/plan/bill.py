"""What a plan comes to on machines that are there: hours of cores, time on the clock, storage, money."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from attnlab.core.errors import SpecError
from attnlab.core.machine import usable_threads
from attnlab.studies.plan.plan import Plan
from attnlab.studies.plan.simulation import CHECKPOINTS, DAY_S, START_S, Lane, Simulated, simulate

FIRST_LOOK = 2
"""Place among the stages of a variant, after its tuning runs and those of its best settings again."""
KEPT_BYTES = 2 * 4
"""Bytes a parameter that a run which is done leaves: its last weights and its best, in float32."""
SIMULATIONS = 20
"""Of a cluster whose machines fail."""
MOST_TRIES = 20
"""How often a stretch between two checkpoints may be tried on average, if machines fail."""
HELD_BYTES = 2 * (2 * 4 + 2 * 4)
"""Bytes a parameter that a run under way takes at most: weights and an optimizer's two numbers, old and new at once."""


@final
@dataclass(frozen=True)
class Bill:
    """Hold what a study costs on given machines, at the pace of a core of this one."""

    nodes: int  # number of machines
    cores: int  # cores of all of them
    at_once: int  # how many runs find room at the same time
    runs: int  # number of runs up to the first look
    core_hours: float  # sum over runs
    seconds: float  # on the clock, simulated; the median where machines fail
    seconds_range: tuple[float, float]  # in which nine of ten simulations lie
    lost_core_hours: float  # computed once more after failures, mean over simulations
    most_runs: int  # if every look is needed
    most_seconds: float  # on the clock then
    storage_bytes: int  # weights of all runs that are done, and of those under way
    price: float | None  # of all core hours; None where no price of one was given

    def to_json(self) -> dict[str, Any]:
        """The bill with the documented, stable keys of ``attnlab plan --json``."""
        return asdict(self)


def bill(plan: Plan, cores: Sequence[int], *, price: float | None = None, faults: float = 0.0) -> Bill:
    """What a study costs up to its first look, on machines with so many cores each.

    The plan is a calibrated one, the price that of an hour of one core in any currency, and each machine fails so often
    a day, on average.

    Raises
    ------
    SpecError
        If the price or the faults are negative or no number, machines fail more often than a run keeps checkpoints, the
        plan is not calibrated, or no machine is large enough for a run.
    """
    if not 0 <= faults < math.inf:
        raise SpecError(f"--faults must be 0 or more a day and machine; got {faults:g}")
    if price is not None and not 0 <= price < math.inf:
        raise SpecError(f"--price must be 0 or more an hour of a core; got {price:g}")
    timed = ((variant.name, variant.seconds_per_seed) for variant in plan.variants)
    seconds = {name: one for name, one in timed if one is not None}
    known = list(seconds.values())
    if len(known) < len(plan.variants):
        raise SpecError("what a study costs on a cluster follows from timed steps; leave out --no-calibrate")
    threads = usable_threads() if plan.judges_time else 1
    slots = [count // threads for count in cores]
    at_once = sum(slots)
    if not at_once:
        raise SpecError(f"no node of the cluster has the {threads} CPU that a run needs")
    stretch = max(known) / CHECKPOINTS + START_S
    if faults * stretch / DAY_S > math.log(MOST_TRIES):
        raise SpecError(
            f"machines that fail {faults:g} times a day do not live long enough for a run: its checkpoints lie "
            f"{stretch:,.0f} s apart"
        )
    every = _lanes(plan, seconds)
    first = [replace(lane, stages=lane.stages[: FIRST_LOOK + 1]) for lane in every]
    clocks = [simulate(first, slots, faults=faults, seed=seed) for seed in range(SIMULATIONS if faults else 1)]
    most = simulate(every, slots, faults=faults)
    runs = [run for lane in first for stage in lane.stages for run in stage]
    repeats = len(runs) // len(seconds)
    under_way = min(at_once, sum(max(map(len, lane.stages)) for lane in first))
    parameters = sum(variant.parameters for variant in plan.variants)
    lost = threads * statistics.fmean(one.lost_seconds for one in clocks) / 3600
    hours = threads * sum(runs) / 3600
    return Bill(
        nodes=len(cores),
        cores=sum(cores),
        at_once=at_once,
        runs=len(runs),
        core_hours=hours,
        seconds=statistics.median(one.seconds for one in clocks),
        seconds_range=_nine_of_ten(clocks),
        lost_core_hours=lost,
        most_runs=sum(len(stage) for lane in every for stage in lane.stages),
        most_seconds=most.seconds,
        storage_bytes=KEPT_BYTES * repeats * parameters + HELD_BYTES * under_way * parameters // len(seconds),
        price=None if price is None else price * (hours + lost),
    )


def _lanes(plan: Plan, seconds: Mapping[str, float]) -> list[Lane]:
    """The runs of each variant if every look is needed, or of all together where time is judged."""
    rules, names = plan.study.rules, list(seconds)
    grid = rules.tuning_runs - plan.tried_again
    seeds = [rules.looks[0], *(later - look for look, later in itertools.pairwise(rules.looks))]
    partners: dict[str, set[int]] = {name: set() for name in names}
    for one, other in plan.study.contrasts:
        partners[one].add(names.index(other))
        partners[other].add(names.index(one))
    lanes = []
    for name, takes in seconds.items():
        counts = [grid, plan.tried_again, *(seeds if partners[name] else seeds[:1])]
        lanes.append(Lane([[takes] * count for count in counts], sorted(partners[name]), FIRST_LOOK))
    if not plan.judges_time:
        return lanes
    stages = itertools.zip_longest(*(lane.stages for lane in lanes), fillvalue=())
    return [Lane([[run for stage in of_all for run in stage] for of_all in stages])]


def _nine_of_ten(clocks: Sequence[Simulated]) -> tuple[float, float]:
    """Without the twentieth part of them at either end."""
    ordered = sorted(one.seconds for one in clocks)
    out = len(ordered) // 20
    return ordered[out], ordered[-1 - out]
