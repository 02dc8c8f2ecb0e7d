"""Checks of sizes and of other arguments, said in the words of those who give them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

from attnlab.core.errors import SpecError, did_you_mean

Value = TypeVar("Value")
MOST_PARTS = 30_000
"""Of a model, as they take seconds to build, those of torch's LSTM ever longer; a thousand layers of a decoder."""


def check_positive(sizes: Mapping[str, int]) -> None:
    """Raise a `SpecError` that names every size that is not a positive integer."""
    wrong = [f"{name}={size}" for name, size in sizes.items() if size < 1]
    if wrong:
        raise SpecError(f"sizes must be positive integers; got {', '.join(wrong)}")


def share_of(d_model: int, n_heads: int) -> int:
    """The width of one head when all heads together are as wide as the model, which they must divide."""
    check_positive({"d_model": d_model, "n_heads": n_heads})
    if d_model % n_heads:
        raise SpecError(f"n_heads must divide d_model; got d_model={d_model}, n_heads={n_heads} (or give d_head)")
    return d_model // n_heads


def require_buildable(parts: int) -> None:
    """Raise unless a model of so many parts can be built before long."""
    if parts > MOST_PARTS:
        raise SpecError(
            f"a model of more than {MOST_PARTS:,} modules and parameters takes too long to build; choose fewer layers, "
            "heads or experts"
        )


def repeated(value: Value, times: int) -> list[Value]:
    """One value for each of a model's parts, of which there must not be more than can be built."""
    require_buildable(times)
    return [value] * times


WIDEST_BEAM = 1000  # beginnings that a search keeps: far beyond where more of them help


def require_positive(name: str, value: int, most: float = math.inf) -> None:
    """Raise unless a size is at least 1, and at most what is sensible."""
    if value < 1:
        raise SpecError(f"{name} must be at least 1; got {value}")
    if value > most:
        raise SpecError(f"{name} must be at most {most:,}; got {value:,}")


def require_not_negative(name: str, value: float) -> None:
    """Raise unless a value is a finite number of at least 0."""
    if not 0.0 <= value < math.inf:
        raise SpecError(f"{name} must be a number of at least 0; got {value}")


def require_known(name: str, value: str, known: Iterable[str]) -> None:
    """Raise unless a word is one of the known ones."""
    words = list(known)
    if value not in words:
        hint = did_you_mean(value, words)
        raise SpecError(f"{name} must be one of {', '.join(words)}; got '{value}'" + (f"; {hint}" if hint else ""))
