"""Explaining finds the culprit where it is known, and names none where there is none; what it cannot do it says."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from tests.explain.conftest import OWN, own

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import RunError, SpecError
from attnlab.explain import explaining
from attnlab.explain.answer import Again, Answer, Share
from attnlab.explain.causes.candidates import candidates
from attnlab.explain.causes.own_code import Examined
from attnlab.explain.causes.removals import CHANCE
from attnlab.explain.explaining import explain
from attnlab.explain.page import waterfall_rows, write_answer
from attnlab.explain.possible import Impossible
from attnlab.explain.stages import knowing, suspecting
from attnlab.explain.trials.effects import Estimate
from attnlab.explain.trials.setups import Setup
from attnlab.explain.words import paragraph, what_next
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.run.executor import InProcess


def explained(case, folder, **how):
    told = []
    how = {"minutes": 60.0, "seeds": 3, "jobs": 1, "executor": InProcess(), "tell": told.append} | how
    answer = explain(case, folder, **how)
    return answer, told


def runs_alone(case, folder):
    """The answer of a case of which no cause is tried: what its runs give."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suspecting, "candidates", lambda *_, **__: [])
        return explained(case, folder)[0]


SLOW = {"lr": 1e-5, "budget": {"steps": 60}}
SHAPES = {
    "task": {"name": "shapes", "n_train": 300, "n_test": 100, "batch": 25},
    "model": {"name": "cnn", "channels": 16},
    "training": {"lr": 1e-2, "budget": {"steps": 150}},
}
DEEP = {"name": "decoder", "n_layers": 5, "d_model": 16, "norm": "post", "init": "torch"}
ITSELF = {"name": "attention", "n_heads": 2, "masks": [{"name": "window", "width": 1}]}
LEAK = {"text": "random.txt", "split": "inside"}
CULPRITS = {
    "wrong scale of the scores": (
        {"variants": own("Unscaled"), "model": {"name": "decoder", "n_layers": 1, "d_model": 64}}, 1.5, 0.8,
    ),
    "outputs that see ahead": ({"variants": own("Peeking")}, 0.1, 0.8),
    "the batch read as time": ({"variants": own("Recurrent")}, 2.08, 0.8),
    "dead rectifiers": ({"variants": own("Silent")}, 2.08, 0.8),
    "untuned rate": ({"training": SLOW}, 2.08, 0.8),
    "too few steps": ({"training": {"lr": 3e-3, "budget": {"steps": 20}}}, 2.0, 0.8),
    "no positions": ({"model": {"name": "decoder", "n_layers": 1, "d_model": 24, "positions": "none"}}, 1.7, 1.0),
    "short context": ({"task": {"context": 1, "batch": 100}}, 2.08, 1.0),
    "post-norm": ({"model": DEEP, "training": {"lr": 2e-2, "budget": {"steps": 60}}}, 2.08, 0.8),
    "small reach": (SHAPES, 0.09, 0.05),
    "small reach (mask)": (
        {
            "model": {"name": "decoder", "n_layers": 1, "d_model": 24, "mixer": ITSELF},
            "training": {"lr": 1e-2, "budget": {"steps": 30}},
        },
        2.08, 1.2,
    ),
    "leaking split": (
        {
            "task": LEAK,
            "model": {"name": "decoder", "n_layers": 1, "d_model": 32},
            "training": {"lr": 5e-3, "budget": {"steps": 120}},
        },
        0.8, 2.1,
    ),
}  # fmt: skip
"""By culprit what differs from the plain case, what was seen, and what was expected."""


USUAL = {
    "outputs that see ahead",
    "dead rectifiers",
    "untuned rate",
    "no positions",
    "small reach (mask)",
    "leaking split",
}


@pytest.mark.parametrize(
    "culprit", [pytest.param(name, marks=[] if name in USUAL else pytest.mark.slow) for name in CULPRITS]
)
def test_the_culprit_is_named_first(culprit, said, tmp_path, texts):
    changes, seen, expected = CULPRITS[culprit]
    metric = "val_mse" if changes is SHAPES else "val_loss"
    case = said(**changes, saw={metric: seen}, expected={metric: expected})
    if changes is not SHAPES:
        case["task"] = said()["task"] | case["task"]
        case["task"]["text"] = str(texts / case["task"]["text"])
    answer, told = explained(case, tmp_path / "case")
    assert answer.largest is not None, told
    culprit, _, _ = culprit.partition(" (")
    assert answer.largest[0] == culprit, told
    first = answer.shares[0]
    assert first.amount.excludes_zero
    assert first.amount.mean * (seen - expected) > 0
    assert culprit in paragraph(answer)


WITHIN = {
    "wrong scale of the scores": ("UnscaledModel", 1.1),
    "outputs that see ahead": ("PeekingModel", 0.1),
    "the batch read as time": ("RecurrentModel", 2.08),
    "dead rectifiers": ("SilentModel", 2.08),
}
"""By culprit a model of a person's own that has it, and what was seen."""


@pytest.mark.parametrize(
    "culprit",
    [pytest.param(name, marks=[] if name == "outputs that see ahead" else pytest.mark.slow) for name in WITHIN],
)
def test_the_culprit_within_a_model_of_ones_own_is_named_first(culprit, said, tmp_path):
    name, seen = WITHIN[culprit]
    variants = {"mine": {"name": f"{OWN}:{name}"}}
    answer, told = explained(said(variants=variants, saw={"val_loss": seen}), tmp_path / "case")
    assert answer.largest is not None, told
    assert answer.largest[:2] == (culprit, "bug"), told
    assert answer.shares[0].amount.excludes_zero


def test_training_ends_early_where_the_case_says_so(said, tmp_path):
    training = {"lr": 1e-2, "budget": {"steps": 60}, "evaluate_every": 1, "early_stop": {"patience": 1}}
    answer = runs_alone(said(training=training), tmp_path / "case")
    other = runs_alone(said(), tmp_path / "other")
    assert answer.start.mean > other.start.mean + 0.2
    assert "3 of 3 runs of 'mine' ended after" in paragraph(answer)
    assert "of 60 steps: 'early_stop' ends them." in paragraph(answer)
    assert not [alarm for alarm in other.alarms if "ended after" in alarm]


def test_a_fault_that_no_check_knows_is_named_by_the_part_that_has_it(said, tmp_path):
    variants = {"mine": {"name": f"{OWN}:ShallowModel"}}
    answer, told = explained(said(variants=variants, saw={"val_loss": 2.08}), tmp_path / "case")
    assert answer.largest is not None, told
    assert answer.largest[:2] == ("own norm", "own code"), told
    assert paragraph(answer).startswith("Your own norm carries ")
    assert "Shallow: a bug, or what it is made for." in paragraph(answer)
    assert answer.verdict == "own code"


def test_an_error_outside_of_attention_is_a_bug_in_what_carries_it(said, tmp_path):
    variants = {"mine": {"name": f"{OWN}:AheadModel"}}
    answer, told = explained(said(variants=variants, saw={"val_loss": 0.1}), tmp_path / "case")
    assert answer.verdict == "bug", told
    assert answer.largest[:2] == ("own model", "own code"), told
    assert not {share.nature for share in answer.shares} & {"bug"}  # no removal reaches it
    assert paragraph(answer).startswith("A bug: it is declared causal, but each position sees the next one")


def test_a_model_whose_layout_nobody_says_is_called_as_what_was_seen_tells(said, tmp_path):
    draw = np.random.default_rng(0)
    series = draw.normal(size=(200, 12, 1)).astype("f4")
    np.save(tmp_path / "x.npy", series)
    np.save(tmp_path / "y.npy", np.broadcast_to(series.mean(1, keepdims=True), series.shape).copy())
    case = said(
        task={"name": "sequences", "inputs": str(tmp_path / "x.npy"), "targets": str(tmp_path / "y.npy"), "batch": 16},
        variants={"mine": {"name": f"{OWN}:OverBatch"}},
        training={"lr": 1e-2, "budget": {"steps": 150}},
        saw={"mine": {"val_mse": 0.97}},
        expected={"mine": {"val_mse": 0.05}},
    )
    del case["model"]
    answer, told = explained(case, tmp_path / "case")
    assert answer.largest[:2] == ("the batch read as time", "bug"), told
    assert any("given (batch, length, d_model)" in line for line in told)


@pytest.mark.slow
def test_a_text_that_repeats_itself_is_a_split_that_leaks(said, tmp_path, texts):
    case = said(
        task=said()["task"] | {"text": str(texts / "repeating.txt")},
        model={"name": "decoder", "n_layers": 2, "d_model": 32},
        training={"lr": 5e-3, "budget": {"steps": 200}},
        saw={"val_loss": 0.2},
        expected={"val_loss": 2.1},
    )
    answer, told = explained(case, tmp_path / "case")
    assert answer.largest[0] == "leaking split", told
    assert any("stand word for word in the training part" in line for line in told)
    assert "100.0% of the validation part's passages" in paragraph(answer)


def test_a_lucky_seed_is_noise(said, tmp_path):
    variants = {"one": {}, "other": {"mixer": {"name": "attention", "n_heads": 2}}}
    case = said(variants=variants, saw={"one": {"val_loss": 0.0}}, expected="one is as good as other")
    case["training"]["budget"]["steps"] = 20
    found = runs_alone(case | {"saw": {"one": {"val_loss": 1.9}, "other": {"val_loss": 1.8}}}, tmp_path / "found")
    middle = {one.variant: one.found.mean for one in found.again}
    spread = (found.start.high - found.start.low) / 2
    lucky = {"one": {"val_loss": middle["one"] + spread}, "other": {"val_loss": middle["other"] - spread / 2}}
    answer, told = explained(case | {"saw": lucky}, tmp_path / "lucky")
    assert answer.verdict == "noise", told
    assert "within their noise" in paragraph(answer)


@pytest.mark.parametrize(
    ("read", "name"), [(lambda loss: loss / math.log(2), "bits for nats"), (math.exp, "perplexity for loss")]
)
def test_a_number_in_another_unit_is_read_so(read, name, said, tmp_path):
    case = said(training={"lr": 1e-2, "budget": {"steps": 20}}, expected={"val_loss": 0.9})
    found = runs_alone(case, tmp_path / "found")
    loss = {"val_loss": found.start.mean}
    answer, told = explained(case | {"saw": {"val_loss": read(loss["val_loss"])}, "expected": loss}, tmp_path / "read")
    assert answer.otherwise is not None, told
    assert (answer.otherwise.variant, answer.largest[:2]) == (name, (name, "set-up"))
    assert f"outside their noise, and within that of {name}" in paragraph(answer)
    assert name in what_next(answer)


def test_a_number_of_what_was_trained_on_is_read_so(said, tmp_path, texts):
    case = said(
        task=said()["task"] | {"text": str(texts / "random.txt")},
        model={"name": "decoder", "n_layers": 2, "d_model": 32},
        training={"lr": 5e-3, "budget": {"steps": 60}},
        expected={"val_loss": 2.1},
    )
    case["task"]["split"] = "inside"
    found = runs_alone(case | {"saw": {"val_loss": 2.2}}, tmp_path / "found")
    del case["task"]["split"]
    answer, told = explained(case | {"saw": {"val_loss": found.start.mean}}, tmp_path / "read")
    assert answer.otherwise.variant == "mine, inside split", told


@pytest.mark.slow
def test_a_loss_in_training_is_explained_as_one_of_held_out_data_is(said, tmp_path):
    case = said(training={"lr": 1e-5, "budget": {"steps": 60}}, saw={"training_loss": 2.08})
    case["expected"] = "mine reaches train_loss 0.8"
    answer, told = explained(case, tmp_path / "case")
    assert answer.largest[0] == "untuned rate", told
    assert "train_loss of 'mine'" in paragraph(answer)


def test_the_metric_that_is_explained_is_told_of_every_run(said, tmp_path, monkeypatch):
    monkeypatch.setattr(suspecting, "candidates", lambda *_, **__: [])
    case = said(training={"lr": 1e-2, "budget": {"steps": 5}}, saw={"train_loss": 2.0}, expected={"train_loss": 0.8})
    _, told = explained(case, tmp_path / "case", seeds=2)
    assert [line.partition(":")[2].split()[0] for line in told if line.startswith("  mine, seed")] == ["train_loss"] * 2


@pytest.mark.parametrize(("kind", "steps", "better"), [("loss", 60, 4.0), ("accuracy", 100, 0.05)])
def test_a_number_of_training_is_told_from_one_of_held_out_data(said, tmp_path, texts, kind, steps, better):
    case = said(
        task=said()["task"] | {"text": str(texts / "random.txt")},
        model={"name": "decoder", "n_layers": 2, "d_model": 32},
        training={"lr": 5e-3, "budget": {"steps": steps}},
    )
    trained = runs_alone(case | {"saw": {f"train_{kind}": 0.9}, "expected": {f"train_{kind}": 0.8}}, tmp_path / "found")
    assert f"train_{kind} of 'mine'" in paragraph(trained)
    seen = {f"val_{kind}": trained.start.mean}
    answer = runs_alone(case | {"saw": seen, "expected": {f"val_{kind}": better}}, tmp_path / "read")
    assert answer.otherwise is not None
    assert answer.otherwise.variant == f"the {kind} in training, told for that of held-out data"


def test_labels_that_are_wrong_are_told_of_runs_with_all_steps_though_others_are_shortened(said, tmp_path, shortened):
    case = wrongly_labelled(said, tmp_path) | {"training": {"lr": 1e-2, "budget": {"steps": 100}}}
    answer, _ = explained(case, tmp_path / "case", seeds=2)
    assert answer.fraction < 1
    assert answer.largest[:2] == ("what these data allow", "set-up"), paragraph(answer)
    assert what_next(answer).startswith("Read the labels")


def test_labels_that_are_wrong_by_chance_are_told(said, tmp_path):
    answer = runs_alone(wrongly_labelled(said, tmp_path), tmp_path / "case")
    assert answer.largest[:2] == ("what these data allow", "set-up"), paragraph(answer)
    assert answer.allowed.value == pytest.approx(1 - 0.3 * 3 / 4, abs=0.06)
    assert "have another label" in paragraph(answer)
    assert what_next(answer).startswith("Read the labels")


def wrongly_labelled(said, tmp_path):
    """A case of a class of which 23 % of the labels are others."""
    draw = np.random.default_rng(0)
    right = draw.integers(0, 4, 2000)
    given = np.where(draw.random(2000) < 0.3, draw.integers(0, 4, 2000), right)
    np.save(tmp_path / "x.npy", (np.eye(4)[right][..., None] + draw.normal(0, 0.2, (2000, 4, 1))).astype("float32"))
    np.save(tmp_path / "y.npy", given)
    task = {"name": "classify", "inputs": str(tmp_path / "x.npy"), "labels": str(tmp_path / "y.npy"), "validation": 0.3}
    model = {"name": "encoder", "n_layers": 1, "d_model": 16}
    return said(task=task, model=model, saw={"val_accuracy": 0.77}, expected={"val_accuracy": 0.97})


def test_what_is_judged_of_translations_is_explained_too(said, tmp_path):
    for part, count in (("train", 60), ("val", 10)):
        lines = ["a b c d e"[: 1 + 2 * (number % 5)] for number in range(count)]
        (tmp_path / f"{part}.en").write_text("\n".join(lines) + "\n")
        (tmp_path / f"{part}.de").write_text("\n".join(lines).upper() + "\n")
    case = said(
        model={"name": "encoder-decoder", "n_layers": 1, "d_model": 16},
        training={"lr": 1e-2, "budget": {"steps": 30}},
        saw={"bleu": 1.0},
        expected={"bleu": 90.0},
    )
    case["task"] = {"name": "translation", "corpus": str(tmp_path), "tokenizer": "words", "batch_tokens": 64, "beam": 1}
    answer = runs_alone(case, tmp_path / "case")
    assert (answer.quantity, answer.again[0].metric) == ("val_bleu of 'mine'", "val_bleu")
    assert 0 <= answer.start.mean <= 100


def test_a_bug_that_no_removal_reaches_is_said_beside_what_the_set_up_carries():
    share = Share("too few steps", "set-up", "4 times as many steps", around(0.6))
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.3, 2.4, 1.0, 5)
    told = {"start": around(3.3), "noise": True, "shares": (share,), "end": around(2.7)}
    answer = Answer(*seen, **told, unmeasured=("Rows of heads are mixed",))
    assert answer.verdict == "bug"
    assert "what it carries is not known: Rows of heads are mixed." in paragraph(answer)
    assert what_next(answer).startswith("Mend what the doctor found")
    assert replace(answer, unmeasured=()).verdict == "set-up"
    assert replace(answer, shares=(replace(share, name="untuned rate"),)).verdict == "set-up"


def test_own_code_that_carries_it_and_has_an_error_is_a_bug():
    share = Share("own model", "own code", "a model of the lab is trained instead", around(-0.6))
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 1.5, 2.2, 1.0, 5)
    told = {"start": around(1.5), "noise": True, "shares": (share,), "end": around(2.1)}
    error = {"severity": "error", "check": "causality", "message": "Each position sees the next one."}
    told["examined"] = (Examined("a.py:Net", "model", findings=[error]),)
    answer = Answer(*seen, **told, unmeasured=("Each position sees the next one",))
    assert answer.verdict == "bug"
    told = paragraph(answer)
    assert told.startswith("A bug: Each position sees the next one. With it, your own model carries most of it (86%).")
    assert told.count("Each position sees") == 1
    assert what_next(answer).startswith("Mend what the doctor found")
    assert replace(answer, unmeasured=()).verdict == "own code"


def test_a_bug_whose_effect_short_runs_do_not_show_is_named_all_the_same():
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 1.6, 1.3)
    error = {"severity": "error", "check": "heads-mixed", "message": "Rows of heads are mixed."}
    told = {"start": around(1.5), "end": around(1.5), "examined": (Examined("a.py:Net", "model", findings=[error]),)}
    answer = Answer(*seen, 0.4, 3, **told, unshown=("Rows of heads are mixed",))
    assert answer.verdict == "bug"
    assert paragraph(answer).startswith(
        "A bug whose effect these runs, with 0.4 of the steps, do not show: Rows of heads are mixed."
    )
    assert paragraph(answer).count("Rows of heads") == 1
    assert what_next(answer).startswith("Mend what the doctor found")
    rate = Share("untuned rate", "set-up", "the rate is searched", around(0.2))
    assert replace(answer, shares=(rate,), end=around(1.3)).verdict == "set-up"
    assert replace(answer, shares=(rate,), end=around(1.3), fraction=0.02).verdict == "bug"
    perplexity = Again("perplexity for loss", "val_loss", 1.6, around(1.6), True)
    read = {"entire": around(1.3), "noise": False, "otherwise": perplexity}
    assert replace(answer, **read, fraction=0.02).verdict == "set-up"  # which no short run says


def test_what_does_not_train_and_has_an_error_is_a_bug():
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.9, 1.3, 1.0, 3)
    answer = Answer(*seen, error="step 1: the loss is nan", unmeasured=("Ordinary input gives NaN",))
    assert answer.verdict == "bug"
    assert paragraph(answer).startswith("It does not train. It has a bug: Ordinary input gives NaN.")
    assert replace(answer, unmeasured=()).verdict == "unexplained"


def test_a_bug_that_is_measured_is_told_though_its_removal_showed_nothing():
    seen = ("case", "Why?", "loss", "nats", 3.3, 0.0, 1.0, 5)
    cut, narrow = "weights without a gradient", "narrow heads"
    effects = {"mine": {cut: "23% are not trained", narrow: "heads are 4 wide"}}
    told = Answer(*seen, start=around(3.3), noise=True, end=around(3.3), effects=effects)
    assert f"'mine' has a bug, whatever that carries here: {cut}: 23% are not trained." in paragraph(told)
    assert narrow not in paragraph(told)
    share = Share(cut, "bug", "all weights are trained", around(2.0))
    assert "whatever it carries" not in paragraph(replace(told, shares=(share,)))


def test_errors_of_one_kind_are_told_once_and_those_of_other_machines_not_at_all():
    wrong = {"severity": "error", "evidence": "", "source": ""}
    findings = [{**wrong, "check": check, "message": f"{check} {n}."} for check in ("norms", "heads") for n in range(3)]
    findings.append({**wrong, "check": "dtype-device", "message": "On another device it fails."})
    told = {
        "start": around(0.8),
        "end": around(0.8),
        "noise": True,
        "examined": (Examined("a.py:Net", "model", findings=findings),),
    }
    text = paragraph(Answer("case", "Why?", "loss", "nats", 0.8, 0.2, 1.0, 5, **told))
    assert "finds an error in Net: norms 0 (and 2 more of this kind). The doctor also" in text
    assert what_next(Answer("case", "Why?", "loss", "nats", 0.8, 0.2, 1.0, 5, **told)).startswith(
        "Mend what the doctor"
    )
    assert text.count("finds an error") == 2
    elsewhere = Examined("a.py:Net", "model", findings=findings[-1:])
    text = paragraph(Answer("case", "Why?", "loss", "nats", 0.8, 0.2, 1.0, 5, **{**told, "examined": (elsewhere,)}))
    assert "error in Net" not in text


def test_what_carries_a_part_is_positive_of_an_accuracy_too():
    share = Share("dropout", "set-up", "nothing is dropped", around(-0.3), last=around(-0.1))
    told = {"start": around(0.5), "end": around(0.8), "noise": True, "undecided": {"no norm": around(-0.05)}}
    answer = Answer("case", "Why?", "accuracy", "fraction", 0.5, 0.9, 1.0, 5, shares=(share,), **told)
    text = paragraph(answer)
    assert "carries +0.3 [0.29, 0.31], 75% of the distance. Removed last it carries +0.1: it interacts." in text
    assert "'no norm' may carry +0.05 [0.04, 0.06]" in text
    assert "+0.1 (25%) stay unexplained" in text


def around(value):
    return Estimate(value, value - 0.01, value + 0.01, 5)


def test_noise_of_a_part_alone_is_no_answer():
    seen = ("case", "why?", "val_mse of 'one' minus that of 'other'", "error", 0.017, -0.05, 1.0, 5)
    answer = Answer(*seen, behind=True, start=around(-0.001), noise=True, end=around(-0.001), variants=("one", "other"))
    assert answer.verdict == "unexplained"
    assert paragraph(answer).startswith("Nothing that was tried carries much of it.")
    assert replace(answer, seen=0.06).verdict == "noise"


def test_one_variant_may_be_better_than_another_by_any_amount():
    share = Share("untuned rate", "set-up", "the rate is searched", around(-0.4))
    seen = ("case", "why?", "val_accuracy of 'mine' minus that of 'other'", "fraction", -0.14, 0.0, 1.0, 3)
    wide = Estimate(-0.06, -0.2, 0.1, 3)
    answer = Answer(*seen, behind=True, start=wide, noise=True, shares=(share,), end=around(0.34))
    assert [replace(answer, one_sided=one).verdict for one in (False, True)] == ["noise", "set-up"]
    told = paragraph(replace(answer, one_sided=True))
    assert "-0.14 was seen and 0 or more expected" in told
    assert "more than there was to explain" not in told
    assert "beyond what was expected" not in told
    assert waterfall_rows(replace(answer, one_sided=True))[-1]["text"] == "0 or more"
    other = replace(answer, one_sided=True, scale="small", seen=-0.02, start=around(0.1), shares=())
    assert other.expected_words == "0 or more", "where runs of another size are as expected already"
    assert "0.14 was seen and 0 or less expected" in paragraph(replace(answer, seen=0.14, one_sided=True))
    nearly, hardly = (
        replace(answer, one_sided=True, shares=(), end=wide, undecided={"rate": Estimate(-0.4, -0.8, high, 3)})
        for high in (0.1, 0.3)
    )
    assert "'rate' may carry +0.4 [-0.1, 0.8], which 3 runs do not decide." in paragraph(nearly)
    assert what_next(nearly).startswith("Decide whether 'rate' carries it")
    assert [one.is_all_noise for one in (nearly, hardly, replace(nearly, one_sided=False))] == [False, True, True]
    short = replace(nearly, fraction=0.25, entire=Estimate(-0.01, -0.2, 0.2, 3), start=around(-0.9))
    assert short.is_all_noise, "of what shortened runs show little is of what was seen"


@pytest.mark.parametrize(
    ("again", "steps", "verdict", "begins"),
    [
        (3.2, 0.6, "set-up", "The set-up, too few steps, carries most of it"),
        (2.5, 0.6, "not again", "What surprised does not come again in runs of the case as it is said."),
        (3.3, 0.1, "unexplained", "Nothing that was tried carries much of it."),
    ],
)
def test_a_cause_counts_as_far_as_something_was_left_to_explain(again, steps, verdict, begins):
    share = Share("too few steps", "set-up", "4 times as many steps", around(steps))
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.3, 2.4, 1.0, 5)
    answer = Answer(*seen, start=around(again), noise=again > 3.29, shares=(share,), end=around(again - steps))
    assert answer.verdict == verdict
    assert paragraph(answer).startswith(begins)


def test_what_is_named_first_is_what_to_remove_next():
    bug = Share("wrong scale of the scores", "bug", "the scores are multiplied by 0.08", around(0.8))
    steps = Share("too few steps", "set-up", "4 times as many steps", around(1.1))
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.3, 2.4, 1.0, 5)
    answer = Answer(*seen, start=around(3.3), noise=True, shares=(bug, steps), end=around(1.4))
    assert paragraph(answer).startswith("A bug, wrong scale of the scores, carries most of it")
    mend = "Mend 'wrong scale of the scores' (here: the scores are multiplied by 0.08), and run the case again."
    assert [what_next(replace(answer, fraction=fraction)) for fraction in (1.0, 0.5)] == [mend, mend]
    chosen = replace(answer, shares=(replace(bug, nature="set-up"), steps))
    assert what_next(chosen).startswith(
        "Remove 'wrong scale of the scores' (here: the scores are multiplied by 0.08) and"
    )
    told = replace(bug, remedy="divide by the root of d_head.")
    assert what_next(replace(answer, shares=(told, steps))) == (
        "Mend 'wrong scale of the scores': divide by the root of d_head. Then run the case again."
    )
    effect = replace(told, nature="known effect")
    assert "(divide by the root of d_head) and run it again" in what_next(replace(answer, shares=(effect, steps)))
    lucky = replace(answer, start=around(2.4), shares=(), end=around(2.4))
    assert what_next(lucky) == "Tell the mean of several runs, here 2.4 [2.39, 2.41], in place of one number."


def test_of_noise_it_is_said_how_far_runs_scatter_and_how_much_variants_may_differ():
    seen = ("case", "why?", "val_loss of 'one' minus that of 'other'", "nats/character", 0.3, 0.0, 1.0, 5)
    again = tuple(
        Again(name, "val_loss", 2.0, around(2.0), True, (1.8, high)) for name, high in (("one", 2.4), ("other", 1.9))
    )
    answer = Answer(*seen, again=again, start=around(0.005), noise=True, end=around(0.005), variants=("one", "other"))
    assert "Single runs of 'one' gave val_loss from 1.8 to 2.4." in paragraph(answer)
    assert "runs of 'other'" not in paragraph(answer), "they lie nearer together than what surprised"
    assert what_next(answer) == "Compare means of several seeds: over these 5 runs they differ by 0.015 at most."
    assert "attnlab run adds them" in what_next(replace(answer, start=Estimate(0.1, -0.4, 0.6, 5)))
    once = Estimate(0.1, -math.inf, math.inf, 1)
    assert what_next(replace(answer, start=once, end=once)).startswith("Run it with more seeds")


def test_what_came_of_a_cause_that_was_removed_is_no_bug_beside_it(texts):
    task = {"name": "char-lm", "text": str(texts / "chain.txt"), "context": 12, "batch": 16}
    setup = Setup("mine", task, {"name": "decoder", "n_layers": 1, "d_model": 16}, {"budget": {"steps": 40}})
    effects = {"mine": {"outputs that see nothing": "none is seen", "post-norm": "it is"}}
    share = Share("dead rectifiers", "known effect", "they leak", around(0.8))
    ended = {"mine": setup}
    assert suspecting.gone(effects, (share,), ended, print) == ("outputs that see nothing",)
    assert suspecting.gone(effects, (), ended, print) == ()
    unmeasured = {"mine": replace(setup, model={"name": "decoder", "n_layers": 0})}
    assert suspecting.gone(effects, (share,), unmeasured, print) == ()
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.3, 2.5, 1.0, 5)
    answer = Answer(*seen, start=around(3.3), noise=True, shares=(share,), end=around(2.5), effects=effects)
    assert "a bug, whatever that carries here" in paragraph(answer)
    assert "a bug, whatever that carries here" not in paragraph(replace(answer, gone=("outputs that see nothing",)))


@pytest.mark.parametrize(("carried", "more"), [(0.5, False), (1.4, True)])
def test_a_cause_that_carries_more_than_there_was_to_explain_is_said_to(carried, more):
    share = Share("too few steps", "set-up", "4 times as many steps", around(carried))
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.3, 2.3, 1.0, 5)
    answer = Answer(*seen, start=around(3.3), noise=True, shares=(share,), end=around(3.3 - carried))
    assert f"{carried:.0%} of the distance" in paragraph(answer)
    assert ("more than there was to explain" in paragraph(answer)) == more
    assert ("runs end 0.4 beyond what was expected" in paragraph(answer)) == more


def test_a_share_above_all_is_no_surplus_where_runs_lie_further_off_than_what_was_seen():
    share = Share("too few steps", "set-up", "4 times as many steps", around(1.2))
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.3, 2.3, 1.0, 5)
    answer = Answer(*seen, start=around(3.5), noise=True, shares=(share,), end=around(2.3))
    assert paragraph(answer).startswith("The set-up, too few steps, carries all of it.")
    assert "100% of the 1.2 that runs lie off." in paragraph(answer)
    less = replace(share, amount=around(0.72))
    answer = replace(answer, shares=(less,), end=around(2.78))
    assert paragraph(answer).startswith("The set-up, too few steps, carries most of it (60%).")
    assert "+0.48 (40%) stay unexplained" in paragraph(answer)


def test_what_makes_any_number_better_is_no_cause_of_a_distance_within_noise():
    share = Share("own model", "own code", "a model of the lab", around(0.1))
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 2.174, 2.166, 1.0, 5)
    answer = Answer(*seen, behind=True, start=around(2.175), noise=True, shares=(share,), end=around(2.07))
    assert paragraph(answer).startswith("Noise carries all of it.")
    assert "Without 'own model' (a model of the lab) any such number is better by 0.1 [0.09, 0.11]" in paragraph(answer)
    assert replace(answer, expected=2.1).verdict == "own code"
    assert replace(answer, shares=(replace(share, nature="bug"),)).verdict == "bug"
    too_good = replace(answer, seen=2.16, behind=False, shares=(replace(share, amount=around(-0.1)),))
    assert too_good.verdict == "noise"
    assert "(a model of the lab) any such number is worse by 0.1 [0.09, 0.11]" in paragraph(too_good)
    assert replace(too_good, expected=2.3).verdict == "own code"
    few = replace(answer, seen=0.8, expected=0.9, shares=(), start=around(0.8), end=around(0.8))
    assert [replace(few, draw=draw).verdict for draw in (0.0, 0.12)] == ["unexplained", "noise"]
    assert [what_next(replace(few, draw=draw))[:9] for draw in (0.0, 0.12)] == ["Ask a sma", "Hold more"]


def test_what_is_suspicious_about_data_stands_behind_what_carries_it_but_of_what_cannot_be():
    share = Share("too few steps", "set-up", "4 times as many steps", around(1.0))
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.3, 2.3, 1.0, 5)
    told = {"start": around(3.3), "end": around(2.3), "noise": True, "alarms": ("its texts are few",)}
    answer = Answer(*seen, shares=(share,), **told)
    assert paragraph(answer).index("carries +1") < paragraph(answer).index("its texts are few.")
    limit = Impossible("mine", "val_loss", 3.3, "the limit 'noise'", 3.4, "impossible")
    text = paragraph(replace(answer, impossible=(limit,), variants=("mine",)))
    assert text.index("its texts are few.") < text.index("carries +1")


def test_a_share_is_the_same_where_the_answer_begins_and_where_the_cause_is_told():
    share = Share("dropout", "set-up", "nothing is dropped", around(0.96))
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 3.3, 2.3, 1.0, 5)
    answer = Answer(*seen, start=around(3.22), noise=False, shares=(share,), end=around(2.26))
    told = paragraph(answer)
    assert told.startswith("The set-up, dropout, carries most of it (96%).")
    assert "96% of the distance" in told


def test_where_nothing_is_wrong_no_bug_is_named_and_the_rest_stays_unexplained(said, tmp_path):
    case = said(variants=own("Attention"), saw={"val_loss": 0.9}, expected={"val_loss": 0.3})
    answer, told = explained(case, tmp_path / "case")
    assert not [share for share in answer.shares if share.nature == "bug"], told
    assert answer.brought.keys() == {"mine"}, told
    if not answer.shares:
        name, nearest = answer.nearest
        assert f"'{name}' came nearest to what was expected: {nearest.mean:.4g} without it" in paragraph(answer)
        assert what_next(answer).startswith("Ask how good an answer these data allow")
    assert "stay unexplained" in paragraph(answer)


def test_an_impossible_number_is_said_before_anything_trains_and_the_leak_is_made(said, tmp_path):
    variants = {"blind": {"mixer": "none"}}
    case = said(variants=variants, saw={"val_loss": 1.0}, expected={"val_loss": 0.9})
    answer, told = explained(case, tmp_path / "case")
    assert answer.verdict == "cannot be"
    (one,) = answer.impossible
    assert (one.kind, one.sees) == ("impossible", 1)
    assert "its outputs depend on one input position" in paragraph(answer)
    said_at = next(i for i, line in enumerate(told) if line.startswith("can it be?"))
    assert said_at < next(i for i, line in enumerate(told) if "seed 0" in line)
    made = {made.variant: made.found.mean for made in answer.made}
    read_off = made.pop("blind, one answer read off all positions")
    assert made.keys() == {"blind, windows split", "blind, inside split"}
    assert all(loss > 1.5 for loss in made.values())  # no split makes up for what it does not see
    assert read_off < min(made.values())  # a head over the window does


@pytest.mark.parametrize(("mixer", "made"), [("Peeking", 0), ("Silent", 2)])
def test_no_wrong_split_is_made_where_a_bug_carries_what_cannot_be(mixer, made, said, tmp_path, monkeypatch):
    limit = Impossible("mine", "val_loss", 0.1, "the limit 'noise'", 0.5, "impossible")
    monkeypatch.setattr(knowing, "impossible", lambda *_: [limit])
    answer, told = explained(said(variants=own(mixer), saw={"val_loss": 0.1}), tmp_path / "case")
    assert len(answer.made) == made, told
    assert len([line for line in told if line.startswith("made: ")]) == made
    bugs = [share for share in answer.shares if share.nature == "bug"]
    assert len(bugs) == (made == 0), told


def test_what_was_begun_is_gone_on_with_and_belongs_to_one_case(said, tmp_path):
    training = {"lr": 1e-5, "budget": {"steps": 20}}
    case = said(saw={"val_loss": 2.0}, expected={"val_loss": 0.9}, training=training)
    first, told = explained(case, tmp_path / "case", seeds=2)
    second, again = explained(case, tmp_path / "case", seeds=2)
    assert any("seed 0" in line for line in told)
    assert not any("seed 0" in line for line in again)
    assert second.shares == first.shares
    assert second.start == first.start
    assert second.seconds > first.seconds
    with pytest.raises(RunError, match="was begun with another case"):
        explained(case | {"expected": {"val_loss": 1.0}}, tmp_path / "case")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="is no case's folder and holds files"):
        explained(case, tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_runs_are_shortened_to_the_minutes_and_that_is_said(said, tmp_path, monkeypatch):
    def as_if_slow(study, **how):  # what is measured depends on the machine
        plan = plan_study(study, **how)
        return replace(plan, variants=tuple(replace(one, seconds_per_seed=50_000.0) for one in plan.variants))

    monkeypatch.setattr(explaining, "plan_study", as_if_slow)
    saw = {"mine": {"val_loss": 1.5}, "other": {"val_loss": 1.2}}
    how = {"variants": {"mine": {}, "other": {}}, "expected": {"mine": {"val_loss": 0.8}}}
    case = said(training={"lr": 1e-2, "budget": {"steps": 100_000}}, saw=saw, **how)
    with pytest.raises(
        SpecError, match=r"minutes are too few: with 30 steps a run the plan takes about ([4-9]|\d\d) min"
    ):
        explained(case, tmp_path / "none", minutes=3.0)
    answer, told = explained(case, tmp_path / "some", minutes=8.0)
    assert 0 < answer.fraction < 1
    assert any("shortened to" in line for line in told)
    assert {one.variant for one in answer.again} == {"mine"}  # short runs of another would tell nothing
    assert "so that what was seen cannot be held against it" in paragraph(answer)
    assert not [step for step in answer.steps if step[1] == "noise"]
    assert not {share.name for share in answer.shares} & {"too few steps", "untuned rate"}
    assert "'too few steps' (runs are shortened)" in answer.not_tried
    again, _ = explained(case, tmp_path / "some", minutes=8.0)
    assert again.fraction == answer.fraction
    assert "--minutes" in what_next(answer)


def test_what_diverges_is_tried_without_each_cause_until_it_trains(said, tmp_path):
    case = said(training={"lr": 1e8, "budget": {"steps": 20}}, saw={"val_loss": 3.0})
    answer, told = explained(case, tmp_path / "case", seeds=2)
    assert answer.start is None, told
    assert answer.verdict == "set-up"
    assert ("untuned rate", "set-up") in answer.cured
    assert paragraph(answer).startswith("It does not train; without 'untuned rate'")
    assert answer.error in paragraph(answer)


def test_no_setting_of_training_is_tried_where_the_first_loss_is_no_number_already(said, tmp_path):
    case = said(variants={"mine": {"name": f"{OWN}:Lost"}}, saw={"val_loss": math.nan})
    answer, told = explained(case, tmp_path / "case", seeds=2)
    assert answer.verdict == "bug", told
    assert not [line for line in told if "rate" in line and "removed" in line]
    assert "no setting of training is the cause" in answer.error


def test_of_code_that_raises_in_training_no_cause_is_tried(said, tmp_path):
    case = said(variants=own("Tired"), training={"lr": 1e-2, "budget": {"steps": 40}})
    answer, told = explained(case, tmp_path / "case", seeds=2)
    assert not [line for line in told if "removed" in line]
    assert (answer.verdict, answer.cured) == ("bug", ())
    assert paragraph(answer).startswith("It does not train: its code fails.")
    assert "no more calls" in paragraph(answer)
    assert what_next(answer).startswith("Mend what ends its runs")


def test_a_bug_that_mending_does_not_reach_is_not_said_to_have_no_effect(said, tmp_path):
    case = said(variants=own("Rolling"), saw={"val_loss": 0.2}, expected={"val_loss": 0.9})
    answer, told = explained(case, tmp_path / "case")
    assert "outputs that see ahead" not in answer.without_effect, told
    assert "mending 'outputs that see ahead' (its own code is not reached)" in answer.not_tried
    assert answer.verdict == "bug", told


def test_what_a_module_does_on_the_side_is_said_and_is_no_cause(said, tmp_path, monkeypatch):
    tried = []

    def no_time(situations, **how):
        tried.extend(candidates(situations, **how))
        return []

    monkeypatch.setattr(suspecting, "candidates", no_time)
    case = said(variants=own("Messy"), training={"lr": 1e-2, "budget": {"steps": 5}}, saw={"val_loss": 2.1})
    answer, told = explained(case, tmp_path / "case", seeds=2)
    assert any("writes into its input" in line for line in told)
    assert "The doctor finds an error in Messy: it writes into its input" in paragraph(answer)
    assert (answer.unmeasured, answer.unshown) == ((), ())
    assert what_next(answer).startswith("Mend what the doctor found. Then: ")
    assert tried
    assert not [cause for cause in tried if cause.nature == "bug"]


def test_chance_that_is_a_cause_is_told_once():
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 1.6, 1.3, 1.0, 3)
    error = {"severity": "error", "check": "determinism", "message": "two calls differ, by chance"}
    chance = Share(CHANCE, "bug", "dropout acts in training alone", around(0.3), evidence="two calls differ")
    told = {"start": around(1.6), "end": around(1.3), "examined": (Examined("a.py:Net", "model", findings=[error]),)}
    assert "also finds" not in paragraph(Answer(*seen, **told, noise=True, shares=(chance,)))
    assert "also finds" in paragraph(Answer(*seen, **told, noise=True, shares=(replace(chance, name="other"),)))


def test_a_module_that_fails_is_said_with_its_error(said, tmp_path):
    with pytest.raises(SpecError, match=r"variant 'mine': .*no way"):
        explained(said(variants=own("Broken")), tmp_path / "case")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"minutes": 0.0}, "minutes must be a positive number; got 0.0"),
        ({"minutes": math.inf}, "minutes must be a positive number; got inf"),
        ({"expected": {"val_loss": 1.0}}, "1 was seen, and that is as expected: val_loss of 'mine'. There is nothing"),
        ({"seeds": 1}, "seeds must be 2 or more, as one run says nothing about noise; got 1"),
    ],
)
def test_wrong_arguments_are_said(how, sentence, said, tmp_path):
    with pytest.raises(SpecError, match=sentence):
        explained(said(expected=how.pop("expected", {"val_loss": 0.8})), tmp_path / "case", **how)
    assert not (tmp_path / "case").exists()


def test_of_too_large_a_difference_it_is_said_how_to_ask(said, tmp_path):
    two = {"variants": {"one": {}, "other": {"norm": "post"}}, "saw": {"one": {"loss": 1.0}, "other": {"loss": 1.5}}}
    with pytest.raises(SpecError, match=r"of too large a difference as 'A is as good as B by 0\.1'"):
        explained(said(**two, expected="one is better than other"), tmp_path / "case")


def test_a_comparison_is_explained_on_the_command_line(said, tmp_path, capsys, monkeypatch):
    from ruamel.yaml import YAML

    monkeypatch.setattr(explaining, "LocalProcesses", lambda *_: _Here())
    tried = ("untuned rate", "too few steps")
    monkeypatch.setattr(
        suspecting, "candidates", lambda *known, **how: [one for one in candidates(*known, **how) if one.name in tried]
    )
    variants = {"slow": {"training": {"lr": 1e-5}}, "usual": {}}
    saw = {"slow": {"val_loss": 2.08}, "usual": {"val_loss": 0.9}}
    case = said(variants=variants, saw=saw, expected="slow is as good as usual")
    with (tmp_path / "case.yaml").open("w") as file:
        YAML().dump(case, file)
    words = ["explain", str(tmp_path / "case.yaml"), "--out", str(tmp_path / "out"), "--seeds", "3", "--json"]
    assert call(words) == FINE
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "set-up"
    assert answer["shares"][0]["name"] == "untuned rate"
    assert answer["steps"][-1]["name"] in {"unexplained", "beyond what was expected"}
    total = sum(step["amount"] for step in answer["steps"])
    assert total == pytest.approx(answer["seen"] - answer["expected"])
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"answer.html", "answer.md", "answer.json", "waterfall.png", "case.json", "runs"} <= names
    page = (tmp_path / "out" / "answer.html").read_text()
    assert "untuned rate" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert call([*words[:-3], "--minutes", "0"]) == WRONG_USE
    assert "minutes must be a positive number" in capsys.readouterr().err


def test_a_warning_of_own_code_is_told_once_and_in_a_line(said, tmp_path, capsys, monkeypatch):
    def warns(*_, **__):
        for text in ("of my own\nand more", "of my own\nand more", "another"):
            with warnings.catch_warnings():  # after which Python has forgotten what it has shown
                warnings.warn(text, UserWarning, stacklevel=1)
        raise RunError("seen enough")

    monkeypatch.setattr(explaining, "explain", warns)
    (tmp_path / "case.yaml").write_text(json.dumps(said(variants={"usual": {}}, saw={"val_loss": 2.08})))
    before = warnings.showwarning
    assert call(["explain", str(tmp_path / "case.yaml")]) != FINE
    said_here = [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines() if "Warning" in line]
    assert said_here == ["UserWarning: of my own", "UserWarning: another"]
    assert warnings.showwarning is before


class _Here(InProcess):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_the_waterfall_leads_from_seen_to_expected():
    shares = tuple(Share(name, "set-up", "more", around(amount)) for name, amount in (("rate", 0.7), ("steps", 0.3)))
    seen = ("case", "why?", "val_loss of 'mine'", "nats/character", 2.08, 0.8, 1.0, 5)
    rows = waterfall_rows(Answer(*seen, start=around(2.0), noise=False, shares=shares, end=around(1.0)))
    assert (rows[0]["row"], rows[0]["to"], rows[-1]["row"], rows[-1]["to"]) == ("seen", 2.08, "expected", 0.8)
    assert len(rows) > 4
    for before, after in itertools.pairwise(rows):
        assert after["from"] == pytest.approx(before["to"])
    assert rows[-2]["to"] == pytest.approx(0.8)


def test_names_are_escaped_in_the_page(tmp_path):
    name = "<b>bold</b>"
    share = Share(name, "set-up", name, around(0.7), evidence=name, source=name, detail=name)
    answer = Answer(
        name, name, name, name, 2.0, 0.8, 1.0, 5,
        again=(Again(name, name, 2.0, around(2.0), True),), start=around(2.0), noise=True,
        shares=(share, replace(share, nature="bug")), end=around(0.9), without_effect=(name,), not_tried=(name,),
        alarms=(name,), made=(Again(name, name, 2.0, around(2.0), False),), unmeasured=(name,),
        examined=(Examined(name, "mixer", name, error=name),),
        effects={name: {name: name}}, brought={name: {name: name}}, notes=(name,), variants=(name,),
    )  # fmt: skip
    page = write_answer(answer, tmp_path).read_text()
    assert name not in page
    assert page.count("&lt;b&gt;bold&lt;/b&gt;") > 10


def test_what_ends_beyond_what_was_expected_is_not_unexplained():
    start, end, carried = (Estimate(mean, mean - 0.01, mean + 0.01, 5) for mean in (0.02, -0.2, 0.22))
    share = Share("no identity path", "bug", "added", carried)
    answer = Answer("case", "Why?", "loss", "nats", 0.5, 0.0, 1.0, 5, start=start, noise=True, shares=(share,), end=end)
    assert [step[:2] for step in answer.steps[1:]] == [
        ("no identity path", "bug"),
        ("beyond what was expected", "beyond"),
    ]
    assert sum(step[2] for step in answer.steps) == pytest.approx(0.5)
    assert "unexplained" not in paragraph(answer)
    assert waterfall_rows(answer)[-2]["text"] == "+0.2"
    alone = replace(answer, scale="small", seen=0.067)
    assert alone.part(0.22) == "more than 200%"
    assert "Nothing that matters is left, and runs end 0.2 beyond what was expected." in paragraph(alone)
