"""Whether the runs of a variant reach a target in the mean: a claim of its own, tested at every look."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, final

from attnlab.core.contracts import Metric
from attnlab.studies.judge.statistics import chance_above


@final
@dataclass(frozen=True)
class Claim:
    """Hold what is known of the claim that a variant reaches a target."""

    variant: str  # whose runs
    state: Literal["reached", "missed", "open"]  # what a look has shown; open until one has
    look: int | None = None  # after how many seeds it was shown, or looked at last; None before the first look
    mean: float = math.nan  # the metric's mean at that look
    p: float = math.nan  # of "the true mean misses the target"
    reason: str = ""  # what is known, in words


@final
@dataclass(frozen=True)
class Target:
    """Hold what the runs of every variant must reach in the mean before their time is a time to it."""

    metric: Metric  # what must reach the value
    value: float  # the least that counts
    runs: Mapping[str, Mapping[int, float | None]]  # by variant and seed the metric at the end of the run
    looks: tuple[int, ...]  # numbers of seeds at which to look
    levels: tuple[float, ...]  # level of each look's one-sided test

    def claim(self, variant: str, last: int | None = None) -> Claim:
        """The claim of a variant by a look of so many seeds, or by the last one that all its runs have come to."""
        claim = Claim(variant, "open", reason="the target was not looked at yet")
        for seeds, level in zip(self.looks, self.levels, strict=True):
            if any(seed not in self.runs[variant] for seed in range(seeds)) or (last is not None and seeds > last):
                break
            claim = self._at(variant, seeds, level)
            if claim.state != "open":
                break
        return claim

    def _at(self, variant: str, seeds: int, level: float) -> Claim:
        sign = 1 if self.metric.better == "lower" else -1
        found = [value for seed, value in self.runs[variant].items() if seed < seeds and value is not None]
        mean = fmean(found) if found else math.nan
        p = chance_above([sign * value for value in found], sign * self.value)
        state = "reached" if p < level else "missed" if 1 - p < level else "open"
        says = {"reached": "reaches", "missed": "misses", "open": "is not shown to reach"}[state]
        measured = f"mean {self.metric.name} {mean:.4g} over {len(found)} runs, p = {p:.2g}"
        return Claim(variant, state, seeds, mean, p, f"{says} the target ({measured})")
