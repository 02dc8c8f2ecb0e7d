"""A look at a model tells what the model computes: losses, guesses, weights, and what changes without some heads."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.viewer.example_runs import CONTEXT, SENTENCES, TEXT, text_run, translation_run

from attnlab.core.errors import DataError, RunError, SpecError
from attnlab.core.files import write_json
from attnlab.inspection import ablate, attention_maps, capture
from attnlab.studies.using.trained import load_run
from attnlab.studies.using.translating import Search, translations
from attnlab.viewer.inside.asked import Asked
from attnlab.viewer.inside.heads import THUMBNAIL
from attnlab.viewer.inside.kept import KeptMaps
from attnlab.viewer.inside.looking import run_in_view

MIXER = "stack.blocks.1.mixer"
CROSS = "decoder.blocks.0.cross"
LOSS = 1e-4  # float32, by two orders of the same sums


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """Return a language model: as a run, and in view."""
    folder = text_run(tmp_path_factory.mktemp("text"))
    return load_run(folder), run_in_view(folder)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """Return a translation model: as a run, and in view."""
    folder = translation_run(tmp_path_factory.mktemp("translation"))
    return load_run(folder), run_in_view(folder)


def tokens_of(told, name):
    return [token.get(name) for token in told["sides"][-1]["tokens"]]


def numbers(text, shape, kind="<f4"):
    return torch.tensor(np.frombuffer(base64.b64decode(text), kind).reshape(shape).astype("float64"))


def seen_in(run, *inputs):
    with torch.no_grad(), capture(run.model) as trace:
        run.model(*inputs)
    return trace


def read(run, text=TEXT):
    return run.task.codec.vocabulary.encode(text)[None]


def test_every_character_costs_what_the_model_says(writer):
    run, view = writer
    tokens = read(run)
    losses = F.cross_entropy(run.model(tokens)[0, :-1], tokens[0, 1:], reduction="none").tolist()
    told = view.look(Asked(TEXT))
    assert "".join(tokens_of(told, "text")) == TEXT
    assert tokens_of(told, "loss") == [None, *(pytest.approx(one, abs=LOSS) for one in losses), None]
    assert tokens_of(told, "before") == tokens_of(told, "loss")


def test_the_likeliest_characters_are_told_also_of_what_comes_next(writer):
    run, view = writer
    chances, ids = run.model(read(run))[0].softmax(-1).topk(5)
    guesses = tokens_of(view.look(Asked(TEXT)), "guesses")
    assert guesses[0] is None
    for found, wanted, tokens in zip(guesses[1:], chances.tolist(), ids, strict=True):
        assert "".join(text for text, _ in found) == run.task.codec.vocabulary.decode(tokens)
        assert [chance for _, chance in found] == pytest.approx(wanted, abs=LOSS)


def test_a_translation_is_read_as_in_training(translator):
    run, view = translator
    codec = run.task.codec
    source, target = (codec.encode([text])[0] for text in (SENTENCES[0], "TWO DOGS ."))
    logits = run.model(torch.tensor([source]), torch.tensor([[codec.marks.begin, *target]]))[0]
    losses = F.cross_entropy(logits, torch.tensor([*target, codec.marks.end]), reduction="none").tolist()
    told = view.look(Asked(SENTENCES[0], "TWO DOGS ."))
    assert [token["text"] for token in told["sides"][0]["tokens"]] == codec.tokenizer.pieces(source)
    assert tokens_of(told, "text") == ["<begin>", *codec.tokenizer.pieces(target), "<end>"]
    assert tokens_of(told, "loss") == [None, *(pytest.approx(one, abs=LOSS) for one in losses)]


def test_without_a_translation_the_models_own_is_judged(translator):
    run, view = translator
    own = translations([run.model], run.task.codec, [SENTENCES[1]], Search())[0].text
    codec = run.task.codec
    fits = codec.tokenizer.wrapped.encode(own, add_special_tokens=False).ids[: codec.max_length - 1]
    read = view.look(Asked(SENTENCES[1]))["sides"][1]["tokens"]
    assert [token["text"] for token in read[1:-1]] == codec.tokenizer.pieces(fits)
    assert view.write(Asked(SENTENCES[1])) == {"whole": own, "text": own}


def test_a_token_says_which_characters_it_stands_for(translator):
    _, view = translator
    told = view.look(Asked("two  dogs run", "TWO DOGS"))
    spans = [("two  dogs run"[slice(*token["span"])]).strip() for token in told["sides"][0]["tokens"]]
    assert [span for span in spans if span] == ["two", "dogs", "run"]
    assert tokens_of(told, "span")[0] is tokens_of(told, "span")[-1] is None


def test_a_map_is_what_was_captured(writer):
    run, view = writer
    seen = seen_in(run, read(run))[MIXER]
    length = len(TEXT)
    for head in range(4):
        found = view.head_map(Asked(TEXT), MIXER, head)
        assert found["shape"] == [length, length]
        torch.testing.assert_close(numbers(found["values"], (length, length)), seen.weights[0, head].double())
        assert found["norms"] == pytest.approx(seen.v[0, head // 2].norm(dim=-1).tolist()), "two heads share values"


def test_scores_are_told_where_a_weight_came_of_them(writer):
    run, view = writer
    found = view.head_map(Asked(TEXT), MIXER, 3, shown="scores")
    scores = numbers(found["values"], found["shape"])
    seen = torch.ones_like(scores).tril().bool()
    assert scores[~seen].isnan().all()
    torch.testing.assert_close(scores[seen], seen_in(run, read(run))[MIXER].scores[0, 3].double()[seen])


@pytest.mark.parametrize("length", [7, CONTEXT])
def test_small_maps_keep_every_large_weight(writer, length):
    run, view = writer
    text = (TEXT * 3)[:length]
    small = next(one for one in view.look(Asked(text))["layers"] if one["name"] == MIXER)
    size = min(length, THUMBNAIL)
    assert (small["shape"], small["thumbnail"]) == ([4, length, length], [size, size])
    pooled = numbers(small["thumbnails"], (4, size, size), "uint8") / 255 * small["max"]
    weights = seen_in(run, read(run, text))[MIXER].weights[0].double()
    torch.testing.assert_close(pooled.amax((1, 2)), weights.amax((1, 2)), atol=1 / 255, rtol=0)
    if length == size:
        torch.testing.assert_close(pooled, weights, atol=1 / 255, rtol=0)


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_heads_that_are_off_change_losses_and_later_maps(writer, how):
    run, view = writer
    off = (f"{MIXER.replace('1', '0')}:2", f"{MIXER}:0")
    with ablate(run.model, list(off), how=how):
        logits, trace = run.model(read(run))[0], seen_in(run, read(run))
    losses = F.cross_entropy(logits[:-1], read(run)[0, 1:], reduction="none").tolist()
    told = view.look(Asked(TEXT, off=off, how=how))
    assert tokens_of(told, "loss")[1:-1] == [pytest.approx(one, abs=LOSS) for one in losses]
    before = [pytest.approx(one, abs=LOSS) for one in tokens_of(view.look(Asked(TEXT)), "loss")[1:-1]]
    assert tokens_of(told, "before")[1:-1] == before
    assert losses != before
    found = view.head_map(Asked(TEXT, off=off, how=how), MIXER, 1)
    torch.testing.assert_close(numbers(found["values"], found["shape"]), trace[MIXER].weights[0, 1].double())


def test_a_translator_that_cannot_look_at_the_source_does_not_depend_on_it(translator):
    _, view = translator
    off = (f"{CROSS}:0", f"{CROSS}:1")
    first, second = (view.write(Asked(sentence, off=off)) for sentence in ("two dogs run .", "old cat sees ."))
    assert first["text"] == second["text"]
    assert first["whole"] != second["whole"]


def test_the_model_is_left_as_it_was(writer):
    _, view = writer
    before = view.look(Asked(TEXT))["sides"]
    view.look(Asked(TEXT, off=(f"{MIXER}:1",)))
    assert view.look(Asked(TEXT))["sides"] == before


def test_layers_say_whose_positions_their_axes_are(translator):
    _, view = translator
    told = view.look(Asked("two dogs run .", "TWO DOGS RUN"))  # both sides have four positions
    axes = {layer["name"]: tuple(layer["sides"]) for layer in told["layers"]}
    assert axes == {"encoder.blocks.0.mixer": (0, 0), "decoder.blocks.0.mixer": (1, 1), CROSS: (1, 0)}


def test_the_steps_of_a_recurrent_decoder_are_one_map(tmp_path):
    run = translation_run(tmp_path, {"name": "rnn-additive", "d_model": 12, "hidden": 10})
    view = run_in_view(run)
    (layer,) = view.look(Asked("two dogs run .", "TWO DOGS"))["layers"]
    assert layer["shape"] == [1, 3, 4]
    assert layer["sides"] == [1, 0], "found by their lengths"
    found = view.head_map(Asked("two dogs run .", "TWO DOGS"), layer["name"], 0)
    torch.testing.assert_close(numbers(found["values"], (3, 4)).sum(1), torch.ones(3).double())


def test_a_model_without_attention_still_has_losses(tmp_path):
    told = run_in_view(
        text_run(tmp_path, {"name": "decoder", "d_model": 12, "n_layers": 1, "mixer": "convolution"})
    ).look(Asked(TEXT))
    assert told["layers"] == []
    assert all(tokens_of(told, "loss")[1:-1])


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        (Asked(" \n"), DataError, "there is no text to look at; type some"),
        (Asked("a" * 42), DataError, "the text has 42 characters and this model reads at most 41; shorten it"),
        (Asked("a dög"), DataError, "the training text has no character 'ö' (position 3 of the text given)"),
        (Asked("a dog", off=("stack.blocks.0.mixer:4",)), SpecError, "there is no head 4, only 4, counted from 0"),
        (Asked("a dog", off=("stack.blocks.7.mixer:0",)), SpecError, "the model has no module 'stack.blocks.7.mixer'"),
        (Asked("a dog", off=("stack.blocks.0.mixer:0",), how="skip"), SpecError, "how must be one of zero, mean"),
    ],
)
def test_what_cannot_be_looked_at(writer, asked, error, text):
    with pytest.raises(error) as caught:
        writer[1].look(asked)
    assert text in str(caught.value)


def test_what_cannot_be_shown(writer):
    _, view = writer
    with pytest.raises(SpecError, match=f"{MIXER} has no head 4, only 4, counted from 0"):
        view.head_map(Asked(TEXT), MIXER, 4)
    with pytest.raises(SpecError, match=r"layer must be one of stack.blocks.0.mixer, .*; got 'stack'"):
        view.head_map(Asked(TEXT), "stack", 0)
    with pytest.raises(SpecError, match="shown must be one of weights, scores; got 'values'"):
        view.head_map(Asked(TEXT), MIXER, 0, shown="values")
    with pytest.raises(RunError, match="this model translates nothing"):
        view.write(Asked(TEXT))


def test_sentences_that_are_too_long(translator):
    with pytest.raises(DataError, match="the translation has 30 tokens and this model writes at most 29; shorten it"):
        translator[1].look(Asked("two dogs", "DOGS " * 30))
    with pytest.raises(DataError, match="sentence 1 has 31 tokens and this model reads at most 30"):
        translator[1].look(Asked("dogs " * 31))


def test_kept_maps_are_those_of_the_study(writer, tmp_path):
    run, _ = writer
    trace = seen_in(run, read(run))
    write_json(tmp_path / "inside.json", {"attention": attention_maps(trace, [list(TEXT)])})
    kept = KeptMaps.read(tmp_path / "inside.json")
    told = kept.look(Asked(""))
    assert tokens_of(told, "text") == list(TEXT)
    assert [layer["shape"] for layer in told["layers"]] == [[4, len(TEXT), len(TEXT)]] * 2
    found = kept.head_map(Asked(""), MIXER, 2)
    weights = trace[MIXER].weights[0, 2].double()
    torch.testing.assert_close(numbers(found["values"], found["shape"]), weights, atol=1 / 255, rtol=0)
    with pytest.raises(SpecError, match="heads of this run cannot be switched off: its maps were kept"):
        kept.look(Asked("", off=(f"{MIXER}:0",)))
    with pytest.raises(SpecError, match="shown must be one of weights; got 'scores'"):
        kept.head_map(Asked(""), MIXER, 2, shown="scores")
    write_json(tmp_path / "inside.json", {"attention": None})
    with pytest.raises(RunError, match="reads no text and has no attention: there is nothing to look at"):
        KeptMaps.read(tmp_path / "inside.json")
