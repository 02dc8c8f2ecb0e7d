"""The conclusion of a study in one word per comparison: better, worse, equivalent or undecided.

The word is read off an interval: those of all comparisons and all looks hold together, with the rules' confidence.
The measuring is in `statistics`; how wide the intervals are is fixed beforehand, in `define.looks`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

from attnlab.core.contracts import Metric
from attnlab.core.errors import SpecError
from attnlab.studies.define.study import Contrast
from attnlab.studies.judge.claims import Target
from attnlab.studies.judge.luck import Tuned
from attnlab.studies.judge.statistics import Comparison, compare, seeds_needed

Word = Literal["better", "worse", "equivalent", "undecided", "exploratory"]
"""What is concluded; *exploratory* is a comparison beside those of the rules, of which nothing is concluded."""

Runs = Mapping[str, Mapping[int, float | None]]
"""For every variant the metric by seed; None for a run that failed or never measured it. Runs to come are not there."""


@final
@dataclass(frozen=True)
class Look:
    """Hold one look of the rules: after how many seeds, and with which level."""

    seeds: int  # seeds of both variants
    level: float  # share of t intervals that would miss the true difference, were this the only look


@final
@dataclass(frozen=True)
class Verdict:
    """Hold what a study concludes about one comparison."""

    variant: str  # the variant judged
    baseline: str  # what it is compared with
    metric: str  # name of the metric
    comparison: Comparison  # the measured difference
    verdict: Word = "undecided"  # the conclusion
    look: int | None = None  # after how many seeds it was decided, or looked at last; None before the first look
    p_adjusted: float | None = None
    """p of "no difference" over all comparisons and all looks so far: small where an interval excluded 0."""
    failures: int = 0  # runs of the variant that failed or never measured the metric, up to this look
    settled: bool = False  # whether more seeds would change nothing: it is decided, or cannot be
    seeds_needed: int | None = None
    """For an undecided variant: how many seeds, in all, would decide; None where more seeds do not help."""
    reason: str = ""  # why the verdict is what it is, in words


def verdicts(
    runs: Runs,
    contrasts: Sequence[Contrast],
    *,
    metric: Metric,
    smallest_effect: float,
    looks: Sequence[Look],
    comparisons: int | None = None,
    confidence: float = 0.95,
    untuned: Collection[str] = (),
    suspect: Collection[str] = (),
    target: Target | None = None,
    tuned: Mapping[str, Tuned] | None = None,
    advise: bool = True,
) -> tuple[Verdict, ...]:
    """Judge every comparison, at the first look that decides it.

    Parameters
    ----------
    runs : mapping
        See `Runs`.
    contrasts : sequence of Contrast
        The variants that are judged, each with the baseline of its comparison.
    metric : Metric
        What is compared.
    smallest_effect : float
        Smallest difference that matters, in the metric's unit; 0 if every one does.
    looks : sequence of Look
        When to look, fixed beforehand; a look counts once both variants have finished (or failed) that many seeds.
    comparisons : int, optional
        How many comparisons the rules judge, if there are more than are given here.
    confidence : float
        Share of studies in which all intervals of all looks hold.
    untuned : collection of str
        Variants whose best setting lies at the edge of what was tried.
    suspect : collection of str
        Variants whose numbers cannot be true, or mean something else: they see what they should predict.
    target : Target, optional
        What variants must be shown to reach, where the metric is the time to it.
    tuned : mapping of str to Tuned, optional
        By variant what tuning tried, where it looked at what is judged.
    advise : bool
        Whether to reckon how many seeds would decide what stays undecided.

    Returns
    -------
    tuple of Verdict
        One for every comparison, in their order.

    Notes
    -----
    At each look, the first of these that holds:

    1. *undecided*: fewer than two pairs, or the same difference on every seed, which says nothing about chance.
    2. *equivalent*: the interval lies within plus or minus `smallest_effect`. It comes before the next, because a
       difference that is surely there and surely too small to matter does not matter.
    3. *better* or *worse*: the interval does not contain zero.
    4. *undecided*: after the last look with the number of seeds that would decide, were the observed difference and
       spread the true ones.

    What a word says of the mean is taken back where the median says the contrary, where runs failed that would have to
    be as good (`better` and `equivalent` for the variant's own, `worse` and `equivalent` for the baseline's), where
    better tuning could change it (an untuned variant that is *better* all the same stays so), and where an alarm says
    that a number cannot be true: a suspect variant may be *worse*, and one may be *better* than a suspect baseline.
    So it is where another of the tried settings might be so much better that the word would be another: see `Tuned`.
    With a target, times of runs that are not shown to reach it in the mean (a one-sided t test at each look) are lower
    bounds: such a variant may be *worse*, and one may be *better* than such a baseline.

    Raises
    ------
    SpecError
        If a comparison names no variant, or `smallest_effect` is negative or not finite.
    """
    for name in (name for contrast in contrasts for name in contrast):
        if name not in runs:
            raise SpecError(f"what is compared must be one of the variants; got {name!r}; known: {', '.join(runs)}")
    if not (math.isfinite(smallest_effect) and smallest_effect >= 0):
        raise SpecError(f"smallest_effect must be a number >= 0 in the metric's unit; got {smallest_effect!r}")
    of = comparisons or len(contrasts)
    doubts = (untuned, suspect, target, tuned or {})
    judge = _Judge(runs, metric, smallest_effect, tuple(looks), 1 - confidence, of, *doubts, advise)
    return tuple(judge.verdict(*contrast) for contrast in contrasts)


def exploratory(runs: Runs, contrasts: Sequence[Contrast], *, metric: Metric, confidence: float) -> tuple[Verdict, ...]:
    """Measure comparisons beside those of the rules, each with an interval of its own that is not corrected."""
    found = []
    for variant, baseline in contrasts:
        ours, theirs = (_finished(runs[name]) for name in (variant, baseline))
        one = compare(ours, theirs, better=metric.better, level=1 - confidence)
        reason = "not among the comparisons of the rules: the interval is its own, and nothing is concluded"
        found.append(Verdict(variant, baseline, metric.name, one, "exploratory", settled=True, reason=reason))
    return tuple(found)


@final
@dataclass(frozen=True)
class _Judge:
    """Hold what is the same for all comparisons, and what may take a word back."""

    runs: Runs
    metric: Metric
    smallest_effect: float
    looks: tuple[Look, ...]
    error: float
    comparisons: int
    untuned: Collection[str]
    suspect: Collection[str]
    target: Target | None
    tuned: Mapping[str, Tuned]
    advise: bool

    def verdict(self, variant: str, baseline: str) -> Verdict:
        """The verdict of the first look that settles, or of the last that is reached."""
        found, p_adjusted = self._before_any_look(variant, baseline), None
        for look in self.looks:
            if any(seed not in self.runs[name] for name in (variant, baseline) for seed in range(look.seeds)):
                break
            one = self._compared(variant, baseline, look)
            if one.p is not None:
                p_adjusted = min(1.0, one.p * self.error / look.level, 1.0 if p_adjusted is None else p_adjusted)
            draft = Verdict(variant, baseline, self.metric.name, one, look=look.seeds)
            found = replace(self._judged(draft), p_adjusted=p_adjusted)
            if found.settled:
                return found
        return self._open(found) if self.advise and not found.reason else found

    def _before_any_look(self, variant: str, baseline: str) -> Verdict:
        """What is known while the seeds of the first look are still running."""
        one = self._compared(variant, baseline, replace(self.looks[0], seeds=max(look.seeds for look in self.looks)))
        reason = f"{one.pairs} of {self.looks[0].seeds} seeds so far"
        return Verdict(variant, baseline, self.metric.name, one, reason=reason)

    def _compared(self, variant: str, baseline: str, look: Look) -> Comparison:
        """The comparison over the seeds of a look that both finished."""
        ours, theirs = (_finished(self.runs[name], look.seeds) for name in (variant, baseline))
        return compare(ours, theirs, better=self.metric.better, level=look.level)

    def _judged(self, draft: Verdict) -> Verdict:
        """The verdict of one look, what is said against it included."""
        one, draft = draft.comparison, replace(draft, failures=self._failures(draft.variant, draft))
        if one.sd is None or one.difference is None:
            return replace(draft, reason=_too_few(one))
        if one.sd == 0:
            return replace(draft, settled=True, reason=_WITHOUT_SPREAD)
        word = self._word(one)
        against_word = (
            self._against_alarms,
            self._against_tuning,
            self._against_failures,
            self._against_target,
            self._against_luck,
            self._against_mean,
        )
        for against in against_word:
            reason, settled = against(draft, word)
            if reason:
                return replace(draft, reason=reason, settled=settled)
        if word == "undecided":
            return draft
        failed = f"; {_failed_of(draft)}" if draft.failures else ""
        return replace(draft, verdict=word, settled=True, reason=f"{self._reason(word, one)}{failed}")

    def _failures(self, name: str, draft: Verdict) -> int:
        """Runs of the variant or the baseline that failed up to the look."""
        seeds = draft.look or 0
        return seeds - len(_finished(self.runs[name], seeds))

    def _word(self, one: Comparison) -> Word:
        """What the interval says."""
        low, high, smallest = one.low or 0.0, one.high or 0.0, self.smallest_effect
        if -smallest < low and high < smallest:
            return "equivalent"
        if low <= 0 <= high:
            return "undecided"
        return "better" if one.improves else "worse"

    def _against_alarms(self, draft: Verdict, word: Word) -> tuple[str, bool]:
        """Why an alarm forbids the word: what is too good to be true is no reason to believe in it."""
        if draft.variant in self.suspect and word != "worse":
            return "its numbers are not to be believed before its alarm is explained", True
        if draft.baseline in self.suspect and word != "better":
            return "the baseline's numbers are not to be believed before its alarm is explained", True
        return "", False

    def _against_tuning(self, draft: Verdict, word: Word) -> tuple[str, bool]:
        """Why tuning forbids the word; what could only get better and is better already is better."""
        blamed = [name for name in (draft.variant, draft.baseline) if name in self.untuned]
        a_fortiori = blamed == [draft.variant if word == "better" else draft.baseline] and word in ("better", "worse")
        if not blamed or a_fortiori:
            return "", False
        which = " and ".join(f"{one!r}" for one in blamed)
        return f"untuned: the best setting of {which} lies at the edge of the grid; widen the grid", True

    def _against_failures(self, draft: Verdict, word: Word) -> tuple[str, bool]:
        """Why runs that failed forbid the word: nothing says that they would have been as good."""
        theirs = self._failures(draft.baseline, draft)
        if draft.failures and theirs:
            return f"runs of both failed: {_failed_of(draft)}, and {theirs} of the baseline's", True
        if draft.failures and word in ("better", "equivalent"):
            return f"{word} where it trains: {_failed_of(draft)}", True
        if theirs and word in ("worse", "equivalent"):
            return f"{word} where the baseline trains: {theirs} of its {draft.look} runs failed", True
        return "", False

    def _against_target(self, draft: Verdict, word: Word) -> tuple[str, bool]:
        """Why a target that is not shown to be reached forbids the word: the time to it is longer."""
        target = self.target
        if target is None:
            return "", False
        both = (draft.variant, draft.baseline)
        claims = {name: target.claim(name, draft.look) for name in both}
        if all(claim.state == "missed" for claim in claims.values()):
            return f"neither reaches the target: '{draft.variant}' {claims[draft.variant].reason}", True
        believed = {"better": both[:1], "worse": both[1:], "equivalent": both}
        for name in believed.get(word, ()):
            if claims[name].state != "reached":
                return f"{word} in time, but '{name}' {claims[name].reason}", claims[name].state == "missed"
        return "", False

    def _against_luck(self, draft: Verdict, word: Word) -> tuple[str, bool]:
        """Why luck in tuning forbids the word: with the best of the settings that were tried it might be another."""
        one, lost = draft.comparison, self._lost(draft)
        less, more = lost.values() if self.metric.better == "lower" else reversed(lost.values())
        if self._word(replace(one, low=(one.low or 0.0) - less, high=(one.high or 0.0) + more)) == word:
            return "", False
        loser = {"better": draft.baseline, "worse": draft.variant}.get(word)
        told = " and ".join(f"'{name}' {_short(cost)}" for name, cost in lost.items() if cost and loser in (name, None))
        return f"{word} as tuned, but luck in tuning may have cost {told}; more tune_seeds would narrow that", False

    def _lost(self, draft: Verdict) -> dict[str, float]:
        """What luck in tuning may have cost the variant and the baseline, in this order."""
        tuned, error, seeds = self.tuned, self.error / self.comparisons, draft.look or 0
        names = (draft.variant, draft.baseline)
        return {name: tuned[name].lost(seeds, error) if name in tuned else 0.0 for name in names}

    def _against_mean(self, draft: Verdict, word: Word) -> tuple[str, bool]:
        """Why the median forbids the word: a few runs far from the others make the mean."""
        one = draft.comparison
        mean, median = one.difference or 0.0, one.median or 0.0
        apart = abs(median) >= self.smallest_effect if word == "equivalent" else mean * median <= 0
        if word == "undecided" or not apart:
            return "", False
        return f"{word} by the mean, not by the median ({median:.4g}): a few seeds lie far from the others", False

    def _reason(self, word: Word, one: Comparison) -> str:
        """Say what a decided difference amounts to."""
        nearest_end = min(abs(one.low or 0.0), abs(one.high or 0.0))
        if word == "equivalent":
            sure = (one.low or 0.0) > 0 or (one.high or 0.0) < 0
            text = "the whole interval lies within the smallest effect of interest"
            return f"{text}: there is a difference, but one too small to matter" if sure else text
        if nearest_end < self.smallest_effect:
            return "there is a difference; it may be smaller than the smallest effect of interest"
        return "there is a difference, and it is larger than the smallest effect of interest"

    def _open(self, draft: Verdict) -> Verdict:
        """An undecided verdict, with what would decide it."""
        if against := self._failed_at(draft):
            return replace(draft, reason=f"{self._excluded(draft.comparison)}; {against}")
        one, level = draft.comparison, next(look.level for look in self.looks if look.seeds == draft.look)
        difference, lost = abs(one.difference or 0.0), self._lost(draft)
        loser = draft.baseline if one.improves else draft.variant
        effect = max(difference - lost[loser], self.smallest_effect - difference - max(lost.values()))
        needed = seeds_needed(one.sd or 0.0, effect, present=one.pairs, alpha=level) if effect > 0 else None
        if effect <= 0 and lost[loser]:
            reason = (
                f"luck in tuning may have cost '{loser}' {_short(lost[loser])}, so that no number of seeds would decide"
            )
        elif needed is None:
            reason = "the seeds differ too much for any practical number of them to decide"
        else:
            anew = " in a study begun anew" if needed > self.looks[-1].seeds else ""
            reason = f"about {needed} seeds{anew} would decide"
        return replace(draft, seeds_needed=needed, reason=f"{self._excluded(one)}; {reason}")

    def _failed_at(self, draft: Verdict) -> str:
        """What failed runs leave open, where there are any."""
        if draft.failures:
            return f"{_failed_of(draft)}, so more seeds could only show it worse"
        theirs, of = self._failures(draft.baseline, draft), draft.look
        return f"{theirs} of the baseline's {of} runs failed, so more could only show it better" if theirs else ""

    def _excluded(self, one: Comparison) -> str:
        """Which differences the interval of an undecided comparison rules out."""
        better, worse = (-(one.low or 0.0), one.high or 0.0)
        if self.metric.better == "higher":
            better, worse = worse, better
        return f"at most {_short(better)} better and {_short(worse)} worse"


_WITHOUT_SPREAD = (
    "every seed gave exactly this difference, which says nothing of chance: perhaps the seeds do not reach the run"
)


def _finished(values: Mapping[int, float | None], seeds: float = math.inf) -> dict[int, float]:
    """The values of the first seeds that there are."""
    return {seed: v for seed, v in values.items() if seed < seeds and v is not None and math.isfinite(v)}


def _failed_of(draft: Verdict) -> str:
    return f"{draft.failures} of its {draft.look} runs failed"


def _too_few(one: Comparison) -> str:
    """Say why fewer than two pairs decide nothing."""
    if one.pairs == 1 and one.unpaired == 0:
        return "one seed shows nothing"
    if one.pairs == 1:
        return "one seed shows nothing: only one was finished by both"
    return "no seed was finished by both"


def _short(value: float) -> str:
    """Two significant digits, as people write them: 100 and no 1e+02."""
    return f"{float(f'{value:.2g}'):,g}"
