"""The conclusion of a study in one word per variant: better, worse, equivalent or undecided.

The measuring is in `statistics`; the order in which a verdict is drawn from it is in `verdicts`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, final

from attnlab.core.contracts import Metric
from attnlab.core.errors import SpecError
from attnlab.studies.judge.statistics import SIGNIFICANCE, Comparison, compare, holm, seeds_needed

Word = Literal["better", "worse", "equivalent", "undecided"]


@final
@dataclass(frozen=True)
class Verdict:
    """Hold what a study concludes about one variant."""

    variant: str  # the variant judged
    baseline: str  # what it is compared with
    metric: str  # name of the metric
    comparison: Comparison  # the measured difference
    verdict: Word = "undecided"  # the conclusion
    p_adjusted: float | None = None  # p of "no difference" after Holm's adjustment over all variants
    p_equivalence_adjusted: float | None = None  # p of "not equivalent" after Holm's adjustment over all variants
    seeds_needed: int | None = None
    """For an undecided variant: how many seeds, in all, would decide; None where more seeds do not help."""
    reason: str = ""  # why the verdict is what it is, in words


def verdicts(
    values: Mapping[str, Mapping[int, float]],
    baseline: str,
    *,
    metric: Metric,
    smallest_effect: float,
    confidence: float = 0.95,
    untuned: Collection[str] = (),
) -> tuple[Verdict, ...]:
    """Judge every variant against the baseline.

    Notes
    -----
    The first of these that holds is the verdict:

    1. *undecided*: fewer than two pairs. One seed shows nothing, because nothing tells its luck from the effect.
    2. *undecided*: the variant or the baseline is untuned; more seeds would not help.
    3. *equivalent*: the whole interval lies within plus or minus `smallest_effect` and the equivalence test
       rejects at 5 % after Holm. It comes before the next two, because a difference that is surely there and
       surely too small to matter does not matter.
    4. *better* or *worse*: the difference test rejects at 5 % after Holm; the sign says which.
    5. *undecided*, with the number of seeds that would decide, were the observed difference the true one:
       `seeds_needed` to tell it from zero (then it is better or worse) or from `smallest_effect` (then it is
       equivalent), whichever is farther from it, at 5 % divided by the number of comparisons, which is the
       level Holm holds the hardest of them to.

    Holm is applied to the family of difference tests and to the family of equivalence tests separately, each
    over all variants with at least two pairs. The intervals themselves are not adjusted.
    """
    if baseline not in values:
        raise SpecError(f"the baseline must be one of the variants; got {baseline!r}; known: {', '.join(values)}")
    found = {
        name: compare(
            series, values[baseline], smallest_effect=smallest_effect, better=metric.better, confidence=confidence
        )
        for name, series in values.items()
        if name != baseline
    }
    adjusted = _adjusted({name: one.p for name, one in found.items()})
    adjusted_equivalence = _adjusted({name: one.p_equivalence for name, one in found.items()})
    alpha = SIGNIFICANCE / max(1, len(adjusted))
    drafts = (
        Verdict(
            name,
            baseline,
            metric.name,
            one,
            p_adjusted=adjusted.get(name),
            p_equivalence_adjusted=adjusted_equivalence.get(name),
        )
        for name, one in found.items()
    )
    return tuple(_decided(draft, untuned, smallest_effect, alpha) for draft in drafts)


def _adjusted(p_values: Mapping[str, float | None]) -> dict[str, float]:
    """Holm-adjusted p-values of those variants that have one."""
    present = {name: p for name, p in p_values.items() if p is not None}
    return dict(zip(present, holm(list(present.values())), strict=True))


def _untuned_reason(blamed: Collection[str]) -> str:
    """Say why tuning forbids a verdict."""
    which = " and ".join(f"{one!r}" for one in blamed)
    return f"untuned: the best learning rate of {which} lies at the edge of the grid; widen the grid"


def _decided(draft: Verdict, untuned: Collection[str], smallest_effect: float, alpha: float) -> Verdict:
    """The draft with verdict, seeds needed and reason, in the order `verdicts` documents."""
    one = draft.comparison
    if one.sd is None or one.difference is None:
        return replace(draft, reason=_too_few(one))
    if blamed := [name for name in (draft.variant, draft.baseline) if name in untuned]:
        return replace(draft, reason=_untuned_reason(blamed))
    if _is_equivalent(draft, smallest_effect):
        return replace(draft, verdict="equivalent", reason=_equivalence_reason(draft))
    if draft.p_adjusted is not None and draft.p_adjusted < SIGNIFICANCE:
        word: Word = "better" if one.improves else "worse"
        return replace(draft, verdict=word, reason=_difference_reason(one, smallest_effect))
    effect = max(abs(one.difference), smallest_effect - abs(one.difference))
    needed = seeds_needed(one.sd, effect, present=one.pairs, alpha=alpha)
    return replace(draft, seeds_needed=needed, reason=_open_reason(one, needed))


def _is_equivalent(draft: Verdict, smallest_effect: float) -> bool:
    """Whether interval and test both place the difference inside the smallest effect."""
    low, high, p = draft.comparison.low, draft.comparison.high, draft.p_equivalence_adjusted
    if low is None or high is None or p is None:
        return False
    return p < SIGNIFICANCE and low > -smallest_effect and high < smallest_effect


def _too_few(one: Comparison) -> str:
    """Say why fewer than two pairs decide nothing."""
    if one.pairs == 1 and one.unpaired == 0:
        return "one seed shows nothing"
    if one.pairs == 1:
        return "one seed shows nothing: only one was finished by both"
    return "no seed was finished by both"


def _equivalence_reason(draft: Verdict) -> str:
    """Say why a variant is equivalent."""
    text = "the whole interval lies within the smallest effect of interest"
    if draft.p_adjusted is not None and draft.p_adjusted < SIGNIFICANCE:
        return f"{text}: there is a difference, but one too small to matter"
    return text


def _difference_reason(one: Comparison, smallest_effect: float) -> str:
    """Say what a difference that was found amounts to."""
    if one.sd == 0:
        return "every seed gave exactly this difference; do the seeds reach the run?"
    nearest_end = min(abs(one.low or 0.0), abs(one.high or 0.0))
    if nearest_end < smallest_effect:
        return "there is a difference; it may be smaller than the smallest effect of interest"
    return "there is a difference, and it is larger than the smallest effect of interest"


def _open_reason(one: Comparison, needed: int | None) -> str:
    """Say what would decide an open comparison."""
    if one.sd == 0:
        return "no difference at all, and no smallest effect of interest to call that equivalent"
    if needed is None:
        return "the seeds differ too much for any practical number of them to decide"
    more = needed - one.pairs
    return f"about {more} more seed{'s' if more > 1 else ''} ({needed} in all) would decide"
