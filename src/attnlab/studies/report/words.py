"""Numbers and verdicts as words: what a report, a table and the terminal say alike.

Names of variants are a user's text. Here they are set between two control characters (`named`), which each
output turns into its own emphasis after it has escaped the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnlab.studies.verdicts import confidence, judge, smallest_effect

if TYPE_CHECKING:
    from attnlab.contracts import Metric
    from attnlab.studies.results import StudyResults, VariantResults
    from attnlab.studies.statistics import Comparison
    from attnlab.studies.verdicts import Verdict

OPEN, CLOSE = "\x02", "\x03"
"""Control characters around a variant's name: they cannot be typed into a study file."""

ABSENT = "\u2013"
"""Stands where there is no number: an en dash."""

LISTED = 3
"""Variants of one verdict that the headline spells out; the table has the rest."""

MEAN_DIGITS = 5
"""Most significant digits of a mean beside its standard deviation: two seeds can agree by chance."""

MINUS = "\u2212"
"""The sign of a negative number in text."""

WORTH_A_RATIO = 1.5
"""How many times lower a value must be before the headline says so."""


def named(name: str) -> str:
    """Return a variant's name between the control characters that outputs turn into emphasis."""
    return f"{OPEN}{name}{CLOSE}"


def plain(text: str) -> str:
    """Return a text with its names in plain quotation marks."""
    return text.replace(OPEN, "“").replace(CLOSE, "”")


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with a few significant digits and a true minus sign.

    Parameters
    ----------
    value : float or None
        The number.
    digits : int
        Significant digits.

    Returns
    -------
    str
        The number in words' typography; a dash where it is absent or not finite.

    Examples
    --------
    >>> number(0.00131234), number(62337.0, 5), number(-1.5), number(None)
    ('0.001312', '62,337', '−1.5', '–')
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    if value != 0 and not 1e-5 <= abs(value) < 10.0 ** max(digits, 6):
        text = f"{value:.{max(digits - 2, 1)}e}"
    else:
        text = f"{value:,.{decimals(value, digits)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", MINUS)


def decimals(value: float, digits: int) -> int:
    """Return how many decimals show a value with a number of significant digits."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0


def fixed(value: float, places: int, *, sign: bool = False) -> str:
    """Return a number with a fixed number of decimals, a true minus sign and, if wanted, a plus sign."""
    text = f"{value:+,.{places}f}" if sign else f"{value:,.{places}f}"
    return text.replace("-", MINUS)


def places_of(one: Comparison) -> int:
    """Return how many decimals the uncertainty of a comparison deserves: two digits of its half width."""
    half = (one.high - one.low) / 2 if one.high is not None and one.low is not None else 0.0
    if half > 0:
        return min(8, decimals(half, 2))
    return min(8, decimals(one.difference, 3)) if one.difference else 2


def difference(one: Comparison) -> str:
    """Return the measured difference, signed."""
    return ABSENT if one.difference is None else fixed(one.difference, places_of(one), sign=True)


def interval(one: Comparison) -> str:
    """Return the interval as ``low to high``."""
    if one.low is None or one.high is None:
        return ABSENT
    return f"{fixed(one.low, places_of(one), sign=True)} to {fixed(one.high, places_of(one), sign=True)}"


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation of the values over seeds."""
    if not values:
        return ABSENT
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return number(mean)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    places = min(decimals(sd, 2), decimals(mean, MEAN_DIGITS)) if sd > 0 else decimals(mean, 4)
    return f"{fixed(mean, places)} ± {fixed(sd, places) if sd * 10**places >= 1 else number(sd, 2)}"


def scaled(value: float | None, units: Sequence[str], step: float = 1000.0) -> str:
    """Return a quantity in the unit that leaves one to three digits before the point.

    Parameters
    ----------
    value : float or None
        The quantity in the first unit.
    units : sequence of str
        Units, each `step` times the one before.
    step : float
        Ratio of neighboring units.

    Returns
    -------
    str
        Number and unit.

    Examples
    --------
    >>> scaled(1_240_000, ("FLOPs", "kFLOPs", "MFLOPs"))
    '1.24 MFLOPs'
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    power = 0
    while abs(value) >= step and power < len(units) - 1:
        value, power = value / step, power + 1
    return f"{number(value, 3)} {units[power]}"


def flops(value: float | None) -> str:
    """Return a number of floating-point operations with its unit."""
    return scaled(value, ("FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs"))


def size(value: float | None) -> str:
    """Return a number of bytes with its unit."""
    return scaled(value, ("B", "KiB", "MiB", "GiB"), 1024.0)


def duration(seconds: float | None) -> str:
    """Return a duration in the two units that matter."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 60:
        return f"{number(seconds, 3)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def percent(fraction: float) -> str:
    """Return a fraction in percent, with a narrow space before the sign."""
    return f"{number(100 * fraction, 4)}\u202f%"


def metric_title(metric: Metric) -> str:
    """Return a metric's name as a reader would say it."""
    return metric.title or metric.name.replace("_", " ")


def direction(metric: Metric) -> str:
    """Return which direction of a metric is good, in words."""
    return f"{metric.better} is better"


def mean_seconds(variant: VariantResults) -> float | None:
    """Return the mean training time over the finished cells; None where none has one."""
    times = [cell.seconds for cell in variant.done if cell.seconds is not None]
    return sum(times) / len(times) if times else None


def mean_of(variant: VariantResults, metric: str) -> float | None:
    """Return a variant's mean of a metric over its finished cells; None where none has it."""
    values = [value for value in variant.values(metric).values() if math.isfinite(value)]
    return math.fsum(values) / len(values) if values else None


def flat(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return a nested mapping as pairs of dotted key and text, for a table.

    Parameters
    ----------
    mapping : mapping
        JSON types.
    prefix : str
        Put before every key.

    Returns
    -------
    list of tuple
        Key and text.

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
    """Return the answer of a study, the most important sentence first.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.

    Returns
    -------
    list of str
        Sentences with `named` variants; the first is the answer, the others qualify it.
    """
    found = judge(results)
    alarmed = {alarm.variant for alarm in results.alarms}
    groups = {word: _by_effect(found, word) for word in ("better", "worse", "equivalent", "undecided")}
    suspect = [one for one in groups["better"] if one.variant in alarmed]
    groups["better"] = [one for one in groups["better"] if one.variant not in alarmed]
    first, told = _lead(results, groups)
    rest = [
        _listed("Also better", [one for one in groups["better"] if one.variant not in told]),
        _listed("Better by the numbers, but not to be believed before its alarm is explained", suspect),
        _listed("Worse", groups["worse"]),
        _listed(_equivalent_label(results), groups["equivalent"]),
        _undecided(groups["undecided"]) if len(groups["undecided"]) < len(found) else "",
        _trouble(results),
    ]
    return [first, *(sentence for sentence in rest if sentence)]


def headline(results: StudyResults) -> str:
    """Return the answer of a study as one paragraph a stranger understands.

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


def _by_effect(found: Sequence[Verdict], word: str) -> list[Verdict]:
    """Return the verdicts of one word, the largest difference first."""
    chosen = [one for one in found if one.verdict == word]
    return sorted(chosen, key=lambda one: -abs(one.comparison.difference or 0.0))


def _lead(results: StudyResults, groups: Mapping[str, list[Verdict]]) -> tuple[str, set[str]]:
    """Return the first sentence, and the variants it has dealt with."""
    baseline = named(results.baseline)
    others = sum(map(len, groups.values()))
    if groups["better"]:
        best = groups["better"][0]
        return _best_sentence(results, best), {best.variant}
    if others == 0:
        return f"There is nothing to compare with the baseline {baseline}.", set()
    if groups["worse"]:
        lead = "Nothing is shown to beat" if groups["undecided"] else "Nothing beats"
        return f"{lead} the baseline {baseline}, which reaches {_baseline_value(results)}.", set()
    if len(groups["equivalent"]) == others:
        return f"It makes no difference that matters: every variant is equivalent to the baseline {baseline}.", set()
    reasons = {one.reason for one in groups["undecided"]}
    why = reasons.pop() if len(reasons) == 1 else _undecided(groups["undecided"]).removesuffix(".")
    return f"Undecided: {why[:1].lower() + why[1:]}.".replace("Undecided: undecided: ", "Undecided: "), set()


def _best_sentence(results: StudyResults, best: Verdict) -> str:
    """Say how much the best variant gains."""
    metric = results.metric
    ours = mean_of(results.variant(best.variant), metric.name)
    theirs = mean_of(results.variant(best.baseline), metric.name)
    reached = f"{number(ours)} where the baseline reaches {number(theirs)} {metric.unit}"
    apart = f"{percent(confidence(results))} interval {interval(best.comparison)}, {best.comparison.pairs} seeds"
    return (
        f"{named(best.variant)} is better than the baseline {named(best.baseline)}: "
        f"it reaches a {metric_title(metric)} of {reached}{_ratio(metric, ours, theirs)}. The difference is {difference(best.comparison)} ({apart})."
    )


def _ratio(metric: Metric, ours: float | None, theirs: float | None) -> str:
    """Say how many times lower a value is, where that is much."""
    if metric.better != "lower" or not ours or not theirs or min(ours, theirs) <= 0 or theirs / ours < WORTH_A_RATIO:
        return ""
    return f", {number(theirs / ours, 2)} times as much"


def _baseline_value(results: StudyResults) -> str:
    """Return what the baseline reaches, with its unit."""
    metric = results.metric
    value = mean_of(results.variant(results.baseline), metric.name)
    return f"a {metric_title(metric)} of {number(value)} {metric.unit}"


def _equivalent_label(results: StudyResults) -> str:
    """Return what equivalent means in this study."""
    return f"Equivalent (less than {number(smallest_effect(results))} {results.metric.unit} apart)"


def _listed(label: str, found: Sequence[Verdict]) -> str:
    """Say which variants share a verdict, the largest few with their differences."""
    if not found:
        return ""
    told = [f"{named(one.variant)} ({difference(one.comparison)})" for one in found[:LISTED]]
    return f"{label}: {_and(told, len(found) - len(told))}."


def _undecided(found: Sequence[Verdict]) -> str:
    """Say which variants are undecided, and what would decide them."""
    if not found:
        return ""
    told = [f"{named(one.variant)} ({_what_decides(one)})" for one in found[:LISTED]]
    return f"Undecided: {_and(told, len(found) - len(told))}."


def _what_decides(one: Verdict) -> str:
    """Return what it would take to decide, in a few words."""
    if one.seeds_needed is None:
        return one.reason.split(":")[0]
    more = one.seeds_needed - one.comparison.pairs
    return f"about {more} more seed{'s' if more > 1 else ''}"


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
        (len(results.alarms), "alarm was raised", "alarms were raised"),
    )
    told = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
    return f"Before you believe it: {_and(told, 0)}." if told else ""
