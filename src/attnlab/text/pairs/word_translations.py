"""Which word translates which, learned from pairs of sentences with IBM's model 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float64, Int64

ROUNDS = 5  # of expectation and maximization; source: Brown et al., 1993, section 4.5
MOST_CELLS = 2**24
"""Words of one side times words of the other, over the pairs that are read; the rest is left out, to save memory."""

Words = Sequence[str]


def word_translations(pairs: Iterable[tuple[Words, Words]]) -> dict[str, str]:
    """The best translation of every word of the sources.

    Parameters
    ----------
    pairs : iterable of pair of sequence of str
        The words of sentences and of their translations.

    Returns
    -------
    dict of str to str
        By word of the source, the word of the other side with the largest product of the probabilities that each is
        translated by the other. A word that translates to itself is left out.

    Notes
    -----
    Five rounds of expectation and maximization in both directions, each with an empty word on the side that is read.
    The product keeps a rare word from being translated by whatever is frequent.

    References
    ----------
    .. [1] Brown et al., 1993, "The mathematics of statistical machine translation", model 1.
    """
    sides: tuple[dict[str, int], dict[str, int]] = ({"": 0}, {"": 0})
    sentences: tuple[list[Int64[np.ndarray, " words"]], list[Int64[np.ndarray, " words"]]] = ([], [])
    cells = 0
    for pair in pairs:
        numbers = [
            np.array([known.setdefault(word, len(known)) for word in words], dtype=np.int64)
            for known, words in zip(sides, pair, strict=True)
        ]
        cells += len(pair[0]) * len(pair[1])
        if cells > MOST_CELLS and sentences[0]:
            break
        for kept, one in zip(sentences, numbers, strict=True):
            kept.append(one)
    if not cells:
        return {}
    size = len(sides[1])
    forward_words, forward = probabilities(sentences[0], sentences[1])
    back_words, back = probabilities(sentences[1], sentences[0])
    forward_real, back_real = forward_words[:, 0] > 0, back_words[:, 0] > 0
    read, written = forward_words[forward_real].T
    order = np.argsort(back_words[back_real] @ [1, size])  # the same pairs of words, as the other direction has them
    score = forward[forward_real] * back[back_real][order]
    best = np.lexsort((-score, read))
    _, firsts = np.unique(read[best], return_index=True)
    names = [list(side) for side in sides]
    found = ((names[0][read[i]], names[1][written[i]]) for i in best[firsts])
    return {word: translation for word, translation in found if word != translation}


def probabilities(
    read: Sequence[Int64[np.ndarray, " words"]], written: Sequence[Int64[np.ndarray, " words"]]
) -> tuple[Int64[np.ndarray, "pairs 2"], Float64[np.ndarray, " pairs"]]:
    """How likely words are translated by which: pairs of words by number, in order, and the probability of the second.

    Word 0 is the empty one, which is read in every sentence.
    """
    size = 1 + max(int(one.max(initial=0)) for one in written)
    begun = [np.concatenate(([0], one)) for one in read]
    keys = np.concatenate(
        [(some[None] * size + other[:, None]).ravel() for some, other in zip(begun, written, strict=True)]
    )
    lengths = np.concatenate([np.full(len(other), len(some)) for some, other in zip(begun, written, strict=True)])
    places = np.repeat(np.arange(len(lengths)), lengths)  # which written word a cell explains
    pairs, cells = np.unique(keys, return_inverse=True)
    words = np.stack((pairs // size, pairs % size), axis=1)
    found = np.ones(len(pairs))
    for _ in range(ROUNDS):
        shares = found[cells]
        shares /= np.bincount(places, shares)[places]
        counts = np.bincount(cells, shares)
        found = counts / np.bincount(words[:, 0], counts)[words[:, 0]]
    return words, found
