"""Studies that ask for time to a target, and variants that see the data in windows of their own."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import read_json, write_json
from attnlab.studies.define.study import load_study, parse_study, slug
from attnlab.studies.execute import run_study
from attnlab.studies.judge.tuning import cells_again, record_tuning
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.report import headline, report
from attnlab.studies.run import clock
from attnlab.studies.run.clock import ROUNDS, time_in_turns
from attnlab.studies.run.executor import InProcess
from attnlab.training.recipe.target import SECONDS_TO_TARGET

NO_SECONDS = "with a target the budget must be in steps, tokens or flops: seconds are what is measured"
TEXT = "the cat sat on the mat, and the dog lay on the log; " * 40


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    """Time few steps at a time: that they are timed in turns shows all the same."""
    monkeypatch.setattr(clock, "TURN_S", 0.01)


@pytest.fixture
def timed(tmp_path):
    """Return a study about time on a text of one sentence, with variants that differ in batch, context and budget."""
    (tmp_path / "text.txt").write_text(TEXT)
    return {
        "question": "Which is there first?",
        "task": {"name": "char-lm", "text": str(tmp_path / "text.txt"), "context": 8, "batch": 4},
        "model": {"name": "decoder", "n_layers": 1, "d_model": 12, "mixer": {"name": "attention", "n_heads": 2}},
        "baseline": "plain",
        "variants": {
            "plain": {},
            "more at once": {"task": {"context": 16, "batch": 7}, "training": {"budget": {"steps": 30}}},
        },
        "rules": {"budget": {"steps": 40}, "target": {"val_loss": 2.6}, "seeds": 2, "smallest_effect": 0.0},
        "training": {"lr": 0.01, "evaluate_every": 5},
    }


def plan_of(study):
    return plan_study(parse_study(study))


def complaint(study) -> str:
    with pytest.raises(SpecError) as caught:
        plan_of(study)
    return str(caught.value)


def test_with_a_target_the_time_to_it_is_judged_and_tunes(timed):
    plan = plan_of(timed)
    assert plan.judges_time
    assert plan.tune_metric.name == "val_loss"  # runs of one length differ in seconds by what else the machine does
    assert (plan.metric.name, plan.metric.unit, plan.metric.better) == (SECONDS_TO_TARGET, "s", "lower")
    assert {metric.name for metric in plan.metrics} >= {SECONDS_TO_TARGET, "val_loss"}
    timed["rules"]["metric"] = "val_accuracy"
    assert plan_of(timed).metric.name == "val_accuracy"
    assert not plan_of(timed).judges_time


def test_without_a_target_there_is_no_such_metric(timed):
    del timed["rules"]["target"]
    del timed["variants"]["more at once"]["training"]
    assert plan_of(timed).metric.name == "val_loss"
    assert all(
        "stop_at" not in cell.spec["recipe"] for cell in plan_of(timed).judged_cells({"plain": {}, "more at once": {}})
    )
    timed["rules"]["metric"] = SECONDS_TO_TARGET
    assert f"rules.metric: task 'char-lm' has no metric '{SECONDS_TO_TARGET}'" in complaint(timed)


def test_every_cell_gets_the_task_and_the_end_of_its_variant(timed):
    plan = plan_of(timed)
    specs = {cell.variant: cell.spec for cell in plan.judged_cells({"plain": {}, "more at once": {}})}
    assert {name: (spec["task"]["context"], spec["task"]["batch"]) for name, spec in specs.items()} == {
        "plain": (8, 4),
        "more at once": (16, 7),
    }
    assert {name: spec["recipe"]["budget"]["steps"] for name, spec in specs.items()} == {
        "plain": 40,
        "more at once": 30,
    }
    assert {name: plan.variant(name).steps for name in specs} == {"plain": 40, "more at once": 30}
    assert not any("stop_at" in spec["recipe"] for spec in specs.values())
    plain, other = plan.variant("plain"), plan.variant("more at once")
    assert other.activation_bytes > 3 * plain.activation_bytes
    assert other.parameters - plain.parameters == 8 * 12  # learned positions of a context twice as long
    assert plain.notes == ()
    assert other.notes[0] == "its own context 16, batch 7"
    assert "a longer one predicts from more" in other.notes[1]


def test_a_task_that_is_a_name_can_be_seen_otherwise(tiny):
    tiny["task"] = "shapes"
    tiny["variants"]["plain"] = {"task": {"batch": 3}}
    assert parse_study(tiny).task_spec("plain") == {"name": "shapes", "batch": 3}
    assert parse_study(tiny).task_spec("with attention") == "shapes"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"variants": {"plain": {"task": {"text": "other.txt"}}}},
            "task of 'plain' may set batch, context, silver, beside, beam, alpha, coverage and replace_unknown only, "
            "so that all are measured on the same data; got text",
        ),
        ({"variants": {"plain": {"task": "char-lm"}}}, "task of 'plain' must be a mapping; got 'char-lm'"),
        (
            {"training": {"stop_at": {"val_loss": 1.0}}},
            "training may not set 'stop_at': every run of a study uses its whole budget",
        ),
        ({"rules": {"budget": {"seconds": 5}}}, f"rules: {NO_SECONDS}"),
        ({"variants": {"plain": {"training": {"budget": {"seconds": 5}}}}}, NO_SECONDS),
        ({"rules": {"tune": {"length": [0.0, 1.0, 2.0]}}}, "tune.length takes shares of the budget above 0; got [0.0,"),
        (
            {"rules": {"tune": {"length": [0.5, 1.0], "lr": [0.1, 0.2, 0.3]}}},
            "tune.length is tuned alone: runs of one length take the same time whatever else is tried",
        ),
        (
            {"rules": {"tune_by": "seconds_to_target"}},
            "rules.tune_by: task 'char-lm' has no metric 'seconds_to_target'",
        ),
        (
            {"training": {"early_stop": {"patience": 2}}},
            "with a target training may not set 'early_stop': every run uses its whole budget",
        ),
        ({"rules": {"target": {}}}, "rules.target: must be exactly one metric with its value"),
        ({"rules": {"target": {"val_loss": 1.0, "val_accuracy": 0.5}}}, "must be exactly one metric with its value"),
        ({"rules": {"target": {"val_los": 1.0}}}, "rules.target: the task has no metric 'val_los'; did you mean"),
    ],
)
def test_what_a_study_about_time_may_not_say(timed, changes, expected):
    for key, value in changes.items():
        timed[key] = timed[key] | value
    assert expected in complaint(timed)


def test_the_test_part_is_no_target(timed):
    timed["task"]["test"] = True
    timed["rules"]["target"] = {"test_loss": 2.0}
    assert "'test_loss' is measured on the test part" in complaint(timed)


def test_a_length_is_tuned_for_a_target_alone(timed):
    del timed["rules"]["target"]
    del timed["variants"]["more at once"]["training"]
    timed["rules"]["tune"] = {"length": [0.5, 1.0, 2.0]}
    assert "tune.length asks for the shortest runs that reach a target; the rules have no target" in complaint(timed)


@pytest.mark.usefixtures("in_process")
def test_a_study_about_time_uses_whole_budgets_one_run_at_a_time(timed, tmp_path):
    timed["variants"]["never"] = {"training": {"lr": 1e-9}}
    results = run_study(parse_study(timed), tmp_path / "runs")
    layout = json.loads((tmp_path / "runs" / "layout.json").read_text())
    assert (layout["workers"], layout["reason"]) == (1, "one run at a time: the verdict is about wall time")
    assert results.complete
    for name, steps in {"plain": 40, "more at once": 30, "never": 40}.items():
        for cell in results.variant(name).done:
            assert cell.curve[-1]["step"] == steps
            clock = read_json(tmp_path / "runs" / slug(name) / f"seed-{cell.seed}" / "clock.json")
            assert len(clock["turns"]) == ROUNDS
            assert cell.metrics[SECONDS_TO_TARGET] == pytest.approx(steps * statistics.median(clock["turns"]))
            assert cell.metrics[SECONDS_TO_TARGET] != cell.seconds
    missed = [alarm.message for alarm in results.alarms if alarm.check == "target"]
    assert [message.split(" ends at ")[0] for message in missed] == ["seed 0", "seed 1"]
    assert all(message.endswith("after 40 steps: the target of 2.6 was not reached") for message in missed)
    assert report(results)["rules"]["claim_levels"] == [pytest.approx(0.01)]
    verdicts = {one["variant"]: one for one in report(results)["verdicts"]}
    assert verdicts["never"]["verdict"] in ("undecided", "worse")
    assert verdicts["more at once"]["metric"] == SECONDS_TO_TARGET
    assert "never" in headline(results)


def test_a_machine_that_becomes_slower_is_slower_for_all(timed, tmp_path, monkeypatch):
    timed["variants"] = {"plain": {}, "the same": {}}
    results = run_study(parse_study(timed), tmp_path / "runs", executor=InProcess())
    kept = {name: tmp_path / "runs" / slug(name) / "seed-0" for name in timed["variants"]}
    assert results.complete
    before = {name: (folder / "clock.json").read_bytes() for name, folder in kept.items()}
    run_study(parse_study(timed), tmp_path / "runs", executor=InProcess())
    assert before == {name: (folder / "clock.json").read_bytes() for name, folder in kept.items()}  # timed once
    calls = []

    def slower_and_slower(trainers, gradients):
        calls.append(trainers[0])
        trainers[0].state.seconds += 0.01 * 1.01 ** len(calls)

    monkeypatch.setattr(clock, "make_step", slower_and_slower)
    time_in_turns(list(kept.values()), [read_json(folder / "spec.json") for folder in kept.values()], threads=1)
    one, other = (read_json(folder / "clock.json")["seconds_per_step"] for folder in kept.values())
    assert len(set(map(id, calls))) == 2
    assert 1.01 ** len(calls) > 5
    assert one == pytest.approx(other, rel=0.25)


@pytest.mark.usefixtures("in_process")
def test_a_clock_that_was_changed_is_refused_and_own_code_is_timed_by_its_runs(timed, tmp_path):
    run_study(parse_study(timed), tmp_path / "runs", executor=InProcess())
    path = tmp_path / "runs" / "plain" / "seed-0" / "clock.json"
    changed = read_json(path) | {"seconds_per_step": 1e-9}
    write_json(path, changed)
    with pytest.raises(RunError, match=r"clock.json"):
        run_study(parse_study(timed), tmp_path / "runs", executor=InProcess())
    (tmp_path / "mine.py").write_text(
        "import torch\nclass Mine(torch.nn.Identity):\n    def __init__(self, d_model):\n        super().__init__()\n"
    )
    timed["variants"] = {"plain": {}, "own": {"mixer": f"{tmp_path / 'mine.py'}:Mine"}}
    results = run_study(parse_study(timed), tmp_path / "own", jobs=1)
    assert results.complete
    assert not list((tmp_path / "own").rglob("clock.json"))
    assert all(cell.metrics[SECONDS_TO_TARGET] == cell.seconds for cell in results.variant("own").done)


def written(out, cells, values):
    """Write down tuning runs that have ended: by share of the budget the seconds and the loss of each seed."""
    for cell in cells:
        seconds, loss = values[cell.tuned["length"]][cell.tuning_run - 1]
        (out / cell.folder).mkdir(parents=True)
        write_json(out / cell.folder / "result.json", {"metrics": {"val_loss": loss}, "seconds": seconds})


@pytest.mark.parametrize(
    ("values", "chosen", "at_edge"),
    [
        ({0.5: [(5, 3.0)], 1.0: [(10, 2.5), (10, 2.5)], 2.0: [(20, 2.4), (20, 2.4)]}, 1.0, False),
        ({0.5: [(5, 3.0)], 1.0: [(10, 2.5), (10, 2.7)], 2.0: [(20, 2.4), (20, 2.4)]}, 2.0, False),
        ({0.5: [(5, 2.5), (5, 2.5)], 1.0: [(10, 2.5), (10, 2.5)], 2.0: [(20, 2.4)]}, 0.5, True),
        ({0.5: [(5, 3.0)], 1.0: [(10, 2.9)], 2.0: [(20, 2.8)]}, 2.0, True),
    ],
    ids=["the shortest that reaches", "reached once, missed once", "a shorter one may do", "none reaches"],
)
def test_the_shortest_length_that_reaches_the_target_is_chosen(timed, tmp_path, values, chosen, at_edge):
    timed["rules"] |= {"tune": {"length": list(values)}}
    plan = plan_of(timed)
    written(tmp_path, plan.tuning_cells(), values)
    written(tmp_path, cells_again(plan, tmp_path), values)
    assert plan.variant("plain").steps == 80  # the longest
    settings = record_tuning(plan, tmp_path)
    assert read_json(tmp_path / "tuning.json")["plain"]["metric"] == "length"
    assert settings["plain"] == {"length": chosen}
    assert read_json(tmp_path / "tuning.json")["plain"]["at_edge"] == at_edge
    budgets = {cell.variant: cell.spec["recipe"]["budget"] for cell in plan.judged_cells(settings)}
    assert budgets == {"plain": {"steps": 40 * chosen}, "more at once": {"steps": 30 * chosen}}
    assert not any("length" in cell.spec["recipe"] for cell in plan.judged_cells(settings))


class Recorder:
    """Note which cells an executor is given, and run none."""

    def __init__(self):
        self.folders = []

    def run(self, jobs, tell):
        self.folders += [tuple(Path(job.folders[0]).parts[-2:]) for job in jobs]


@pytest.mark.parametrize("metric", [SECONDS_TO_TARGET, "val_loss"])
def test_runs_come_in_random_order_where_time_is_judged(timed, tmp_path, metric):
    timed["rules"] |= {"seeds": 8, "metric": metric}
    recorder = Recorder()
    run_study(parse_study(timed), tmp_path / "runs", executor=recorder)
    usual = [(slug(name), f"seed-{seed}") for seed in range(8) for name in timed["variants"]]
    assert sorted(recorder.folders) == sorted(usual)
    assert (recorder.folders != usual) == (metric == SECONDS_TO_TARGET)


@pytest.fixture
def short_text(tmp_path):
    """Return changes of a study that put a short text in the place of its own."""
    (tmp_path / "text.txt").write_text(TEXT)
    return {"task": {"text": str(tmp_path / "text.txt")}}


def test_the_speedrun_can_be_planned_and_its_recipes_run(short_text, tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "ROUNDS", 2)
    monkeypatch.setattr(clock, "TURN_S", 0.0)
    plan = plan_study(load_study("speedrun", scale="tiny", changes=short_text))
    cells = {cell.variant: cell for cell in plan.judged_cells({name: {} for name in plan.study.variants})}
    assert {cell.spec["recipe"]["budget"]["steps"] for cell in cells.values()} == {3}
    kept = ("the fast recipe", "nanoGPT CPU recipe")
    fewer = short_text | {"variants": dict.fromkeys(set(cells) - set(kept))}
    results = run_study(load_study("speedrun", scale="tiny", changes=fewer), tmp_path, executor=InProcess())
    assert [results.variant(name).done[0].metrics["val_loss"] <= 5.0 for name in kept] == [True, True]


def test_every_variant_of_the_speedrun_differs_from_the_fast_recipe(short_text):
    plan = plan_study(load_study("speedrun", changes=short_text))
    fast = plan.study.baseline
    settings = {
        name: (plan.study.model_spec(name), plan.study.task_spec(name), _method(plan, name))
        for name in plan.study.variants
    }
    assert [name for name, one in settings.items() if one == settings[fast]] == [fast]
    assert plan.study.rules.target == {"val_loss": 1.88}


def _method(plan, name):
    """Return what a variant's training says beside its length."""
    said = plan.study.training_settings(name)
    return {key: value for key, value in said.items() if key not in ("budget", "evaluate_every")}


def test_the_long_speedrun_can_be_planned(short_text):
    changes = {"task": short_text["task"] | {"context": 16}, "variants": {"windows of 128": {"task": {"context": 8}}}}
    plan = plan_study(load_study("speedrun-long", changes=changes))
    assert plan.judges_time
    assert plan.metric.title == "time to val_loss 1.4697"


def test_the_half_hour_is_judged_by_its_loss(short_text):
    plan = plan_study(load_study("speedrun-half-hour", changes={"task": short_text["task"] | {"context": 16}}))
    assert (plan.metric.name, plan.study.rules.budget) == ("val_loss", {"seconds": 1800})
