"""Masks in words, and as the small matrix that they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnlab.nn.axes.masks import AbstractMask, And, Causal, Dilated, Full, Not, Or, Window

CELLS = 8
"""Positions of a small matrix, as many as a printed mask has."""


WORDS: Mapping[type[AbstractMask], Callable[[Any], str]] = {
    Full: lambda _: "every key",
    Causal: lambda _: "no later key",
    Window: lambda mask: f"no key {mask.width} or more away",
    Dilated: lambda mask: f"{mask.width} keys on a side, {mask.dilation} apart",
    And: lambda mask: f"{in_words(mask.left)}, {in_words(mask.right)}",
    Or: lambda mask: f"({in_words(mask.left)}) or ({in_words(mask.right)})",
    Not: lambda mask: f"not: {in_words(mask.mask)}",
}
"""By kind of mask which keys it lets a query see."""


def in_words(mask: AbstractMask) -> str:
    """Which keys a mask lets a query see; a mask that nobody here knows is called as it prints itself."""
    return WORDS.get(type(mask), repr)(mask)


def matrix(mask: AbstractMask) -> tuple[tuple[bool, ...], ...] | None:
    """Rows of queries, columns of keys, True where a query may look; None where so few positions would not show it."""
    farthest = [limit for limit in mask.reach if limit is not None]
    if mask.fixed_length is not None or any(limit >= CELLS - 1 for limit in farthest):
        return None
    return tuple(tuple(row) for row in mask.allowed(CELLS, CELLS).tolist())
