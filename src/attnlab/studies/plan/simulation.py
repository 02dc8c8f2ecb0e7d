"""What runs take on machines that fail: a simulation by discrete events."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
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


@final
@dataclass(frozen=True)
class Lane:
    """Hold the runs of a variant, stage by stage: each begins when the one before has ended."""

    stages: Sequence[Sequence[float]]  # seconds of every run
    partners: Sequence[int] = ()
    """Other lanes, of which one too must have ended the stage before: comparisons are looked at in pairs."""
    looks: int | None = None  # from which stage on that counts; by default from none


def simulate(lanes: Sequence[Lane], slots: Sequence[int], *, faults: float = 0.0, seed: int = 0) -> Simulated:
    """Let machines compute runs in the order in which they may begin, each where there is room first.

    Each machine computes as many runs at the same time as it has slots. Of those that may begin at the same time each
    lane is given the first, then each the second. A machine fails so often a day, on average, whatever was before (a
    Poisson process, drawn from the seed); its runs go on elsewhere from their last checkpoint, before others.
    """
    most = sum(len(stage) for lane in lanes for stage in lane.stages)
    cluster = _Cluster([min(count, most) for count in slots], faults / DAY_S, random.Random(seed))
    cluster.compute(_Lanes(lanes))
    return Simulated(cluster.now, cluster.lost)


@final
@dataclass(frozen=True)
class _Run:
    lane: int
    whole: float
    left: float

    def after(self, seconds: float) -> _Run:
        """What is left from the last checkpoint on."""
        done = self.whole - self.left + max(0.0, seconds - START_S)
        kept = math.floor(CHECKPOINTS * done / self.whole) / CHECKPOINTS * self.whole
        return _Run(self.lane, self.whole, min(self.left, self.whole - kept))


@final
class _Lanes:
    """What may begin, as runs end."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._left, self._ended = [0] * len(lanes), [0] * len(lanes)  # runs of the stage that goes on; stages
        self._waiting_for: list[list[int]] = [[] for _ in lanes]
        for number, lane in enumerate(lanes):
            for partner in lane.partners:
                self._waiting_for[partner].append(number)

    def first(self) -> list[_Run]:
        """Runs that may begin at once."""
        return self._begun(range(len(self._lanes)))

    def after(self, run: _Run) -> list[_Run]:
        """Runs that may begin since one has ended."""
        self._left[run.lane] -= 1
        if self._left[run.lane]:
            return []
        self._ended[run.lane] += 1
        return self._begun([run.lane, *self._waiting_for[run.lane]])

    def _begun(self, numbers: Iterable[int]) -> list[_Run]:
        """Begin the next stages of lanes that may; the runs of all in turn."""
        stages, waiting = [], deque(numbers)
        while waiting:
            number = waiting.popleft()
            if not self._may_begin(number):
                continue
            stage = self._lanes[number].stages[self._ended[number]]
            self._left[number] = len(stage)
            stages.append([_Run(number, seconds, seconds) for seconds in stage])
            if not stage:
                self._ended[number] += 1
                waiting += [number, *self._waiting_for[number]]
        return [run for turn in itertools.zip_longest(*stages) for run in turn if run]

    def _may_begin(self, number: int) -> bool:
        lane, at = self._lanes[number], self._ended[number]
        if self._left[number] or at >= len(lane.stages):
            return False
        return lane.looks is None or at <= lane.looks or any(self._ended[one] >= at for one in lane.partners)


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

    def compute(self, lanes: _Lanes) -> None:
        """Compute runs until no more may begin."""
        waiting = deque(lanes.first())
        left = len(waiting)
        while left:
            self._fill(waiting)
            self.now, number, machine, life, ends = heapq.heappop(self._events)
            if life > self._lives[machine]:
                self._lives[machine] = life
                self._begin_life(machine)
            elif life < self._lives[machine]:
                continue
            elif ends:
                run, _ = self._running[machine].pop(number)
                self._free.append((machine, life))
                begun = lanes.after(run)
                waiting += begun
                left += len(begun) - 1
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
