from __future__ import annotations

import threading

import pytest
import torch

from attnlab.benchmarks import training
from attnlab.benchmarks.contenders import steps
from attnlab.benchmarks.contenders.peers import OURS, PEERS, Peer, PeerSizes
from attnlab.benchmarks.contenders.steps import BareLoop, LabRun
from attnlab.benchmarks.contenders.tokens import RandomTokens
from attnlab.benchmarks.measuring.matrix import matrix_rate
from attnlab.benchmarks.training import bench_training, compare_training
from attnlab.core.errors import ModuleError, SpecError
from attnlab.training.speed.settings import Setting

TINY = PeerSizes("tiny", n_layers=1, d_model=12, n_heads=3, length=7, batch=2, vocab_size=5)
CPU = torch.device("cpu")


@pytest.fixture
def task():
    return RandomTokens(TINY.batch, TINY.length, TINY.vocab_size)


def weights(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def lab_run(task, steps=20, **arguments):
    torch.manual_seed(0)
    return LabRun(OURS.build(TINY), task, CPU, steps=steps, **arguments)


def test_the_labs_run_makes_as_many_steps_as_it_is_told_and_no_more(task):
    run = lab_run(task)
    try:
        asked = []
        plain, task.train_batch = task.train_batch, lambda step, seed: asked.append(step) or plain(step, seed)
        assert run.step_ms(3) > 0.0
        assert asked == [0, 1, 2]
        stopped = weights(run.model)
        assert run.step_ms(2) > 0.0
        assert asked == [0, 1, 2, 3, 4]
        assert not torch.equal(stopped, weights(run.model))
    finally:
        run.close()


def test_the_labs_run_is_that_of_train(task):
    from attnlab.training.recipe.recipe import Recipe
    from attnlab.training.run.loop import train

    run = lab_run(task, steps=6)
    try:
        run.step_ms(4)
        run.step_ms(2)  # the whole budget; the run ends by itself
    finally:
        run.close()
    torch.manual_seed(0)
    model = OURS.build(TINY)
    train(model, task, Recipe.parse({"budget": {"steps": 6}, "lr": 1e-3, "clip": 1.0, "evaluate_every": 6}))
    assert torch.equal(weights(model), weights(run.model))


def test_a_closed_run_ends_its_thread(task):
    before = threading.active_count()
    run = lab_run(task)
    run.step_ms(1)
    assert threading.active_count() == before + 1
    run.close()
    assert threading.active_count() == before
    lab_run(task).close()  # never begun


def test_an_error_in_the_run_reaches_who_waits(task):
    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, tokens):
            raise RuntimeError("no more")

    run = LabRun(Broken(), task, CPU, steps=9)
    with pytest.raises(ModuleError, match="no more"):
        run.step_ms(1)
    run.close()


def test_the_labs_run_says_what_it_chose(task):
    run = lab_run(task, precision="bf16")
    run.step_ms(1)
    run.close()
    assert run.setting == Setting("bf16")
    assert run.reason


def test_the_bare_loop_trains(task):
    loop = BareLoop(OURS.build(TINY), task, Setting("bf16"), CPU)
    before = weights(loop.model)
    loop.settle()
    assert loop.ms > 0.0
    assert not torch.equal(before, weights(loop.model))


@pytest.fixture
def quick(monkeypatch):
    """Leave out what takes long: compiling, and products of large matrices."""
    monkeypatch.setattr(training, "matrix_rate", lambda precision, device: 1e9)
    monkeypatch.setattr(training, "MOST_STEPS", 2)
    monkeypatch.setattr(training, "ALIKE", 0.0)  # what is compiled does not hang on times

    def refuse(model, task, setting, device):
        if setting.compile:
            raise SpecError("no compiler\nat all")
        return BareLoop(model, task, setting, device)

    monkeypatch.setattr(steps, "BareLoop", refuse)


def tiny_comparisons():
    return list(compare_training(TINY, CPU, rounds=2, place=lambda make, **how: make()))


@pytest.mark.usefixtures("quick")
def test_all_are_compared_in_float32_and_then_at_their_best():
    equal, best = tiny_comparisons()
    installed = [peer.name for peer in PEERS.values() if peer.is_installed]
    assert list(equal.rows) == installed
    assert equal.reference == "plain loop"
    assert best.reference == "plain loop, float32"
    assert {name.partition(", ")[0] for name in best.rows} == set(installed)
    rows = {row["name"]: row for row in equal.to_json()["rows"]}
    lab = rows["attnlab"]
    assert lab["precision"] == "float32"
    assert lab["tokens_per_second"] == pytest.approx(TINY.batch * TINY.length / lab["median"] * 1e3)
    assert lab["utilization"] * lab["median"] == pytest.approx(
        rows["plain loop"]["utilization"] * rows["plain loop"]["median"]
    )  # the FLOPs of the model, whoever computes it
    notes = " ".join(best.notes)
    assert "plain loop, float32, compiled: does not run here (no compiler)" in notes
    assert "attnlab chose" in notes


@pytest.mark.usefixtures("quick")
def test_a_peer_that_is_not_installed_is_skipped_by_name(monkeypatch):
    missing = Peer("the other one", lambda sizes: pytest.fail("built"), "no_such_package_here")
    monkeypatch.setattr(training, "PEERS", {name: PEERS[name] for name in ("attnlab", "plain loop")} | {"x": missing})
    for comparison in tiny_comparisons():
        assert "the other one: skipped, no_such_package_here is not installed" in comparison.notes
        assert not any("the other one" in name for name in comparison.rows)


def test_unknown_sizes_are_named():
    with pytest.raises(SpecError, match="unknown sizes 'd'; known: a, b, c"):
        next(bench_training("d"))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_matrix_rate_is_a_rate(precision):
    assert matrix_rate(precision, CPU, side=17) > 0.0


def test_random_tokens_are_a_task_of_their_own_size(task):
    batch = task.train_batch(3, 1)
    assert batch.inputs[0].shape == batch.targets.shape == (2, 7)
    assert torch.equal(batch.inputs[0][:, 1:], batch.targets[:, :-1])
    logits = torch.zeros(2, 7, 5)
    assert task.loss(logits, batch).item() == pytest.approx(torch.log(torch.tensor(5.0)).item())
    assert task.evaluate(lambda batch: logits, "validation")["val_loss"] == pytest.approx(1.609, abs=1e-3)
