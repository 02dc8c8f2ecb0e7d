"""Masks in words, and as the small matrix that they are."""

# ruff: noqa: ARG001 -- entries of one function share its signature; not every entry needs all of it

from __future__ import annotations

import functools

from attnlab.nn.axes.masks import AbstractMask, And, Causal, Dilated, Full, Not, Or, Window

CELLS = 8
"""Positions of a small matrix, as many as a printed mask has."""


@functools.singledispatch
def in_words(mask: AbstractMask) -> str:
    """Which keys a mask lets a query see; a mask that nobody here knows is called as it prints itself."""
    return repr(mask)


@in_words.register
def _(mask: Full) -> str:
    return "every key"


@in_words.register
def _(mask: Causal) -> str:
    return "no later key"


@in_words.register
def _(mask: Window) -> str:
    return f"no key {mask.width} or more away"


@in_words.register
def _(mask: Dilated) -> str:
    return f"{mask.width} keys on a side, {mask.dilation} apart"


@in_words.register
def _(mask: And) -> str:
    return f"{in_words(mask.left)}, {in_words(mask.right)}"


@in_words.register
def _(mask: Or) -> str:
    return f"({in_words(mask.left)}) or ({in_words(mask.right)})"


@in_words.register
def _(mask: Not) -> str:
    return f"not: {in_words(mask.mask)}"


def matrix(mask: AbstractMask) -> tuple[tuple[bool, ...], ...] | None:
    """Rows of queries, columns of keys, True where a query may look; None where so few positions would not show it."""
    farthest = [limit for limit in mask.reach if limit is not None]
    if mask.fixed_length is not None or any(limit >= CELLS - 1 for limit in farthest):
        return None
    return tuple(tuple(row) for row in mask.allowed(CELLS, CELLS).tolist())
