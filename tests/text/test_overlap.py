from __future__ import annotations

import numpy as np
import pytest

from attnlab.text import overlap as module
from attnlab.text.overlap import overlap, sample_passages, without_copies


def brute(train: np.ndarray, held_out: np.ndarray, gram: int) -> float:
    known = {tuple(train[i : i + gram]) for i in range(len(train) - gram + 1)}
    passages = [tuple(held_out[i : i + gram]) for i in range(len(held_out) - gram + 1)]
    return sum(passage in known for passage in passages) / len(passages)


@pytest.mark.parametrize("gram", [1, 2, 3, 7, 8, 13, 50])
def test_it_counts_what_comparing_passages_counts(gram):
    draw = np.random.default_rng(3)
    train = draw.integers(0, 3, 701)
    held_out = np.concatenate((draw.integers(0, 3, 83), train[101:191], draw.integers(0, 3, 89)))
    assert overlap(train, held_out, gram) == brute(train, held_out, gram)


def test_a_copy_overlaps_wholly_and_other_text_not_at_all():
    train = np.random.default_rng(5).integers(0, 29, 503)
    assert overlap(train, train[101:307]) == 1.0
    assert overlap(train, train[101:307][::-1]) == 0.0


def test_repeated_tokens_are_told_apart_by_their_number():
    assert overlap(np.zeros(11, dtype=int), np.zeros(11, dtype=int), 5) == 1.0
    assert overlap(np.zeros(11, dtype=int), np.ones(11, dtype=int), 5) == 0.0


def test_a_part_shorter_than_a_passage():
    assert overlap(np.zeros(101, dtype=int), np.zeros(49, dtype=int)) is None
    assert overlap(np.zeros(49, dtype=int), np.zeros(101, dtype=int)) == 0.0


@pytest.mark.parametrize("gram", [1, 2, 7, 50])
def test_copies_are_left_out_and_nothing_else(gram):
    draw = np.random.default_rng(7)
    train = "".join(draw.choice(list("ab\U0001f600"), 701))
    held_out = [train[101:191], train[650:] + "x" * 60, "short"]
    passages = {text[i : i + gram] for text in held_out for i in range(len(text) - gram + 1)}
    starts = [i for i in range(len(train) - gram + 1) if train[i : i + gram] in passages]
    copied = {place for start in starts for place in range(start, start + gram)}
    assert without_copies(train, held_out, gram) == "".join(c for i, c in enumerate(train) if i not in copied)


def test_where_nothing_is_copied_nothing_is_left_out():
    assert without_copies("abc", ["abc"]) == "abc"
    assert without_copies("a" * 60, ["b" * 60, "a" * 49]) == "a" * 60
    assert without_copies("a" * 60, []) == "a" * 60
    assert not without_copies("a" * 60, ["a" * 50])


def test_a_passage_is_sampled_wherever_it_stands(monkeypatch):
    monkeypatch.setattr(module, "SAMPLED", 4)
    monkeypatch.setattr(module, "BLOCK", 97)
    codes = np.random.default_rng(11).integers(97, 110, 4001).astype(np.uint32)
    places, hashes = sample_passages(codes)
    assert 4001 / 8 < len(places) < 4001 / 2
    again, same = sample_passages(codes[1003:2003])
    inside = (places >= 1003) & (places <= 2003 - 50)
    assert again.tolist() == (places[inside] - 1003).tolist()
    assert same.tolist() == hashes[inside].tolist()
    assert len(np.unique(hashes)) == len(hashes)
    assert len(sample_passages(codes[:49])[0]) == 0


def test_one_passage_in_so_many_is_sampled_of_all(monkeypatch):
    monkeypatch.setattr(module, "SAMPLED", 1)
    codes = np.random.default_rng(11).integers(97, 110, 503).astype(np.uint32)
    assert sample_passages(codes, 13)[0].tolist() == list(range(503 - 12))
