"""Removing causes: one run tells which are worth more, and time is spent on those."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from attnlab.explain import explaining
from attnlab.explain.answer import Again, Answer, Share
from attnlab.explain.case import parse_case
from attnlab.explain.causes.candidates import unequal
from attnlab.explain.causes.cause import Cause, phase_of
from attnlab.explain.causes.known import Known
from attnlab.explain.explaining import explain
from attnlab.explain.possible import Impossible
from attnlab.explain.removing import Removing
from attnlab.explain.trials.effects import Estimate, effects
from attnlab.explain.trials.setups import Runs, Setup
from attnlab.explain.words import paragraph, what_next
from attnlab.studies.run.executor import InProcess

BASE = Setup("mine", {"name": "shapes"}, {"name": "cnn"}, {"lr": 1e-3, "budget": {"steps": 40}})
LOSS = {"much": 1.0, "little": 1.97, "nothing": 2.0, "fails": math.nan}
"""By cause what is lost without it; 2.0 with all of them, and 1.0 is expected."""


class _Measured:
    """Stand in for `Measuring`: what a set-up loses is read off the name that it was given, and noted with its seed."""

    seeds, fraction, comparable = range(3), 1.0, True

    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []
        self.case = SimpleNamespace(quantity=SimpleNamespace(distance=1.0, expected=1.0))
        self.runs = SimpleNamespace(of=lambda *_: None)

    def quantity(self, setups, seeds=None):
        title = setups["mine"].name.removeprefix("mine, ").removesuffix(" removed")
        found = {seed: LOSS.get(title, 2.0) + 0.01 * seed for seed in (self.seeds if seeds is None else seeds)}
        found |= {seed: 1.1 if seed % 2 == 0 else 2.2 for seed in found if title == "wavers"}
        self.made += [(title, seed) for seed in found]
        return found

    def late(self, *_):
        return False


def test_a_cause_that_changes_little_in_one_run_is_left_at_that():
    measuring, told = _Measured(), []
    removing = Removing(measuring, {"mine": BASE}, None, told.append)
    removing.carry([Cause(name, "set-up", "gone", {"mine": {"training": {"lr": 1.0}}}) for name in LOSS])
    assert [share.name for share in removing.shares] == ["much"]
    assert removing.without_effect == ["little", "nothing"]
    assert removing.not_tried == ["'fails' (its runs did not finish, or not in time)"]
    assert {seed for title, seed in measuring.made if title == "much"} == {0, 1, 2}
    assert {seed for title, seed in measuring.made if title in ("little", "nothing")} == {0}
    assert "without 'little': -0.03 in one run, and was left at that" in told


def test_a_cause_that_seems_much_and_is_not_decided_is_said_to_be_so():
    removing = Removing(_Measured(), {"mine": BASE}, None, lambda _: None)
    removing.carry([Cause("wavers", "set-up", "gone", {"mine": {"training": {"lr": 1.0}}})])
    assert (removing.shares, removing.without_effect, list(removing.undecided)) == ([], [], ["wavers"])
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 2.0, 1.0, 1.0, 3)
    answer = Answer(*seen, start=around(2.0), noise=True, end=around(2.0), undecided=removing.undecided, minutes=8.0)
    assert re.search(r"'wavers' may carry \+0.3\S* \[-\S+, \S+\], which 6 runs do not decide\.", paragraph(answer))
    assert what_next(answer) == "Decide whether 'wavers' carries it: --minutes 16 gives time for more runs."


def test_the_error_is_shared_with_causes_that_were_left_out():
    before, after = {"one": {0: 2.0, 1: 2.1, 2: 2.3}}, {"one": {0: 1.0, 1: 1.2, 2: 1.2}}
    alone, among = (effects(before, after, among=count)["one"] for count in (1, 8))
    assert among.mean == alone.mean
    assert among.high - among.low > 2 * (alone.high - alone.low)


def test_time_is_that_of_the_runs_before(tmp_path):
    executor = SimpleNamespace(run=lambda *_: None)
    runs = Runs(tmp_path, executor, lambda *_: None)
    assert runs.seconds_of([BASE], [0]) == 0.0
    runs.of([BASE], [0])
    assert runs.seconds_of([BASE], [0]) == 0.0
    longer = BASE.changed(training={"budget": {"steps": 160}})
    assert runs.seconds_of([longer], [0]) == pytest.approx(4 * runs.seconds_of([BASE], [1]))
    assert runs.seconds_of([BASE], [1]) > 0


def around(value):
    return Estimate(value, value - 0.01, value + 0.01, 3)


def test_a_module_as_a_whole_is_a_bug_in_it():
    share = Share("bug in Heads", "bug", "the lab's attention is used instead", around(0.9))
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.3, 2.3, 1.0, 3)
    answer = Answer(*seen, start=around(3.3), noise=True, shares=(share,), end=around(2.4))
    assert paragraph(answer).startswith("A bug in Heads carries most of it (90%).")


def test_a_cause_that_carries_half_stands_before_the_noise_that_is_left():
    share = Share("leaking split", "set-up", "nothing is shared", around(0.18))
    seen = ("case", "why?", "val_accuracy of 'mine'", "fraction", 0.69, 0.35, 1.0, 5)
    answer = Answer(*seen, start=around(0.51), noise=True, shares=(share,), end=around(0.33))
    assert answer.largest[0] == "leaking split"
    alone = replace(answer, shares=(), end=answer.start)
    assert alone.largest[0] == "noise"


def test_shortened_runs_are_told_beside_those_with_all_steps():
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.3, 2.3, 0.5, 3)
    answer = Answer(*seen, start=around(3.6), entire=around(3.3), noise=True, end=around(3.6))
    told = paragraph(answer)
    assert "gave 3.6 [3.59, 3.61], with 0.5 of the steps. With all steps they gave 3.3 [3.29, 3.31]: " in told
    assert "what was seen lies within their noise" in told
    assert "--minutes" in what_next(answer)


def test_of_ones_own_code_the_smallest_part_is_named_that_carries_most_of_it():
    def carried(values):
        measuring = _Measured()
        measuring.quantity = lambda setups, seeds=None: {
            seed: values.get(setups["mine"].name.removeprefix("mine, ").removesuffix(" removed"), 2.0) + 0.01 * seed
            for seed in (range(3) if seeds is None else seeds)
        }
        removing = Removing(measuring, {"mine": BASE}, None, lambda _: None)
        change = {"mine": {"training": {"lr": 1.0}}}
        removing.carry([Cause(f"own {one}", "own code", "gone", change) for one in ("norm", "layer", "model")])
        return [share.name for share in removing.shares]

    assert carried({"own norm": 1.1, "own layer": 1.0, "own model": 1.05}) == ["own norm"]
    assert carried({"own norm": 1.4, "own layer": 1.0, "own model": 1.05}) == ["own layer"]
    assert carried({"own norm": 1.6, "own layer": 1.7, "own model": 1.55}) == []


def test_what_makes_up_for_much_is_removed_after_what_was_chosen():
    rate = Cause("untuned rate", "set-up", "searched", {}, tunes=True)
    names = ("wrong scale of the scores", "label smoothing", "too few steps", "small batch")
    scale, *others = [Cause(name, "bug" if "scale" in name else "set-up", "gone", {}) for name in names]
    assert [phase_of(one) for one in (scale, *others[:2], rate, others[2])] == [0, 2, 4, 4, 5]


def test_what_was_seen_is_held_against_all_steps_before_runs_are_shortened(said, tmp_path, monkeypatch):
    monkeypatch.setattr(explaining._Explaining, "_takes", lambda *_: 200.0)  # what is measured depends on the machine
    monkeypatch.setattr(explaining.Runs, "seconds_of", lambda *_: 0.0)
    monkeypatch.setattr(explaining._Explaining, "_causes", lambda *_: [Cause("nothing", "set-up", "", {}, costs=20)])
    case = parse_case(said(training={"lr": 1e-4, "budget": {"steps": 60}}, saw={"val_loss": 4.0}))
    answer = explain(case, tmp_path / "case", seeds=2, minutes=60.0, jobs=1, executor=InProcess())
    assert 0.5 < answer.fraction < 1
    assert answer.entire.mean < answer.start.mean
    assert answer.noise is False
    assert answer.otherwise is None
    assert [one.within for one in answer.again] == [False]
    assert f"With all steps they gave {answer.entire.mean:.4g}" in paragraph(answer)


def test_a_number_in_another_unit_is_not_said_to_be_worse_than_chance():
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 11.0, 2.3, 1.0, 3)
    chance = Impossible("mine", "val_loss", 11.0, "chance", 4.1, "unlearned")
    unit = Again("perplexity for loss", "val_loss", 11.0, around(11.0), True)
    answer = Answer(*seen, start=around(2.4), noise=False, end=around(2.4), variants=("mine",), impossible=(chance,))
    assert "nothing that was learned holds for what was held out" in paragraph(answer)
    told = paragraph(replace(answer, otherwise=unit))
    assert told.startswith("The set-up, perplexity for loss, carries most of it (99%).")
    assert "nothing that was learned" not in told
    assert "stay unexplained" not in told


def test_runs_that_end_sooner_and_come_nearer_are_not_shortened(said, tmp_path, monkeypatch):
    monkeypatch.setattr(explaining._Explaining, "_takes", lambda *_: 200.0)
    monkeypatch.setattr(explaining.Runs, "seconds_of", lambda *_: 0.0)
    sooner = Cause("overfitting", "set-up", "", {"mine": {"training": {"lr": 1e-2}}})  # stands for fewer steps
    causes = [sooner, Cause("nothing", "set-up", "", {}, costs=20)]
    monkeypatch.setattr(explaining._Explaining, "_causes", lambda *_: causes)
    case = parse_case(said(training={"lr": 1e-4, "budget": {"steps": 60}}, saw={"val_loss": 2.1}))
    answer = explain(case, tmp_path / "case", seeds=2, minutes=60.0, jobs=1, executor=InProcess())
    assert answer.fraction == 1
    assert [share.name for share in answer.shares] == ["overfitting"]


def test_what_only_runs_with_all_steps_show_is_explained_with_all_of_them(said, tmp_path, monkeypatch):
    monkeypatch.setattr(explaining._Explaining, "_takes", lambda *_: 500.0)
    monkeypatch.setattr(explaining.Runs, "seconds_of", lambda *_: 0.0)
    monkeypatch.setattr(explaining._Explaining, "_causes", lambda *_: [Cause("nothing", "set-up", "", {}, costs=20)])
    training = {"lr": 3e-3, "budget": {"steps": 160}}
    too_good = said(training=training, saw={"val_loss": 1.0}, expected={"mine": {"val_loss": 1.7}})
    told = []
    how = {"seeds": 3, "minutes": 60.0, "jobs": 1, "executor": InProcess(), "tell": told.append}
    answer = explain(parse_case(too_good), tmp_path / "case", **how)
    assert any("shortened to 0.2" in line for line in told)
    assert any("shortened runs do not show what was seen" in line for line in told)
    assert (answer.fraction, answer.start.runs) == (1.0, 3)
    assert answer.start.mean < 1.2
    assert explain(parse_case(too_good), tmp_path / "case", **how).fraction == 1.0


@pytest.mark.parametrize(
    ("expected", "lacking", "tried"),
    [
        ("mine is better than other", ["mine"], True),
        ("mine is better than other", ["other"], False),
        ("mine is better than other", ["mine", "other"], True),
        ("other is worse than mine", ["other"], False),
        ("mine is worse than other", ["other"], True),
    ],
)
def test_what_the_better_one_lacks_is_not_why_it_is_better(expected, lacking, tried, said, tmp_path, monkeypatch):
    lack = Cause("small reach", "known effect", "", {name: {"training": {"lr": 1e-3}} for name in lacking})
    monkeypatch.setattr(explaining, "candidates", lambda *_, **__: [lack])
    mine, other = (1.0, 1.5) if expected == "mine is worse than other" else (1.5, 1.0)
    saw = {"mine": {"val_loss": mine}, "other": {"val_loss": other}}
    case = parse_case(said(variants={"mine": {}, "other": {"n_layers": 2}}, saw=saw, expected=expected))
    tried_here = []
    monkeypatch.setattr(explaining.Removing, "carry", lambda _, causes: tried_here.extend(causes))
    explain(case, tmp_path / "case", seeds=2, minutes=60.0, jobs=1, executor=InProcess())
    assert bool(tried_here) == tried


def test_settings_that_compared_models_do_not_share_are_made_equal(said):
    task = said()["task"]
    mine = Setup("mine", {**task, "batch": 4}, {"name": "decoder"}, {"lr": 1e-3, "budget": {"steps": 9}})
    other = Setup("other", task, {"name": "decoder", "norm": "post"}, {"lr": 1e-3, "budget": {"steps": 9}, "warmup": 5})
    known = {one.name: Known(one, None) for one in (mine, other)}
    found = {one.name: one.changes for one in unequal(known, "mine")}
    assert found == {
        "batch: 4 against 16": {"mine": {"task": {"batch": 16}}},
        "warmup: 0.05 against 5": {"mine": {"training": {"warmup": 5}}},
    }
    assert next(iter(unequal(known, "other"))).changes == {"other": {"task": {"batch": 4}}}
    alike = {**known, "other": Known(replace(other, model=mine.model), None)}
    assert unequal(alike, "mine") == []  # then a setting is what is compared
