"""Whether heads follow relations between words more than words at one distance do, over all seeds of a variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, final

from attnlab.studies.judge.statistics import SIGNIFICANCE, Comparison, compare
from attnlab.studies.using.syntax import RelationFollowed, Towards


@final
@dataclass(frozen=True)
class RelationJudged:
    """Hold how well the models of a variant follow one relation in one direction; rates are means over runs."""

    relation: str
    towards: Towards
    """To what is looked: the word on which another hangs, or that which hangs on it."""
    pairs: int  # on which was judged
    places: tuple[str, ...]  # of the head of each run
    rate: float  # how often it is right
    distance: int  # in words, of the word beside which it is held
    distance_rate: float  # how often that one is right
    untrained: float  # how often a head of an untrained model is right
    comparison: Comparison
    """The rate minus that of the distance, over the runs; over the sentences of the only run where there is one."""

    @property
    def followed(self) -> bool:
        """Whether the interval lies above zero."""
        return self.comparison.low is not None and self.comparison.low > 0


def judged_syntax(runs: Sequence[Sequence[RelationFollowed]]) -> tuple[RelationJudged, ...]:
    """Judge what was measured of the runs of a variant, on the same sentences; the best followed first.

    Notes
    -----
    Intervals hold together for all relations and directions (Bonferroni), at 95 %.
    """
    alike = list(zip(*runs, strict=True))
    rows = [_judged(one, SIGNIFICANCE / len(alike)) for one in alike]
    return tuple(sorted(rows, key=lambda row: row.distance_rate - row.rate))


def _judged(runs: Sequence[RelationFollowed], level: float) -> RelationJudged:
    first = runs[0]
    if len(runs) == 1:
        rates, beside = first.by_head, first.by_distance
    else:
        rates, beside = dict(enumerate(run.rate for run in runs)), dict(enumerate(run.distance_rate for run in runs))
    return RelationJudged(
        relation=first.relation,
        towards=first.towards,
        pairs=first.pairs,
        places=tuple(run.place for run in runs),
        rate=fmean(run.rate for run in runs),
        distance=first.distance,
        distance_rate=fmean(run.distance_rate for run in runs),
        untrained=fmean(run.untrained for run in runs),
        comparison=compare(rates, beside, better="higher", level=level),
    )


def restored_syntax(content: Mapping[str, Any]) -> RelationJudged:
    """What `asdict` made plain, as it was."""
    known: dict[str, Any] = {**content, "comparison": Comparison(**content["comparison"])}
    return RelationJudged(**known | {"places": tuple(content["places"])})
