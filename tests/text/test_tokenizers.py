"""Tokenizers give back what they were given, and none is stopped by a character it never saw."""

from __future__ import annotations

import json

import pytest

from attnlab.core.errors import DataError, SpecError
from attnlab.text.tokenizers import BEGIN_TOKEN, END_TOKEN, PAD_TOKEN, TOKENIZERS, Bpe, Characters, Tokenizer, Words

SENTENCES = [
    "Ein Hund läuft über die Wiese.",
    "Zwei Hunde laufen.",
    "A dog runs across the meadow.",
    "Two dogs run.",
    "Men's T-shirts (two), 3.5 m  long ...",
] * 3
UNSEEN = "Ünïcode 漢字 🙂 never seen"


@pytest.fixture(params=TOKENIZERS)
def name(request):
    return request.param


@pytest.fixture
def tokenizer(name):
    return TOKENIZERS[name]().train(SENTENCES)


def test_sentences_come_back(tokenizer):
    assert tokenizer.decode(tokenizer.encode(SENTENCES)) == SENTENCES


def test_marks_have_the_same_numbers_everywhere(tokenizer):
    assert tokenizer.pieces([PAD_TOKEN, BEGIN_TOKEN, END_TOKEN]) == ["<pad>", "<begin>", "<end>"]
    assert min(min(tokens) for tokens in tokenizer.encode(SENTENCES)) > END_TOKEN
    assert tokenizer.decode([[BEGIN_TOKEN, *tokenizer.encode(["dog"])[0], END_TOKEN, PAD_TOKEN]]) == ["dog"]


def test_marks_in_a_text_are_text(name, tokenizer):
    """A sentence that contains the name of a mark does not end there."""
    tokens = tokenizer.encode(["a <end> b"])[0]
    assert END_TOKEN not in tokens
    assert name == "words" or tokenizer.decode([tokens]) == ["a <end> b"]


def test_what_was_never_seen(name, tokenizer):
    (tokens,) = tokenizer.encode([UNSEEN])
    assert max(tokens) < tokenizer.size
    never = "<unknown>"
    assert tokenizer.decode([tokens]) == [UNSEEN if name != "words" else " ".join([never] * 5)]


def test_an_empty_sentence(tokenizer):
    assert tokenizer.encode(["", "dog"])[0] == []
    assert tokenizer.decode([[]]) == [""]


def test_saved_and_read_again(tokenizer):
    again = Tokenizer.from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert again.size == tokenizer.size
    assert again.encode([*SENTENCES, UNSEEN]) == tokenizer.encode([*SENTENCES, UNSEEN])


def test_training_twice_gives_the_same(name, tokenizer):
    assert TOKENIZERS[name]().train(iter(SENTENCES)).to_json() == tokenizer.to_json()


def test_lower_case(name):
    """Capitals are read as small letters, those of both sides, also where one was never seen."""
    tokenizer = TOKENIZERS[name](lowercase=True).train(SENTENCES)
    assert tokenizer.lowercase
    assert not TOKENIZERS[name]().train(SENTENCES).lowercase
    assert tokenizer.encode(["EIN HUND LÄUFT"]) == tokenizer.encode(["ein hund läuft"])
    assert tokenizer.decode(tokenizer.encode(SENTENCES)) == [sentence.lower() for sentence in SENTENCES]
    assert not any(piece.isupper() for piece in tokenizer.wrapped.get_vocab() if len(piece) == 1 and name != "bpe")
    again = Tokenizer.from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert again.lowercase
    assert again.encode(SENTENCES) == tokenizer.encode(SENTENCES)


def test_pieces_are_read_by_a_person(tokenizer):
    (tokens,) = tokenizer.encode(["Zwei Hunde laufen."])
    assert "".join(tokenizer.pieces(tokens)).strip() == "Zwei Hunde laufen."


def test_bytes_that_are_a_part_of_a_character_are_written_as_such():
    few = Bpe(259).train(SENTENCES)
    assert few.pieces(few.encode([" \u20ac1"])[0]) == [" ", r"\xe2", r"\x82", r"\xac", "1"]
    assert few.decode(few.encode(["\u20ac \ufffd"])) == ["\u20ac \ufffd"]


def test_more_merges_give_fewer_tokens():
    few, many = Bpe(260).train(SENTENCES), Bpe(300).train(SENTENCES)
    assert (few.size, many.size) == (260, 300)
    assert len(many.encode(SENTENCES)[0]) < len(few.encode(SENTENCES)[0]) <= len(SENTENCES[0].encode())


def test_the_most_frequent_words_are_kept():
    tokenizer = Words(6).train(["a a a b b c"])
    assert tokenizer.pieces(tokenizer.encode(["a b c"])[0])[:2] == [" a", " b"]
    assert tokenizer.size == 6


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Bpe(258), "vocab_size must be at least 259"),
        (lambda: Words(4), "must leave room for a word beside 4"),
        (lambda: Bpe(dropout=1.0), "dropout of a tokenizer must be from 0 to below 1; got 1.0"),
        (lambda: Bpe(dropout=-0.1), "dropout of a tokenizer must be from 0 to below 1; got -0.1"),
        (lambda: Bpe(dropout=0.1, segmentations=0), "segmentations must be at least 1; got 0"),
    ],
)
def test_values_out_of_range(make, text):
    with pytest.raises(SpecError, match=text):
        make()


@pytest.mark.parametrize("make", [Bpe, Characters, Words])
def test_nothing_to_be_trained_on(make):
    with pytest.raises(DataError, match="needs at least one sentence"):
        make().train([])


def test_what_is_no_tokenizer():
    with pytest.raises(DataError, match="this is no tokenizer that can be read"):
        Tokenizer.from_json({"version": "1.0"})
    other = json.loads(json.dumps(Words().train(["a b"]).to_json()).replace("<begin>", "<s>"))
    with pytest.raises(DataError, match="the first tokens of a tokenizer must be <pad>, <begin>, <end>"):
        Tokenizer.from_json(other)
