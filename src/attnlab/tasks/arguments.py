"""Checks of what a task is constructed with, for those who construct it from Python."""

from __future__ import annotations

import math
from collections.abc import Iterable

from attnlab.core.errors import SpecError, did_you_mean


def require_positive(name: str, value: int) -> None:
    """Raise unless a size is at least 1."""
    if value < 1:
        raise SpecError(f"'{name}' must be at least 1; got {value}")


def require_not_negative(name: str, value: float) -> None:
    """Raise unless a value is a finite number of at least 0."""
    if not 0.0 <= value < math.inf:
        raise SpecError(f"'{name}' must be a number of at least 0; got {value}")


def require_known(name: str, value: str, known: Iterable[str]) -> None:
    """Raise unless a word is one of the known ones."""
    words = list(known)
    if value not in words:
        hint = did_you_mean(value, words)
        raise SpecError(f"'{name}' must be one of {', '.join(words)}; got '{value}'" + (f"; {hint}" if hint else ""))
