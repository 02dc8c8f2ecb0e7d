"""Numbers as text: few digits, true minus signs, a unit that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

MINUS = "\u2212"
"""The sign of a negative number in text."""

MEAN_DIGITS = 5
"""Most significant digits of a mean beside its standard deviation: two seeds can agree by chance."""

ABSENT = "\u2013"
"""Stands where there is no number: an en dash."""


def number(value: float | None, digits: int = 4) -> str:
    """A number with a few significant digits and a true minus sign.

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
    """How many decimals show a value with a number of significant digits."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0


def fixed(value: float, places: int, *, sign: bool = False) -> str:
    """A number with a fixed number of decimals, a true minus sign and, if wanted, a plus sign."""
    text = f"{value:+,.{places}f}" if sign else f"{value:,.{places}f}"
    return text.replace("-", MINUS)


def mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation; None where there are too few values."""
    if not values:
        return None, None
    mean = fmean(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else None


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation of the values over seeds."""
    mean, sd = mean_and_deviation(values)
    if mean is None or sd is None:
        return number(mean)
    places = min(decimals(sd, 2), decimals(mean, MEAN_DIGITS)) if sd > 0 else decimals(mean, 4)
    return f"{fixed(mean, places)} ± {fixed(sd, places) if sd * 10**places >= 1 else number(sd, 2)}"


def scaled(value: float | None, units: Sequence[str], step: float = 1000.0) -> str:
    """A quantity in the unit that leaves one to three digits before the point.

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
    """A number of floating-point operations with its unit."""
    return scaled(value, ("FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs", "EFLOPs"))


def amount(value: float, unit: str) -> str:
    """How much of a budget, in the unit that rules name: "300 steps", "3 TFLOPs".

    Examples
    --------
    >>> amount(25_000.0, "steps"), amount(3e12, "flops")
    ('25,000 steps', '3 TFLOPs')
    """
    return flops(value) if unit == "flops" else f"{number(value, 9)} {unit}"


def size(value: float | None) -> str:
    """A number of bytes with its unit."""
    return scaled(value, ("B", "KiB", "MiB", "GiB"), 1024.0)


def duration(seconds: float | None) -> str:
    """A duration in the two units that matter."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 60:
        return f"{number(seconds, 3)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def percent(fraction: float) -> str:
    """A fraction in percent, with a narrow space before the sign."""
    return f"{number(100 * fraction, 4)}\u202f%"
