from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlab.core.errors import DataError
from attnlab.text.characters import UNKNOWN, Vocabulary, split_text


@given(st.text(max_size=211), st.booleans())
def test_parts_are_contiguous_and_complete(text, test):
    parts = split_text(text, test=test)
    assert "".join(parts.values()) == text
    assert list(parts) == ["train", "validation", "test"][: 3 if test else 2]


@given(st.text(min_size=1, max_size=211), st.booleans(), st.integers(0, 10**6))
def test_a_seed_holds_out_a_tenth_that_begins_anywhere(text, test, seed):
    usual, parts = split_text(text, test=test), split_text(text, test=test, seed=seed)
    assert {part: len(content) for part, content in parts.items()} == {p: len(c) for p, c in usual.items()}
    held = "".join(content for part, content in parts.items() if part != "train")
    assert any(parts["train"][:begin] + held + parts["train"][begin:] == text for begin in range(len(text)))


def test_seeds_hold_out_different_parts():
    text = "".join(map(chr, range(1000)))
    assert len({split_text(text, test=False, seed=seed)["validation"] for seed in range(20)}) > 15


def test_shares_are_ninety_ten_or_ninety_five_five():
    assert [len(part) for part in split_text("x" * 1000, test=False).values()] == [900, 100]
    assert [len(part) for part in split_text("x" * 1000, test=True).values()] == [900, 50, 50]


@given(st.text(min_size=1, max_size=97))
def test_known_text_survives_encoding(text):
    vocabulary = Vocabulary([text])
    tokens = vocabulary.encode(text)
    assert tokens.dtype == torch.int64
    assert vocabulary.decode(tokens) == text
    assert vocabulary.symbols == sorted(set(text))


def test_a_character_that_only_a_held_out_part_has_becomes_unknown():
    vocabulary = Vocabulary(["abba", "abc", "d"])
    assert vocabulary.unknown_characters == ["c", "d"]
    assert vocabulary.symbols == ["a", "b", UNKNOWN]
    assert vocabulary.decode(vocabulary.encode("cab z")) == f"{UNKNOWN}ab{UNKNOWN}{UNKNOWN}"


def test_without_an_unknown_token_an_unknown_character_is_named():
    with pytest.raises(DataError, match=r"no character 'z' \(position 2 of the text given\)"):
        Vocabulary(["abba", "ab"]).encode("abz")


def test_a_replacement_character_of_the_text_itself_is_one_symbol():
    assert Vocabulary([f"a{UNKNOWN}", "b"]).symbols == ["a", UNKNOWN]
