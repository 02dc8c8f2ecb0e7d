"""Unknown words of translations: what they stand for, by attention or by place, and what takes their place."""

from __future__ import annotations

import pytest
import torch
from tests.viewer.example_runs import translation_run

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import SpecError
from attnlab.core.files import read_json, write_json
from attnlab.inspection import capture
from attnlab.models import AdditiveRnn, ByteNet, ConvS2S, EncoderDecoder, Gnmt
from attnlab.studies.using.alignment import attention_over_source
from attnlab.studies.using.trained import load_run, translate
from attnlab.studies.using.unknown_words import with_known_words
from attnlab.tasks.codecs import SentenceCodec
from attnlab.tasks.translation.translation import Translation
from attnlab.text.tokenizers import Words

TOKENIZER = Words().train(["two dogs run .", "zwei Hunde laufen , ja ."])
DICTIONARY = {" Fido": " Fiffi", " two": " zwei", " dogs": " Hunde", " sees": " sieht"}
CODEC = SentenceCodec(TOKENIZER, ("en", "de"), 9, 2, 0.6, DICTIONARY)
SOURCES = ["two dogs run .", "Fido run .", "two dogs sees Rex-Fido run run ."]
SIZE = TOKENIZER.size
KINDS = {
    "steps": lambda: AdditiveRnn(SIZE, SIZE, d_model=6, hidden=5),
    "residual": lambda: Gnmt(SIZE, SIZE, d_model=6, n_layers=2),
    "convs2s": lambda: ConvS2S(SIZE, SIZE, 9, d_model=6, n_layers=2),
    "transformer": lambda: EncoderDecoder(
        SIZE, SIZE, 9, d_model=6, n_layers=2, mixer={"name": "attention", "n_heads": 2}
    ),
}


def model_of(kind):
    torch.manual_seed(0)
    model = KINDS[kind]().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)
    return model


def written(*sentences):
    return TOKENIZER.encode(list(sentences))


def cross_maps(model, source, target):
    """The maps over the source of one sentence, by a way of their own: layers and heads are the first axis."""
    with torch.no_grad(), capture(model) as trace:
        model(source, target)
    if isinstance(model, EncoderDecoder):
        return torch.cat([one.weights[0] for name, one in trace.items() if "cross" in name])
    found = [one.weights[0] for one in trace.values()]
    return torch.cat(found, dim=1) if found[0].shape[1] == 1 else torch.cat(found)  # (maps, t_len, s_len)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_word_stands_for_what_is_looked_at_most(kind):
    model = model_of(kind)
    translations = written("zwei X laufen X .", "X X X", "X Y ja Z , X ja X .")
    assert len(translations[2]) == CODEC.max_length == len(TOKENIZER.encode(SOURCES)[2])
    found = with_known_words([model], CODEC, SOURCES, translations)
    for source, tokens, text in zip(SOURCES, translations, found, strict=True):
        words, (read,) = TOKENIZER.words([source])[0], TOKENIZER.encode([source])
        begun = torch.tensor([[1, *tokens]])[:, : CODEC.max_length]
        looks = cross_maps(model, torch.tensor([read]), begun).mean(dim=0)
        expected = [
            DICTIONARY.get(words[at], words[at]) if token == TOKENIZER.unknown else piece
            for token, piece, at in zip(tokens, TOKENIZER.pieces(tokens), looks.argmax(-1).tolist(), strict=False)
        ]
        assert text.split(" ")[:4] == "".join(expected).removeprefix(" ").split(" ")[:4]


def test_maps_of_one_length_within_a_side_are_not_taken_for_maps_of_the_source():
    model = model_of("transformer")
    source, target = torch.randint(3, SIZE, (2, 5)), torch.randint(3, SIZE, (2, 4))
    (looks,) = attention_over_source(model, source, target)
    expected = torch.stack(
        [cross_maps(model, *(side[i : i + 1] for side in (source, target))).mean(0) for i in range(2)]
    )
    torch.testing.assert_close(looks, expected)


def test_without_attention_an_unknown_word_stands_for_the_nearest_that_is_not_translated():
    torch.manual_seed(0)
    model = ByteNet(SIZE, SIZE, d_model=6, n_sets=1, dilations=(1, 2)).eval()
    translations = written("zwei Hunde X .", "X laufen .", "zwei Hunde X X-X laufen laufen .")
    found = with_known_words([model], CODEC, SOURCES, translations)
    assert found == ["zwei Hunde run .", "Fiffi laufen .", "zwei Hunde sieht Rex-Fido laufen laufen ."]


def test_several_models_look_together_and_what_is_known_stays():
    models = [model_of("steps"), model_of("residual")]
    assert with_known_words(models, CODEC, SOURCES[:1], written("zwei Hunde laufen , ja .")) == [
        "zwei Hunde laufen , ja ."
    ]
    assert with_known_words(models, CODEC, [""], [()]) == [""]
    tokens = written("zwei X X X X")
    source, target = torch.tensor(TOKENIZER.encode(SOURCES[:1])), torch.tensor([[1, *tokens[0][:-1]]])
    words = TOKENIZER.words(SOURCES[:1])[0]
    looks = sum(cross_maps(one, source, target).mean(0) for one in models)
    expected = [DICTIONARY.get(words[at], words[at]).strip() for at in looks[1:].argmax(-1).tolist()]
    assert with_known_words(models, CODEC, SOURCES[:1], tokens)[0].split() == ["zwei", *expected]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part in ("train", "val"):
        (folder / f"{part}.en").write_text("a dog\na zebra\na dog\n" * 3, encoding="utf-8")
        (folder / f"{part}.de").write_text("ein Hund\nein Streifenpferd\nein Hund\n" * 3, encoding="utf-8")
    return str(folder)


def test_the_task_learns_words_that_have_no_token(corpus):
    task = Translation(corpus, tokenizer={"name": "words", "vocab_size": 9}, replace_unknown=True)
    assert task.codec.dictionary == {" a": " ein", " dog": " Hund", " zebra": " Streifenpferd"}
    assert SentenceCodec.from_json(task.codec.to_json()).to_json() == task.codec.to_json()
    assert len(task.codec.encode(["zebra"])[0]) == 1
    assert task.codec.encode(["zebra"])[0] == [task.codec.tokenizer.unknown]


def test_it_is_for_words(corpus):
    with pytest.raises(SpecError, match="replace_unknown needs tokens that are words, such as tokenizer: words"):
        Translation(corpus, tokenizer={"name": "bpe", "vocab_size": 300}, replace_unknown=True)


@pytest.mark.filterwarnings("ignore:1 of 1 translations came to no end")
def test_the_commands(tmp_path, capsys):
    run = translation_run(tmp_path / "run", {"name": "rnn-additive", "d_model": 12, "hidden": 10})
    assert call(["translate", str(run), "two dogs", "--replace-unknown"]) == WRONG_USE
    assert "this run keeps no dictionary of words" in capsys.readouterr().err
    kept = read_json(run / "task.json")
    kept["codec"]["dictionary"] = {" two": " ZWEI"}
    write_json(run / "task.json", kept)
    trained = load_run(run)
    assert call(["translate", str(run), "two Rex", "--replace-unknown"]) == FINE
    assert capsys.readouterr().out == translate([trained], ["two Rex"], replace_unknown=True)[0] + "\n"
    with torch.no_grad():
        trained.model.logits.bias[trained.task.codec.tokenizer.unknown] += 1e3
    plain, replaced = (translate([trained], ["two Rex"], replace_unknown=one)[0] for one in (False, True))
    assert set(plain.split()) == {"<unknown>"}
    assert set(replaced.split()) <= {"ZWEI", "Rex"}
    other = translation_run(tmp_path / "other", tokenizer="bpe")
    with pytest.raises(SpecError, match="unknown words can be replaced where tokens are words"):
        translate([load_run(other)], ["two"], replace_unknown=True)
