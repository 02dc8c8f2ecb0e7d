"""How much of a held-out text stands word for word in the training text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt32, UInt64

from attnlab.text.sources import code_points

GRAM = 50  # characters: about a line of verse; long enough that repeating by chance is out of the question
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, the golden ratio's bits; Steele, Lea, Flood 2014 (SplitMix64)
SAMPLED = 1024  # one passage in so many is sampled from a text too large to compare whole
BLOCK = 2**16  # characters that are looked at together: their hashes stay in a cache
COMPARED = 2**23  # passages of the training text whose hashes are in memory at a time
BEGINNINGS = (
    np.uint32(0x9E3779B1),
    np.uint32(0x85EBCA77),
    np.uint32(0xC2B2AE3D),
    np.uint32(0x27D4EB2F),
)  # odd; xxHash32
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
    asked = _hashes(held_out, gram)
    found = np.zeros(len(asked), dtype=bool)
    for first in range(0, len(train) - gram + 1, COMPARED):
        found |= standing_in(_hashes(train[first : first + COMPARED + gram - 1], gram), asked)
    return float(found.mean())


def without_copies(train: str, held_out: Sequence[str], gram: int = GRAM) -> str:
    """The training text without its passages of `gram` characters that stand in a held-out text too.

    Passages are compared as in `overlap`; what stood before and after one is joined.
    """
    if len(train) < gram:
        return train
    known = [_hashes(code_points(text), gram) for text in held_out if len(text) >= gram]
    copied = standing_in(np.concatenate(known), _hashes(code_points(train), gram)) if known else np.zeros(1, dtype=bool)
    edges = np.zeros(len(train) + 1, dtype=np.int64)
    starts = np.flatnonzero(copied)
    edges[starts] += 1
    edges[starts + gram] -= 1
    return "".join(itertools.compress(train, (np.cumsum(edges)[:-1] == 0).tolist()))


def sample_passages(
    codes: UInt32[np.ndarray, " length"], gram: int = GRAM
) -> tuple[Int64[np.ndarray, " sampled"], UInt64[np.ndarray, " sampled"]]:
    """About one passage in `SAMPLED` of a text: where it begins, and its hash.

    Notes
    -----
    Their first 8 characters choose them, so that a passage is sampled wherever it stands, or nowhere: what two samples
    share estimates what the texts share.
    """
    places = [np.empty(0, dtype=np.int64)]
    for first in range(0, len(codes) - gram + 1, BLOCK):
        beginnings = codes[first : first + BLOCK + 7]
        for step, multiplier in zip((1, 2, 4), BEGINNINGS, strict=False):
            beginnings = beginnings[:-step] * multiplier + beginnings[step:]
        places.append(first + np.flatnonzero(beginnings * BEGINNINGS[-1] < 2**32 // SAMPLED))
    found = np.concatenate(places)
    found = found[found <= len(codes) - gram]
    powers = np.cumprod(np.full(gram, MULTIPLIER))
    return found, _mix((codes[found[:, None] + np.arange(gram)].astype(np.uint64) * powers).sum(1, dtype=np.uint64))


def standing_in(known: UInt64[np.ndarray, " count"], asked: UInt64[np.ndarray, " other"]) -> Bool[np.ndarray, " other"]:
    """Which of the hashes that are asked for are among those known."""
    known, order = np.sort(known), np.argsort(asked)  # in order, the search is kind to the cache
    places = np.minimum(np.searchsorted(known, asked[order]), len(known) - 1)
    found = np.empty(len(asked), dtype=bool)
    found[order] = known[places] == asked[order]
    return found


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
