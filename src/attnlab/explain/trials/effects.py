"""How much a removal changed a number, and how sure that is, from few runs of many set-ups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev, variance
from typing import final

from attnlab.explain.metrics import rounding_of
from attnlab.studies.judge.statistics import t_quantile

ERROR = 0.05
"""Share of phases in which a cause without any effect is named."""

PRIOR = 2
"""Degrees of freedom of the variance that causes have in common."""
FEWEST = 3
"""Other causes from which there is such a variance."""
ALONE = 0.1
"""Part of the error that is kept for a cause's variance by itself, where the common one is mixed in."""

Values = Mapping[int, float]
"""The number that is explained, by seed."""


@final
@dataclass(frozen=True)
class Estimate:
    """Hold a mean with an interval."""

    mean: float  # in the unit of what is estimated
    low: float  # lower end of the interval; minus infinity where there is none
    high: float  # upper end
    runs: int  # how many runs, or pairs of runs, it is the mean of

    @property
    def excludes_zero(self) -> bool:
        """Whether it is decided on which side of zero it lies."""
        return self.low > 0 or self.high < 0

    def __neg__(self) -> Estimate:
        """The same of the other sign."""
        return Estimate(-self.mean, -self.high, -self.low, self.runs)


def mean_of(values: Values, limits: tuple[float, float] = (-math.inf, math.inf)) -> Estimate | None:
    """The mean of a set-up's runs with its 95 % interval, within limits; None without runs that finished."""
    finite = [value for value in values.values() if math.isfinite(value)]
    if not finite:
        return None
    if len(finite) < 2:
        return Estimate(finite[0], -math.inf, math.inf, 1)
    half = t_quantile(1 - ERROR / 2, len(finite) - 1) * stdev(finite) / math.sqrt(len(finite))
    mean, (least, most) = fmean(finite), limits
    return Estimate(mean, max(mean - half, least), min(mean + half, most), len(finite))


def within_noise(
    found: Sequence[Values], seen: float, runs: int, *, error: float = ERROR, draw: float = 0.0
) -> bool | None:
    """Whether a number that was seen, a mean of runs, lies where those of further runs would; None where nothing says.

    What was found of a second variant is subtracted from the first; a person's runs of two are not paired, so their
    variances add up. What rounding to the last digit seen may hide is no difference. The error is the share of honest
    numbers that are called outside; another draw of what is held out moves the number by less than `draw` in 95 of 100.
    """
    finite = [[value for value in values.values() if math.isfinite(value)] for values in found]
    least = min(map(len, finite))
    if least < 2:
        return None
    mean = fmean(finite[0]) - sum(map(fmean, finite[1:]))
    spread = math.sqrt(sum(variance(values) * (1 / len(values) + 1 / runs) for values in finite))
    noise = math.hypot(t_quantile(1 - error / 2, least - 1) * spread, draw)
    return abs(seen - mean) <= noise + len(finite) * rounding_of(seen)


def effects(
    before: Mapping[str, Values], after: Mapping[str, Values], *, error: float = ERROR, among: int = 1
) -> dict[str, Estimate]:
    """By name how much was lost from before to after, paired over seeds, with intervals that hold together.

    Names of which no two seeds finished on both sides are left out. The error is the share of such calls in which some
    interval misses its true value, among all names that there were before some were left out for what one seed gave.

    Notes
    -----
    With three seeds a variance is itself uncertain. Where it is smaller than the median of those of the other causes
    (three or more of them, without those that changed nothing at all), that median is mixed into it with two degrees of
    freedom [1]_, which makes it larger; never smaller. The shorter of this interval and that of the variance by itself
    counts, and they share the error: some causes make runs fail, and their spread says nothing of the others'.
    Simulated without any effect, with one to ten causes, three to six seeds, and standard deviations alike, some zero
    or some ten or a thousand times as large: in at most 5 of 100 calls an interval misses zero.

    References
    ----------
    .. [1] Smyth, 2004, Linear models and empirical Bayes methods, doi:10.2202/1544-6115.1027.
    """
    differences = {name: _paired(before[name], after[name]) for name in after}
    known = {name: values for name, values in differences.items() if len(values) > 1}
    variances = {name: variance(values) for name, values in known.items()}
    found = {}
    for name, values in known.items():
        others = [one for other, one in variances.items() if other != name and one > 0]
        usual = median(others) if len(others) >= FEWEST else 0.0
        half = _half(values, variances[name], usual, error / max(len(after), among))
        found[name] = Estimate(fmean(values), fmean(values) - half, fmean(values) + half, len(values))
    return found


def _half(values: Sequence[float], own: float, usual: float, error: float) -> float:
    """Half of the interval of a mean, with a variance that others have mixed into its own where that is smaller."""
    freedom = len(values) - 1

    def around(variance: float, freedom: int, error: float) -> float:
        return t_quantile(1 - error / 2, freedom) * math.sqrt(variance / len(values))

    if not 0 < own <= usual:
        return around(own, freedom, error)
    mixed = (freedom * own + PRIOR * usual) / (freedom + PRIOR)
    return min(around(own, freedom, ALONE * error), around(mixed, freedom + PRIOR, (1 - ALONE) * error))


def _paired(before: Values, after: Values) -> Sequence[float]:
    pairs = ((before[seed], after[seed]) for seed in before if seed in after)
    return [one - other for one, other in pairs if math.isfinite(one) and math.isfinite(other)]
