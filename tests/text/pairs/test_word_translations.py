"""Word translations: IBM's model 1 as its paper has it, a count at a time, and what rare words become."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from attnlab.text.pairs import word_translations as learned
from attnlab.text.pairs.word_translations import probabilities, word_translations

PAIRS = [("the house", "das Haus"), ("the book", "das Buch"), ("a book", "ein Buch"), ("a", "ein"), ("the the", "das")]


def cut(pairs):
    return [(one.split(), other.split()) for one, other in pairs]


def test_model_1_by_hand():
    sides = ({"": 0}, {"": 0})
    numbers = [
        [[known.setdefault(word, len(known)) for word in words] for known, words in zip(sides, pair, strict=True)]
        for pair in cut(PAIRS)
    ]
    expected = defaultdict(lambda: 1.0)
    for _ in range(learned.ROUNDS):
        counts, totals = defaultdict(float), defaultdict(float)
        for read, written in numbers:
            for word in written:
                total = sum(expected[one, word] for one in [0, *read])
                for one in [0, *read]:
                    counts[one, word] += expected[one, word] / total
                    totals[one] += expected[one, word] / total
        expected = defaultdict(lambda: 1.0, {pair: count / totals[pair[0]] for pair, count in counts.items()})
    words, found = probabilities(*([np.array(pair[side]) for pair in numbers] for side in range(2)))
    assert {tuple(pair): pytest.approx(one) for pair, one in zip(words.tolist(), found, strict=True)} == dict(expected)


def test_words_find_their_translations():
    assert word_translations(cut(PAIRS)) == {"the": "das", "house": "Haus", "book": "Buch", "a": "ein"}


def test_a_rare_word_is_not_translated_by_what_is_frequent():
    frequent = [
        ("the dog runs", "der Hund rennt"),
        ("the cat runs", "der Kater rennt"),
        ("the dog sits", "der Hund sitzt"),
    ]
    found = word_translations(cut([*frequent * 3, ("the zebra runs", "der Zebrahengst rennt")]))
    assert found["zebra"] == "Zebrahengst"


def test_a_word_that_stays_is_left_out_and_empty_sides_teach_nothing():
    assert word_translations(cut([("Anna runs", "Anna rennt"), ("Anna", "Anna"), ("", "rennt")])) == {"runs": "rennt"}
    assert word_translations([]) == word_translations(cut([("", "")])) == {}


def test_what_does_not_fit_into_memory_is_left_out(monkeypatch):
    monkeypatch.setattr(learned, "MOST_CELLS", 4)
    assert set(word_translations(cut(PAIRS))) == {"the", "house"}
