"""Windows of one series: held-out items most of which stands in a training item too, at another place."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Shaped, UInt64

AT_ONCE = 4_000_000
"""Positions of training items that are hashed at a time."""
SHORTEST = 8
"""Positions below which half a window says little."""
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers have inverses


def overlapping(
    held: Shaped[np.ndarray, "held length *features"], train: Shaped[np.ndarray, "train length *features"]
) -> Bool[np.ndarray, " held"]:
    """Whether the middle half of each held-out item stands in a training item at another place.

    Parameters
    ----------
    held, train : array
        Inputs of both parts, numbers or tokens, compared as they are.

    Returns
    -------
    array of bool
        One for each held-out item. Items of fewer than `SHORTEST` positions overlap with none, nor do those whose
        middle, put in another order, is found as often as it is: few values come again by chance.

    Notes
    -----
    Windows are compared by hashes of 64 bits, of every place from the sums of a polynomial up to it.
    """
    length = held.shape[1]
    if length < SHORTEST:
        return np.zeros(len(held), dtype=bool)
    half, first = length // 2, length // 4
    middle = _hashed(held)[:, first : first + half]
    mixed = middle[:, np.random.default_rng(0).permutation(half)]
    wanted, by_chance = (_polynomial(one, half)[:, 0] for one in (middle, mixed))
    looked_for = np.unique(np.concatenate([wanted, by_chance]))
    seen = np.zeros(len(looked_for), dtype=bool)
    at_once = max(1, AT_ONCE // length)
    for start in range(0, len(train), at_once):
        windows = np.delete(_polynomial(_hashed(train[start : start + at_once]), half), first, axis=1)
        places = np.minimum(np.searchsorted(looked_for, windows), len(looked_for) - 1)
        seen[places[looked_for[places] == windows]] = True
    return np.isin(wanted, looked_for[seen]) & ~np.isin(by_chance, looked_for[seen])


def _hashed(items: np.ndarray) -> UInt64[np.ndarray, "items length"]:
    """One number for each position of each item."""
    flat = items.reshape(*items.shape[:2], -1)
    exact = (flat.astype(np.float64) + 0.0).view(np.uint64)  # zero has one sign then
    mixed = (exact ^ (exact >> np.uint64(29))) * _BASE
    return (mixed ^ (mixed >> np.uint64(32))) @ _powers(flat.shape[2], _BASE)


def _polynomial(positions: UInt64[np.ndarray, "items length"], size: int) -> UInt64[np.ndarray, "items windows"]:
    """The hash of every window of a size."""
    length = positions.shape[1]
    sums = np.zeros((len(positions), length + 1), dtype=np.uint64)
    np.cumsum(positions * _powers(length, _BASE), axis=1, out=sums[:, 1:])
    inverse = np.uint64(pow(int(_BASE), -1, 2**64))
    return (sums[:, size:] - sums[:, :-size]) * _powers(length - size + 1, inverse)


def _powers(count: int, base: np.uint64) -> UInt64[np.ndarray, " count"]:
    return np.cumprod(np.concatenate([np.ones(1, np.uint64), np.full(count - 1, base)]), dtype=np.uint64)
