"""How sure a study can be: paired differences, their intervals, and the seeds it takes.

Every variant is compared with the baseline over the seeds both finished: same seed, same data order, so
what the seeds share cancels in the difference. Nothing here reads files or draws.

What is decided where:

- `compare` measures one variant against the baseline: t interval, p of "no difference", p of "not equivalent";
- `holm` adjusts p-values of one family for having asked several questions at once;
- `seeds_needed` says how many seeds would decide what is still open.

The conclusion in one word is drawn from these in `verdicts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from attnlab.core.errors import SpecError

SIGNIFICANCE = 0.05
"""Family-wise error allowed to the difference tests, and again to the equivalence tests; the usual convention."""

POWER = 0.80
"""Chance of detecting an effect that `seeds_needed` plans for; the usual convention."""

MOST_SEEDS = 10_000
"""Where the search for a number of seeds gives up: nobody runs more."""

ROUNDING = 8 * np.finfo(float).eps
"""Relative spread of differences below which it is arithmetic rounding, not noise between seeds."""


@final
@dataclass(frozen=True)
class Comparison:
    """Hold one paired comparison; differences are variant minus baseline in the metric's unit."""

    pairs: int  # seeds that both finished
    unpaired: int  # seeds that only one of the two finished, and that are left out
    difference: float | None = None  # mean of the paired differences; None without a pair
    sd: float | None = None  # standard deviation of the differences; None with fewer than two pairs
    low: float | None = None  # lower end of the confidence interval; None with fewer than two pairs
    high: float | None = None  # upper end of the confidence interval
    p: float | None = None  # two-sided p of "the true difference is zero"
    p_equivalence: float | None = None  # p of "the true difference is at least the smallest effect of interest"
    improves: bool = False  # whether the difference has the sign of an improvement


def compare(
    variant_values: Mapping[int, float],
    baseline_values: Mapping[int, float],
    *,
    smallest_effect: float,
    better: Literal["lower", "higher"],
    confidence: float = 0.95,
) -> Comparison:
    """Compare a variant with the baseline, paired over the seeds both finished.

    Parameters
    ----------
    variant_values : mapping of int to float
        Metric by seed; a value that is not finite counts as a seed that did not finish.
    baseline_values : mapping of int to float
        The same for the baseline.
    smallest_effect : float
        Smallest difference of interest in the metric's unit; 0 if every difference counts.
    better : {"lower", "higher"}
        Direction of the metric.
    confidence : float
        Coverage of the interval, between 0 and 1.

    Returns
    -------
    Comparison
        Difference, interval and p-values; None where the number of pairs does not allow them.

    Raises
    ------
    SpecError
        If `smallest_effect` is negative or not finite, or `confidence` is not between 0 and 1.

    Notes
    -----
    The interval is ``mean +- t(n - 1) * sd / sqrt(n)``: at 5 seeds it keeps its coverage, which a percentile
    bootstrap does not. Equivalence is two one-sided t tests [1]_; its p is the larger of both. Where all
    differences are equal, the interval is a point and each p is 0 or 1.

    References
    ----------
    .. [1] Schuirmann, 1987, Journal of Pharmacokinetics and Biopharmaceutics 15, 657-680.

    Examples
    --------
    >>> found = compare({0: 1.1, 1: 1.3}, {0: 1.0, 1: 1.1}, smallest_effect=0.01, better="lower")
    >>> found.pairs, round(found.difference, 2), found.improves
    (2, 0.15, False)
    """
    _check_limits(smallest_effect, confidence)
    differences, scale, unpaired = _paired(variant_values, baseline_values)
    count = len(differences)
    if count == 0:
        return Comparison(0, unpaired)
    mean = float(np.mean(differences))
    improves = mean < 0 if better == "lower" else mean > 0
    if count == 1:
        return Comparison(1, unpaired, difference=mean, improves=improves)
    sd = float(np.std(differences, ddof=1))
    if sd <= ROUNDING * scale:
        return _without_spread(
            count, unpaired, mean if abs(mean) > ROUNDING * scale else 0.0, smallest_effect, improves
        )
    error = sd / math.sqrt(count)
    half = _t_quantile(0.5 + confidence / 2, count - 1) * error
    return Comparison(
        count,
        unpaired,
        difference=mean,
        sd=sd,
        low=mean - half,
        high=mean + half,
        p=2 * _t_tail(abs(mean) / error, count - 1),
        p_equivalence=_t_tail((smallest_effect - abs(mean)) / error, count - 1),
        improves=improves,
    )


def _check_limits(smallest_effect: float, confidence: float) -> None:
    """Raise a `SpecError` for a smallest effect or a confidence that has no meaning."""
    if not (math.isfinite(smallest_effect) and smallest_effect >= 0):
        raise SpecError(f"smallest_effect must be a number >= 0 in the metric's unit; got {smallest_effect!r}")
    if not 0 < confidence < 1:
        raise SpecError(f"confidence must lie between 0 and 1; got {confidence!r}; 0.95 is usual")


def _paired(variant: Mapping[int, float], baseline: Mapping[int, float]) -> tuple[np.ndarray, float, int]:
    """Differences over common seeds, the size of the numbers they come from, and the seeds left out."""
    ours = {seed: value for seed, value in variant.items() if math.isfinite(value)}
    theirs = {seed: value for seed, value in baseline.items() if math.isfinite(value)}
    common = sorted(ours.keys() & theirs.keys())
    differences = np.array([ours[seed] - theirs[seed] for seed in common], dtype=float)
    scale = max((max(abs(ours[seed]), abs(theirs[seed])) for seed in common), default=0.0)
    return differences, scale, len(variant.keys() | baseline.keys()) - len(common)


def _without_spread(count: int, unpaired: int, mean: float, smallest_effect: float, improves: bool) -> Comparison:
    """The comparison in the limit of no spread between the seeds."""
    return Comparison(
        count,
        unpaired,
        difference=mean,
        sd=0.0,
        low=mean,
        high=mean,
        p=1.0 if mean == 0 else 0.0,
        p_equivalence=0.0 if abs(mean) < smallest_effect else 1.0,
        improves=improves and mean != 0,
    )


def _t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t."""
    from scipy import stats

    return float(stats.t.ppf(probability, freedom))


def _t_tail(value: float, freedom: int) -> float:
    """The probability that Student's t exceeds a value."""
    from scipy import stats

    return float(stats.t.sf(value, freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values so that rejecting those below a level keeps the family-wise error at that level.

    Parameters
    ----------
    p_values : sequence of float
        One p-value per question of the family.

    Returns
    -------
    list of float
        Adjusted p-values in the same order, at most 1.

    Notes
    -----
    Holm's step-down procedure [1]_: valid under any dependence between the tests, which matters here because
    all comparisons share one baseline.

    References
    ----------
    .. [1] Holm, 1979, Scandinavian Journal of Statistics 6, 65-70.

    Examples
    --------
    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def paired_power(effect: float, count: int, *, alpha: float = SIGNIFICANCE) -> float:
    """The chance that a two-sided paired t test detects an effect.

    Notes
    -----
    From the noncentral t distribution with noncentrality ``effect * sqrt(count)``. Where scipy's tail is not a
    number (large noncentrality) the normal approximation of that tail [1]_ stands in; there the power is near 1.

    References
    ----------
    .. [1] Abramowitz, Stegun, 1964, Handbook of Mathematical Functions, 26.7.10.
    """
    from scipy import stats

    freedom = count - 1
    shift = abs(effect) * math.sqrt(count)
    critical = float(stats.t.ppf(1 - alpha / 2, freedom))
    power = float(stats.nct.sf(critical, freedom, shift)) + float(stats.nct.cdf(-critical, freedom, shift))
    if math.isfinite(power):
        return min(1.0, max(0.0, power))
    spread = math.sqrt(1 + critical**2 / (2 * freedom))
    return float(stats.norm.sf((critical * (1 - 1 / (4 * freedom)) - shift) / spread))


def detectable_effect(count: int, *, alpha: float = SIGNIFICANCE, power: float = POWER) -> float:
    """The smallest effect, in standard deviations, that a paired t test detects with a given power.

    Examples
    --------
    >>> round(detectable_effect(5), 2)
    1.68
    """
    from scipy import optimize

    def missing(effect: float) -> float:
        return paired_power(effect, count, alpha=alpha) - power

    high = 1.0
    while missing(high) < 0:
        high *= 2
    return float(optimize.root_scalar(missing, bracket=(0.0, high), xtol=1e-6).root)


def seeds_needed(
    sd: float, effect: float, *, present: int, alpha: float = SIGNIFICANCE, power: float = POWER
) -> int | None:
    """How many seeds, in all, a paired t test needs to detect an effect.

    Notes
    -----
    The standard deviation is itself estimated from few seeds: read the answer as an order of magnitude.
    """
    least = max(present + 1, 2)
    if effect == 0:
        return None

    def enough(count: int) -> bool:
        return sd == 0 or paired_power(effect / sd, count, alpha=alpha) >= power

    if enough(least):
        return least
    if not enough(MOST_SEEDS):
        return None
    return _first_true(enough, least, MOST_SEEDS)


def _first_true(condition: Callable[[int], bool], fails: int, holds: int) -> int:
    """The smallest number for which a monotone condition holds, between one that fails and one that holds."""
    while holds - fails > 1:
        middle = (fails + holds) // 2
        fails, holds = (fails, middle) if condition(middle) else (middle, holds)
    return holds
