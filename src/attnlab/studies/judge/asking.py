"""How many seeds each variant is to have, comparison by comparison: none waits for runs that it does not compare."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import final

from attnlab.studies.define.study import Contrast

LeftOpen = Callable[[Collection[str], int], Collection[str]]
"""Look at the comparisons among some variants after so many seeds: which of the variants need more."""


@final
class SeedsAsked:
    """Ask for the seeds of a look where the one before it left a comparison open.

    A comparison is looked at once both its variants have the seeds of the look. What it finds depends on runs of
    these two up to that seed alone, so the seeds that are asked for do not depend on the order in which runs end.

    Parameters
    ----------
    variants : sequence of str
        All variants; each is to have the seeds of the first look.
    contrasts : sequence of Contrast
        The comparisons.
    baseline : str
        A variant that may need more seeds whatever it is compared with: it may miss the target.
    looks : sequence of int
        Numbers of seeds, ascending.
    left_open : callable
        See `LeftOpen`.
    """

    def __init__(
        self,
        variants: Sequence[str],
        contrasts: Sequence[Contrast],
        *,
        baseline: str,
        looks: Sequence[int],
        left_open: LeftOpen,
    ) -> None:
        self._looks, self._left_open = looks, left_open
        self.counts = dict.fromkeys(variants, looks[0])  # how many seeds each variant is to have
        self._had = dict.fromkeys(variants, 0)
        self._taken = dict.fromkeys([(baseline,), *map(tuple, contrasts)], 0)  # looks, by who is looked at
        self._groups: dict[str, list[tuple[str, ...]]] = {name: [] for name in variants}
        for group in self._taken:
            for name in group:
                self._groups[name].append(group)

    def had(self, variant: str) -> list[str]:
        """Note that a variant has all its seeds, and take the looks that waited for them.

        Returned are the variants that are to have more seeds than before.
        """
        self._had[variant] = self.counts[variant]
        grown: list[str] = []
        for group in self._groups[variant]:
            have = min(self._had[name] for name in group)
            for now, following in itertools.pairwise(self._looks[self._taken[group] :]):
                if now > have:
                    break
                self._taken[group] += 1
                more = [name for name in self._left_open(group, now) if self.counts[name] < following]
                self.counts |= dict.fromkeys(more, following)
                grown += more
        return grown
