"""What runs take on machines that fail: a simulation by discrete events."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

START_S = 0.2
"""What a run takes beside its training as a task of a cluster; measured, docs/clusters.md."""
CHECKPOINTS = 10
"""Of a run, evenly: so many evaluations has one that says nothing else."""
AWAY_S = 300.0
"""How long a machine that failed, or one in its place, is away."""
DAY_S = 86_400.0


@final
@dataclass(frozen=True)
class Simulated:
    """Hold what one simulation came to."""

    seconds: float  # on the clock, from the first run to the end of the last
    lost_seconds: float  # of runs, computed once more since they had no checkpoint when their machine failed


def simulate(
    phases: Sequence[Sequence[float]], slots: Sequence[int], *, faults: float = 0.0, seed: int = 0
) -> Simulated:
    """Let machines compute runs, phase after phase, in the order given, each where there is room first.

    Parameters
    ----------
    phases : sequence of sequence of float
        Seconds of the runs of each phase, which begins when the one before has ended.
    slots : sequence of int
        How many runs each machine computes at the same time.
    faults : float, default 0.0
        How often a machine fails a day, on average, whatever was before (a Poisson process). Its runs go on elsewhere
        from their last checkpoint, before others.
    seed : int, default 0
        Of the moments of failure.

    Returns
    -------
    Simulated
        The clock and what was lost.
    """
    most = max(map(len, phases), default=0)
    cluster = _Cluster([min(count, most) for count in slots], faults / DAY_S, random.Random(seed))
    for runs in phases:
        cluster.compute([_Run(seconds, seconds) for seconds in runs])
    return Simulated(cluster.now, cluster.lost)


@final
@dataclass(frozen=True)
class _Run:
    whole: float
    left: float

    def after(self, seconds: float) -> _Run:
        """What is left from the last checkpoint on."""
        done = self.whole - self.left + max(0.0, seconds - START_S)
        kept = math.floor(CHECKPOINTS * done / self.whole) / CHECKPOINTS * self.whole
        return _Run(self.whole, min(self.left, self.whole - kept))


@final
class _Cluster:
    """Machines, what runs on them, and what happens next."""

    def __init__(self, slots: Sequence[int], rate: float, chance: random.Random) -> None:
        self.now = self.lost = 0.0
        self._slots, self._rate, self._chance = slots, rate, chance
        self._lives = [0] * len(slots)  # how often each machine has failed: what an earlier life began never ends
        self._running: list[dict[int, tuple[_Run, float]]] = [{} for _ in slots]  # by number: a run and its start
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, int, int, bool]] = []
        """Moment, number, machine and its life, and whether a run ends; else the machine fails, or is there again."""
        self._free: deque[tuple[int, int]] = deque()  # a machine and its life for every slot
        for machine in range(len(slots)):
            self._begin_life(machine)

    def compute(self, runs: Sequence[_Run]) -> None:
        """Compute the runs of a phase."""
        waiting, left = deque(runs), len(runs)
        while left:
            self._fill(waiting)
            self.now, number, machine, life, ends = heapq.heappop(self._events)
            if life > self._lives[machine]:
                self._lives[machine] = life
                self._begin_life(machine)
            elif life < self._lives[machine]:
                continue
            elif ends:
                left -= 1
                del self._running[machine][number]
                self._free.append((machine, life))
            else:
                waiting.extendleft(self._fail(machine))

    def _fill(self, waiting: deque[_Run]) -> None:
        while waiting and self._free:
            machine, life = self._free.popleft()
            if life == self._lives[machine]:
                run = waiting.popleft()
                number = self._at(self.now + START_S + run.left, machine, life, ends=True)
                self._running[machine][number] = (run, self.now)

    def _begin_life(self, machine: int) -> None:
        """Free the slots of a machine, and draw when it fails."""
        life = self._lives[machine]
        self._free.extend([(machine, life)] * self._slots[machine])
        if self._rate:
            self._at(self.now + self._chance.expovariate(self._rate), machine, life, ends=False)

    def _fail(self, machine: int) -> list[_Run]:
        """Let a machine go; return its runs as they go on elsewhere. While it is away its life is an odd number."""
        going_on = []
        for run, start in self._running[machine].values():
            rest = run.after(self.now - start)
            self.lost += max(0.0, self.now - start - START_S) - (run.left - rest.left)
            going_on.append(rest)
        self._running[machine].clear()
        self._lives[machine] += 1
        self._at(self.now + AWAY_S, machine, self._lives[machine] + 1, ends=False)
        return going_on

    def _at(self, moment: float, machine: int, life: int, *, ends: bool) -> int:
        number = next(self._numbers)
        heapq.heappush(self._events, (moment, number, machine, life, ends))
        return number
