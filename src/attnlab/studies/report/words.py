"""Verdicts as words: what a report, a table and the terminal say alike.

Names of variants are a user's text. Here they are set between two control characters (`named`), which each
output turns into its own emphasis after it has escaped the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from attnlab.core.contracts import Metric
from attnlab.studies.judge.results import MOST_SEEDS, UNBELIEVABLE, Alarm, StudyResults, VariantResults
from attnlab.studies.judge.statistics import Comparison
from attnlab.studies.judge.verdicts import Verdict
from attnlab.studies.report import numbers

OPEN, CLOSE = "\x02", "\x03"
"""Control characters around a variant's name: no name contains them by accident."""

LISTED = 3
"""Variants of one verdict that the headline spells out; the table has the rest."""

WORTH_A_RATIO = 1.5
"""How many times lower a value must be before the headline says so."""

LOGARITHMIC = ("nats", "bits")
"""How units begin of which a difference is a ratio already."""


def named(name: str) -> str:
    """A variant's name between the control characters that outputs turn into emphasis."""
    return f"{OPEN}{name}{CLOSE}"


def plain(text: str) -> str:
    """A text with its names in plain quotation marks."""
    return text.replace(OPEN, "“").replace(CLOSE, "”")


def places_of(one: Comparison) -> int:
    """How many decimals the uncertainty of a comparison deserves: two digits of its half width."""
    half = (one.high - one.low) / 2 if one.high is not None and one.low is not None else 0.0
    if half > 0:
        return min(8, numbers.decimals(half, 2))
    return min(8, numbers.decimals(one.difference, 3)) if one.difference else 2


def difference(one: Comparison) -> str:
    """The measured difference, signed."""
    return numbers.ABSENT if one.difference is None else numbers.fixed(one.difference, places_of(one), sign=True)


def interval(one: Comparison) -> str:
    """The interval as ``low to high``."""
    if one.low is None or one.high is None:
        return numbers.ABSENT
    return (
        f"{numbers.fixed(one.low, places_of(one), sign=True)} to {numbers.fixed(one.high, places_of(one), sign=True)}"
    )


def title(results: StudyResults, one: Verdict, mark: Callable[[str], str] = str) -> str:
    """What a comparison is called: its variant, and what it is compared with where that is not the study's baseline."""
    return mark(one.variant) + ("" if one.baseline == results.baseline else f" against {mark(one.baseline)}")


def not_judged(results: StudyResults, variant: VariantResults) -> tuple[str, str]:
    """What stands in place of a verdict, and of its reason, for a variant that others are compared with."""
    if variant.name == results.baseline:
        return "baseline", "what the others are compared with" + claimed(results, variant.name)
    others = [one.variant for one in results.verdicts if one.baseline == variant.name]
    return "compared with", f"what {_and(others, 0)} is compared with"


def claimed(results: StudyResults, variant: str) -> str:
    """What is known of a variant and the target, after another reason; nothing where time is not judged."""
    claim = results.claims.get(variant)
    said = claim is None or any(claim.reason in one.reason for one in results.concluded(variant))
    return "" if claim is None or said else f"; {claim.reason}"


def price(results: StudyResults, one: Verdict) -> str:
    """How long the runs would train that would decide; nothing where that is not known.

    A study that has ended takes no more seeds: then all of them are to be run anew.
    """
    times = [mean_seconds(results.variant(name)) for name in (one.variant, one.baseline)]
    if one.seeds_needed is None or None in times:
        return ""
    there = 0 if one.seeds_needed > results.looks[-1].seeds else one.comparison.pairs
    return numbers.duration((one.seeds_needed - there) * math.fsum(time or 0.0 for time in times))


def metric_title(metric: Metric) -> str:
    """A metric's name as a reader would say it."""
    return metric.title or metric.name.replace("_", " ")


def direction(metric: Metric) -> str:
    """Which direction of a metric is good, in words."""
    return f"{metric.better} is better"


def drawn_seeds(results: StudyResults, all_of_them: str = "seeds") -> str:
    """Which seeds of each variant charts show."""
    most = max(len(variant.cells) for variant in results.variants)
    return f"the first {MOST_SEEDS} seeds" if most > MOST_SEEDS else all_of_them


def mean_seconds(variant: VariantResults) -> float | None:
    """The mean training time over the finished cells; None where none has one."""
    times = [cell.seconds for cell in variant.done if cell.seconds is not None]
    return sum(times) / len(times) if times else None


def mean_of(variant: VariantResults, metric: str) -> float | None:
    """A variant's mean of a metric over its finished cells; None where none has it."""
    values = variant.finite(metric)
    return fmean(values) if values else None


def alarms(results: StudyResults) -> list[Alarm]:
    """The alarms without those for failed runs, which a report lists with seed and error."""
    return [alarm for alarm in results.alarms if alarm.check != "failed"]


def flat(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested mapping as pairs of dotted key and text, for a table.

    Examples
    --------
    >>> flat({"budget": {"steps": 300}, "seeds": 3})
    [('budget.steps', '300'), ('seeds', '3')]
    """
    rows: list[tuple[str, str]] = []
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{prefix}{key}.")
        elif isinstance(value, (list, tuple)):
            rows.append((f"{prefix}{key}", ", ".join(map(str, value))))
        elif value is not None:
            rows.append((f"{prefix}{key}", str(value)))
    return rows


def sentences(results: StudyResults) -> list[str]:
    """The answer of a study, the most important sentence first."""
    found = sorted(results.verdicts, key=lambda one: -abs(one.comparison.difference or 0.0))
    unbelievable = {alarm.variant for alarm in results.alarms if alarm.check in UNBELIEVABLE}
    words = ("better", "worse", "equivalent", "undecided")
    groups = {word: [one for one in found if one.verdict == word] for word in words}
    equivalent = f"Equivalent (less than {numbers.number(results.smallest_effect)} {results.metric.unit} apart)"
    suspect = [one for one in groups["undecided"] if one.variant in unbelievable]
    groups["undecided"] = [one for one in groups["undecided"] if one not in suspect]
    first, told = _lead(results, groups)
    rest = [
        _listed(results, "Also better", [one for one in groups["better"] if one is not told]),
        _listed(results, "Not to be believed before its alarm is explained", suspect),
        _listed(results, "Worse", groups["worse"]),
        _listed(results, equivalent, groups["equivalent"]),
        "" if first.startswith("Undecided: ") else _undecided(results, groups["undecided"]),
        _not_reached(results),
        _trouble(results),
    ]
    return [first, *(sentence for sentence in rest if sentence)]


def headline(results: StudyResults) -> str:
    """The answer of a study as one paragraph a stranger understands.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.

    Returns
    -------
    str
        Plain text.
    """
    return plain(" ".join(sentences(results)))


def _lead(results: StudyResults, groups: Mapping[str, list[Verdict]]) -> tuple[str, Verdict | None]:
    """The first sentence, and the verdict it has dealt with."""
    baseline = named(results.baseline)
    others = len(results.verdicts)
    if groups["better"]:
        return _best_sentence(results, groups["better"][0]), groups["better"][0]
    if others == 0:
        return _alone(results, baseline), None
    own = all(one.baseline == results.baseline for one in results.verdicts)
    if len(groups["equivalent"]) == others:
        which = f"every variant is equivalent to the baseline {baseline}" if own else "all comparisons are equivalent"
        return f"It makes no difference that matters: {which}.", None
    if groups["worse"] or not groups["undecided"]:
        sure = len(groups["worse"]) + len(groups["equivalent"]) == others
        if not own:
            return f"No comparison {'gives' if sure else 'is shown to give'} an improvement.", None
        lead = "Nothing beats" if sure else "Nothing is shown to beat"
        return f"{lead} the baseline {baseline}, which reaches {_baseline_value(results)}.", None
    reasons = {one.reason for one in groups["undecided"]}
    why = reasons.pop() if len(reasons) == 1 else _undecided(results, groups["undecided"]).removesuffix(".")
    return f"Undecided: {why[:1].lower() + why[1:]}.".replace("Undecided: undecided: ", "Undecided: "), None


def _alone(results: StudyResults, baseline: str) -> str:
    claim = results.claims.get(results.baseline)
    if claim is None:
        return f"There is nothing to compare with the baseline {baseline}."
    return f"{baseline} {claim.reason}; it has {_baseline_value(results)}."


def _not_reached(results: StudyResults) -> str:
    """Say which variants are not shown to reach the target, so that their times are lower bounds."""
    names = [name for name, claim in results.claims.items() if claim.state != "reached"]
    if not names or len(results.variants) == 1:
        return ""
    told = _and([named(name) for name in names[:LISTED]], len(names) - LISTED)
    return f"Not shown to reach the target in the mean, so that the time is a lower bound: {told}."


def _best_sentence(results: StudyResults, best: Verdict) -> str:
    """Say how much the best variant gains."""
    metric = results.metric
    ours = mean_of(results.variant(best.variant), metric.name)
    theirs = mean_of(results.variant(best.baseline), metric.name)
    own = best.baseline == results.baseline
    other = f"the baseline {named(best.baseline)}" if own else named(best.baseline)
    reached = f"{numbers.number(ours)} where {'the baseline' if own else 'the other'} reaches {numbers.number(theirs)}"
    sure = f"joint {numbers.percent(results.confidence)} interval {interval(best.comparison)}"
    apart = f"{sure}, {best.comparison.pairs} seeds"
    return (
        f"{named(best.variant)} is better than {other}: "
        f"it reaches a {metric_title(metric)} of {reached} {metric.unit}{_ratio(metric, ours, theirs)}. "
        f"The difference is {difference(best.comparison)} ({apart})."
    )


def _ratio(metric: Metric, ours: float | None, theirs: float | None) -> str:
    """Say how many times lower a value is, where that is much."""
    if metric.better != "lower" or metric.unit.startswith(LOGARITHMIC) or not ours or not theirs:
        return ""
    if min(ours, theirs) <= 0 or theirs / ours < WORTH_A_RATIO:
        return ""
    return f", {numbers.number(theirs / ours, 2)} times as much"


def _baseline_value(results: StudyResults) -> str:
    """What the baseline reaches, with its unit."""
    metric = results.metric
    value = mean_of(results.variant(results.baseline), metric.name)
    return f"a {metric_title(metric)} of {numbers.number(value)} {metric.unit}"


def _listed(results: StudyResults, label: str, found: Sequence[Verdict]) -> str:
    """Say which comparisons share a verdict, the largest few with their differences."""
    if not found:
        return ""
    told = [f"{title(results, one, named)} ({difference(one.comparison)})" for one in found[:LISTED]]
    return f"{label}: {_and(told, len(found) - len(told))}."


def _undecided(results: StudyResults, found: Sequence[Verdict]) -> str:
    """Say which comparisons are undecided, and what would decide them."""
    if not found:
        return ""
    told = [f"{title(results, one, named)} ({_what_decides(one)})" for one in found[:LISTED]]
    return f"Undecided: {_and(told, len(found) - len(told))}."


def _what_decides(one: Verdict) -> str:
    """What is known, and what it would take to decide, in a few words."""
    if one.seeds_needed is None:
        label = one.reason.partition(":")[0]
        return one.reason if one.failures or "'" in label else label  # the name of a variant may hold a colon
    return f"{interval(one.comparison)}; about {one.seeds_needed} seeds"


def _and(words: Sequence[str], more: int) -> str:
    """Join words with commas and a last "and"."""
    listed = [*words, f"{more} more"] if more > 0 else list(words)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def _trouble(results: StudyResults) -> str:
    """Say what speaks against taking the answer as it stands."""
    cells = [cell for variant in results.variants for cell in variant.cells]
    counts = (
        (sum(cell.status == "failed" for cell in cells), "run failed", "runs failed"),
        (sum(cell.status == "missing" for cell in cells), "run is missing", "runs are missing"),
        (len(alarms(results)), "alarm was raised", "alarms were raised"),
    )
    told = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
    return f"Before you believe it: {_and(told, 0)}." if told else ""
