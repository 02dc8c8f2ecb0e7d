"""What a plan comes to on machines that are there: hours of cores, time on the clock, storage, money."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from attnlab.core.errors import SpecError
from attnlab.core.machine import usable_cores
from attnlab.studies.plan.plan import Plan

KEPT_BYTES = 2 * 4
"""Bytes a parameter that a run which is done leaves: its last weights and its best, in float32."""
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
    seconds: float  # on the clock at least; no run is faster than it is on its own
    storage_bytes: int  # weights of all runs that are done, and of those under way
    price: float | None  # of all core hours; None where no price of one was given

    def to_json(self) -> dict[str, Any]:
        """The bill with the documented, stable keys of ``attnlab plan --json``."""
        return asdict(self)


def bill(plan: Plan, cores: Sequence[int], *, price: float | None = None) -> Bill:
    """What a study costs up to its first look.

    Parameters
    ----------
    plan : Plan
        A calibrated plan.
    cores : sequence of int
        Cores of each machine.
    price : float, optional
        Price of an hour of one core, in any currency.

    Returns
    -------
    Bill
        What it costs.

    Raises
    ------
    SpecError
        If the price is negative or no number, the plan is not calibrated, or no machine is large enough for a run.
    """
    if price is not None and not 0 <= price < math.inf:
        raise SpecError(f"--price must be 0 or more an hour of a core; got {price:g}")
    seconds = {variant.name: variant.seconds_per_seed for variant in plan.variants}
    known = [one for one in seconds.values() if one is not None]
    if len(known) < len(seconds):
        raise SpecError("what a study costs on a cluster follows from timed steps; leave out --no-calibrate")
    threads = usable_cores() if plan.judges_time else 1
    at_once = sum(count // threads for count in cores)
    if not at_once:
        raise SpecError(f"no node of the cluster has the {threads} CPU that a run needs")
    repeats = (len(plan.tuning_cells()) // len(seconds), plan.tried_again, plan.study.rules.looks[0])
    total, runs = sum(repeats) * sum(known), sum(repeats) * len(seconds)
    clock = sum(max(*known, times * sum(known) / at_once) for times in repeats if times)
    parameters = sum(variant.parameters for variant in plan.variants)
    storage = KEPT_BYTES * sum(repeats) * parameters + HELD_BYTES * at_once * parameters // len(seconds)
    hours = threads * total / 3600
    money = None if price is None else price * hours
    return Bill(len(cores), sum(cores), at_once, runs, hours, clock, storage, money)
