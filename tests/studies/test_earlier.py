"""What earlier studies of a task tell a plan."""

from __future__ import annotations

import copy
import json
from statistics import stdev

import pytest
from tests.studies.conftest import TINY

from attnlab.cli import FINE, call
from attnlab.core.files import write_json
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.judge.earlier import Spread, earlier_spread
from attnlab.studies.judge.statistics import detectable_effect
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.run.executor import InProcess

SEEDS = 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with one study that has run."""
    study = copy.deepcopy(TINY)
    study["rules"]["seeds"] = SEEDS
    run_study(parse_study(study, name="first"), tmp_path_factory.mktemp("runs") / "first", executor=InProcess())
    return next(tmp_path_factory.getbasetemp().glob("runs*"))


def spread_of(study, runs):
    return earlier_spread(plan_study(parse_study(study)), runs)


def differences(folder):
    report = [json.loads(path.read_text())["metrics"]["test_mse"] for path in sorted(folder.rglob("result.json"))]
    return [b - a for a, b in zip(report[:SEEDS], report[SEEDS:], strict=True)]


def test_the_spread_of_an_earlier_study_of_the_task_is_used(tiny, runs):
    tiny["model"]["channels"] = 8
    found = spread_of(tiny, runs)
    assert found.folders == (str(runs / "first"),)
    assert found.deviations == pytest.approx([stdev(differences(runs / "first"))])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("task", {"name": "shapes", "n_train": 61, "n_test": 11, "batch": 20}),
        ("rules", {**TINY["rules"], "metric": "val_mse"}),
        ("rules", {**TINY["rules"], "budget": {"steps": 6}}),
        ("rules", {**TINY["rules"], "split": {"seed": "per run"}}),
    ],
    ids=["other data", "another metric", "another budget", "data per seed"],
)
def test_a_study_that_measures_something_else_is_not_used(tiny, runs, key, value):
    assert spread_of(tiny | {key: value}, runs) is None


def test_the_study_itself_counts_alone(tiny, runs, tmp_path):
    for seeds in (SEEDS, SEEDS + 1):
        tiny["rules"]["seeds"] = seeds
        run_study(parse_study(tiny), tmp_path / f"with-{seeds}", executor=InProcess())
    assert spread_of(tiny, tmp_path).folders == (str(tmp_path / f"with-{SEEDS + 1}"),)


def test_what_cannot_be_read_is_left_out(tiny, runs, tmp_path):
    tiny["rules"]["seeds"] = SEEDS
    run_study(parse_study(tiny), tmp_path / "changed", executor=InProcess())
    rules = json.loads((tmp_path / "changed" / "rules.json").read_text())
    write_json(tmp_path / "changed" / "rules.json", rules | {"smallest_effect": 5.0})
    (tmp_path / "no-json").mkdir()
    (tmp_path / "no-json" / "study.json").write_text("not JSON")
    assert spread_of(tiny, tmp_path) is None
    assert spread_of(tiny, tmp_path / "nowhere") is None


def test_what_is_detected_follows_from_spread_seeds_and_level(tiny):
    tiny["rules"] |= {"smallest_effect": 0.1}
    plan = plan_study(parse_study(tiny))
    spread = Spread(("runs/a",), (0.1, 0.2, 0.9))
    (level,) = plan.study.rules.levels(1)
    assert spread.detectable(plan) == pytest.approx(0.2 * detectable_effect(2, alpha=level))
    tiny["rules"] |= {"seeds": spread.seeds_for_smallest_effect(plan), "smallest_effect": 0.1}
    assert spread.detectable(plan_study(parse_study(tiny))) <= 0.1


@pytest.mark.parametrize(
    ("smallest", "says"),
    [
        (100.0, "and so those of 100 that matter"),
        (0.02, "and mostly not one of 0.02, which is said to matter: about"),
        (1e-9, "no number of seeds worth naming would show one so small"),
    ],
)
def test_the_plan_says_whether_a_study_can_answer_its_question(tiny, runs, tmp_path, capsys, smallest, says):
    tiny["rules"] |= {"seeds": SEEDS, "smallest_effect": smallest}
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(tiny))
    assert call(["plan", str(path), "--no-calibrate", "--runs", str(runs)]) == FINE
    assert says in " ".join(capsys.readouterr().out.split())
    assert call(["plan", str(path), "--no-calibrate", "--json", "--runs", str(runs)]) == FINE
    assert json.loads(capsys.readouterr().out)["spread"]["folders"] == [str(runs / "first")]
    assert call(["plan", str(path), "--no-calibrate", "--json", "--runs", str(tmp_path)]) == FINE
    assert json.loads(capsys.readouterr().out)["spread"] is None
