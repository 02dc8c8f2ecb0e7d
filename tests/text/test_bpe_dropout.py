"""A sentence is cut in many ways, all of which say the same; without dropout, as Hugging Face cuts it."""

from __future__ import annotations

import collections

import pytest

from attnlab.text import bpe_dropout
from attnlab.text.bpe_dropout import SampledBpe
from attnlab.text.tokenizers import Bpe

SENTENCES = [
    "Ein Hund läuft über die Wiese.",
    "Zwei Hunde laufen über die Straße und Häuser.",
    "Men's T-shirts (two), 3.5 m  long ...",
    "",
] * 5
UNSEEN = "Ünïcode 漢字 🙂 never seen"


@pytest.fixture(scope="module")
def tokenizer():
    return Bpe(330, lowercase=True).train(SENTENCES)


def test_without_dropout_it_is_hugging_faces(tokenizer):
    some = [*SENTENCES, UNSEEN]
    assert SampledBpe(tokenizer.wrapped, 0.0).encode(some) == tokenizer.encode(some)


def test_every_segmentation_says_the_same(tokenizer):
    encode = SampledBpe(tokenizer.wrapped, 0.5).encode
    found = [tuple(encode([SENTENCES[1]])[0]) for _ in range(20)]
    assert len(set(found)) > 10
    assert set(tokenizer.decode(found)) == {SENTENCES[1].lower()}
    assert tokenizer.decode(encode([UNSEEN])) == [UNSEEN.lower()]


def test_what_is_drawn_follows_from_the_seed(tokenizer):
    def drawn(seed):
        return SampledBpe(tokenizer.wrapped, 0.3, seed=seed).encode(SENTENCES)

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_merge_is_left_out_as_often_as_asked(monkeypatch):
    """A word of one merge: it is whole unless that was left out."""
    monkeypatch.setattr(bpe_dropout, "POOL", 10_000)
    tokenizer = Bpe(260).train(["ab ab"])
    encode = SampledBpe(tokenizer.wrapped, 0.25).encode
    counts = collections.Counter(len(tokens) for tokens in encode(["ab"] * 4000))
    assert counts.keys() == {1, 2}
    assert counts[2] / 4000 == pytest.approx(0.25, abs=0.03)


def test_a_frequent_word_is_drawn_from_what_was_drawn_before(tokenizer, monkeypatch):
    monkeypatch.setattr(bpe_dropout, "POOL", 3)
    encode = SampledBpe(tokenizer.wrapped, 0.5).encode
    first = [tuple(tokens) for tokens in encode(["straße"] * 3)]
    assert set(map(tuple, encode(["straße"] * 200))) == set(first)
