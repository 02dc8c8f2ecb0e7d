"""When a study looks at its results, and how sure each look has to be so that all of them together err rarely enough.

Whoever looks several times and stops as soon as something is significant is fooled more often than 5 %. Here the looks
are fixed beforehand, and the error that the rules allow is shared out among them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from pydantic import BaseModel, ConfigDict

from attnlab.core.errors import nearest

FIRST_LOOKS = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20)
"""Numbers of seeds at which a study looks; beyond them each look has a quarter more than the one before."""

MOST_SEEDS = 200
"""Seeds at which a study ends at the latest: the levels of more looks would be simulated for minutes."""

PATHS = 400_000
"""Simulated studies without any effect: the error they give is known to within 0.002 of 0.05."""

_SIMULATED_AT_ONCE = 50_000
_SEED = 20_261_123


@final
class Seeds(BaseModel):
    """Say how many seeds a study takes: as many as it takes to decide, within two bounds.

    Parameters
    ----------
    at_least : int
        Seeds of every variant before the first look.
    at_most : int
        Seeds at which a study ends, decided or not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    at_least: int = 3
    at_most: int = 20


def checked_seeds(given: Mapping[str, Any]) -> Seeds:
    """Bounds as a person wrote them; what is wrong with them is one `ValueError`."""
    unknown = [name for name in given if name not in Seeds.model_fields]
    if unknown:
        raise ValueError(f"takes at_least and at_most; got {unknown[0]!r}; {nearest(unknown[0], Seeds.model_fields)}")
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 2:
            raise ValueError(f"{name} must be a whole number from 2 on, as one seed shows nothing; got {value!r}")
    seeds = Seeds(**given)
    if seeds.at_most > MOST_SEEDS:
        raise ValueError(f"at_most must be at most {MOST_SEEDS}; got {seeds.at_most}")
    if seeds.at_most < seeds.at_least:
        unset = "" if "at_most" in given else " (its default)"
        raise ValueError(f"at_most must not be below at_least; got {seeds.at_most}{unset} below {seeds.at_least}")
    return seeds


def looks_of(seeds: int | Seeds) -> tuple[int, ...]:
    """The numbers of seeds at which a study looks at its results, in order; the last is its end.

    Examples
    --------
    >>> looks_of(5), looks_of(Seeds(at_least=3, at_most=9))
    ((5,), (3, 4, 5, 6, 8, 9))
    """
    if isinstance(seeds, int):
        return (seeds,)
    between = (look for look in _all_looks(seeds.at_most) if seeds.at_least < look < seeds.at_most)
    return tuple(dict.fromkeys((seeds.at_least, *between, seeds.at_most)))


def _all_looks(most: int) -> Iterator[int]:
    """Yield the usual numbers of seeds up to a number."""
    yield from FIRST_LOOKS
    look = FIRST_LOOKS[-1]
    while look < most:
        look += look // 4
        yield look


@functools.lru_cache(maxsize=32)
def levels_of(looks: tuple[int, ...], comparisons: int, error: float) -> tuple[float, ...]:
    """The two-sided level of each look's t interval, so that rarely any interval of any look misses its difference.

    `error` is the share of studies that may have any interval, at any look, without the true difference.

    Notes
    -----
    Every comparison gets ``error / comparisons`` (Bonferroni: whatever they have in common) and spreads it over the
    looks in proportion to their degrees of freedom: a t interval of three seeds is so wide that little is gained by
    more. How much all levels may be is found by simulation of `PATHS` series of normal differences [1]_: the
    distribution of t at all looks does not depend on mean and standard deviation. With one look nothing is simulated.

    References
    ----------
    .. [1] Jennison, Turnbull, 2000, Group Sequential Methods, chapters 9 (repeated confidence intervals) and 11 (t).
    """
    each = error / max(1, comparisons)
    if len(looks) == 1:
        return (each,)
    weights = np.array([look - 1 for look in looks], dtype=float)
    smallest = np.concatenate(list(_smallest_levels(looks, weights)))
    scale = float(np.quantile(smallest, each))
    return tuple(float(f"{level:.4g}") for level in np.minimum(each, scale * weights))


def _smallest_levels(looks: Sequence[int], weights: np.ndarray) -> Iterator[np.ndarray]:
    """Yield, for series of differences around zero, the smallest p of all looks, each by its look's weight."""
    from scipy import special

    generator = np.random.default_rng(_SEED)
    counts = np.array(looks, dtype=float)
    for _ in range(PATHS // _SIMULATED_AT_ONCE):
        differences = generator.standard_normal((_SIMULATED_AT_ONCE, looks[-1]))
        at = np.array(looks) - 1
        means = np.cumsum(differences, axis=1)[:, at] / counts
        squares = np.cumsum(differences**2, axis=1)[:, at]
        errors = np.sqrt((squares / counts - means**2) / (counts - 1))
        p_values = 2 * special.stdtr(counts - 1, -np.abs(means) / errors)
        yield (p_values / weights).min(axis=1)
