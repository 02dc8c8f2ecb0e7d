"""One stream of events reaches every tracker; none of them can stop a run."""

from __future__ import annotations

import importlib.util
import json
import math
import sqlite3
import time

import pytest
from tests.training.tiny import TinyTask, recipe, tiny_model

from attnlab.core.errors import SpecError
from attnlab.training import TRACKERS, tracking, train
from attnlab.training.tracking import tracking as module
from attnlab.training.tracking.tracking import scalars

STEP = {"kind": "step", "loss": 0.5, "lr": 0.01, "rate": 7.0}
EVALUATION = {"kind": "evaluation", "part": "validation", "metrics": {"val_mse": 0.25}}
SEEN = {"entropy": {"blocks.0#2": [0.75, None]}, "gradient_norm": {"blocks.0": 0.125}, "note": "words"}
DONE = {"kind": "done", "metrics": {"val_mse": 0.0625}, "seconds": 3.0}
STREAM = [
    {"kind": "start", "step": 0, "resumed": False},
    {**STEP, "step": 3},
    {**EVALUATION, "step": 5},
    {"kind": "watch", "seen": SEEN, "step": 6},
    {**DONE, "step": 7},
]
GONE_ON = [{"kind": "start", "step": 5, "resumed": True}, {**EVALUATION, "step": 6}, {**DONE, "step": 7}]
CONFIG = {"recipe": {"lr": 0.01}, "seed": 3}
WRITTEN = {
    ("train/loss", 3): 0.5,
    ("train/lr", 3): 0.01,
    ("train/tokens_per_second", 3): 7.0,
    ("validation/val_mse", 5): 0.25,
    ("entropy/blocks.0#2/head 0", 6): 0.75,
    ("gradient_norm/blocks.0", 6): 0.125,
    ("final/val_mse", 7): 0.0625,
    ("final/seconds", 7): 3.0,
}


@pytest.fixture(autouse=True)
def own_places_without_network(tmp_path, monkeypatch):
    """Let every tracker write below the test's folder, and none ask or tell the world."""
    monkeypatch.chdir(tmp_path)
    places = {"TRACKIO_DIR": tmp_path / "trackio", "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri()}
    silence = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
    for name, value in (places | silence).items():
        monkeypatch.setenv(name, str(value))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def shown(names, folder, *streams):
    for stream in streams:
        with tracking(names, folder=folder, project="study", name="plain/seed-0", config=CONFIG) as tell:
            for event in stream:
                tell(event)


def test_every_number_has_a_name_and_a_step():
    found = {(name, event["step"]): value for event in STREAM for name, value in scalars(event).items()}
    assert found == WRITTEN
    assert scalars({**STEP, "step": 1, "loss": math.nan}).keys() == {"train/lr", "train/tokens_per_second"}


def test_tensorboard_has_the_stream_and_drops_what_a_killed_run_did_twice(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown(["tensorboard"], tmp_path, STREAM, GONE_ON)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = {(name, one.step): one.value for name in events.Tags()["scalars"] for one in events.Scalars(name)}
    kept = {place: value for place, value in WRITTEN.items() if place[1] <= 5}
    again = {("validation/val_mse", 6): 0.25, ("final/val_mse", 7): 0.0625, ("final/seconds", 7): 3.0}
    assert found == pytest.approx(kept | again)
    (config,) = events.Tensors("config/text_summary")[:1]
    assert b'"lr": 0.01' in config.tensor_proto.string_val[0]


def test_trackio_has_the_stream_and_goes_on_in_the_same_run(tmp_path):
    pytest.importorskip("trackio")
    shown(["trackio"], tmp_path, STREAM, GONE_ON)
    with sqlite3.connect(tmp_path / "trackio" / "study.db") as base:
        rows = base.execute("select run_name, step, metrics from metrics order by id").fetchall()
        configs = [json.loads(text) for (text,) in base.execute("select config from configs")]
    assert {name for name, _, _ in rows} == {"plain/seed-0"}
    found = {(name, step): value for _, step, text in rows for name, value in json.loads(text).items()}
    assert found == WRITTEN | {("validation/val_mse", 6): 0.25}
    assert CONFIG.items() <= configs[0].items()


def wandb_records(path):
    """What an offline run wrote: behind seven bytes records, each with its length in bytes 4 and 5 of seven.

    Its process may still write when the run has finished, and ends with the exit code.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    until = time.monotonic() + 60
    while True:
        data, at, records = path.read_bytes(), 7, []
        while (end := at + 7 + int.from_bytes(data[at + 4 : at + 6], "little")) <= len(data):
            records.append(Record.FromString(data[at + 7 : end]))
            at = end
        if any(record.HasField("exit") for record in records) or time.monotonic() > until:
            return records
        time.sleep(0.1)


def test_wandb_without_a_key_is_offline_and_goes_on_in_the_same_run(tmp_path):
    pytest.importorskip("wandb")
    shown(["wandb"], tmp_path, STREAM, GONE_ON)
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1
    records = [record for file in files for record in wandb_records(file)]
    (run, _) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name) == ("study", "plain/seed-0")
    assert {item.key: json.loads(item.value_json) for item in run.config.update if item.key in CONFIG} == CONFIG
    lines = [record.history.item for record in records if record.WhichOneof("record_type") == "history"]
    values = [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in line} for line in lines]
    found = {(name, line["step"]): value for line in values for name, value in line.items() if name[0] != "_"}
    assert WRITTEN.items() <= found.items()
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [0, 0]


def test_mlflow_has_the_stream_and_goes_on_in_the_same_run(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    shown(["mlflow"], tmp_path / "run", STREAM, GONE_ON)
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    assert (run.info.run_name, run.info.status) == ("plain/seed-0", "FINISHED")
    assert run.data.params == {"recipe.lr": "0.01", "seed": "3"}
    found = {
        (name, one.step): one.value
        for name in run.data.metrics
        for one in client.get_metric_history(run.info.run_id, name)
    }
    expected = {(name.replace("#", "_"), step): value for (name, step), value in WRITTEN.items()}
    assert found == expected | {("validation/val_mse", 6): 0.25}
    shown(["mlflow"], tmp_path / "other", STREAM[:3])
    runs = client.search_runs([run.info.experiment_id], order_by=["attributes.start_time"])
    assert [one.info.status for one in runs] == ["FINISHED", "FAILED"]


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_not_installed_names_its_extra(name, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with (
        pytest.raises(SpecError, match=rf"^{name} is not installed; pip install 'attnlab\[{name}\]'$"),
        tracking([name], folder=tmp_path),
    ):
        pass


def test_an_unknown_tracker_is_named_with_the_nearest(tmp_path):
    with (
        pytest.raises(SpecError, match=r"there is no tracker 'wandbb'; did you mean 'wandb'\?"),
        tracking(["wandbb"], folder=tmp_path),
    ):
        pass


class Broken:
    """Fail at a given call."""

    def __init__(self, at):
        self.at, self.calls = at, []

    def __call__(self, run):
        return self._take("open") or self

    def _take(self, call):
        self.calls.append(call)
        if call == self.at:
            raise OSError("no room\non the disk")

    def log(self, step, values):
        self._take("log")

    def flush(self):
        self._take("flush")

    def close(self, *, failed):
        self._take("close")


@pytest.mark.parametrize("at", ["open", "log", "flush", "close"])
def test_a_tracker_that_fails_costs_one_warning_and_no_run(at, tmp_path, monkeypatch):
    broken, whole = Broken(at), Broken(None)
    monkeypatch.setattr(module, "TRACKERS", {"tensorboard": broken, "wandb": whole})
    monkeypatch.setattr(module, "check_trackers", lambda names: None)
    warned = []
    with tracking(["tensorboard", "wandb"], folder=tmp_path, warn=warned.append) as tell:
        result = train(tiny_model(), TinyTask(), recipe(5), on_event=tell)
    assert result.steps == 5
    when = "at the end" if at == "close" else "after step"
    (text,) = warned
    assert text.startswith(f"tensorboard failed {when}")
    assert text.endswith("and is left out; the run goes on: no room on the disk")
    assert broken.calls[-1] == at
    assert whole.calls[-1] == "close"


def test_a_run_that_does_not_come_to_its_end_is_closed_as_failed(tmp_path, monkeypatch):
    ends = []

    class Ends(Broken):
        def close(self, *, failed):
            ends.append(failed)

    monkeypatch.setattr(module, "TRACKERS", {"wandb": Ends(None)})
    monkeypatch.setattr(module, "check_trackers", lambda names: None)
    shown(["wandb"], tmp_path, STREAM[:2], STREAM)
    assert ends == [True, False]
