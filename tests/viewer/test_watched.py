"""What a run sees while it trains is told by quantity, layer and head as it is written, whatever its file holds."""

from __future__ import annotations

import json
import shutil

import pytest
from tests.viewer.conftest import serving, watching, write

from attnlab.core.files import write_json
from attnlab.viewer import watched
from attnlab.viewer.watched import LOOKS, FollowedLooks


def look(step, **seen):
    return {"step": step, "tokens": step, "seconds": 1.0, "watch": seen}


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run that was looked into once."""
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    write_json(folder / "spec.json", {})
    seen = {"entropy": {"a": [1.0, None], "b": [0.8]}, "gradient_norm": {"a": 2.5}}
    write(folder / "metrics.jsonl", look(1, **seen), {"step": 2, "train_loss": 1.0})
    return folder


def until(following, wanted):
    """The last event, as soon as something in it is so."""
    while not wanted(told := following()):
        pass
    return told


def test_looks_are_told_while_the_run_trains_and_its_end_after_the_last_of_them(run):
    with serving(run.parent) as port, watching(port, "/run/one/watched") as following:
        first = following()
        assert first["anew"]
        assert list(first["titles"])[:2] == ["entropy", "logit_max"]
        assert first["looks"] == [[1, {"entropy": {"a": [1.0, None], "b": [0.8]}, "gradient_norm": {"a": [2.5]}}]]
        assert until(following, lambda told: "state" in told)["state"] == "stopped"
        write(run / "metrics.jsonl", look(76, entropy={"a": [0.5, 0.4]}, note="no rectifiers"))
        told = following()
        assert told["looks"] == [[76, {"entropy": {"a": [0.5, 0.4]}}]]
        assert told["note"] == "no rectifiers"
        write(run / "metrics.jsonl", look(151, entropy={"a": [0.3, 0.2]}))
        write_json(run / "result.json", {})
        steps = []
        told = until(following, lambda told: steps.extend(told.get("looks", [])) or told.get("state") == "finished")
        assert [step for step, _ in steps] == [151]


def test_a_run_that_goes_on_from_a_checkpoint_is_told_anew(run):
    follow = FollowedLooks(run)
    new = run / "new"
    write(new, look(1, entropy={"a": [0.1]}))
    new.replace(run / "metrics.jsonl")
    told = follow.look()
    assert told["anew"]
    assert told["looks"] == [(1, {"entropy": {"a": [0.1]}})]


def test_a_folder_that_is_deleted_meanwhile_is_told_in_a_sentence(run):
    with serving(run.parent) as port, watching(port, "/run/one/watched") as following:
        following()
        shutil.rmtree(run)
        told = until(following, lambda told: told.get("trouble"))
    assert (told["trouble"], told["state"]) == ("the folder one is not there any more", "stopped")


def test_lost_records_of_a_finished_run_are_told_in_a_sentence(run):
    def trouble():
        follow = FollowedLooks(run)
        follow.look()
        return follow.everything()["trouble"]

    write_json(run / "result.json", {})
    assert trouble() == ""
    (run / "metrics.jsonl").unlink()
    assert trouble() == "metrics.jsonl is missing, and the curve of the run with it"
    (run / "result.json").unlink()
    assert trouble() == ""


def test_damaged_looks_are_left_out(run):
    lines = [
        '{"watch": 3, "step": 2}',
        '{"watch": {"entropy": [1]}, "step": 2}',
        '{"watch": {}}',
        "[" * 9999 + '"watch"',
    ]
    with (run / "metrics.jsonl").open("a") as file:
        file.write("\n".join([*lines, '{"watch": {"entropy": {"a": "high"}}, "step": 3}', json.dumps(look(5))[:-4]]))
    told = FollowedLooks(run).everything()
    assert [step for step, _ in told["looks"]] == [1]


def test_many_looks_are_thinned_and_few_are_kept(tmp_path, monkeypatch):
    write(tmp_path / "metrics.jsonl", *(look(step, entropy={"a": [0.5]}) for step in range(1, 200)))
    steps = [step for step, _ in FollowedLooks(tmp_path).everything()["looks"]]
    assert (len(steps), steps[0], steps[-1]) == (LOOKS, 1, 199)
    monkeypatch.setattr(watched, "MOST_KEPT", 50)
    steps = [step for step, _ in FollowedLooks(tmp_path).everything()["looks"]]
    assert (len(steps) <= 50, steps[0], steps[-1]) == (True, 1, 199)


def test_a_run_without_looks_says_how_it_stands(tmp_path):
    assert FollowedLooks(tmp_path).everything()["looks"] == []
    assert FollowedLooks(tmp_path).everything()["state"] == "waiting"
