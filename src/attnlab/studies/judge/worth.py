"""What each part of a model is worth, over all seeds of a variant; kept in the folder of its study for the report."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import RunError
from attnlab.core.files import finite, read_sealed, sealed, write_json
from attnlab.inspection.matching import HeadMatches, layer_agreement, match_heads
from attnlab.inspection.rank import Projected
from attnlab.studies.judge.statistics import SIGNIFICANCE, Comparison, compare
from attnlab.studies.judge.syntax import RelationJudged, judged_syntax, restored_syntax
from attnlab.studies.run.folder import read_rules
from attnlab.studies.storage.mirror import deliver
from attnlab.studies.using.orders import Orders
from attnlab.studies.using.parts import Instead, Kind, MeasuredPart, MeasuredParts
from attnlab.studies.using.syntax import RelationFollowed

HEADS = "heads.json"
"""File of a study."""
STRONG = 0.25
"""Share of its weight, beyond untrained heads, from which a head counts as one of a kind."""


@final
@dataclass(frozen=True)
class Worth:
    """Hold what one part is worth."""

    place: str  # as `ablate` reads it; of heads, in the first run
    kind: Kind
    worths: tuple[float, ...]  # what each run loses without it, in the loss's unit
    comparison: Comparison
    """Without it minus with it, over the runs; over the sequences of the only run where there is one."""
    kinds: Mapping[str, float]
    """Patterns that a head follows more than heads of untrained models in more than half of the runs, and by what share
    of its weight on average; the strongest first."""

    @property
    def mean(self) -> float:
        """The mean over the runs."""
        return statistics.fmean(self.worths)

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
    part: str  # of the held-out data
    sequences: int  # of it, on which was measured
    how: Instead  # what stood in the place of heads and sublayers
    which: str  # weights: ``last`` or ``best``
    unit: str  # of all worths
    loss: float  # with all parts, the mean over runs
    parts: tuple[Worth, ...]
    removable: tuple[int, ...]
    """By run the most heads that are off at once with a loss that is higher by at most the tolerance."""
    pruned: tuple[float, ...]
    """What is lost without the least valuable head, without the two least valuable, and so on; means over runs."""
    tolerance: float  # of what may be lost, in the loss's unit
    agreement: float | None  # of heads of other runs with those of the first that behave most alike; None of one run
    chance: float | None  # the same of heads paired at random
    within: float | None  # agreement of two heads of one layer of one run; None where every layer has one head
    orders: Mapping[str, Orders]  # by attention, means over runs
    overlaps: Mapping[Projected, tuple[float, float]]
    """How much two heads of a layer read the same directions, and in an untrained model; means over runs and layers."""
    syntax: tuple[RelationJudged, ...] = ()
    """By relation between words and direction how well it is followed; nothing where no parsed sentences were given."""

    @property
    def heads(self) -> int:
        """How many a run has."""
        return len(self.pruned)

    @property
    def counts(self) -> dict[str, int]:
        """By pattern, how many heads follow it by much; the most frequent first."""
        found = Counter(kind for row in self.parts for kind, excess in row.kinds.items() if excess >= STRONG)
        return dict(found.most_common())


def judged_parts(
    variant: str, runs: Sequence[MeasuredParts], *, tolerance: float, syntax: Sequence[Sequence[RelationFollowed]] = ()
) -> PartsJudged:
    """Judge what the parts of a variant are worth, by its runs, which were measured alike.

    A `RunError` is raised where they have other parts than each other; `syntax` is what `measure_syntax` found of each.

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
    matches = [match_heads(first.trace, run.trace) for run in runs[1:]]
    partners = [{}, *map(_partners, matches)]
    level = SIGNIFICANCE / len(places)
    rows = []
    for part in first.parts:
        alike = [_part(run, one.get(part.place, part.place)) for run, one in zip(runs, partners, strict=True)]
        rows.append(_worth(part, runs, alike, level))
    agreements = [match.whole for match in matches]
    within = statistics.fmean(layer_agreement(run.trace) for run in runs)
    return PartsJudged(
        variant=variant,
        runs=len(runs),
        part=first.part,
        sequences=len(first.losses),
        how=first.how,
        which=first.which,
        unit=first.unit,
        loss=statistics.fmean(statistics.fmean(run.losses) for run in runs),
        parts=tuple(rows),
        removable=tuple(_removable(run, tolerance) for run in runs),
        pruned=tuple(map(statistics.fmean, zip(*(_lost(run) for run in runs), strict=True))),
        tolerance=tolerance,
        agreement=statistics.fmean(one.agreement for one in agreements) if agreements else None,
        chance=statistics.fmean(one.chance for one in agreements) if agreements else None,
        within=None if math.isnan(within) else within,
        orders={
            name: _mean_order([run.orders[name] for run in runs])
            for name in first.orders
            if all(name in run.orders for run in runs)
        },
        overlaps={
            step: (statistics.fmean(run.overlaps[step][0] for run in runs), untrained)
            for step, (_, untrained) in first.overlaps.items()
        },
        syntax=judged_syntax(syntax) if syntax else (),
    )


def keep_parts(study: Path, judged: Sequence[PartsJudged]) -> None:
    """Write into the folder of a study what the parts of its variants are worth, of all that is judged.

    Variants are named by the paths of their folders.
    """
    own = [one for one in judged if Path(one.variant).resolve().parent == study.resolve()]
    variants = [asdict(replace(one, variant=Path(one.variant).name)) for one in own]
    content = finite({"hash": read_rules(study)["hash"], "variants": variants})
    write_json(study / HEADS, sealed(content))
    deliver(study, {HEADS: (study / HEADS).read_bytes()})


def kept_parts(study: Path) -> tuple[PartsJudged, ...]:
    """What the parts of a study's variants are worth, where it was measured; by the names of their folders.

    A `RunError` is raised where it was changed since, or measured in another study.
    """
    path = study / HEADS
    if not path.exists():
        return ()
    content = read_sealed(path, required=True)
    if content["hash"] != read_rules(study)["hash"]:
        raise RunError(f"{path} was measured in another study; remove it, and measure anew: attnlab heads {study}")
    return tuple(map(_restored, content["variants"]))


def _restored(content: Mapping[str, Any]) -> PartsJudged:
    """What `asdict` made plain, as it was."""
    parts = tuple(map(_restored_part, content["parts"]))
    orders = {name: Orders(**one) for name, one in content["orders"].items()}
    overlaps = {step: tuple(pair) for step, pair in content.get("overlaps", {}).items()}  # not of earlier versions
    syntax = tuple(map(restored_syntax, content.get("syntax", ())))  # likewise
    known: dict[str, Any] = {**content, "parts": parts, "orders": orders, "overlaps": overlaps, "syntax": syntax}
    known |= {key: tuple(content[key]) for key in ("removable", "pruned")}
    return PartsJudged(**known)


def _restored_part(row: Mapping[str, Any]) -> Worth:
    known: dict[str, Any] = {**row, "worths": tuple(row["worths"]), "comparison": Comparison(**row["comparison"])}
    return Worth(**known)


def _mean_order(of_runs: Sequence[Orders]) -> Orders:
    return Orders(*(statistics.fmean(values) for values in zip(*(vars(one).values() for one in of_runs), strict=True)))


def _partners(matches: HeadMatches) -> dict[str, str]:
    """By head of the first run that of another which behaves most like it in its layer."""
    return {ours: theirs for match in matches.layers.values() for ours, theirs, _ in match.pairs}


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
    return max((count for count, lost in enumerate(_lost(run), 1) if lost <= tolerance), default=0)


def _lost(run: MeasuredParts) -> list[float]:
    """What is lost without the first head, without the first two, and so on."""
    whole = statistics.fmean(run.losses)
    return [loss - whole for _, loss in run.pruned]
