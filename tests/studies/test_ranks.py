"""A study whose models are trained on several devices: its cells one at a time, each on as many as it wants."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from attnlab.core.errors import SpecError, TrainingError
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.plan import plan
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.run import ranks
from attnlab.studies.run.executor import InProcess
from attnlab.studies.run.ranks import TOKEN, follow
from attnlab.training.devices import launching
from attnlab.training.devices.nodes import Meeting
from attnlab.training.keeping.result import read_result
from attnlab.training.keeping.runs import read_failure

pytestmark = pytest.mark.usefixtures("in_process")


def study(model=None, **training):
    return parse_study(
        {
            "question": "Which?",
            "task": {"name": "shapes", "n_train": 60, "n_test": 20, "batch": 20},
            "model": {"name": "cnn", "channels": 4, "n_layers": 3, "kernel_size": 3, "mixer_at": 1},
            "baseline": "one",
            "variants": {"one": {}, "two": {**(model or {}), "training": training}},
            "rules": {"metric": "test_mse", "budget": {"steps": 10}, "seeds": 1, "smallest_effect": 0.01},
        },
        name="ranks",
    )


@pytest.fixture
def launched(monkeypatch):
    """Compute in this process, alone, what would be computed on devices, and note on how many."""
    counts = []

    def on_devices(count, function, job, *, device, on_message):
        counts.append((count, job.threads))
        monkeypatch.setattr(launching, "_mail", [Mail(on_message)])
        return function(replace(job, setting={**job.setting, "devices": 1}))

    monkeypatch.setattr(launching, "on_devices", on_devices)
    return counts


@pytest.fixture
def free_port():
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


class Mail:
    def __init__(self, on_message):
        self._on_message = on_message

    def put(self, message):
        self._on_message(*message)


class Heard:
    """Note which cells tell of their end."""

    def __init__(self):
        self.kinds = {}

    def alarms(self, found):
        pass

    def phase(self, title, cells, done):
        pass

    def message(self, cell, message):
        self.kinds.setdefault(cell.variant, []).append(message["kind"])


def test_a_recipe_with_devices_is_computed_on_as_many_and_others_as_ever(launched, tmp_path):
    heard = Heard()
    run_study(study(devices=2), tmp_path / "two", watcher=heard)
    assert [count for count, _ in launched] == [2]
    assert next(kind for kind in heard.kinds["two"] if kind != "preparing") == "start"
    assert heard.kinds["two"][0] == "preparing"
    assert heard.kinds["one"][-1] == heard.kinds["two"][-1] == "finished"
    run_study(study(), tmp_path / "one")
    two, one = (read_result(tmp_path / name / "two" / "seed-0") for name in ("two", "one"))
    assert two.metrics == one.metrics


def test_devices_of_the_command_count_for_every_run(launched, tmp_path):
    run_study(study(), tmp_path / "out", devices=4)
    assert [count for count, _ in launched] == [4, 4]
    run_study(study(), tmp_path / "out")
    assert len(launched) == 2, "devices are no part of what a run is"


def test_one_device_of_the_command_takes_the_place_of_several_in_a_file(launched, tmp_path):
    heard = Heard()
    run_study(study(devices=2), tmp_path, devices=1, watcher=heard)
    assert launched == []
    assert heard.kinds["two"][-1] == "finished"


def test_a_run_that_fails_on_its_devices_fails_alone(monkeypatch, tmp_path):
    def on_devices(*_, **__):
        raise TrainingError("rank 1 failed")

    monkeypatch.setattr(launching, "on_devices", on_devices)
    heard = Heard()
    run_study(study(devices=2), tmp_path, watcher=heard)
    assert heard.kinds["two"] == ["failed"]
    assert heard.kinds["one"][-1] == "finished"
    assert read_failure(tmp_path / "two" / "seed-0")["error"] == "rank 1 failed"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"devices": 0}, "--devices must be at least 1; got 0"),
        ({"devices": 2, "jobs": 2}, "runs on 2 devices are computed one at a time on this machine; leave out --jobs"),
        ({"devices": 2, "together": 2}, "one at a time on this machine; leave out --together"),
        ({"devices": 2, "executor": InProcess()}, "one at a time on this machine; leave out --on"),
    ],
)
def test_what_has_no_meaning_with_devices_is_an_error(tmp_path, how, said):
    with pytest.raises(SpecError, match=said):
        run_study(study(), tmp_path, **how)


@pytest.fixture
def meeting(free_port):
    """Two machines that see each other: the first, and the one that follows."""
    return [Meeting(2, f"127.0.0.1:{free_port}") for _ in range(2)]


def test_what_the_first_machine_computes_others_compute_with_it(launched, meeting, tmp_path, monkeypatch):
    first, other = meeting
    followed = []

    def on_devices(count, function, job, *, nodes, **_):
        followed.append((nodes.number, Path(job.folders[0]).relative_to(tmp_path), job.study))
        return function(replace(job, setting={**job.setting, "devices": 1})) if nodes.number == 0 else None

    monkeypatch.setattr(launching, "on_devices", on_devices)
    monkeypatch.setattr(launching, "_mail", [])
    thread = threading.Thread(target=follow, args=[other, tmp_path / "out"])
    thread.start()
    run_study(study(), tmp_path / "out", devices=2, meeting=first)
    first.end()
    thread.join()
    folders = [Path("out", name, "seed-0") for name in ("one", "two")]
    assert sorted(followed) == [(number, one, str(tmp_path / "out")) for number in range(2) for one in folders]
    assert not (tmp_path / "out" / TOKEN).exists()


def test_a_machine_that_does_not_see_the_folder_is_an_error_on_each(launched, meeting, tmp_path, monkeypatch):
    first, other = meeting
    monkeypatch.setattr(ranks, "SEEN_S", 0.0)
    said = []

    def lag_behind():
        try:
            follow(other, tmp_path / "elsewhere")
        except SpecError as error:
            said.append(str(error))

    thread = threading.Thread(target=lag_behind)
    thread.start()
    wrong = f"a node does not see the first one's folder of the study in {tmp_path / 'elsewhere'}; give --out on a disk"
    with pytest.raises(SpecError, match=wrong):
        run_study(study(), tmp_path / "out", devices=2, meeting=first)
    thread.join()
    assert said[0].startswith(wrong)
    assert launched == []


@pytest.mark.parametrize(
    ("training", "devices", "said"),
    [
        ({}, 3, "3 devices of one cannot be divided among 2 nodes"),
        ({"devices": 5}, None, "5 devices of two cannot be divided among 2 nodes"),
        ({}, None, "--nodes 2: no run is computed on several devices; add --devices 2"),
        ({}, 0, "--devices must be at least 1; got 0"),
    ],
)
def test_devices_that_machines_cannot_divide_are_an_error(meeting, tmp_path, training, devices, said):
    with pytest.raises(SpecError, match=said):
        run_study(study(**training), tmp_path / "out", devices=devices, meeting=meeting[0])


@pytest.mark.parametrize(
    ("training", "how", "count"), [({}, {"devices": 3}, 3), ({"accumulate": 2}, {"devices": 4}, 8)]
)
def test_devices_of_the_command_that_do_not_divide_a_batch_are_refused_before_any_run(tmp_path, training, how, count):
    with pytest.raises(SpecError, match=f"a batch of 20 rows cannot be divided into {count} equal pieces"):
        run_study(study(**training), tmp_path / "out", **how)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("training", [{"devices": 3}, {"accumulate": 8}, {"devices": 2, "accumulate": 4}])
def test_a_plan_refuses_pieces_that_do_not_divide_a_batch(training):
    with pytest.raises(SpecError, match=r"a batch of 20 rows cannot be divided into [38] equal pieces"):
        plan_study(study(**training))


HEADS = r"sharding: tensor: 3 heads cannot be divided among 2 devices \(stack\.blocks\.0\.mixer\)"
POSITIONS = "sharding: context: 100 positions cannot be divided among 3 devices"
OF_3_HEADS = {"name": "encoder", "d_model": 12, "n_layers": 1, "mixer": {"name": "attention", "n_heads": 3}}


@pytest.mark.parametrize(
    ("training", "said"),
    [({"sharding": "tensor", "devices": 2}, HEADS), ({"sharding": "context", "devices": 3}, POSITIONS)],
)
def test_a_plan_refuses_a_model_that_devices_do_not_divide(training, said):
    with pytest.raises(SpecError, match=f"variant 'two': {said}"):
        plan_study(study(OF_3_HEADS, **training))


def test_a_model_is_divided_at_the_width_that_it_is_matched_to():
    """At its own width its features of 21 would not be divided."""
    gated = {"name": "encoder", "d_model": 8, "n_layers": 1, "feedforward": {"name": "gated"}}
    wider = {**gated, "d_model": 12}
    raw = {
        "question": "Which?",
        "task": {"name": "shapes", "n_train": 60, "n_test": 20, "batch": 20},
        "model": wider,
        "baseline": "wide",
        "variants": {"wide": {}, "narrow": {"d_model": 8, "training": {"sharding": "tensor", "devices": 2}}},
        "rules": {"metric": "test_mse", "budget": {"steps": 10}, "seeds": 1, "smallest_effect": 0.01},
    }
    with pytest.raises(SpecError, match="cannot be divided among 2 devices"):
        plan_study(parse_study(raw, name="narrow"))
    raw["rules"]["match"] = "parameters"
    assert plan_study(parse_study(raw, name="matched")).variants[1].model["d_model"] == 12


def test_devices_of_the_command_that_do_not_divide_a_model_are_refused_before_any_run(tmp_path):
    with pytest.raises(SpecError, match=HEADS):
        run_study(study(OF_3_HEADS, sharding="tensor"), tmp_path / "out", devices=2)
    assert not (tmp_path / "out").exists()


def test_code_of_ones_own_is_built_in_no_process_but_that_of_its_run(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from torch import nn\n\nclass Mine(nn.Linear):\n    pass\n")
    own = {**OF_3_HEADS, "mixer": {"name": f"{tmp_path}/mine.py:Mine", "in_features": 12, "out_features": 12}}
    planned = plan_study(study(own, sharding="tensor"))
    built = []
    monkeypatch.setattr(plan, "build_model", lambda spec, task: built.append(spec))
    assert ranks.wanted_ranks(planned, 2, jobs=None, together=None, elsewhere=False) == 2
    assert not built
