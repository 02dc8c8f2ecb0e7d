"""Tokens on disk are those that were written, and a damaged store says so."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from attnlab.core.errors import DataError
from attnlab.text import token_store
from attnlab.text.token_store import TokenStore, TokenWriter


def write_tokens(folder, sentences):
    with TokenWriter(folder) as writer:
        for tokens in sentences:
            writer.put(tokens)
    return TokenStore([folder])


SENTENCES = [[5, 70_000, 3], [], [1], [2, 2, 2, 2]]


@pytest.mark.parametrize("at_a_time", [1, 2, 100])
def test_tokens_come_back(tmp_path, monkeypatch, at_a_time):
    monkeypatch.setattr(token_store, "AT_A_TIME", at_a_time)
    store = write_tokens(tmp_path / "store", iter(SENTENCES))
    assert [store[number].tolist() for number in range(len(store))] == SENTENCES
    assert store.lengths().tolist() == [3, 0, 1, 4]
    assert store[0].dtype == np.int64
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_no_sentence(tmp_path):
    store = write_tokens(tmp_path / "store", [])
    assert len(store) == 0
    assert store.lengths().tolist() == []


def test_a_failure_leaves_nothing_behind(tmp_path):
    def broken():
        yield [1]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_tokens(tmp_path / "store", broken())
    assert not list(tmp_path.iterdir())


def test_who_comes_second_takes_what_is_there(tmp_path):
    write_tokens(tmp_path / "store", SENTENCES)
    assert len(write_tokens(tmp_path / "store", SENTENCES)) == len(SENTENCES)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_store_that_was_cut_off(tmp_path):
    write_tokens(tmp_path / "store", SENTENCES)
    tokens = tmp_path / "store" / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"tokens.bin was changed after it was written; it is damaged"):
        TokenStore([tmp_path / "store"])
    for folder, seals in ((tmp_path, None), (tmp_path / "store", '{"tokens.bin": "none"}')):
        if seals:
            (folder / "seals.json").write_text(seals)
        with pytest.raises(DataError, match="holds no tokens that can be read"):
            TokenStore([folder])


def test_memory_does_not_grow_with_the_number_of_sentences(tmp_path):
    peaks = []
    for count in (20_000, 80_000):
        tracemalloc.start()
        store = write_tokens(tmp_path / str(count), itertools.repeat([7] * 20, count))
        assert store[count - 1].tolist() == [7] * 20
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_shards_are_one_store(tmp_path):
    for number, some in enumerate((SENTENCES, [], SENTENCES[:2])):
        write_tokens(tmp_path / str(number), some)
    store = TokenStore([tmp_path / str(number) for number in range(3)])
    assert [store[number].tolist() for number in range(len(store))] == [*SENTENCES, *SENTENCES[:2]]
    assert store.begins == [0, 4, 4, 6]
    assert store.lengths().tolist() == [3, 0, 1, 4, 3, 0]
    assert store.lengths(2).tolist() == [3, 0]
