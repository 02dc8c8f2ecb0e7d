"""Brackets and spans say the same of a tree."""

from __future__ import annotations

import random

import pytest

from attnlab.models.parsers.brackets import Brackets, TreeSpan

BRACKETS = Brackets(close=3, labels=3, tags=2)
CLOSE, A, B, C, X, Y = range(3, 9)


def grown(chance: random.Random, depth: int = 0) -> list[int]:
    """The tokens of a random tree."""
    if depth > 4 or (depth and chance.random() < 0.4):
        return [chance.choice([X, Y])]
    inside = [token for _ in range(chance.randint(1, 3)) for token in grown(chance, depth + 1)]
    return [chance.choice([A, B, C]), *inside, CLOSE]


def test_numbers_follow_each_other():
    assert [*BRACKETS.opening, *BRACKETS.words] == [A, B, C, X, Y]
    assert BRACKETS.size == Y + 1


def test_a_tree_is_its_spans_with_what_stands_around_the_same_words():
    spans, tags = BRACKETS.read([A, B, X, Y, CLOSE, C, A, X, CLOSE, CLOSE, CLOSE])
    assert spans == [TreeSpan(0, 3, (A,)), TreeSpan(0, 2, (B,)), TreeSpan(2, 3, (C, A))]
    assert tags == [X, Y, X]


@pytest.mark.parametrize("seed", range(20))
def test_what_was_read_is_written_again(seed):
    tokens = grown(random.Random(seed))
    assert BRACKETS.write(*BRACKETS.read([1, *tokens, 2, 0, 0])) == tokens


def test_what_is_no_tree_is_passed_over():
    assert BRACKETS.read([CLOSE, A, CLOSE, B, X, C]) == ([], [X])
    assert BRACKETS.read([]) == ([], [])
