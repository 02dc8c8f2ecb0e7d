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
    sampler = SampledBpe(tokenizer.wrapped, 0.0, segmentations=2)
    assert [sampler.encode(sentence) for sentence in some] == [[tokens] * 2 for tokens in tokenizer.encode(some)]


def test_every_segmentation_says_the_same(tokenizer):
    sampler = SampledBpe(tokenizer.wrapped, 0.5, segmentations=20)
    found = sampler.encode(SENTENCES[1])
    assert len(set(map(tuple, found))) > 10
    assert set(tokenizer.decode(found)) == {SENTENCES[1].lower()}
    assert set(tokenizer.decode(sampler.encode(UNSEEN))) == {UNSEEN.lower()}


def test_what_is_drawn_follows_from_the_seed(tokenizer):
    def drawn(seed):
        sampler = SampledBpe(tokenizer.wrapped, 0.3, segmentations=2, seed=seed)
        return [sampler.encode(sentence) for sentence in SENTENCES]

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_merge_is_left_out_as_often_as_asked(monkeypatch):
    """A word of one merge: it is whole unless that was left out."""
    monkeypatch.setattr(bpe_dropout, "POOL", 10_000)
    tokenizer = Bpe(260).train(["ab ab"])
    found = SampledBpe(tokenizer.wrapped, 0.25, segmentations=4000).encode("ab")
    counts = collections.Counter(map(len, found))
    assert counts.keys() == {1, 2}
    assert counts[2] / 4000 == pytest.approx(0.25, abs=0.03)


def test_a_frequent_word_is_drawn_from_what_was_drawn_before(tokenizer, monkeypatch):
    monkeypatch.setattr(bpe_dropout, "POOL", 3)
    found = [tuple(tokens) for tokens in SampledBpe(tokenizer.wrapped, 0.5, segmentations=200).encode("straße")]
    assert set(found) == set(found[:3])
    assert len(set(found)) > 1


def test_only_so_many_words_are_remembered(tokenizer, monkeypatch):
    """A word that was forgotten is drawn anew."""
    monkeypatch.setattr(bpe_dropout, "POOL", 1)
    monkeypatch.setattr(bpe_dropout, "WORDS", 2)
    sampler = SampledBpe(tokenizer.wrapped, 0.5, segmentations=30)
    assert len(set(map(tuple, sampler.encode("straße")))) == 1
    assert len({tuple(sampler.encode(text)[0]) for text in ["a", "b", "straße"] * 20}) > 3
