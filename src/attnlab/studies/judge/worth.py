"""What each part of a model is worth, over all seeds of a variant."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from attnlab.core.errors import RunError
from attnlab.inspection.matching import match_heads
from attnlab.studies.judge.statistics import SIGNIFICANCE, Comparison, compare
from attnlab.studies.using.parts import Kind, MeasuredPart, MeasuredParts


@final
@dataclass(frozen=True)
class Worth:
    """Hold what one part is worth."""

    place: str  # as `ablate` reads it; of heads, in the first run
    kind: Kind
    worths: tuple[float, ...]  # what each run loses without it, in the loss's unit
    comparison: Comparison
    """Without it minus with it, over the runs; over the sequences of the only run where there is one."""
    kinds: dict[str, float]
    """Patterns that a head follows more than heads of untrained models in more than half of the runs, and by what share
    of its weight on average; the strongest first."""

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out zero."""
        one = self.comparison
        return one.low is not None and one.high is not None and not one.low <= 0 <= one.high


@final
@dataclass(frozen=True)
class PartsJudged:
    """Hold what the parts of a variant are worth."""

    variant: str
    runs: int
    unit: str  # of all worths
    loss: float  # with all parts, the mean over runs
    parts: tuple[Worth, ...]
    removable: tuple[int, ...]
    """By run the most heads that are off at once with a loss that is higher by at most the tolerance."""
    heads: int  # of one run
    tolerance: float  # in the loss's unit
    agreement: float | None  # of heads of other runs with those of the first that behave most alike; None of one run
    chance: float | None  # the same of heads paired at random


def judged_parts(variant: str, runs: Sequence[MeasuredParts], *, tolerance: float) -> PartsJudged:
    """Judge what the parts of a variant are worth.

    Parameters
    ----------
    variant : str
        Its name.
    runs : sequence of MeasuredParts
        Its runs, measured alike.
    tolerance : float
        Loss that may be lost by removing heads, in the loss's unit.

    Returns
    -------
    PartsJudged
        One row a part.

    Raises
    ------
    RunError
        If the runs have other parts than each other.

    Notes
    -----
    Heads of different seeds are not numbered alike: those of later runs are given the places of the heads of the first
    that they behave most like, layer by layer. Intervals hold together for all parts of the variant (Bonferroni), at
    95 %. Of one run they are over its held-out sequences, and say nothing of other seeds.
    """
    first = runs[0]
    places = [part.place for part in first.parts]
    if any(sorted(part.place for part in run.parts) != sorted(places) for run in runs):
        raise RunError(f"the runs of {variant} have other parts than {first.folder}: they cannot be compared")
    partners = [_partners(first, run) for run in runs]
    level = SIGNIFICANCE / len(places)
    rows = []
    for part in first.parts:
        alike = [_part(run, one.get(part.place, part.place)) for run, one in zip(runs, partners, strict=True)]
        rows.append(_worth(part, runs, alike, level))
    agreements = [match_heads(first.trace, run.trace).whole for run in runs[1:]]
    return PartsJudged(
        variant=variant,
        runs=len(runs),
        unit=first.unit,
        loss=statistics.fmean(statistics.fmean(run.losses) for run in runs),
        parts=tuple(rows),
        removable=tuple(_removable(run, tolerance) for run in runs),
        heads=len(first.pruned),
        tolerance=tolerance,
        agreement=statistics.fmean(one.agreement for one in agreements) if agreements else None,
        chance=statistics.fmean(one.chance for one in agreements) if agreements else None,
    )


def _partners(first: MeasuredParts, run: MeasuredParts) -> dict[str, str]:
    """By head of the first run that of another which behaves most like it in its layer."""
    matches = match_heads(first.trace, run.trace).layers.values() if run is not first else ()
    return {ours: theirs for match in matches for ours, theirs, _ in match.pairs}


def _part(run: MeasuredParts, place: str) -> MeasuredPart:
    return next(one for one in run.parts if one.place == place)


def _worth(part: MeasuredPart, runs: Sequence[MeasuredParts], alike: Sequence[MeasuredPart], level: float) -> Worth:
    worths = tuple(run.worth(one) for run, one in zip(runs, alike, strict=True))
    if len(runs) == 1:
        without, plain = dict(enumerate(part.losses)), dict(enumerate(runs[0].losses))
    else:
        without = {number: statistics.fmean(one.losses) for number, one in enumerate(alike)}
        plain = {number: statistics.fmean(run.losses) for number, run in enumerate(runs)}
    comparison = compare(without, plain, better="lower", level=level)
    return Worth(part.place, part.kind, worths, comparison, _usual(runs, alike))


def _usual(runs: Sequence[MeasuredParts], alike: Sequence[MeasuredPart]) -> dict[str, float]:
    """The patterns that most runs have in common, and by how much they are followed."""
    found: dict[str, list[float]] = {}
    for run, one in zip(runs, alike, strict=True):
        for kind, excess in run.kinds.get(one.place, {}).items():
            found.setdefault(kind, []).append(excess)
    usual = {kind: statistics.fmean(by) for kind, by in found.items() if len(by) > len(runs) / 2}
    return dict(sorted(usual.items(), key=lambda one: -one[1]))


def _removable(run: MeasuredParts, tolerance: float) -> int:
    """The most heads that are off at once with a loss within the tolerance; the last of them counts."""
    highest = statistics.fmean(run.losses) + tolerance
    return max((count for count, (_, loss) in enumerate(run.pruned, 1) if loss <= highest), default=0)
