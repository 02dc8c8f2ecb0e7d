"""How much of a held-out text stands word for word in the training text."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int, UInt64

GRAM = 50  # characters: about a line of verse; long enough that repeating by chance is out of the question
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, the golden ratio's bits; Steele, Lea, Flood 2014 (SplitMix64)
MIXERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # the same, its finalizer


def overlap(train: Int[np.ndarray, " length"], held_out: Int[np.ndarray, " other"], gram: int = GRAM) -> float | None:
    """The fraction of a held-out text's k-grams that occur in the training text.

    Notes
    -----
    Passages are compared by 64-bit hashes: a wrong match is to be expected once in 2^64 / (n m) texts of n and
    m characters, for a million against a hundred thousand once in 10^8. Time O(n log n).
    """
    if len(held_out) < gram:
        return None
    if len(train) < gram:
        return 0.0
    known, asked = (
        np.sort(_hashes(train, gram)),
        np.sort(_hashes(held_out, gram)),
    )  # in order, the search is kind to the cache
    places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return float((known[places] == asked).mean())


def _hashes(tokens: Int[np.ndarray, " length"], gram: int) -> UInt64[np.ndarray, " count"]:
    """The hash of the passage of `gram` tokens that begins at each position.

    Passages of doubled length are put together from two, the last doubling from two that overlap.
    """
    hashes, size = _mix(tokens.astype(np.uint64)), 1
    while size < gram:
        step = min(size, gram - size)
        hashes = _mix(hashes[:-step] * MULTIPLIER + hashes[step:])
        size += step
    return hashes


def _mix(values: UInt64[np.ndarray, " count"]) -> UInt64[np.ndarray, " count"]:
    """Values spread over all 64 bits, one to one."""
    values = values + MULTIPLIER
    values = (values ^ (values >> np.uint64(30))) * MIXERS[0]
    values = (values ^ (values >> np.uint64(27))) * MIXERS[1]
    return values ^ (values >> np.uint64(31))
