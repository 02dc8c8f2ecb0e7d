"""A module of a person's own in view: called as it wants to be, told in its own tokens, and in a process of its own."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from statistics import fmean

import pytest
import torch
import torch.nn.functional as F
from tests.viewer.test_looking import numbers, tokens_of

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import DataError, ModuleError, RunError, SpecError
from attnlab.inspection import ablate, capture
from attnlab.strangers.loading.loading import load
from attnlab.studies.using.parts import held_out
from attnlab.tasks.char_lm.char_lm import CharLM
from attnlab.viewer import server
from attnlab.viewer.inside import measuring
from attnlab.viewer.inside.apart import AnsweringApart
from attnlab.viewer.inside.asked import Asked
from attnlab.viewer.inside.own import OwnModule, own_in_view

MINE = """
    import os
    import time
    import torch
    from torch import nn

    class Writer(nn.Module):
        '''A causal language model.'''
        def __init__(self, vocab_size, d_model=12):
            super().__init__()
            self.tokens = nn.Embedding(vocab_size, d_model)
            self.attention = nn.MultiheadAttention(d_model, 3, batch_first=True)
            self.out = nn.Linear(d_model, vocab_size)
            self.register_buffer('hidden', torch.ones(19, 19, dtype=torch.bool).triu(1))
        def forward(self, tokens):
            x, length = self.tokens(tokens), tokens.shape[1]
            return self.out(x + self.attention(x, x, x, attn_mask=self.hidden[:length, :length])[0])

    class Tagger(nn.Module):
        def __init__(self, vocab_size, d_model=12):
            super().__init__()
            self.tokens = nn.Embedding(vocab_size, d_model)
            self.attention = nn.MultiheadAttention(d_model, 3, batch_first=True)
            self.out = nn.Linear(d_model, vocab_size)
        def forward(self, tokens):
            x = self.tokens(tokens)
            return self.out(x + self.attention(x, x, x)[0])

    class Falling(nn.Linear):
        def __init__(self, d_model=8):
            super().__init__(d_model, d_model)
        def forward(self, x):
            if x.shape[1] == 5:
                os._exit(5)
            if x.shape[1] == 6:
                time.sleep(999)
            return super().forward(x)

    trained = Writer(8)
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    picture = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1))
"""
TEXT = "a cat and a dog"


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """Return a function that names a class of a person's file."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(textwrap.dedent(MINE))
    (folder / "text.txt").write_text(TEXT)

    def name(what, text=False, causal=None, **arguments):
        return OwnModule(f"{folder / 'mine.py'}:{what}", arguments, str(folder / "text.txt") if text else "", causal)

    return name


@pytest.fixture(scope="module")
def writer(mine):
    """Return a language model of a person's own, in view of a text."""
    view, begin = own_in_view(mine("trained", text=True))
    return view, begin, load(mine("trained").target).module.eval()


def test_its_tokens_are_the_characters_of_a_text_and_cost_what_it_says(writer):
    view, begin, same = writer
    assert begin == {"name": "Writer", "text": TEXT, "measures": True, "kind": "module"}
    tokens = torch.tensor([[sorted(set(TEXT)).index(one) for one in TEXT]])
    wanted = F.cross_entropy(same(tokens)[0, :-1], tokens[0, 1:], reduction="none").tolist()
    told = view.look(Asked(TEXT))
    assert tokens_of(told, "loss") == [None, *(pytest.approx(one, abs=1e-4) for one in wanted), None]
    assert told["notes"] == ["Called as forward(tokens), batch-first."]
    with ablate(same, "attention:1"), torch.no_grad(), capture(same) as trace:
        off = F.cross_entropy(same(tokens)[0, :-1], tokens[0, 1:], reduction="none").tolist()
    told = view.look(Asked(TEXT, off=("Writer.attention:1",)))
    assert tokens_of(told, "loss")[1:-1] == pytest.approx(off, abs=1e-4)
    seen = view.head_map(Asked(TEXT), "Writer.attention", 2)
    torch.testing.assert_close(numbers(seen["values"], seen["shape"]), trace["attention"].weights[0, 2].double())


def test_a_prediction_of_it_is_explained(writer, mine):
    view, _, _ = writer
    found = view.explain(Asked(TEXT), 4, "Writer.attention", 1)
    assert found["token"] == TEXT[4]
    assert "has no list of layers" in found["lens"]["error"]
    assert len(found["inputs"]["gradient"]) == len(TEXT)
    assert {one["key"] for one in found["edges"]["keys"]} <= {0, 1, 2, 3}
    with pytest.raises(RunError, match="there are no data to measure heads on: a model of your own needs --text"):
        own_in_view(mine("Tagger", text=True))[0].heads()


def test_its_heads_are_measured_on_the_end_of_the_text(mine, tmp_path):
    long = tmp_path / "long.txt"
    long.write_text(TEXT * 26)  # a tenth is two windows of 19 and what the last one predicts
    view, _ = own_in_view(replace(mine("Writer", causal=True), text=str(long)))
    found = view.heads()
    assert found["heads"] == [f"Writer.attention:{head}" for head in range(3)]
    assert found["data"] == "the last tenth of the text"
    assert set(found["kinds"]) == set(found["heads"])
    model = view._model
    batches = held_out(model, CharLM(str(long), 19), "validation", measuring.POSITIONS)
    with torch.no_grad(), ablate(model, "Writer.attention:1"):
        off = fmean(F.cross_entropy(model(*one.inputs).flatten(0, 1), one.targets.flatten()).item() for one in batches)
    assert view.worth("Writer.attention:1", "zero")["worth"] == pytest.approx(off - found["loss"], abs=1e-5)


def test_an_end_with_characters_of_its_own_is_not_measured(mine, tmp_path):
    text = tmp_path / "other.txt"
    text.write_text(TEXT * 30 + "xyz!" * 10)
    view, _ = own_in_view(replace(mine("Writer", causal=True), text=str(text)))
    with pytest.raises(DataError, match="its last tenth has characters that stand nowhere before; measure on a longer"):
        view.heads()


def test_tokens_are_typed_as_numbers_where_there_is_no_text(mine):
    view, begin = own_in_view(mine("Writer", vocab_size=7))
    assert begin["text"].split() == [str(place % 7) for place in range(16)]
    assert tokens_of(view.look(Asked("3 6 0")), "text") == ["3 ", "6 ", "0 ", ""]
    for text, sentence in {
        " ": "there is no text to look at",
        "3 six": "tokens are numbers with blanks between them; to type texts, start a module with --text",
        "3 7": "there is no token 7, only 7, counted from 0",
        "0 " * 20: "the text has 20 tokens and this model reads at most 19; shorten it",
    }.items():
        with pytest.raises(DataError, match=sentence):
            view.look(Asked(text))


def test_one_that_sees_both_sides_is_not_judged_by_what_it_sees(mine):
    told = own_in_view(mine("Tagger", text=True))[0].look(Asked(TEXT))
    assert told["vocab_size"] == 0
    assert "Nothing says that it hides later positions" in told["notes"][-1]
    assert len(told["layers"]) == 1
    assert own_in_view(mine("Tagger", text=True, causal=True))[0].look(Asked(TEXT))["vocab_size"] == len(set(TEXT))


def test_vectors_stand_for_tokens_where_it_takes_vectors(mine):
    view, _ = own_in_view(mine("layer"))
    told = view.look(Asked("0 1 2 0"))
    assert "every token is given a random one" in told["notes"][1]
    assert "no predictions and no losses" in told["notes"][2]
    weights = numbers(view.head_map(Asked("0 1 2 0"), "MultiheadAttention", 3)["values"], (4, 4))
    torch.testing.assert_close(weights[0], weights[3])
    assert len(set(weights[0].tolist())) == 3, "the same token is looked at alike, wherever it stands"


@pytest.mark.parametrize(
    ("what", "arguments", "error", "sentence"),
    [
        ("Nothing", {}, SpecError, "Nothing"),
        ("picture", {}, ModuleError, "reads images; sequences alone can be looked at"),
        ("Writer", {"vocab_size": 3}, SpecError, "the text has 8 different characters and .* knows 3 tokens"),
    ],
)
def test_what_cannot_be_in_view(mine, what, arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        own_in_view(mine(what, text=True, **arguments))


def test_a_text_that_is_not_there(mine, tmp_path):
    with pytest.raises(DataError, match=r"no file .*none\.txt"):
        own_in_view(OwnModule(mine("Writer").target, {}, str(tmp_path / "none.txt")))
    view, _ = own_in_view(mine("Writer", text=True))
    with pytest.raises(DataError, match="the text given has no character 'z'; type characters that it has"):
        view.look(Asked("a zebra"))


def test_its_code_runs_in_a_process_that_may_end(mine, monkeypatch):
    ask = AnsweringApart(mine("Falling"))
    told = ask("look", {"text": "0 1"})
    assert (told["layers"], len(told["sides"][0]["tokens"])) == ([], 2)
    with pytest.raises(SpecError, match="type some"):
        ask("look", {"text": ""})
    with pytest.raises(SpecError, match="the process that ran the model ended with exit code 5; it is begun anew"):
        ask("look", {"text": "0 1 2 3 4"})
    assert ask("look", {"text": "0 1"})["sides"] == told["sides"]
    monkeypatch.setattr(ask, "_limit_s", 0.5)  # begun already, so that nothing else takes long
    with pytest.raises(SpecError, match=r"gave no sign of life for 0.5 s.* and was ended; it is begun anew"):
        ask("look", {"text": "0 1 2 3 4 5"})


def test_on_the_command_line_a_module_is_named_with_what_it_is_made_of(mine, monkeypatch, capfd, tmp_path):
    shown = []
    monkeypatch.setattr(server, "serve", lambda one, **_: shown.append(one))
    own = mine("Writer", text=True, causal=False, d_model=6)
    words = ["view", own.target, "--text", own.text, "--arg", "d_model=6", "--not-causal", "--no-open"]
    assert call(words) == FINE
    assert shown == [own]
    assert call(["view", str(tmp_path), "--arg", "d_model=3"]) == WRONG_USE
    assert "--arg is of a module, FILE.py:Name" in " ".join(capfd.readouterr().err.split())
    assert call(["view", str(tmp_path), "--text", own.text]) == WRONG_USE
    assert "--text is of a module, FILE.py:Name, or of a checkpoint" in " ".join(capfd.readouterr().err.split())
    assert call(["view", str(tmp_path), "--causal"]) == WRONG_USE
    assert "--causal is of a module, FILE.py:Name" in " ".join(capfd.readouterr().err.split())
