"""Learning a few items by heart: what can be trained does, what is broken does not, and both are said."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from tests.studies.conftest import TINY

import attnlab
from attnlab.cli import FAILED, FINE, WRONG_USE, call
from attnlab.cli.overfit import curve
from attnlab.core.errors import SpecError
from attnlab.explain import overfit
from attnlab.explain.overfit import BY_HEART, Memory, _FewItems
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.define.study import parse_study

CUT = """
from torch import nn
import attnlab

attnlab.touched = True  # what it does to the process stays there

class Cut(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
    def forward(self, x):
        return self.linear(x).detach() * 0
"""


@pytest.fixture
def study(tmp_path):
    """Return a study whose items are learned within a second, beside a variant that sees nothing of them."""
    (tmp_path / "mine.py").write_text(CUT)
    said = copy.deepcopy(TINY)
    said["model"] |= {"channels": 16, "kernel_size": 9}
    said["variants"] = {"plain": {}, "cut": {"mixer": f"{tmp_path}/mine.py:Cut", "mixer_at": 1}}
    said["training"] = {"lr": 0.01}
    return said


def test_what_can_be_trained_learns_and_what_sees_nothing_does_not(study):
    told = []
    (plain,) = overfit(parse_study(study), variants=["plain"], items=5, seconds=90.0, on_memory=told.append)
    (cut,) = overfit(parse_study(study), variants=["cut"], items=5, seconds=0.3, on_memory=told.append)
    assert told == [plain, cut]
    assert (plain.variant, plain.by_heart, plain.verdict) == ("plain", True, "learned by heart")
    assert plain.curve[0] == (0, plain.start)
    assert plain.curve[-1] == (plain.steps, plain.end)
    assert plain.end <= BY_HEART * plain.same_answer < plain.start
    assert (cut.variant, cut.by_heart) == ("cut", False)
    assert cut.end >= 0.9 * cut.same_answer
    assert not hasattr(attnlab, "touched")


def test_only_the_variants_that_are_asked_for_and_no_more_items_than_there_are(study):
    (one,) = overfit(parse_study(study), variants=["plain"], items=1000, seconds=0.03)
    assert (one.variant, one.items) == ("plain", 20)


def test_the_same_answer_for_all_is_the_best_constant(study):
    task = build_task(study["task"])
    few = _FewItems(task, 7)
    targets = task.train_batch(0, 0).targets[:7]
    model = build_model(study["model"], task)
    assert few.same_answer(model) == pytest.approx(float(targets.var(correction=0)), rel=1e-4)


def test_the_same_answer_in_a_text_is_how_often_each_character_comes(tmp_path):
    (tmp_path / "text.txt").write_text("abacabad" * 100)
    task = build_task({"name": "char-lm", "text": str(tmp_path / "text.txt"), "context": 16, "batch": 5})
    few = _FewItems(task, 5)
    shares = torch.bincount(task.train_batch(0, 0).targets.flatten()).float()
    shares = shares[shares > 0] / shares.sum()
    model = build_model({"name": "decoder", "n_layers": 1, "d_model": 8, "mixer": "none"}, task)
    assert few.same_answer(model) == pytest.approx(float(-(shares * shares.log()).sum()), rel=1e-3)


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        (0.05, "learned by heart"),
        (0.5, "not learned: 50% of the loss of one answer for all is left"),
        (1.2, "learned nothing that the same answer for all does not give"),
        (math.nan, "its loss is not a number"),
    ],
)
def test_what_came_of_it_is_said(end, verdict):
    assert Memory("one", 20, 1.0, 2.0, end, 0.1, 10, 1.0, ()).verdict == verdict


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"variants": ["plian"]}, "'plian' is no variant of the study; did you mean 'plain'"),
        ({"items": 0}, "items must be 1 or more and seconds more than 0; got 0 and"),
        ({"seconds": -1.0}, "items must be 1 or more and seconds more than 0; got 20 and -1"),
        ({"seconds": math.inf}, "got 20 and inf"),
    ],
)
def test_what_cannot_be_asked_is_said(study, wrong, told):
    with pytest.raises(SpecError, match=told):
        overfit(parse_study(study), **wrong)


def test_the_command_prints_curves_and_says_by_its_code_whether_all_learned(study, tmp_path, capsys):
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study))
    words = ["overfit", str(path), "--items", "5", "--variant"]
    assert call([*words, "plain", "--seconds", "90"]) == FINE
    printed = capsys.readouterr().out
    assert "plain: learned by heart" in printed
    assert "█" in printed
    assert call([*words, "cut", "--seconds", "0.1", "--json"]) == FAILED
    (cut,) = json.loads(capsys.readouterr().out)
    assert (cut["variant"], cut["by_heart"]) == ("cut", False)
    assert call([*words, "cat"]) == WRONG_USE
    assert "did you mean 'cut'" in capsys.readouterr().err


def test_a_curve_has_the_first_and_the_last_loss_and_goes_on_past_what_is_no_number():
    assert curve([1.0] + [0.5] * 99 + [0.1])[0] == "█"
    assert curve([1.0] + [0.5] * 99 + [0.1])[-1] == "▁"
    assert len(curve([1.0] * 1000)) <= 33
    assert curve([1.0, math.nan, 0.1]) == "██▁"
    assert curve([]) == ""
