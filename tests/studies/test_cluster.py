"""On a Ray cluster a study finds what it finds on one machine, whatever is lost on the way."""

from __future__ import annotations

import functools
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attnlab.cli import WRONG_USE, call
from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import read_json
from attnlab.core.machine import usable_cores
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.run import cluster, node
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
    """A cluster on this machine, with a GPU in name, asked by a process that takes SIGTERM as Ctrl-C."""
    init, executor = pytest.importorskip("ray").init, Ray()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ray.init", functools.partial(init, num_gpus=1))
        patched.setenv("CUDA_VISIBLE_DEVICES", "0")
        executor.__enter__()
    yield executor
    executor.__exit__()
    signal.signal(signal.SIGTERM, before)


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


def test_sigterm_stays_with_who_handled_it(ray):
    with pytest.raises(KeyboardInterrupt):  # Ray's own handler would abort the process
        os.kill(os.getpid(), signal.SIGTERM)


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


def job_of(tmp_path, **how):
    return Job(
        (str(tmp_path / "mine" / "seed-0"),), ({},), **{"threads": 1, "device": "cpu", "study": str(tmp_path), **how}
    )


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (
            {"threads": 10_000},
            r"has the 10000 CPU and 0\.4 GB of memory that mine/seed-0 needs; nodes have at most \d+ CPU",
        ),
        (
            {"trained_bytes": 1e15},
            r"has the 1 CPU and 1,000,000\.4 GB of memory that .* at most \d+ CPU and [\d.]+ GB of",
        ),
        (
            {"device": "cuda", "threads": 10_000, "study": ""},
            "has the 10000 CPU and 1 GPU and .* that a run needs; .* and 1 GPU and",
        ),
    ],
)
def test_a_run_that_needs_more_than_any_node_has_is_refused_before_any_starts(
    ray, how, sentence, tmp_path, monkeypatch
):
    monkeypatch.setattr(cluster, "compute_here", lambda *_: (tmp_path / "begun").touch())
    monkeypatch.setattr(ray, "_gpus", [])
    with pytest.raises(RunError, match=f"no node of the cluster {sentence}"):
        ray.run([job_of(tmp_path), job_of(tmp_path, **how)], lambda *_: None)
    assert not (tmp_path / "begun").exists()


def asks(number, job, *_):
    """What Ray gave the process of a job, once as many others run as the job's setting says."""
    import os
    import time
    from pathlib import Path

    import ray

    Path(job["folders"][0], str(number)).touch()
    until = time.monotonic() + 60
    while len(list(Path(job["folders"][0]).iterdir())) < job["setting"]["beside"] and time.monotonic() < until:
        time.sleep(0.05)
    given = ray.get_runtime_context().get_assigned_resources()
    seen = {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "process": os.getpid()}
    return [{"kind": "told", **seen, "given": given, "beside": len(list(Path(job["folders"][0]).iterdir()))}]


def told(ray, tmp_path, monkeypatch, count=1, **how):
    """What the processes of so many equal jobs were given."""
    (tmp_path / "begun").mkdir()
    by_value = lambda *given, asks=asks: asks(*given)  # noqa: E731 - a node has no tests to import
    monkeypatch.setattr(cluster, "compute_here", by_value)
    job = Job((str(tmp_path / "begun"),), ({},), **{"threads": 1, "device": "cpu", "setting": {"beside": 1}, **how})
    found = []
    ray.run([job] * count, lambda _, message: found.append(message))
    return found


def test_runs_that_need_little_share_a_gpu_see_it_and_leave_no_process_on_it(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "_gpus", [(80 * 10**9, 10**9)])
    found = told(ray, tmp_path, monkeypatch, 3, device="cuda", trained_bytes=8e9, setting={"beside": 2})
    assert [one["given"]["GPU"] for one in found] == [6 / 16] * 3  # of 29 GB
    assert {one["gpus"] for one in found} == {"0"}
    assert min(one["beside"] for one in found) == 2
    assert len({one["process"] for one in found}) == 3


def test_a_run_on_the_cpu_asks_for_memory_and_no_gpu(ray, tmp_path, monkeypatch):
    (found,) = told(ray, tmp_path, monkeypatch, trained_bytes=0.2e9)
    assert found["given"] == {"CPU": 1, "memory": 1_100_000_000}


@pytest.mark.parametrize(
    ("trained_bytes", "most", "memory"),
    [
        (0.0, 16e9, 0.4e9),
        (0.01e9, 16e9, 0.5e9),
        (4e9, 16e9, 14.4e9),
        (8e9, 16e9, 16e9),  # a step may take 28.4, and need not
        (16e9, 16e9, 16.4e9),  # more than a node has: it will be refused
    ],
)
def test_a_run_asks_for_what_a_step_may_take_and_at_most_for_a_node(trained_bytes, most, memory):
    assert cluster.memory_of(trained_bytes, most) == memory


@pytest.mark.parametrize(
    ("trained_bytes", "gpus", "share"),
    [
        (0.0, [(80_000, 100)], 1 / 16),
        (1_400.0, [(80_000, 100)], 1 / 16),  # 5,000 of 80,000
        (1_401.0, [(80_000, 100)], 2 / 16),
        (
            1_401.0,
            [(80_000, 100), (24_000, 900)],
            4 / 16,
        ),  # 0.209 of the smallest; what a process takes, of the emptiest
        (22_800.0, [(80_000, 100)], 1.0),
        (1e9, [(80_000, 100)], 1.0),
        (1.0, [], 1.0),
        (None, [(80_000, 100)], 1.0),
    ],
)
def test_the_share_of_a_gpu_follows_from_measured_memory(trained_bytes, gpus, share):
    assert cluster.share_of(trained_bytes, gpus) == share


def test_nodes_tell_what_gpus_they_have(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "gpus_here", lambda: [(24 * 10**9, 10**9)])
    monkeypatch.setattr(ray, "_gpus", None)
    (found,) = told(ray, tmp_path, monkeypatch, device="cuda", trained_bytes=1e9)
    assert found["given"]["GPU"] == 3 / 16  # 4.5 GB


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_where_no_gpu_tells_its_memory_a_run_asks_for_a_whole_one(ray, monkeypatch, tmp_path):
    monkeypatch.setattr(ray, "_gpus", None)
    assert ray._needs(job_of(tmp_path, device="cuda", trained_bytes=1.0), 1e9) == {"CPU": 1, "GPU": 1, "memory": 4e8}


def test_what_gpus_a_node_has_is_read_off_what_its_process_prints(monkeypatch):
    monkeypatch.setattr(
        node, "TELLS_GPUS", "import os; print([[60, 80], [70, 80]], end=os.environ.get('CUDA_VISIBLE_DEVICES', ''))"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert node.gpus_here() == [(80, 20), (80, 10)]
    monkeypatch.setattr(node, "TELLS_GPUS", "raise RuntimeError('no context')")
    assert node.gpus_here() == []


def test_a_job_says_what_its_runs_keep_together(tmp_path):
    variants = {"plain": {}, "attention": {"mixer": "attention"}}
    given = []
    taking = SimpleNamespace(run=lambda jobs, _: given.extend(jobs))
    run_study(study(variants, seeds=2), tmp_path, together=2, executor=taking)
    planned = {variant.name: variant for variant in plan_study(study(variants)).variants}
    counted = {name: 2 * (one.activation_bytes + 16 * one.parameters) for name, one in planned.items()}
    assert {Path(job.folders[0]).parent.name: job.trained_bytes for job in given} == counted
    assert len(set(counted.values())) == 2


@pytest.mark.parametrize("share", [0, -0.5, 0.00001, 1.5, float("nan")])
def test_what_is_no_share_of_a_gpu_is_refused(share):
    with pytest.raises(SpecError, match=f"--gpu-share must be from 0.0001 to 1; got {share}"):
        Ray("auto", gpu_share=share)


def test_a_share_of_a_gpu_is_of_a_cluster(capsys):
    assert call(["run", "parts", "--gpu-share", "0.5"]) == WRONG_USE
    assert "--gpu-share is of the GPUs of a cluster; name one with --on" in capsys.readouterr().err


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
    class Silent:
        def put(self, number, message): ...

        def take(self):
            threading.Event().wait()

    silent = ray._ray.remote(num_cpus=0)(Silent).remote()
    monkeypatch.setattr(ray, "_mailbox", silent)
    monkeypatch.setattr(cluster, "SILENCE_S", 0.5)
    try:
        with pytest.raises(RunError, match=r"the Ray cluster was lost .*The same command goes on from there"):
            run_study(study({"plain": {}}), tmp_path / "out", executor=ray)
    finally:
        ray._ray.kill(silent)


def test_a_node_that_is_lost_is_no_fault_of_the_run_and_a_process_is(tmp_path, monkeypatch):
    job = Job((str(tmp_path / "mine" / "seed-0"),), ({},), threads=1, device="cpu")
    no_ray = SimpleNamespace(remote=lambda **_: lambda function: function, put=lambda content: content)
    running = cluster._Running(no_ray, [job], None, print, needs=dict, travels=False)
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


def test_an_address_in_the_environment_that_is_none_is_said(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "head")
    with pytest.raises(RunError, match=r"at auto: RAY_ADDRESS is HOST:PORT or ray://.*; got head$"), Ray("auto"):
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
