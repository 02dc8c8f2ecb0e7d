"""On a Ray cluster a study finds what it finds on one machine, whatever is lost on the way."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest

from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import read_json
from attnlab.core.machine import usable_cores
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.run import cluster
from attnlab.studies.run.cluster import Ray
from attnlab.studies.run.executor import InProcess, Job

DIES = """
import os, signal
from pathlib import Path
from torch import nn

class Dies(nn.Module):
    def __init__(self, d_model, at, times):
        super().__init__()
        self.linear, self.calls, self.at, self.times = nn.Linear(d_model, d_model), 0, at, times
    def forward(self, x):
        self.calls += self.training
        deaths = Path(__file__).with_name("deaths")
        before = deaths.read_text() if deaths.exists() else ""
        if self.calls == self.at and len(before) < self.times:
            deaths.write_text(before + "x")
            os.kill(os.getpid(), signal.SIGKILL)
        return self.linear(x)
"""


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("ray")
    with Ray() as executor:
        yield executor


def study(variants, seeds=1):
    return parse_study(
        {
            "question": "Which?",
            "task": {"name": "shapes", "n_train": 60, "n_test": 20, "batch": 20},
            "model": {"name": "cnn", "channels": 4, "n_layers": 3, "kernel_size": 3, "mixer_at": 1},
            "baseline": next(iter(variants)),
            "variants": variants,
            "rules": {"metric": "test_mse", "budget": {"steps": 40}, "seeds": seeds, "smallest_effect": 0.01},
            "training": {"lr": 1e-2, "checkpoint_every": 10},
        },
        name="cluster",
    )


def numbers(folder):
    """By run what it reached."""
    found = sorted(folder.rglob("result.json"))
    return {str(path.parent.relative_to(folder)): read_json(path)["metrics"] for path in found}


PLACE = cluster.place_of


def test_the_numbers_are_those_of_one_machine(ray, tmp_path):
    plain = study({"plain": {}, "attention": {"mixer": "attention"}})
    there = run_study(plain, tmp_path / "there", executor=ray)
    run_study(plain, tmp_path / "here", executor=InProcess())
    assert not [alarm for alarm in there.alarms if alarm.check == "failed"]
    assert numbers(tmp_path / "there") == numbers(tmp_path / "here") != {}


def own(folder, at, times):
    """A study with a module whose process is killed in a step of its training, so many times."""
    folder.mkdir()
    (folder / "mine.py").write_text(DIES)
    return study({"mine": {"mixer": {"name": f"{folder}/mine.py:Dies", "at": at, "times": times}}, "plain": {}})


def test_a_run_whose_process_is_killed_goes_on_and_ends_in_the_same_numbers(ray, tmp_path):
    run_study(own(tmp_path / "killed", 25, 1), tmp_path / "killed", executor=ray)
    run_study(own(tmp_path / "undisturbed", 25, 0), tmp_path / "undisturbed", executor=InProcess())
    assert (tmp_path / "killed" / "deaths").read_text() == "x"
    assert len(numbers(tmp_path / "killed")) == 2
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "undisturbed")


def test_what_is_lost_again_and_again_fails_with_its_reason(ray, tmp_path):
    found = run_study(own(tmp_path / "killed", 5, 99), tmp_path / "killed", executor=ray)
    failed = [str(alarm) for alarm in found.alarms if alarm.check == "failed"]
    assert any("its process was lost 3 times at the same step" in words for words in failed), failed
    assert {path.split("/")[0] for path in numbers(tmp_path / "killed")} == {"plain"}


SCALES = """
from torch import nn

class Scales(nn.Linear):
    def __init__(self, d_model):
        super().__init__(d_model, d_model)
    def forward(self, x):
        return {} * super().forward(x)
"""


def test_nodes_run_the_code_that_was_sent(ray, tmp_path, monkeypatch):
    mine = tmp_path / "mine.py"
    mine.write_text(SCALES.format(2))
    monkeypatch.setattr(ray, "_address", "auto")
    monkeypatch.setattr(cluster, "own_code", lambda jobs: {str(mine): SCALES.format(3).encode()})
    scaled = {"mine": {"mixer": f"{mine}:Scales"}}
    run_study(study(scaled), tmp_path / "there", executor=ray)
    mine.write_text(SCALES.format(3))
    run_study(study(scaled), tmp_path / "here", executor=InProcess())
    assert numbers(tmp_path / "there") == numbers(tmp_path / "here") != {}


def test_the_cores_of_a_cluster_are_those_of_its_nodes(ray):
    assert ray.cores() == [usable_cores()]


def test_a_study_that_needs_more_than_any_node_has_is_refused(ray, tmp_path):
    job = Job((str(tmp_path / "mine" / "seed-0"),), ({},), threads=10_000, device="cpu")
    with pytest.raises(RunError, match="no node of the cluster has the 10000 CPU that a run needs"):
        ray.run([job], lambda *_: None)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ({"torch": "1.0"}, "has torch .*, and the command 1.0; install the same on all nodes"),
        ({"mark": "of another folder"}, "does not see .*out: it must lie where all nodes can read and write"),
    ],
)
def test_a_node_that_is_otherwise_is_refused_before_the_first_step(ray, place, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "place_of", lambda job: {**PLACE(job), **place})
    with pytest.raises(RunError, match=sentence):
        run_study(study({"plain": {}}), tmp_path / "out", executor=ray)
    assert not numbers(tmp_path / "out")


def test_a_cluster_that_gives_no_answer_counts_as_lost(ray, monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "SILENCE_S", 0.0)
    with pytest.raises(RunError, match=r"the Ray cluster was lost .*The same command goes on from there"):
        run_study(study({"plain": {}}), tmp_path / "out", executor=ray)


def test_a_node_that_is_lost_is_no_fault_of_the_run_and_a_process_is(tmp_path, monkeypatch):
    job = Job((str(tmp_path / "mine" / "seed-0"),), ({},), threads=1, device="cpu")
    no_ray = SimpleNamespace(remote=lambda **_: lambda function: function, put=lambda content: content)
    running = cluster._Running(no_ray, [job], None, print, travels=False)
    monkeypatch.setattr(running, "_start", lambda number: None)
    assert all(running._starts_again(0, process_lost=False) for _ in range(9))
    assert [running._starts_again(0, process_lost=True) for _ in range(3)] == [True, True, False]


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecError, match=r"pip install 'attnlab\[cluster\]'"):
        Ray()


def test_what_is_no_address_is_refused():
    with pytest.raises(SpecError, match="a cluster is ray, auto or ray://HOST:PORT; got slurm"):
        Ray("slurm")


def closed_port():
    """A port of this machine at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_an_address_at_which_nobody_listens_is_said_before_ray_tries_it_for_minutes(monkeypatch):
    monkeypatch.setattr("ray.init", lambda **_: _refuses("after minutes"))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port()}")
    with pytest.raises(RunError, match="no Ray cluster at auto: ConnectionRefusedError"), Ray("auto"):
        pass


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "nobody answers\nand much more",
            "no Ray cluster at ray://.*: ConnectionError: nobody answers; if it asks for",
        ),
        ("Version mismatch: The cluster has:\n  Ray: 1.0", "has other versions; install the same on all .*: 1.0"),
    ],
)
def test_a_cluster_that_refuses_is_said(monkeypatch, said, sentence):
    monkeypatch.setattr("ray.init", lambda **_: _refuses(said))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(RunError, match=sentence):
        Ray(f"ray://127.0.0.1:{server.getsockname()[1]}").__enter__()


def _refuses(said):
    raise ConnectionError(said)
