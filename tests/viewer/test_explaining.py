"""Why a token was predicted, and what heads are worth: the numbers of `attnlab.inspection`, told beside each other."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch
from scipy import stats
from tests.viewer.example_runs import SENTENCES, TEXT, run_with_data, text_run, translation_run
from torch import nn

from attnlab.core.errors import DataError, RunError, SpecError
from attnlab.core.files import read_json
from attnlab.inspection import ablate, gradient_times_input, integrated_gradients
from attnlab.studies.define.assemble import build_task
from attnlab.studies.using.measured import measured_run
from attnlab.studies.using.parts import Ablations, held_out, measure_parts
from attnlab.studies.using.trained import load_run
from attnlab.viewer.inside import explaining, measuring
from attnlab.viewer.inside.asked import Asked
from attnlab.viewer.inside.explaining import HIDDEN, STEPS
from attnlab.viewer.inside.looking import run_in_view

MIXER = "stack.blocks.1.mixer"
PIECE = 9


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """Return a language model: as a run, in view, and the tokens of a text."""
    folder = text_run(tmp_path_factory.mktemp("text"))
    run = load_run(folder)
    return run, run_in_view(folder), run.task.codec.vocabulary.encode(TEXT)[None]


@pytest.mark.parametrize("off", [(), (f"{MIXER}:0",)])
def test_a_prediction_is_told_by_layers_and_by_parts(writer, off):
    run, view, tokens = writer
    with ablate(run.model, list(off)), torch.no_grad():
        logits = run.model(tokens)[0, PIECE - 1]
    token = tokens[0, PIECE]
    found = view.explain(Asked(TEXT, off=off), PIECE)
    assert found["token"] == TEXT[PIECE]
    assert found["lens"][-1]["probability"] == pytest.approx(float(logits.softmax(-1)[token]), abs=1e-5)
    assert len(found["lens"]) == 3, "the embedding and two layers"
    parts = found["parts"]
    assert sum(one["value"] for one in parts["parts"]) == pytest.approx(float(logits[token]), abs=1e-4)
    assert parts["logit"] == pytest.approx(float(logits[token]), abs=1e-5)
    assert ("inputs" in found) is False, "no head was named"
    if off:
        assert {one["name"]: one["value"] for one in parts["parts"]}.get(off[0], 0.0) == 0.0


def test_attention_stands_beside_gradients_and_interventions(writer, monkeypatch):
    monkeypatch.setattr(explaining, "ENOUGH_S", math.inf)
    run, view, tokens = writer
    token, query, head = int(tokens[0, PIECE]), PIECE - 1, 2
    found = view.explain(Asked(TEXT), PIECE, MIXER, head)
    where = {"position": query, "token": token}
    for name, scores in {
        "gradient": gradient_times_input(run.model, tokens, **where),
        "integrated": integrated_gradients(run.model, tokens, **where, steps=max(STEPS)),
    }.items():
        assert found["inputs"][name] == pytest.approx(scores.scores[0].tolist(), abs=1e-5)
        assert -1 <= found["inputs"]["tau"][name] <= 1
    edges = found["edges"]["keys"]
    assert [one["weight"] for one in edges] == sorted(found["inputs"]["attention"], reverse=True)[: len(edges)]
    assert len(edges) == HIDDEN
    with torch.no_grad():
        before = run.model(tokens)[0, query].log_softmax(-1)[token]
    with ablate(run.model, f"{MIXER}:{head}:{query}->{edges[1]['key']}", "hide"), torch.no_grad():
        change = float(before - run.model(tokens)[0, query].log_softmax(-1)[token])
    assert edges[1]["change"] == pytest.approx(change, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ([0.0, 0.009, -0.002], "disagree: it looks most at “a” (0), yet hiding any of its 3 strongest keys"),
        ([0.5, 0.1, -0.2], "It looks most at “a” (0), and hiding that changes the loss most: +0.500 nats."),
        ([0.1, 0.0, -0.2], "disagree: it looks most at “a” (0), yet hiding “c” (2) changes the loss more, −0.200 nats"),  # noqa: RUF001
        ([0.1], "looks at a single key here"),
    ],
)
def test_a_sentence_says_where_attention_and_intervention_disagree(changes, sentence):
    told = [{"key": key, "weight": 0.5, "change": change} for key, change in enumerate(changes)]
    assert sentence in explaining._sentence(told, "abc")


def test_no_more_keys_are_hidden_than_there_is_time_for(writer, monkeypatch):
    monkeypatch.setattr(explaining, "ENOUGH_S", 0.0)
    assert len(writer[1].explain(Asked(TEXT), PIECE, MIXER, 2)["edges"]["keys"]) == explaining.FEWEST


def test_what_comes_next_is_the_likeliest_where_nobody_knows(writer):
    run, view, tokens = writer
    found = view.explain(Asked(TEXT), len(TEXT))
    likeliest = int(run.model(tokens)[0, -1].argmax())
    assert found["token"] == run.task.codec.vocabulary.decode(torch.tensor([likeliest]))


def test_a_translation_is_explained_by_what_was_read(tmp_path):
    view = run_in_view(translation_run(tmp_path))
    asked = Asked(SENTENCES[0], "TWO DOGS")
    cross = view.explain(asked, 2, "decoder.blocks.0.cross", 1)
    assert (cross["token"], cross["inputs"]["side"]) == (" DOGS", 0)
    assert len(cross["inputs"]["integrated"]) == 4
    own = view.explain(asked, 2, "decoder.blocks.0.mixer", 0)
    assert (own["inputs"]["side"], len(own["inputs"]["gradient"])) == (1, 3)
    encoder = view.explain(asked, 2, "encoder.blocks.0.mixer", 0)
    assert "does not ask at the positions of what is predicted; choose another head" in encoder["edges"]["error"]


@pytest.mark.parametrize("piece", [0, 16, -1, 99])
def test_what_was_not_predicted_is_not_explained(writer, piece):
    with pytest.raises(DataError, match="nothing was predicted there; choose a token that has a loss"):
        writer[1].explain(Asked(TEXT), piece)


def test_a_head_that_is_not_there_is_not_compared(writer):
    with pytest.raises(SpecError, match=f"{MIXER} has no head 9"):
        writer[1].explain(Asked(TEXT), PIECE, MIXER, 9)


def test_what_has_no_layers_says_so_and_tells_the_rest(tmp_path):
    view = run_in_view(translation_run(tmp_path, {"name": "rnn-additive", "d_model": 12, "hidden": 10}))
    found = view.explain(Asked(SENTENCES[0], "TWO DOGS"), 2)
    assert "has no list of layers" in found["lens"]["error"]
    assert 0 < found["probability"] < 1


def test_heads_are_worth_what_the_command_line_says(tmp_path, monkeypatch):
    run_with_data(tmp_path)
    monkeypatch.setattr(measuring, "POSITIONS", 60)
    view = run_in_view(tmp_path)
    measured = measure_parts(measured_run(load_run(tmp_path)), tokens=60)
    begun = view.heads()
    assert begun["kinds"] == measured.kinds
    assert begun["loss"] == pytest.approx(math.fsum(measured.losses) / len(measured.losses), abs=1e-5)
    worths = {part.place: measured.worth(part) for part in measured.parts if part.kind == "head"}
    assert begun["heads"] == list(worths)
    place = begun["heads"][5]
    assert view.worth(place, "zero") == {"place": place, "worth": pytest.approx(worths[place], abs=1e-5)}
    assert view.worth(place, "mean") != view.worth(place, "zero")
    with pytest.raises(SpecError, match="'stack:3' is none of the 8 heads that can be measured"):
        view.worth("stack:3", "zero")


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Return the view of a run whose task has three batches of held-out data, and these batches."""
    run_with_data(tmp_path)
    monkeypatch.setattr(measuring, "held_out", lambda *_: batches)
    task = build_task(read_json(tmp_path / "spec.json")["task"])
    (whole,) = held_out(nn.Identity(), task, "validation", 1)
    batches = [whole.rows(*rows) for rows in ((0, 2), (2, 3), (3, 4))]
    return run_in_view(tmp_path), load_run(tmp_path).model, task, batches


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_a_choice_of_heads_costs_what_each_sequence_loses_by_it(measured, how):
    view, model, task, batches = measured
    off = (f"{MIXER}:0", f"{MIXER}:3")
    told = [view.cost(Asked(off=off, how=how)) for _ in range(4)]
    changes = []
    for batch in batches:
        with_all = Ablations(model, task, [batch], how).losses()
        with ablate(model, list(off), how):
            without = Ablations(model, task, [batch], how).losses()
        changes += [one - other for one, other in zip(without, with_all, strict=True)]
    interval = stats.ttest_1samp(changes, 0).confidence_interval(0.95)
    found = {"cost": fmean(changes), "low": interval.low, "high": interval.high}
    assert {name: told[2][name] for name in found} == pytest.approx(found, abs=1e-6)
    assert [(one["sequences"], one["positions"], one["done"]) for one in told] == [
        (2, 40, False),
        (3, 60, False),
        (4, 80, True),
        (4, 80, True),
    ]
    assert told[3] == told[2]
    assert view.cost(Asked(off=off[:1], how=how))["sequences"] == 2, "another choice begins anew"


def test_a_single_head_costs_what_it_is_worth(measured):
    view, *_ = measured
    asked = Asked(off=(f"{MIXER}:2",))
    while not (told := view.cost(asked))["done"]:
        pass
    assert told["cost"] == pytest.approx(view.worth(f"{MIXER}:2", "zero")["worth"], abs=1e-6)


def test_no_more_is_measured_than_there_is_time_for(measured, monkeypatch):
    monkeypatch.setattr(measuring, "ENOUGH_S", 0.0)
    told = measured[0].cost(Asked(off=(f"{MIXER}:0",)))
    assert (told["sequences"], told["done"]) == (2, True)


def test_one_sequence_has_no_interval(measured):
    view, _, _, batches = measured
    batches[0] = batches[0].rows(0, 1)
    told = view.cost(Asked(off=(f"{MIXER}:0",)))
    assert (told["sequences"], told["low"], told["high"]) == (1, None, None)
    with pytest.raises(SpecError, match="there is no head 9, only 4, counted from 0"):
        view.cost(Asked(off=(f"{MIXER}:9",)))


def test_heads_of_a_model_without_attention_cannot_be_measured(ran):
    subject = measured_run(load_run(ran / "plain" / "seed-0"))
    with pytest.raises(RunError, match="computes no attention that can be seen, so that it has no heads to measure"):
        measuring.HeldOutHeads.of(subject)


def test_a_sequence_of_numbers_is_told_with_its_error(ran):
    folder = ran / "with-attention" / "seed-1"
    run, view = load_run(folder), run_in_view(folder)
    example = read_json(ran / "with-attention" / "seed-0" / "inside.json")["predictions"]["items"][0]
    values, wanted = tuple(example["input"]), tuple(example["target"])
    layer = view.look(Asked(values=values))["layers"][0]["name"]
    with ablate(run.model, f"{layer}:1"), torch.no_grad():
        off = run.model(torch.tensor(values)[None, :, None]).flatten()
    told = view.look(Asked(values=values, wanted=wanted, off=(f"{layer}:1",)))["series"]
    assert told["prediction"] == pytest.approx(off.tolist(), abs=1e-5)
    assert told["prediction_error"] == pytest.approx(float((off - torch.tensor(wanted)).square().mean()), abs=1e-5)
    assert told["before_error"] != told["prediction_error"]
    assert view.look(Asked(values=values))["series"]["prediction_error"] is None
    with pytest.raises(DataError, match="the sequence has 3 numbers and this model reads 100"):
        view.look(Asked(values=(1.0, 2.0, 3.0)))
    with pytest.raises(DataError, match="the wanted sequence has 1 numbers and this model reads 100"):
        view.look(Asked(values=values, wanted=(1.0,)))
    with pytest.raises(DataError, match="nothing was predicted there"):
        view.explain(Asked(values=values), 3)
