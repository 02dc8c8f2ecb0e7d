"""How sure a study can be: paired differences, their intervals, and the seeds it takes.

Every variant is compared with the baseline over the seeds both finished: same seed, same data order, so
what the seeds share cancels in the difference. Nothing here reads files or draws.

What is decided where:

- `compare` measures one variant against the baseline: t interval, p of "no difference", median beside it;
- `seeds_needed` says how many seeds would decide what is still open;
- `two_groups` says whether the seeds of one variant fall apart into two groups, of which the mean describes neither.

The conclusion in one word is drawn from these in `verdicts`.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np

from attnlab.core.errors import SpecError

SIGNIFICANCE = 0.05
"""Error of a single test that is planned for; the usual convention."""

POWER = 0.80
"""Chance of detecting an effect that `seeds_needed` plans for; the usual convention."""

MOST_SEEDS = 100
"""Where the search for a number of seeds gives up: more is no advice."""

GROUPED = 0.01
"""Chance that seeds of one normal distribution are said to fall into two groups."""
MOST_DRAWN = 10_000_000
"""Numbers that are drawn to know what is usual of so many seeds: 20,000 samples up to 500 seeds, 2,000 at least."""

LEAST_IN_GROUPS = 5
"""How many values there must be before groups of at least two are looked for."""

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
    median: float | None = None  # median of the paired differences
    improves: bool = False  # whether the difference has the sign of an improvement
    better_share: float | None = None
    """Chance that a run of the variant is better than a run of the baseline: the share of all pairs of runs [1]_, ties
    as half."""


def compare(
    variant_values: Mapping[int, float],
    baseline_values: Mapping[int, float],
    *,
    better: Literal["lower", "higher"],
    level: float = SIGNIFICANCE,
) -> Comparison:
    """Compare a variant with the baseline, paired over the seeds both finished.

    Parameters
    ----------
    variant_values : mapping of int to float
        Metric by seed; a value that is not finite counts as a seed that did not finish.
    baseline_values : mapping of int to float
        The same for the baseline.
    better : {"lower", "higher"}
        Direction of the metric.
    level : float
        Share of such intervals that miss the true difference, between 0 and 1.

    Returns
    -------
    Comparison
        Difference, interval and p; None where the number of pairs does not allow them.

    Raises
    ------
    SpecError
        If `level` is not between 0 and 1.

    Notes
    -----
    The interval is ``mean +- t(n - 1) * sd / sqrt(n)``: at 5 seeds it keeps its coverage, which a percentile
    bootstrap does not. Where all differences are equal there is no interval: they say nothing about chance.

    References
    ----------
    .. [1] Agarwal et al., 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice,
       arXiv:2108.13264: probability of improvement.

    Examples
    --------
    >>> found = compare({0: 1.1, 1: 1.3}, {0: 1.0, 1: 1.1}, better="lower")
    >>> found.pairs, round(found.difference, 2), found.improves
    (2, 0.15, False)
    """
    if not 0 < level < 1:
        raise SpecError(f"level must lie between 0 and 1; got {level!r}; 0.05 is usual")
    differences, scale, unpaired = _paired(variant_values, baseline_values)
    count = len(differences)
    if count == 0:
        return Comparison(0, unpaired)
    mean = float(np.mean(differences))
    improves = mean < 0 if better == "lower" else mean > 0
    found = Comparison(
        count,
        unpaired,
        difference=mean,
        median=float(np.median(differences)),
        improves=improves,
        better_share=_better_share(variant_values, baseline_values, better),
    )
    if count == 1:
        return found
    sd = float(np.std(differences, ddof=1))
    if sd <= ROUNDING * scale:
        return replace(found, sd=0.0)
    error = sd / math.sqrt(count)
    half = t_quantile(1 - level / 2, count - 1) * error
    return replace(found, sd=sd, low=mean - half, high=mean + half, p=2 * _t_tail(abs(mean) / error, count - 1))


def _better_share(
    variant: Mapping[int, float], baseline: Mapping[int, float], better: Literal["lower", "higher"]
) -> float:
    """The share of all pairs of runs in which the variant's is better, ties as half."""
    ours, theirs = (np.array([v for v in by.values() if math.isfinite(v)]) for by in (variant, baseline))
    ours, theirs = (ours, theirs) if better == "higher" else (theirs, ours)
    ordered, pairs = np.sort(theirs), len(ours) * len(theirs)
    below, not_above = (int(np.searchsorted(ordered, ours, side).sum()) for side in ("left", "right"))
    return below / pairs + (not_above - below) / pairs / 2


def _paired(variant: Mapping[int, float], baseline: Mapping[int, float]) -> tuple[np.ndarray, float, int]:
    """Differences over common seeds, the size of the numbers they come from, and the seeds left out."""
    ours = {seed: value for seed, value in variant.items() if math.isfinite(value)}
    theirs = {seed: value for seed, value in baseline.items() if math.isfinite(value)}
    common = sorted(ours.keys() & theirs.keys())
    differences = np.array([ours[seed] - theirs[seed] for seed in common], dtype=float)
    scale = max((max(abs(ours[seed]), abs(theirs[seed])) for seed in common), default=0.0)
    return differences, scale, len(variant.keys() | baseline.keys()) - len(common)


def two_groups(values: Sequence[float]) -> tuple[list[float], list[float]] | None:
    """The two groups into which values fall, the lower first; None where one normal distribution explains them.

    With fewer than five values groups of two cannot be told from chance.

    Notes
    -----
    The ratio of the sums of squares, within the best two groups of at least two values to that of all, is compared
    with those of normal samples of the same size [1]_; one of a hundred such samples is said to fall into two groups.
    Skewed values are so more often: of 20 lognormal ones, 15 in 100.

    References
    ----------
    .. [1] Duda & Hart, 1973, Pattern Classification and Scene Analysis, section 6.12: Je(2)/Je(1).

    Examples
    --------
    >>> two_groups([2.1, 2.12, 2.5, 2.09, 2.52, 2.11, 2.49])
    ([2.09, 2.1, 2.11, 2.12], [2.49, 2.5, 2.52])
    >>> two_groups([2.1, 2.2, 2.3, 2.4, 2.5, 2.6])
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    if len(ordered) < LEAST_IN_GROUPS or ordered[-1] - ordered[0] <= ROUNDING * np.abs(ordered).max():
        return None
    ratios = _split_ratios(ordered[None])[0]
    if ratios.min() > _usual_ratio(len(ordered)):
        return None
    size = 2 + int(ratios.argmin())
    return ordered[:size].tolist(), ordered[size:].tolist()


@functools.cache
def _usual_ratio(count: int) -> float:
    """The ratio that a share `GROUPED` of normal samples stays below."""
    draws = min(20_000, max(2_000, MOST_DRAWN // count))
    samples = np.sort(np.random.default_rng(count).standard_normal((draws, count)), axis=1)
    return float(np.quantile(_split_ratios(samples).min(axis=1), GROUPED))


def _split_ratios(ordered: np.ndarray) -> np.ndarray:
    """Of sorted samples (samples, count), every split's sum of squares within groups, relative to that of all."""
    count = ordered.shape[1]
    centered = ordered - ordered.mean(axis=1, keepdims=True)
    below = np.cumsum(centered, axis=1)[:, 1 : count - 2]
    sizes = np.arange(2, count - 1)
    return 1 - (below**2 / sizes + below**2 / (count - sizes)) / (centered**2).sum(axis=1, keepdims=True)


def chance_above(values: Sequence[float], limit: float) -> float:
    """The p of a one-sided t test of "the true mean lies above a limit": small where values show that it does not.

    Values that are all equal, or fewer than two, show nothing: 0.5.

    Examples
    --------
    >>> round(chance_above([1.86, 1.87, 1.85, 1.86], 1.88), 4)
    0.0081
    """
    if len(values) < 2 or np.std(values) <= ROUNDING * abs(limit):
        return 0.5
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return _t_tail((limit - float(np.mean(values))) / error, len(values) - 1)


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t."""
    from scipy import special

    return float(special.stdtrit(freedom, probability))


def _t_tail(value: float, freedom: int) -> float:
    """The probability that Student's t exceeds a value."""
    from scipy import special

    return float(special.stdtr(freedom, -value))


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
    return bisect.bisect_left(range(MOST_SEEDS), True, lo=least + 1, key=enough)
