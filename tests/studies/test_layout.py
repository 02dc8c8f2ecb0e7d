"""How cells share the machine: chosen from times, kept, and with the same results whichever way it is."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest

from attnlab.core.errors import RunError
from attnlab.studies.define.study import parse
from attnlab.studies.execute import run_study
from attnlab.studies.plan.plan import CellPlan, make_plan
from attnlab.studies.run import layout as layouts
from attnlab.studies.run.layout import LAYOUT, Layout, layout_for, most_together
from attnlab.studies.run.timing import ARITHMETIC_S, step_times


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
    assert most_together(make_plan(parse(tiny))) == most


class FakePool:
    """Answer timing requests from a table instead of a clock."""

    times: dict

    def __init__(self, workers, threads, log):
        self.shape = (workers, threads)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        variant = "with attention" if "mixer" in request["spec"]["model"] else "plain"
        alone, together = self.times[variant][self.shape]
        return {"kind": "timed", "alone": alone, "together": together}


@pytest.mark.parametrize(
    ("plain", "shape", "together"),
    [
        ({(2, 1): (1.0, 0.95), (1, 2): (0.6, 0.7)}, (2, 1), {}),  # a gain, but none that is worth it
        ({(2, 1): (1.0, 0.8), (1, 2): (0.6, 0.7)}, (2, 1), {"plain": 2}),
        ({(2, 1): (1.0, None), (1, 2): (0.4, 0.6)}, (1, 2), {}),
        ({(2, 1): (1.0, 1.0), (1, 2): (0.6, 0.3)}, (1, 2), {"plain": 2}),
    ],
)
def test_the_fastest_way_is_taken(tiny, tmp_path, monkeypatch, plain, shape, together):
    other = {(2, 1): (1.0, 2.0), (1, 2): (1.0, None)}  # where the baseline gains, this variant does not
    monkeypatch.setattr(FakePool, "times", {"plain": plain, "with attention": other}, raising=False)
    monkeypatch.setattr(layouts, "Pool", FakePool)
    monkeypatch.setattr(layouts, "usable_cores", lambda: 2)
    plan = make_plan(parse(tiny))
    found = layout_for(plan, tmp_path, "cpu", None)
    assert ((found.workers, found.threads), found.together) == (shape, together)
    assert found.reason.startswith("measured: 500.0 ms as 2 x 1 thread")
    assert json.loads((tmp_path / LAYOUT).read_text()) == asdict(found)
    again = layout_for(plan, tmp_path, "auto", None)
    assert (again.together, again.reason) == (together, "as when the study began")


def test_a_timing_that_fails_is_said(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(FakePool, "answer", lambda self, request: {"kind": "broken", "error": "no"})
    monkeypatch.setattr(layouts, "Pool", FakePool)
    monkeypatch.setattr(layouts, "usable_cores", lambda: 2)
    found = layout_for(make_plan(parse(tiny)), tmp_path, "cpu", None)
    assert found == Layout(2, 1, "cpu", "not measured: a timing run failed")


def test_on_an_accelerator_all_runs_of_a_variant_train_together(tiny, tmp_path):
    tiny["rules"]["tune"] = {"lr": [1e-3, 1e-2, 1e-1]}
    found = layout_for(make_plan(parse(tiny)), tmp_path, "cuda", None)
    assert (found.workers, found.together) == (1, {"plain": 3, "with attention": 3})
    with pytest.raises(RunError, match="was begun on cuda"):
        layout_for(make_plan(parse(tiny)), tmp_path, "cpu", None)


def test_jobs_means_processes_and_nothing_together(tiny, tmp_path):
    found = layout_for(make_plan(parse(tiny)), tmp_path, "cpu", 3)
    assert (found.workers, found.reason, found.together) == (3, "asked for", {})


def test_steps_are_timed_alone_and_together(tiny, monkeypatch):
    spec = make_plan(parse(tiny)).judged_cells({"plain": {}, "with attention": {}})[0].spec
    alone, together = step_times(spec, 2)
    assert alone > 0.0
    assert alone >= ARITHMETIC_S or 0.0 < together < math.inf
    assert step_times(spec, 1)[1] is None
    monkeypatch.setattr("attnlab.studies.run.timing.ARITHMETIC_S", 0.0)
    assert step_times(spec, 2)[1] is None


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


def test_a_study_trained_together_is_the_study_trained_one_by_one(tiny, tmp_path):
    tiny["rules"]["tune"] = {"lr": [1e-3, 3e-3, 1e-2]}
    tiny["variants"] = {"plain": {}, "lstm": {"name": "lstm", "hidden": 5}}
    apart, joined = tmp_path / "apart", tmp_path / "joined"
    run_study(parse(tiny), apart, jobs=1)
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

    results = run_study(parse(tiny), joined, watcher=Hears())
    assert results.complete
    expected, found = numbers(apart), numbers(joined)
    assert found.keys() == expected.keys()
    for cell, result in found.items():
        assert result["metrics"] == pytest.approx(expected[cell]["metrics"], rel=1e-3)
        size = 1 if cell.startswith("lstm") else 3 if "tune" in cell else 2
        assert result["together"] == size
    assert ("tuning runs", 6, 0) in heard
    assert {cell for cell, *rest in heard if rest == ["finished"]} == set(found)
    said = results.environment["trained_together"]
    assert "plain: 2 seeds together. lstm: one by one: " in said


def test_a_process_that_dies_takes_one_cell_with_it(tiny, tmp_path):
    """The cohort's process dies in the first step; each of its cells is then tried alone, and fails alone."""
    (tmp_path / "mine.py").write_text(KILLS)
    tiny["variants"] = {"plain": {}, "kills": {"mixer": f"{tmp_path / 'mine.py'}:Kills", "mixer_at": 1}}
    out = tmp_path / "out"
    together_in(out, tiny["variants"])
    results = run_study(parse(tiny), out)
    assert len(results.variant("plain").done) == 2
    assert all("killed by SIGKILL" in cell.error for cell in results.variant("kills").cells)
