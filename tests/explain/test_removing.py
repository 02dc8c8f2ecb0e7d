"""Removing causes: one run tells which are worth more, and time is spent on those."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
from tests.explain.conftest import OWN

from attnlab.core.contracts import Metric
from attnlab.core.errors import SpecError
from attnlab.core.files import write_json
from attnlab.explain import explaining
from attnlab.explain.answer import Again, Answer, Share
from attnlab.explain.case import Quantity, parse_case
from attnlab.explain.causes.candidates import unequal
from attnlab.explain.causes.cause import Cause, phase_of
from attnlab.explain.causes.known import Known
from attnlab.explain.causes.removals import more_steps
from attnlab.explain.explaining import explain
from attnlab.explain.page import document, page, waterfall_rows
from attnlab.explain.possible import Allowed, Impossible, labels_allow
from attnlab.explain.stages import suspecting
from attnlab.explain.stages.pacing import Pacing
from attnlab.explain.stages.removing import Removing
from attnlab.explain.stages.repeating import with_all_seeds
from attnlab.explain.trials.effects import Estimate, effects, mean_of
from attnlab.explain.trials.measuring import Measuring
from attnlab.explain.trials.setups import Run, Runs, Setup
from attnlab.explain.words import paragraph, what_next
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.run.executor import InProcess

ANY = (-math.inf, math.inf)
BASE = Setup("mine", {"name": "shapes"}, {"name": "cnn"}, {"lr": 1e-3, "budget": {"steps": 40}})
LOSS = {"much": 1.0, "little": 1.97, "nothing": 2.0, "fails": math.nan}
"""By cause what is lost without it; 2.0 with all of them, and 1.0 is expected."""


class _Measured:
    """Stand in for `Measuring`: what a set-up loses is read off the name that it was given, and noted with its seed."""

    seeds, fraction, comparable = range(3), 1.0, True

    def __init__(self, workers: int = 1) -> None:
        self.made: list[tuple[str, int]] = []
        self.case = SimpleNamespace(quantity=SimpleNamespace(distance=1.0, expected=1.0, limits=ANY, beside=None))
        self.runs = SimpleNamespace(of=self._runs, are_made=lambda _, seeds: seeds == [0], workers=workers)

    @staticmethod
    def _runs(setups, seeds):
        """What became of each: those that fail say why."""
        error = {setup.name: "no key 3 in step 1" if "fails" in setup.name else "" for setup in setups}
        return {name: {seed: SimpleNamespace(error=text) for seed in seeds} for name, text in error.items()}

    def quantity(self, setups, seeds=None):
        title = setups["mine"].name.removeprefix("mine, ").removesuffix(" removed")
        found = {seed: LOSS.get(title, 2.0) + 0.01 * seed for seed in (self.seeds if seeds is None else seeds)}
        waver = {"wavers": (1.1, 2.2), "wavers less": (1.3, 2.2)}.get(title)
        found |= {seed: waver[seed % 2] for seed in found if waver}
        self.made += [(title, seed) for seed in found]
        return found

    def mean(self, setups, seeds=None):
        return mean_of(self.quantity(setups, seeds))

    def late(self, *_):
        return False

    def at_once(self, setups):
        return self.seeds[: max(1, self.runs.workers // len(setups))]


@pytest.mark.parametrize(("carried", "tried"), [(0.8, False), (0.6, True)])
def test_what_helps_any_model_is_tried_where_much_is_left_by_what_carries_most(carried, tried, monkeypatch):
    monkeypatch.setitem(LOSS, "untuned", 2.0 - carried)
    removing = Removing(_Measured(), {"mine": BASE}, None, lambda _: None)
    removing.carry([Cause(name, "set-up", "gone", {"mine": {"task": {}}}) for name in ("untuned", "small batch")])
    assert [share.name for share in removing.shares] == ["untuned"]
    assert ("'small batch' (something else carries most)" in removing.not_tried) != tried


def test_a_cause_that_changes_little_in_one_run_is_left_at_that():
    measuring, told = _Measured(), []
    removing = Removing(measuring, {"mine": BASE}, None, told.append)
    removing.carry([Cause(name, "set-up", "gone", {"mine": {"training": {"lr": 1.0}}}) for name in LOSS])
    assert [share.name for share in removing.shares] == ["much"]
    assert removing.without_effect == ["little", "nothing"]
    assert removing.not_tried == ["'fails' (its run failed: no key 3 in step 1)"]
    assert {seed for title, seed in measuring.made if title == "much"} == {0, 1, 2}
    assert {seed for title, seed in measuring.made if title in ("little", "nothing")} == {0}
    assert "without 'little': -0.03 in one run, and was left at that" in told


@pytest.mark.parametrize(
    ("beside", "order", "reached"),
    [("bag", {"mine": 1.0, "bag": 0.0}, ["mine"]), ("bag", {"mine": 0.0, "bag": 1.0}, None),
     ("bag", {"mine": 1.0, "bag": 1.0}, ["mine", "bag"]), (None, {"mine": 1.0, "bag": 0.0}, None)],
)  # fmt: skip
def test_what_is_removed_must_reach_the_variant_that_did_worse_than_thought(beside, order, reached, monkeypatch):
    monkeypatch.setattr(suspecting, "measured_of", lambda setup, _: {"order": order[setup.name]})
    accuracy = Metric("val_accuracy", "fraction", "higher", "")
    quantity = Quantity(accuracy, "mine", beside, 0.0, 0.4)
    known = {name: SimpleNamespace(setup=replace(BASE, name=name)) for name in order}
    cause = Cause("no positions", "known effect", "added", {key: {"model": {"channels": 8}} for key in order})
    causes, told = suspecting.that_work(quantity, [cause], known, lambda _: None)
    assert [list(one.changes) for one in causes] == ([reached] if reached else [])
    assert told == ([] if reached else ["mending 'no positions' (its own code is not reached)"])


@pytest.mark.parametrize(("name", "nature", "behind", "counts"), [
    ("it", "known effect", 1.5, True), ("it", "known effect", 2.0, False), ("it", "set-up", 2.4, False),
    ("it", "bug", 2.4, True), ("it", "set-up", 1.75, True), ("it", "set-up", 1.9, False),
    ("leaking split", "set-up", 2.4, True),
])  # fmt: skip
def test_a_gap_that_closes_as_the_better_variant_becomes_worse_tells_nothing(name, nature, behind, counts):
    """It closes by 0.4 at most; where at least half of that is gained by who is behind, it counts."""
    quantity = SimpleNamespace(
        metric=Metric("val_loss", "nats", "lower", ""), beside="other", worse_than_thought="mine", limits=ANY
    )

    def values(setups, _):
        return {when: dict.fromkeys(range(3), 2.0 if when == "before" else behind) for when in setups}

    measuring = SimpleNamespace(case=SimpleNamespace(quantity=quantity), values=values)
    removing = Removing(measuring, {"mine": BASE, "other": BASE}, None, lambda _: None)
    cause = Cause(name, nature, "gone", {"other": {"training": {"lr": 1.0}}})
    assert removing._helps_who_is_behind((cause, cause.changes), 0.4) is counts


def test_what_would_do_by_itself_and_what_brings_runs_further_off_are_told_apart(monkeypatch):
    for name, loss in (("best", 1.0), ("as good", 1.05), ("harmful", 2.6)):
        monkeypatch.setitem(LOSS, name, loss)
    removing = Removing(_Measured(), {"mine": BASE}, None, lambda _: None)
    changes = {"mine": {"training": {"lr": 1.0}}}
    removing.carry([Cause(name, "set-up", "gone", changes) for name in ("best", "as good", "harmful")])
    assert [share.name for share in removing.shares] == ["best"]
    assert (list(removing.alone), list(removing.worse), removing.without_effect) == (["as good"], ["harmful"], [])
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 2.0, 1.0, 1.0, 3)
    answer = Answer(
        *seen, start=around(2.0), noise=True, behind=True, shares=tuple(removing.shares), end=around(1.0),
        alone=removing.alone, worse=removing.worse,
    )  # fmt: skip
    words = (
        r"By itself 'as good' carries \+0.95\S* \[\S+, \S+\] \(9\d%\), and nothing that matters beside what is named"
    )
    assert re.search(words, paragraph(answer))
    assert "By itself" not in paragraph(replace(answer, alone={"as good": around(0.09)})), "less than matters"
    assert "Removed, and further from what was expected without: harmful (by 0.6, in one run)." in document(
        answer, None
    )
    assert "further from what was expected without: harmful (by 0.6, in one run)" in page(answer, None)
    assert answer.shares[0].detail == "mine: rate 1 instead of 0.001"


def test_a_cause_that_seems_much_and_is_not_decided_is_said_to_be_so():
    removing = Removing(_Measured(), {"mine": BASE}, None, lambda _: None)
    removing.carry([Cause("wavers", "set-up", "gone", {"mine": {"training": {"lr": 1.0}}})])
    assert (removing.shares, removing.without_effect, list(removing.undecided)) == ([], [], ["wavers"])
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 2.0, 1.0, 1.0, 3)
    answer = Answer(*seen, start=around(2.0), noise=True, end=around(2.0), undecided=removing.undecided, minutes=8.0)
    assert re.search(r"'wavers' may carry \+0.3\S* \[-\S+, \S+\], which 6 runs do not decide\.", paragraph(answer))
    assert what_next(answer) == "Decide whether 'wavers' carries it: --minutes 16 gives time for more runs."
    more = replace(answer, undecided={"other": around(0.2), **answer.undecided, "third": around(-0.4)})
    assert what_next(more) == what_next(answer)  # of what is not decided what seems to carry most


def test_steps_are_made_more_as_long_as_that_helps_and_told_as_they_are():
    measuring, by_steps = _Measured(), {40: 2.0, 160: 1.6, 640: 1.3, 2560: 1.29}
    measuring.made = []

    def quantity(setups, seeds=None):
        measuring.made.append(setups["mine"].name)
        return {seed: by_steps[setups["mine"].steps] + 0.001 * seed for seed in seeds or range(3)}

    measuring.quantity = quantity
    removing = Removing(measuring, {"mine": BASE}, None, lambda _: None)
    cause = Cause("too few steps", "set-up", "4 times as many steps", {"mine": more_steps(BASE)}, grows=True)
    removing.carry([cause])
    (share,) = removing.shares
    assert (share.removed, share.detail) == ("16 times as many steps", "mine: 640 steps instead of 40")
    assert share.amount.mean == pytest.approx(0.7)
    assert "mine, too few steps removed, too few steps removed again" in measuring.made


def test_a_rate_that_stays_stands_in_place_of_none(monkeypatch):
    monkeypatch.setitem(LOSS, "rate", 1.0)
    removing = Removing(_Measured(), {"mine": BASE}, None, lambda _: None)
    removing.carry([Cause("rate", "set-up", "searched", {"mine": {"training": {"lr": 1e-3}}})])
    assert [share.detail for share in removing.shares] == ["mine: rate 0.001"]


def test_how_what_is_held_out_was_cut_is_told(monkeypatch):
    monkeypatch.setitem(LOSS, "leaking split", 1.0)
    removing = Removing(_Measured(), {"mine": BASE}, None, lambda _: None)
    removing.carry([Cause("leaking split", "set-up", "it is clean", {"mine": {"task": {"split": "contiguous"}}})])
    assert [share.detail for share in removing.shares] == ["mine: split: contiguous"]


@pytest.mark.parametrize(
    ("most", "again", "last"),
    [(18, {"wavers", "wavers less"}, 5), (12, {"wavers"}, 5), (11, {"wavers"}, 4), (7, set(), 2)],
)
def test_where_time_is_short_the_cause_that_seems_to_carry_most_is_decided_first(most, again, last):
    """With six seeds, two causes beside the set-up as it is are 18 runs."""
    measuring = _Measured()
    measuring.late = lambda setups, seeds=range(3): len(seeds) > 3 and len(setups) * len(seeds) > most
    removing = Removing(measuring, {"mine": BASE}, None, lambda _: None)
    names = ("wavers less", "wavers")
    removing.carry([Cause(name, "set-up", "gone", {"mine": {"training": {"lr": 1.0}}}) for name in names])
    assert {title for title, seed in measuring.made if seed > 2 and title in names} == again
    assert max(seed for _, seed in measuring.made) == last


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
    longer = BASE.changed({"training": {"budget": {"steps": 160}}})
    assert runs.seconds_of([longer], [0]) == pytest.approx(4 * runs.seconds_of([BASE], [1]))
    assert runs.seconds_of([BASE], [1]) > 0


def test_runs_side_by_side_take_no_longer_than_one(tmp_path):
    executor = SimpleNamespace(run=lambda *_: None)
    runs = Runs(tmp_path, executor, lambda *_: None, workers=2)
    runs.of([BASE], [0])
    longer = BASE.changed({"training": {"budget": {"steps": 160}}})
    one = runs.seconds_of([BASE], [1])
    assert runs.seconds_of([BASE], [1, 2]) == one
    assert runs.seconds_of([BASE], [1, 2, 3]) == pytest.approx(2 * one)
    assert runs.seconds_of([longer, BASE], [1]) == pytest.approx(4 * one)
    measuring = Measuring(SimpleNamespace(), runs, range(3), 1.0, 0.0)
    assert [list(measuring.at_once(setups)) for setups in ([BASE], [BASE, longer])] == [[0, 1], [0]]


def test_who_has_cores_to_spare_looks_at_more_seeds_of_a_cause_at_once():
    measured = _Measured(workers=2)
    removing = Removing(measured, {"mine": BASE}, None, lambda _: None)
    removing.carry([Cause("rate", "set-up", "gone", {"mine": {"task": {}}})])
    assert [seed for title, seed in measured.made if title == "rate"][:2] == [0, 1]


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
    assert "+0.18 (53%) are noise." in paragraph(answer)
    alone = replace(answer, shares=(), end=answer.start)
    assert alone.largest[0] == "noise"


def test_shortened_runs_are_told_beside_those_with_all_steps():
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.3, 2.3, 0.5, 3)
    answer = Answer(*seen, start=around(3.6), entire=around(3.3), noise=True, end=around(3.6))
    told = paragraph(answer)
    assert "gave 3.6 [3.59, 3.61], with 0.5 of the steps. With all steps they gave 3.3 [3.29, 3.31]: " in told
    assert "what was seen lies within their noise" in told
    assert "--minutes" in what_next(answer)


SHORTENED = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.2, 2.3, 0.68, 3)
"""What was seen and expected, of an answer that runs with 0.68 of the steps give."""
DECAY = Share("weight decay", "set-up", "weights do not decay", around(0.22))


def test_what_does_not_come_again_with_all_steps_is_a_part_of_its_own_in_shortened_runs():
    answer = Answer(*SHORTENED, start=around(2.54), entire=around(2.5), noise=False, shares=(DECAY,), end=around(2.32))
    assert [(name, round(amount, 3)) for name, _, amount in answer.steps] == [
        ("not in the case", 0.7),
        ("weight decay", 0.183),  # as 0.22 is of 0.24, so is it of the 0.2 that all steps leave
        ("unexplained", 0.017),
    ]
    assert answer.verdict == "not again"
    told = paragraph(answer)
    assert "+0.22 [0.21, 0.23] of the 0.24 in these runs, 20% of the distance" in told
    assert "+0.7 (78%) do not come again: nothing that the case says carries them." in told
    assert "Nothing that matters is left" not in told
    assert what_next(answer).startswith("Give the run whose number this is as a case of its own")
    rows = waterfall_rows(answer)
    assert (rows[0]["row"], rows[0]["to"], rows[-2]["to"]) == ("seen", 3.2, pytest.approx(2.3))
    assert replace(answer, start=around(2.31)).counts == 0  # they hardly have it: their shares are none of the whole


def test_one_run_with_all_steps_is_told_beside_shortened_ones():
    once = Estimate(3.2, -math.inf, math.inf, 1)
    share = replace(DECAY, amount=around(0.55))
    answer = Answer(*SHORTENED, start=around(2.9), entire=once, shares=(share,), end=around(2.35))
    told = paragraph(answer)
    assert told.startswith("The set-up, weight decay, carries most of it (92%), as runs with 0.68 of the steps tell.")
    assert "With all steps one run gave 3.2, where 3.2 was seen." in told
    assert "cannot be held against it" not in told
    assert "cannot be held against it" in paragraph(replace(answer, entire=None))


@pytest.mark.parametrize(("high", "verdict"), [(0.1, "noise"), (0.01, "noise"), (-0.001, "unexplained")])
def test_where_runs_cannot_tell_seen_from_expected_all_of_it_is_noise(high, verdict):
    seen = ("case", "why?", "val_accuracy of 'one' minus that of 'other'", "fraction", -0.034, 0.0, 1.0, 10)
    gave, undecided = Estimate(-0.03, -0.06, high, 10), {"constant rate": around(-0.02)}
    told = {"noise": True, "undecided": undecided, "minutes": 3.0, "variants": ("one", "other")}
    answer = Answer(*seen, start=gave, end=replace(gave, mean=-0.04), **told)
    assert answer.verdict == verdict
    told, noise = paragraph(answer), verdict == "noise"
    assert ("these runs cannot tell one from the other" in told) == noise
    assert ("stay unexplained" in told, "may carry" in told) == (not noise, not noise)
    assert what_next(answer).startswith("Compare with more seeds" if noise else "Decide whether 'constant rate'")


def test_a_number_that_is_too_good_and_comes_again_is_what_its_data_allow():
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 0.46, 1.5, 1.0, 3)
    data = Allowed(0.56, "Without any network '4-gram' reaches 0.56", "Compare with numbers of these data.")
    answer = Answer(*seen, start=around(0.46), noise=True, end=around(0.46), allowed=data)
    told = paragraph(answer)
    assert answer.verdict == "set-up"
    assert told.startswith("The set-up, what these data allow, carries most of it (90%).")
    assert "The number comes again, and its data are like that. Without any network '4-gram' reaches 0.56" in told
    assert "stay unexplained" not in told
    assert what_next(answer) == "Compare with numbers of these data."
    assert sum(amount for *_, amount in answer.steps) == pytest.approx(0.46 - 1.5)
    ahead = Share("outputs that see ahead", "bug", "scores are masked", around(-1.06))
    removed = paragraph(replace(answer, shares=(ahead,), end=around(1.52)))
    assert "its data are like that" not in removed  # nothing is left for them
    assert replace(answer, noise=False).comes_of_data is None
    assert replace(answer, noise=None).comes_of_data is data  # of a single run that is near
    assert replace(answer, noise=None, start=around(0.7)).comes_of_data is None


class Answering:
    """A task with 400 held-out answers."""

    answers: ClassVar = {"validation": 400}


@pytest.mark.parametrize(
    ("right", "surest", "trained", "expected", "named"),
    [
        (0.77, 0.78, 0.78, 0.95, True),  # labels wrong by chance
        (0.74, 0.77, 0.76, 0.95, True),  # and classes that overlap
        (0.77, 0.97, 0.79, 0.95, False),  # classes that overlap
        (0.65, 0.77, 1.0, 0.95, False),  # learned by heart: nothing tells
        (0.42, 0.49, 0.45, 0.95, False),  # a part of the rule was learned
        (0.77, 0.78, 0.78, 0.75, False),  # no more was expected
        (0.70, 0.97, 0.71, 0.95, False),  # the other half of the rule is hard
    ],
)
def test_labels_that_are_wrong_by_chance_bound_what_can_be_named_right(right, surest, trained, expected, named):
    quantity = Quantity(Metric("val_accuracy", "fraction", "higher", "accuracy"), "mine", None, right, expected)
    found = labels_allow(quantity, right, surest, trained, Answering())
    assert (found is not None) == named
    if found:
        assert found.value == surest
        assert f"{1 - surest:.0%} have another label" in found.words


def test_few_answers_say_nothing_of_labels():
    quantity = Quantity(Metric("val_accuracy", "fraction", "higher", "accuracy"), "mine", None, 0.9, 0.99)
    few = type("Few", (), {"answers": {"validation": 40}})()
    assert labels_allow(quantity, 0.9, 0.9, 0.9, few) is None
    assert labels_allow(quantity, 0.9, 0.9, 0.9, Answering()) is not None


def test_of_held_out_items_of_another_source_no_other_split_is_advised():
    share = Share("held-out items of another source", "set-up", "others are held out", around(-0.45))
    seen = ("case", "why?", "val_accuracy of 'mine'", "fraction", 0.5, 0.95, 1.0, 5)
    answer = Answer(*seen, start=around(0.5), noise=True, shares=(share,), end=around(0.95))
    assert what_next(answer).startswith("Train on items of the source that is held out, too")


def test_what_came_nearest_is_said_with_the_mean_of_all_its_runs():
    measuring = _Measured()
    measuring.case.quantity.expected = 1.0
    measuring.quantity = lambda setups, seeds=None: {
        seed: (1.0 if seed == 0 else 2.9)
        if "lucky" in setups["mine"].name
        else 1.95
        if "one" in setups["mine"].name
        else 2.0
        for seed in (range(3) if seeds is None else seeds)
    }
    removing = Removing(measuring, {"mine": BASE}, None, lambda _: None)
    causes = [Cause(name, "set-up", "gone", {"mine": {"training": {"lr": 1.0}}}) for name in ("lucky", "one")]
    removing.carry(causes[1:])
    assert (removing.nearest[0], removing.nearest[1].runs) == ("one", 1)
    told = Answer(*SHORTENED[:-2], 1.0, 3, start=around(3.2), noise=True, end=around(3.2), nearest=removing.nearest)
    assert "'one' came nearest to what was expected: 1.95 without it, in one run." in paragraph(told)
    as_it_was = Answer(
        *SHORTENED[:-2], 1.0, 3, start=around(2.4), noise=True, end=around(2.4), nearest=removing.nearest
    )
    assert "came nearest" not in paragraph(replace(as_it_was, nearest=("one", around(2.0))))  # it was nearer before
    removing.carry(causes)
    assert (removing.nearest[0], removing.nearest[1].mean) == ("lucky", pytest.approx(2.27, abs=0.02))


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


def test_what_was_seen_is_held_against_all_steps_before_runs_are_shortened(said, tmp_path, monkeypatch, long_runs):
    monkeypatch.setattr(suspecting, "suspects", lambda *_: [Cause("nothing", "set-up", "", {}, costs=20)])
    monkeypatch.setattr(Pacing, "affords_after", lambda *_: None)
    case = parse_case(said(training={"lr": 1e-4, "budget": {"steps": 60}}, saw={"val_loss": 4.0}))
    answer = explain(case, tmp_path / "case", seeds=2, minutes=60.0, jobs=1, executor=InProcess())
    assert 0.5 < answer.fraction < 1
    assert answer.entire.mean < answer.start.mean
    assert answer.noise is False
    assert answer.otherwise is None
    assert [one.within for one in answer.again] == [False]
    assert f"With all steps they gave {answer.entire.mean:.4g}" in paragraph(answer)


def test_a_run_that_failed_is_told_where_there_is_too_little_time_for_others(said, tmp_path, monkeypatch, long_runs):
    monkeypatch.setattr(suspecting, "suspects", lambda *_: [Cause("nothing", "set-up", "", {}, costs=10_000)])
    case = parse_case(said(variants={"mine": {"name": f"{OWN}:Lost"}}, saw={"val_loss": 4.0}))
    with pytest.raises(SpecError, match=r"minutes are too few: .*\. A run of 'mine' failed: .*the loss is nan"):
        explain(case, tmp_path / "case", seeds=2, minutes=60.0, jobs=1, executor=InProcess())


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


@pytest.mark.parametrize("name", ["overfitting", "leaking split"])
def test_runs_that_come_nearer_without_what_only_long_ones_learn_are_not_shortened(
    name, said, tmp_path, monkeypatch, long_runs
):
    without = Cause(name, "set-up", "", {"mine": {"training": {"lr": 1e-2}}})  # stands for what removes it
    causes = [without, Cause("nothing", "set-up", "", {}, costs=20)]
    monkeypatch.setattr(suspecting, "suspects", lambda *_: causes)
    case = parse_case(said(training={"lr": 1e-4, "budget": {"steps": 60}}, saw={"val_loss": 2.1}))
    answer = explain(case, tmp_path / "case", seeds=2, minutes=60.0, jobs=1, executor=InProcess())
    assert answer.fraction == 1
    assert [share.name for share in answer.shares] == [name]


def test_a_run_with_all_steps_that_was_made_first_is_told(said, tmp_path, shortened):
    case = parse_case(said(training={"lr": 1e-4, "budget": {"steps": 60}}, saw={"val_loss": 2.0}))
    answer = explain(case, tmp_path / "case", seeds=2, minutes=60.0, jobs=1, executor=InProcess())
    assert (answer.fraction < 1, answer.entire.runs, answer.noise) == (True, 1, None)
    assert f"With all steps one run gave {answer.entire.mean:.4g}, where 2 was seen." in paragraph(answer)


def test_what_short_runs_name_is_removed_with_all_steps_where_time_is_left(said, tmp_path, monkeypatch, long_runs):
    rate = Cause("rate", "set-up", "", {"mine": {"training": {"lr": 1e-2}}})
    others = [Cause("nothing", "set-up", "", {}, costs=20), Cause("no warm-up", "set-up", "", {})]
    monkeypatch.setattr(suspecting, "suspects", lambda *_: [rate, *others])
    case = parse_case(said(training={"lr": 1e-4, "budget": {"steps": 60}}, saw={"val_loss": 2.1}))
    told = []
    how = {"seeds": 2, "minutes": 60.0, "jobs": 1, "executor": InProcess(), "tell": told.append}
    answer = explain(case, tmp_path / "case", **how)
    assert any("shortened to" in line for line in told)
    assert (answer.fraction, [share.name for share in answer.shares], answer.entire) == (1.0, ["rate"], None)
    assert answer.without_effect == ("no warm-up", "nothing (in shortened runs)")
    assert answer.not_tried == ()


@pytest.mark.parametrize(
    ("bug", "rate", "carries", "entire"),
    [({}, {"lr": 1e-2}, "rate", False), ({"lr": 1e-2}, {}, "detached", True)],
    ids=["it carries nothing", "it carries all"],
)
def test_bugs_are_removed_with_all_steps_before_what_short_runs_show(
    bug, rate, carries, entire, said, tmp_path, monkeypatch, long_runs
):
    monkeypatch.setattr(Pacing, "affords_after", lambda *_: 1)
    changes = ({"mine": {"training": one}} for one in (rate, bug))
    causes = [Cause("rate", "set-up", "", next(changes)), Cause("detached", "bug", "", next(changes), "no gradient")]
    monkeypatch.setattr(suspecting, "suspects", lambda *_: [*causes, Cause("nothing", "set-up", "", {}, costs=20)])
    case = parse_case(said(training={"lr": 1e-4, "budget": {"steps": 60}}, saw={"val_loss": 2.1}))
    told = []
    how = {"seeds": 2, "minutes": 60.0, "jobs": 1, "executor": InProcess(), "tell": told.append}
    answer = explain(case, tmp_path / "case", **how)
    assert sum("without 'detached'" in line for line in told) == 2
    assert sum("without 'rate'" in line for line in told) == 1
    assert ([share.name for share in answer.shares], answer.fraction == 1.0) == ([carries], entire)
    assert [one.name for one in explaining.worth_all_steps(replace(answer, shares=()), causes)] == ["detached"]


def test_what_shortened_runs_named_stands_where_there_is_time_for_none_of_it(said, tmp_path, monkeypatch, long_runs):
    monkeypatch.setattr(Pacing, "affords_after", lambda *_: 0)
    rate = Cause("rate", "set-up", "", {"mine": {"training": {"lr": 1e-2}}})
    monkeypatch.setattr(suspecting, "suspects", lambda *_: [rate, Cause("nothing", "set-up", "", {}, costs=20)])
    case = parse_case(said(training={"lr": 1e-4, "budget": {"steps": 60}}, saw={"val_loss": 2.1}))
    told = []
    how = {"seeds": 2, "minutes": 60.0, "jobs": 1, "executor": InProcess(), "tell": told.append}
    answer = explain(case, tmp_path / "case", **how)
    assert ([share.name for share in answer.shares], answer.fraction < 1) == (["rate"], True)
    assert not any("time is left" in line for line in told)


def test_of_what_was_wanted_with_all_steps_is_not_said_that_there_was_no_time():
    seen = ("case", "Why?", "loss", "nats", 2.0, 1.0)
    shares = tuple(Share(name, "set-up", "", around(0.9)) for name in ("rate", "decay"))
    short = Answer(*seen, 0.3, 3, shares=shares, without_effect=("warm-up",), not_tried=("'clip' (no time)",))
    failed = "'rate' (its run failed: it is nan)"
    whole = Answer(*seen, 1.0, 3, not_tried=(failed, "'warm-up' (no time)"), without_effect=("clip",)).after(
        short, {"rate"}
    )
    told = (failed, "'warm-up' with all steps (no time)", "'decay' with all steps (no time)")
    assert (whole.not_tried, whole.without_effect) == (told, ("clip", "warm-up (in shortened runs)"))


@pytest.mark.parametrize(
    ("costs", "seconds", "afforded"),
    [([1, 1], 100.0, 2), ([1, 9], 100.0, 1), ([9, 1], 100.0, 0), ([], 40.0, 0), ([], 20.0, None)],
    ids=["all", "the first", "too long", "nothing to remove", "no time for the case"],
)
def test_as_many_causes_are_removed_with_all_steps_as_there_is_time_for(costs, seconds, afforded, tmp_path):
    def measuring(left):
        runs = SimpleNamespace(workers=1, are_made=lambda *_: False, seconds_of=lambda *_: 10.0)
        case = SimpleNamespace(saw=("mine",), quantity=SimpleNamespace(variants=("mine",)))
        return SimpleNamespace(fraction=0.2, seconds_left=left, seeds=range(3), runs=runs, case=case)

    kept, known = tmp_path / "found.json", {"mine": Known(BASE, None)}
    write_json(kept, {"plan": {}})
    pacing = Pacing(kept, 1.0, 3, {}, lambda _: None)
    causes = [Cause(str(number), "set-up", "", {}, costs=one) for number, one in enumerate(costs)]
    assert pacing.affords_after(measuring(seconds), known, causes) == afforded
    assert pacing.affords_after(measuring(1e9), known, causes) == afforded, "a command that goes on has the same runs"


@pytest.mark.parametrize(("nature", "more"), [("own code", ["frozen weights"]), ("set-up", [])])
def test_what_is_measured_in_code_that_carries_most_is_removed_with_all_steps_too(nature, more):
    share = Share("own model", nature, "another", Estimate(0.9, 0.8, 1.0, 3))
    answer = Answer("case", "Why?", "loss", "nats", 2.0, 1.0, 0.3, 3, shares=(share,), start=mean_of({0: 2.0, 1: 2.0}))
    answer = replace(answer, end=mean_of({0: 1.1, 1: 1.1}))
    causes = [
        Cause("own model", nature, "another", {}, "Net: a bug, or what it is made for"),
        Cause("frozen weights", "known effect", "all are trained", {}, "half of them"),
        Cause("post-norm", "known effect", "before", {}),
        Cause("no warm-up", "set-up", "it rises", {}, "the gradient"),
    ]
    assert [one.name for one in explaining.worth_all_steps(answer, causes)] == ["own model", *more]
    leak = Cause("leaking split", "set-up", "it is clean", {})
    assert leak in explaining.worth_all_steps(answer, [*causes, leak]), "which short runs hardly know by heart"
    assert leak not in explaining.worth_all_steps(replace(answer, shares=()), [*causes, leak])


@pytest.mark.parametrize(("narrow", "made"), [({"d_model": 8}, False), ({"d_model": 8, "norm": "post"}, True)])
def test_parameters_are_not_made_equal_where_that_makes_one_model_of_two(narrow, made, said):
    saw = {"narrow": {"val_loss": 2.5}, "wide": {"val_loss": 2.0}}
    variants = {"narrow": narrow, "wide": {"d_model": 16}}
    case = parse_case(said(variants=variants, saw=saw, expected="narrow is as good as wide"))
    found = suspecting.equal_parameters(case, plan_study(case.study, calibrate=False))
    assert (found is not None) == made


@pytest.mark.parametrize(("made", "seeds"), [(("mine", "mine, rate removed"), 10), (("mine",), 5)])
def test_what_it_ends_with_has_the_seeds_of_what_it_begins_with(made, seeds):
    runs = SimpleNamespace(are_made=lambda setups, _: {one.name for one in setups} <= {*made})
    measuring = Measuring(SimpleNamespace(saw=("mine",)), runs, range(5), 1.0, 0.0)
    ended = [replace(BASE, name="mine, rate removed")]
    assert len(with_all_seeds(measuring, {"mine": Known(BASE, None)}, ended).seeds) == seeds


@pytest.mark.parametrize(
    ("shown_after", "run_s", "fraction"),
    [(30, 1.0, 0.2), (60, 1.0, 0.4), (120, 1.0, 1.0), (170, 1.0, 0.2), (60, 1e9, 0.2)],
)
def test_steps_are_doubled_until_a_run_shows_what_one_with_all_shows(said, tmp_path, shown_after, run_s, fraction):
    case = parse_case(
        said(training={"budget": {"steps": 160}}, saw={"val_loss": 1.0}, expected={"mine": {"val_loss": 2.0}})
    )
    setup, made = replace(BASE, training={"budget": {"steps": 160}}), []

    def runs(setups, seeds):
        made.extend(one.steps for one in setups)
        return {
            one.name: {seed: Run({"val_loss": 1.0 + (one.steps < shown_after)}) for seed in seeds} for one in setups
        }

    stand_in = SimpleNamespace(of=runs, seconds_of=lambda *_: run_s, workers=1)
    measuring = Measuring(case, stand_in, range(3), 0.2, time.monotonic() + 1e6)
    (tmp_path / "found.json").write_text('{"plan": {"fraction": 0.2}}')
    pacing = Pacing(tmp_path / "found.json", 15.0, None, {}, lambda _: None)
    assert pacing.lengthened(measuring, {"mine": Known(setup, None)}).fraction == fraction
    assert max((steps for steps in made if steps < 160), default=0) <= 64  # all doublings take no more than one run


@pytest.mark.parametrize(("run_s", "fits"), [(1.3, True), (4.5, False)])
@pytest.mark.parametrize("workers", [1, 4])
def test_runs_with_all_steps_take_two_fifths_of_the_time_at_most(said, tmp_path, run_s, fits, workers, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    case = parse_case(said(saw={"val_loss": 1.0}, expected={"mine": {"val_loss": 2.0}}))

    def runs(setups, seeds):
        now[0] += run_s * math.ceil(len(seeds) / workers)

    missing = SimpleNamespace(of=runs, are_made=lambda _, seeds: bool(now[0]) and seeds[0] < workers, workers=workers)
    missing.seconds_of = lambda *_: 0.0
    measuring = Measuring(case, missing, range(3), 1.0, 10.0)
    pacing = Pacing(tmp_path / "found.json", 15.0, None, {"mine": run_s}, lambda _: None)
    assert pacing.leaves_time(measuring, {"mine": Known(BASE, None)}) == fits


def test_what_only_runs_with_all_steps_show_is_explained_with_all_of_them(said, tmp_path, monkeypatch):
    monkeypatch.setattr(Pacing, "_takes", lambda *_: 500.0)
    monkeypatch.setattr(explaining.Runs, "seconds_of", lambda *_: 0.0)
    monkeypatch.setattr(suspecting, "suspects", lambda *_: [Cause("nothing", "set-up", "", {}, costs=20)])
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
    monkeypatch.setattr(suspecting, "candidates", lambda *_, **__: [lack])
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
