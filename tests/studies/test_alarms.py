"""Numbers of a study that cannot be true, or were chosen by luck: made-up results beside real data."""

from __future__ import annotations

import random

import pytest

from attnlab.studies.define.study import parse_study
from attnlab.studies.judge.alarms import alarms_of
from attnlab.studies.judge.results import CellResults, VariantResults
from attnlab.studies.plan.plan import plan_study

RULES = {"levels": [0.05]}


@pytest.fixture
def plan(tmp_path):
    """Return a function that plans a study on characters of pure chance: no count of them gets below ln 8 = 2.08."""
    (tmp_path / "text.txt").write_text("".join(random.Random(0).choices("abcdefgh", k=20_000)))

    def planned(**task):
        text = {} if "name" in task else {"name": "char-lm", "text": str(tmp_path / "text.txt")}
        study = {
            "question": "Can it be?",
            "task": {**text, "context": 16, "batch": 20, **task},
            "model": {"name": "decoder", "n_layers": 1, "d_model": 8, "mixer": "none"},
            "baseline": "one",
            "variants": {"one": {}, "other": {}},
            "rules": {"budget": {"steps": 1}, "seeds": 3, "smallest_effect": 0.01},
        }
        return plan_study(parse_study(study))

    return planned


def found(plan, losses, *, beside=(), reach=None, tuning=None, metric="val_loss"):
    """Return the alarms about a variant that ended with such losses, beside another one, without results by default."""
    variants = [
        VariantResults(
            name,
            {"task": plan.study.task_spec(name), "model": {}, "training": {}},
            parameters=1,
            flops_per_token=1.0,
            activation_bytes=1,
            tuning=tuning if name == "one" else None,
            cells=tuple(
                CellResults(seed, "done", {metric: loss}, reach=reach if name == "one" else None)
                for seed, loss in enumerate(values)
            ),
        )
        for name, values in (("one", losses), ("other", beside))
    ]
    return [alarm for alarm in alarms_of(plan, tuple(variants), RULES) if alarm.check not in ("data", "failed")]


CLEAN = {"past": 16, "future": 0, "mixes_batch": False}


@pytest.mark.parametrize("reach", [None, CLEAN])
def test_a_loss_far_below_all_counts_is_suspicious_whatever_the_reach(plan, reach):
    (alarm,) = found(plan(), [0.4, 0.41, 0.42], reach=reach)
    assert (alarm.check, alarm.variant) == ("floor", "one")
    assert "val_loss 0.41 nats/character is less than a quarter of what counts reach at best" in alarm.message
    assert not found(plan(), [0.6, 0.61, 0.62], reach=reach)


def test_counts_are_no_measure_where_the_task_states_a_limit_for_every_model(plan):
    ahead = plan(name="repeated-tokens", vocab_size=32, shortest=4)
    assert "floor" not in {alarm.check for alarm in found(ahead, [0.8, 0.81, 0.82], metric="val_loss_repeated")}
    assert [alarm.check for alarm in found(ahead, [0.1, 0.11, 0.12])] == ["floor"]


def test_a_value_to_compare_with_need_not_be_reached(plan):
    ahead = plan(name="repeated-tokens", vocab_size=32, shortest=4)
    assert not found(ahead, [1.5, 1.51, 1.52], metric="val_loss_repeated")
    assert [alarm.check for alarm in found(ahead, [3.5, 3.51, 3.52], metric="val_loss_repeated")] == ["not learned"]


@pytest.mark.parametrize("task", [{"test": True}, {"data_seed": 1}])
def test_it_needs_no_best_known_result(plan, task):
    assert [alarm.check for alarm in found(plan(**task), [0.4, 0.41, 0.42])] == ["floor"]


def test_no_variant_sees_more_than_its_window(plan):
    alarms = found(plan(context=1), [1.0, 1.01, 1.02])
    assert {alarm.check for alarm in alarms} == {"floor"}
    (bigram,) = [alarm.message for alarm in alarms if "bigram" in alarm.message]
    assert "although its outputs depend on 1 input position(s): leak or mixing suspected" in bigram
    assert not found(plan(), [1.0, 1.01, 1.02])


def test_a_number_that_is_not_believed_does_not_show_that_anything_was_learned(plan):
    ahead = CLEAN | {"future": 1}
    assert [alarm.check for alarm in found(plan(), [1.8, 1.81, 1.82], beside=[2.2, 2.21, 2.22], reach=ahead)] == [
        "causality",
        "not learned",
    ]
    assert not found(plan(), [1.8, 1.81, 1.82], beside=[2.2, 2.21, 2.22], reach=CLEAN)


def test_a_variant_without_results_hides_no_alarm(plan):
    assert [alarm.check for alarm in found(plan(), [2.2, 2.21, 2.22])] == ["not learned"]


@pytest.mark.parametrize(("runs", "near", "raised"), [(1, 0.601, True), (1, 0.7, False), (2, 0.601, False)])
def test_one_tuning_run_among_settings_as_close_as_seeds_is_luck(plan, runs, near, raised):
    tuning = {"setting": "lr", "metric": "val_loss", "chosen": "0.1", "scores": {"0.1": 0.6, "0.2": near, "0.3": None}}
    alarms = found(plan(), [0.6, 0.61, 0.62], tuning={**tuning, "runs": {"0.1": runs, "0.2": runs}, "at_edge": False})
    assert ["one run chose lr 0.1, and 0.2 came within" in alarm.message for alarm in alarms] == [True] * raised
