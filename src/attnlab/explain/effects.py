"""How much a removal changed a number, and how sure that is, from few runs of many set-ups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev, variance
from typing import final

ERROR = 0.05
"""Share of phases in which a cause without any effect is named."""

PRIOR = 2
"""Degrees of freedom of the variance that set-ups have in common."""

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


def mean_of(values: Values) -> Estimate | None:
    """The mean of a set-up's runs with its 95 % interval; None without runs that finished."""
    finite = [value for value in values.values() if math.isfinite(value)]
    if not finite:
        return None
    if len(finite) < 2:
        return Estimate(finite[0], -math.inf, math.inf, 1)
    half = _t(1 - ERROR / 2, len(finite) - 1) * stdev(finite) / math.sqrt(len(finite))
    return Estimate(fmean(finite), fmean(finite) - half, fmean(finite) + half, len(finite))


def within_noise(values: Values, seen: float, runs: int) -> bool | None:
    """Whether a number that was seen lies where the mean of so many further runs would; None where nothing says."""
    finite = [value for value in values.values() if math.isfinite(value)]
    if len(finite) < 2:
        return None
    spread = stdev(finite) * math.sqrt(1 / len(finite) + 1 / runs)
    return abs(seen - fmean(finite)) <= _t(1 - ERROR / 2, len(finite) - 1) * spread


def effects(before: Mapping[str, Values], after: Mapping[str, Values], *, error: float = ERROR) -> dict[str, Estimate]:
    """By name how much was lost from before to after, paired over seeds, with intervals that hold together.

    Parameters
    ----------
    before, after : mapping
        By name the number that is explained, by seed.
    error : float
        Share of such calls in which some interval misses its true value.

    Returns
    -------
    dict
        Mean of before minus after, for the names of which two seeds finished on both sides.

    Notes
    -----
    With three seeds a set-up's own variance decides little. It is moderated by the median variance of all, with two
    degrees of freedom beside its own [1]_.

    References
    ----------
    .. [1] Smyth, 2004, Linear models and empirical Bayes methods, doi:10.2202/1544-6115.1027.
    """
    differences = {name: _paired(before[name], after[name]) for name in after}
    known = {name: values for name, values in differences.items() if len(values) > 1}
    usual = median(variance(values) for values in known.values()) if known else 0.0
    found = {}
    for name, values in known.items():
        freedom = len(values) - 1
        moderated = (freedom * variance(values) + PRIOR * usual) / (freedom + PRIOR)
        quantile = _t(1 - error / 2 / len(after), freedom + PRIOR)
        half = quantile * math.sqrt(moderated / len(values))
        found[name] = Estimate(fmean(values), fmean(values) - half, fmean(values) + half, len(values))
    return found


def _paired(before: Values, after: Values) -> Sequence[float]:
    pairs = ((before[seed], after[seed]) for seed in before if seed in after)
    return [one - other for one, other in pairs if math.isfinite(one) and math.isfinite(other)]


def _t(probability: float, freedom: int) -> float:
    """The quantile of Student's t."""
    from scipy import special

    return float(special.stdtrit(freedom, probability))
