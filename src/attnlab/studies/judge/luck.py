"""What luck in tuning may have cost a variant: a few runs chose its setting, and another may be better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import stdev
from typing import Literal, final


@final
@dataclass(frozen=True)
class Tuned:
    """Hold what tuning tried for a variant, and what judged runs say of the spread of such runs."""

    chosen: str  # one of the settings
    means: Mapping[str, float | None]  # what each setting reached in tuning; None where it has no number
    runs: Mapping[str, int]  # how many runs each mean is of
    values: Mapping[int, float]  # the metric that tuning looked at, by seed of the judged runs
    better: Literal["lower", "higher"]  # direction of that metric

    def lost(self, seeds: int, error: float) -> float:
        """How much better the best of all tried settings may be than the chosen one; `error` is the chance of more.

        The first `seeds` judged runs tell the standard deviation of a run; 0 is lost where there are fewer than two.

        Examples
        --------
        >>> tuned = Tuned("0.1", {"0.1": 2.0, "0.2": 2.01}, {"0.1": 2, "0.2": 2}, {0: 2.01, 1: 2.04}, "lower")
        >>> round(tuned.lost(2, 0.05), 3)
        0.025
        """
        best, values = self.means[self.chosen], [value for seed, value in self.values.items() if seed < seeds]
        if best is None or len(values) < 2:
            return 0.0
        from scipy import special

        sign, spread = (1 if self.better == "lower" else -1), -float(special.ndtri(error)) * stdev(values)
        beyond = (
            sign * (best - mean) + spread * math.sqrt(1 / self.runs[self.chosen] + 1 / self.runs[setting])
            for setting, mean in self.means.items()
            if mean is not None and setting != self.chosen
        )
        return max(0.0, 0.0, *beyond)
