"""How cells share the machine: by a rule without a clock, kept, repeatable, and with the same numbers every time."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch
from tests.studies.conftest import TINY

from attnlab.core.errors import RunError, SpecError
from attnlab.studies.define.rules import TUNING_SEED
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.plan.plan import CellPlan, plan_study
from attnlab.studies.run import layout as layouts
from attnlab.studies.run.executor import InProcess
from attnlab.studies.run.layout import LAYOUT, Layout, Wishes, bounded, layout_for, most_together


def cells(*names):
    return [CellPlan(name, seed, {}, {}) for seed, name in enumerate(names)]


def shown(groups):
    return ["".join(cell.variant for cell in group) for group in groups]


def test_runs_of_one_variant_make_cohorts():
    mixed = cells("a", "b", "a", "b", "a", "c", "c")
    assert shown(Layout(1, 1, "cpu", "").cohorts(mixed)) == ["a", "b", "a", "b", "a", "c", "c"]
    assert shown(Layout(1, 1, "cpu", "", {"a": 2, "c": 9}).cohorts(mixed)) == ["aa", "b", "b", "a", "cc"]


@pytest.mark.parametrize(
    ("rules", "most"),
    [
        ({}, 2),
        ({"tune": {"lr": [1e-3, 1e-2, 1e-1]}}, 3),
        ({"budget": {"seconds": 1}}, 1),
        ({"target": {"val_mse": 0.5}}, 1),
    ],
)
def test_what_is_measured_in_seconds_never_runs_together(tiny, rules, most):
    tiny["rules"] |= rules
    if "target" in rules:
        del tiny["rules"]["metric"]
    assert most_together(plan_study(parse_study(tiny))) == most


@pytest.fixture
def two_cores(monkeypatch):
    for place in ("attnlab.core.machine", "attnlab.studies.run.layout"):
        monkeypatch.setattr(f"{place}.usable_cores", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def found_for(tiny, out, **wishes):
    out.mkdir(exist_ok=True)
    return layout_for(plan_study(parse_study(tiny)), out, Wishes(**{"device": "cpu", **wishes}))


@pytest.mark.usefixtures("two_cores")
def test_on_a_cpu_a_process_a_core_is_the_rule_and_is_kept(tiny, tmp_path):
    found = found_for(tiny, tmp_path)
    assert found == Layout(2, 1, "cpu", "one process a core")
    assert json.loads((tmp_path / LAYOUT).read_text()) == asdict(found)
    assert found_for(tiny, tmp_path, device="auto") == Layout(2, 1, "cpu", "as when the study began")


@pytest.mark.usefixtures("two_cores")
def test_a_verdict_about_time_and_a_single_cell_have_the_machine_to_themselves(tiny, tmp_path):
    tiny["rules"] |= {"seeds": 1, "tune": {"lr": [1e-3]}, "tune_seeds": 1}
    tiny["variants"] = {"plain": {}}
    assert found_for(tiny, tmp_path / "one").threads == 2
    tiny["variants"] = {"plain": {}, "shallow": {"n_layers": 1}}
    tiny["rules"] |= {"seeds": 3, "target": {"val_mse": 0.5}}
    del tiny["rules"]["metric"]
    assert found_for(tiny, tmp_path / "time").reason == "one run at a time: the verdict is about wall time"


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(("said", "threads"), [("1", 1), ("2,1", 2), ("64", 2), ("all", 2), ("0", 2)])
def test_a_process_takes_no_more_threads_than_the_environment_allows(tiny, tmp_path, monkeypatch, said, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert found_for(tiny, tmp_path, jobs=1).threads == threads


@pytest.mark.usefixtures("two_cores")
def test_runs_train_together_on_a_cpu_where_that_is_asked_for(tiny, tmp_path):
    assert found_for(tiny, tmp_path, together=5).together == {"plain": 2, "with attention": 2}
    with pytest.raises(RunError, match="--together comes too late"):
        found_for(tiny, tmp_path, together=2)


@pytest.mark.parametrize("wishes", [{"jobs": 0}, {"together": 0}])
def test_less_than_one_is_an_error(wishes):
    with pytest.raises(SpecError, match=f"--{next(iter(wishes))} must be at least 1; got 0"):
        Wishes(**wishes).check()


def test_on_an_accelerator_all_runs_of_a_variant_train_together(tiny, tmp_path):
    tiny["rules"]["tune"] = {"lr": [1e-3, 1e-2, 1e-1]}
    found = found_for(tiny, tmp_path, device="cuda")
    assert (found.workers, found.together) == (1, {"plain": 3, "with attention": 3})
    with pytest.raises(RunError, match="was begun on cuda"):
        found_for(tiny, tmp_path)
    assert found_for(tiny, tmp_path / "more", device="cuda", jobs=2).workers == 2


def test_jobs_means_processes_and_nothing_together(tiny, tmp_path):
    found = found_for(tiny, tmp_path, jobs=3)
    assert (found.workers, found.reason, found.together) == (3, "asked for", {})


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("jobs", "memory", "expected"),
    [
        (2, 10**12, (2, "")),
        (99_999, 10**12, (2, "--jobs 99999: 2 at a time, as the machine has 2 cores")),
        (2, 10**8, (1, "--jobs 2: 1 at a time, as its memory holds 1")),
    ],
)
def test_jobs_are_no_more_than_cores_and_memory_hold(tiny, monkeypatch, jobs, memory, expected):
    monkeypatch.setattr(layouts, "usable_bytes", lambda: memory)
    assert bounded(jobs, plan_study(parse_study(tiny))) == expected


# ---- whole studies ----

KILLS = """
import os
from torch import nn

class Kills(nn.Module):
    '''Die in a training step.'''
    def __init__(self, d_model):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
    def forward(self, x):
        if self.training and x.shape[0] == 20 and x.device.type == "cpu":
            os.kill(os.getpid(), 9)
        return self.linear(x)
"""


def test_a_run_that_does_not_fit_into_memory_is_refused_before_anything(tiny, tmp_path):
    tiny["variants"]["wide"] = {"channels": 10**6}
    with pytest.raises(SpecError, match=r"a run of 'wide' would take [\d,]+ GB of memory, and this machine has .* GB"):
        run_study(parse_study(tiny), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def together_in(out, names):
    """Write the layout of a study that has not begun: one process, seeds of these variants together."""
    out.mkdir()
    layout = Layout(1, 1, "cpu", "chosen by a test", dict.fromkeys(names, 9))
    (out / LAYOUT).write_text(json.dumps(asdict(layout)))


def numbers(out):
    found = {}
    for path in sorted(out.rglob("result.json")):
        found[str(path.parent.relative_to(out))] = json.loads(path.read_text())
    return found


@pytest.mark.usefixtures("in_process")
def test_a_study_trained_together_is_the_study_trained_one_by_one(tiny, tmp_path):
    tiny["rules"]["tune"] = {"lr": [1e-3, 3e-3, 1e-2]}
    tiny["variants"] = {"plain": {}, "lstm": {"name": "lstm", "hidden": 5}}
    apart, joined = tmp_path / "apart", tmp_path / "joined"
    run_study(parse_study(tiny), apart, jobs=1)
    together_in(joined, tiny["variants"])
    heard = []

    class Hears:
        def alarms(self, messages):
            assert not messages

        def phase(self, title, cells, done):
            heard.append((title, len(cells), done))

        def message(self, cell, message):
            if message["kind"] in {"finished", "failed"}:
                heard.append((cell.folder, message["kind"]))

    results = run_study(parse_study(tiny), joined, watcher=Hears())
    assert results.complete
    expected, found = numbers(apart), numbers(joined)
    assert found.keys() == expected.keys()
    for cell, result in found.items():
        assert result["metrics"] == pytest.approx(expected[cell]["metrics"], rel=1e-3)
        size = 1 if cell.startswith("lstm") else 3 if cell.endswith(f"seed-{TUNING_SEED}") else 2
        assert result["together"] == size
    assert ("tuning runs", 6, 0) in heard
    assert {(f"{name}: tuning runs of the best settings, again", 2, 0) for name in tiny["variants"]} <= set(heard)
    assert {cell for cell, *rest in heard if rest == ["finished"]} == set(found)
    said = results.environment["trained_together"]
    assert "plain: 2 seeds together. lstm: one by one: " in said


def test_a_process_that_dies_takes_one_cell_with_it(tiny, tmp_path):
    """The cohort's process dies in the first step; each of its cells is then tried alone, and fails alone."""
    (tmp_path / "mine.py").write_text(KILLS)
    tiny["variants"] = {"plain": {}, "kills": {"mixer": f"{tmp_path / 'mine.py'}:Kills", "mixer_at": 1}}
    out = tmp_path / "out"
    together_in(out, tiny["variants"])
    results = run_study(parse_study(tiny), out)
    assert len(results.variant("plain").done) == 2
    assert all(
        "ended by signal 9 (killed, perhaps for lack of memory)" in cell.error
        for cell in results.variant("kills").cells
    )


# ---- the same numbers ----


def bits(out):
    """Everything that a study's runs found, but times."""
    found = {}
    for path in sorted(out.rglob("result.json")):
        result = json.loads(path.read_text())
        weights = (path.parent / "last/model.safetensors").read_bytes()
        lines = (path.parent / "metrics.jsonl").read_text().splitlines()
        curve = [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]
        found[str(path.parent.relative_to(out))] = (result["metrics"], result["precision"], curve, weights)
    return found


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A study of two variants and two seeds, computed once by processes of one thread."""
    out = tmp_path_factory.mktemp("first") / "study"
    run_study(parse_study(copy.deepcopy(TINY)), out)
    return out


BUSY = "import torch\nx = torch.randn(700, 700)\nwhile True:\n    x @ x"


@pytest.mark.usefixtures("in_process")
def test_a_busy_machine_changes_no_bit(tiny, tmp_path, first):
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        run_study(parse_study(tiny), tmp_path / "again")
    finally:
        busy.kill()
        busy.wait()
    assert bits(tmp_path / "again") == bits(first)


def test_another_executor_changes_no_bit(tiny, tmp_path, first):
    layout = json.loads((first / LAYOUT).read_text())
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / LAYOUT).write_text(json.dumps({**layout, "threads": 1}))
    results = run_study(parse_study(tiny), tmp_path / "here", executor=InProcess())
    assert results.complete
    assert layout["threads"] == 1
    assert torch.tensor(1e-40) * 1 > 0  # what a cell sets for its speed is put back
    assert bits(tmp_path / "here") == bits(first)


@pytest.mark.usefixtures("in_process")
def test_a_study_is_repeated_like_another(tiny, tmp_path, first):
    tiny["training"] = {"precision": "bf16"}
    other = tmp_path / "bf16"
    run_study(parse_study(tiny), other, jobs=1, together=2)
    del tiny["training"]
    run_study(parse_study(tiny), tmp_path / "like", like=other)
    layout = json.loads((tmp_path / "like" / LAYOUT).read_text())
    assert layout["reason"] == f"as in {other}"
    assert layout["together"] == {"plain": 2, "with attention": 2}
    found = bits(tmp_path / "like")
    assert found == bits(other)
    assert found != bits(first)


def test_what_cannot_be_repeated_is_said(tiny, tmp_path, first):
    with pytest.raises(SpecError, match=r"no layout\.json in it; name the folder of a study that has run"):
        found_for(tiny, tmp_path / "a", like=tmp_path)
    tiny["variants"]["another"] = {"n_layers": 1}
    with pytest.raises(SpecError, match="it has no finished run of 'another'"):
        found_for(tiny, tmp_path / "a", like=first)
    with pytest.raises(SpecError, match="was computed on cpu; leave out --device"):
        found_for(tiny, tmp_path / "a", like=first, device="cuda")
    with pytest.raises(SpecError, match="leave out --together"):
        Wishes(like=first, together=2).check()
