"""How steps are computed is settled by a rule: the same everywhere but for the processor, whatever a clock says."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest
import torch
from tests.training.tiny import N_IN, TinyTask, recipe, tiny_model
from torch import nn

from attnlab.core.contracts import Batch
from attnlab.core.errors import ModuleError, SpecError
from attnlab.training import train
from attnlab.training.run.step import Caller
from attnlab.training.speed import choosing
from attnlab.training.speed.choosing import Work, choose_setting
from attnlab.training.speed.settings import Remaining, Setting

CPU = torch.device("cpu")
PLAIN, SHORT = Setting("float32"), Setting("bf16")
LONG_RUN = Remaining(steps=100_000)


@pytest.fixture(params=[True, False], ids=["multiplies bf16", "does not"])
def multiplies(request, monkeypatch):
    monkeypatch.setattr(choosing, "multiplies_bf16", lambda device: request.param)
    return request.param


@pytest.fixture(autouse=True)
def a_compiler(monkeypatch):
    monkeypatch.setattr(choosing, "missing_compiler", lambda device: "")
    monkeypatch.setattr(choosing, "require_compiler", lambda device: None)


class Runs:
    """Note which settings were run, and refuse some."""

    def __init__(self, impossible=()):
        self.impossible, self.ran = impossible, []

    def __call__(self, setting, number):
        self.ran.append(setting)
        if setting in self.impossible:
            raise RuntimeError(f"no way\nfor {setting}")


def batch(rows=64, length=128, width=N_IN):
    return Batch((torch.zeros(rows, length, width),), torch.zeros(rows, length))


def choose(runs, model=None, precision="auto", compiled="auto", remaining=LONG_RUN, batches=None):
    model = model or nn.Linear(256, 1024)
    batches = batches or (lambda number: batch())
    return choose_setting(
        model, runs, remaining, precision=precision, compiled=compiled, first_batches=batches, device=CPU
    )


def test_bf16_is_taken_where_the_processor_multiplies_it(multiplies):
    choice = choose(Runs(), compiled=False)
    assert choice.setting == (SHORT if multiplies else PLAIN)
    assert ("the processor multiplies it" in choice.reason) == multiplies


@pytest.mark.parametrize("remaining", [Remaining(steps=1), Remaining(seconds=1.0)])
def test_a_short_run_is_the_same_on_every_processor(multiplies, remaining):
    runs = Runs()
    assert choose(runs, remaining=remaining).setting == PLAIN
    assert not runs.ran


def test_small_products_are_the_same_on_every_processor(multiplies):
    assert choose(Runs(), nn.Linear(3, 5), compiled=False).setting == PLAIN


def test_compiling_must_pay_in_the_steps_left(monkeypatch):
    monkeypatch.setattr(choosing, "multiplies_bf16", lambda device: True)
    work = Work.of(nn.Linear(256, 1024), batch())
    saved = choosing.COMPILING_SAVES["bf16"] * work.seconds("bf16", CPU)
    enough = int(work.compile_seconds() / saved) + 1
    assert choose(Runs(), precision="bf16", remaining=Remaining(steps=enough)).setting.compile
    few = choose(Runs(), precision="bf16", remaining=Remaining(steps=enough - 2))
    assert few.setting == SHORT
    assert "not compiled: it may save" in few.reason


def test_work_counts_what_is_multiplied():
    embedding, output = nn.Embedding(71, 13), nn.Linear(13, 71, bias=False)
    rows = Batch((torch.zeros(3, 5, dtype=torch.long),), torch.zeros(3, 5))
    assert Work.of(nn.Sequential(embedding, output), rows) == Work(6.0 * 13 * 71 * 15, 2)
    assert Work.of(embedding, rows).flops == 0.0
    output.weight = embedding.weight  # looked up and multiplied
    assert Work.of(nn.Sequential(embedding, output), rows).flops == 6.0 * 13 * 71 * 15


@pytest.mark.parametrize(("precision", "compiled"), [("float32", False), ("bf16", False)])
def test_a_forced_setting_is_not_tried(precision, compiled):
    runs = Runs()
    choice = choose(runs, precision=precision, compiled=compiled)
    assert (choice.setting, choice.reason, choice.seconds) == (Setting(precision), "asked for by the recipe", 0.0)
    assert not runs.ran


def test_forced_compiling_is_done():
    runs = Runs()
    choice = choose(runs, precision="bf16", compiled=True, remaining=Remaining(steps=3))
    assert choice.setting == SHORT.compiled()
    assert set(runs.ran) == {SHORT.compiled()}


def test_no_compiler(monkeypatch):
    monkeypatch.setattr(choosing, "missing_compiler", lambda device: "a C++ compiler")
    choice = choose(Runs(), precision="float32")
    assert choice.setting == PLAIN
    assert "not compiled: it needs a C++ compiler" in choice.reason


def test_a_failing_compiler():
    runs = Runs({SHORT.compiled(), PLAIN.compiled()})
    choice = choose(runs, precision="bf16")
    assert choice.setting == SHORT
    assert choice.reason == "not compiled: bf16 does not compile: no way"
    with pytest.raises(SpecError, match="the model does not compile \\(no way\\); set compile: false or auto"):
        choose(runs, precision="bf16", compiled=True)


def test_bf16_that_does_not_run_is_recorded(monkeypatch):
    monkeypatch.setattr(choosing, "multiplies_bf16", lambda device: True)
    choice = choose(Runs({SHORT}), compiled=False)
    assert choice.setting == PLAIN
    assert "bf16 does not run here: no way" in choice.reason


@pytest.mark.parametrize("compiled", [True, "auto"])
def test_a_model_that_does_not_run_tells_its_own_error(compiled):
    def broken(setting, number):
        raise ModuleError(f"the model is wrong, {'compiled' if setting.compile else 'as it is'}")

    with pytest.raises(ModuleError, match="wrong, as it is"):
        choose(broken, precision="float32", compiled=compiled)


def test_trying_leaves_no_trace(monkeypatch):
    monkeypatch.setattr(choosing, "multiplies_bf16", lambda device: True)
    monkeypatch.setattr(choosing, "SMALLEST_BF16_FLOPS", 0.0)
    model = nn.Sequential(nn.Linear(N_IN, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    task, caller, seen = TinyTask(), Caller(model, model, CPU), []

    def run_step(setting, number):
        seen.append((setting, number))
        rows = task.train_batch(number, 0)
        task.loss(caller.outputs(rows, setting, step=1), rows).backward()

    choice = choose(run_step, model, compiled=False, batches=lambda number: task.train_batch(number, 0))
    assert choice.setting == SHORT
    assert {setting for setting, _ in seen} == {SHORT}
    assert len({number for _, number in seen}) > 1
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("sizes", "tried"),
    [((4, 4, 4, 4, 4, 4, 4, 4), True), ((4, 4, 2, 4, 4, 2, 4, 4), True), ((4, 3, 2, 4, 4, 4, 4, 4), False)],
)
def test_compiling_is_not_tried_where_batches_come_in_many_shapes(sizes, tried):
    runs, task = Runs(), TinyTask()
    choice = choose(
        runs,
        nn.Linear(N_IN, 3),
        precision="float32",
        remaining=Remaining(seconds=1e9),
        batches=lambda number: task.batch(number, sizes[number]),
    )
    assert choice.setting.compile == bool(runs.ran) == tried
    told = "not compiled: the first 8 batches have 3 shapes, and each would be compiled anew" in choice.reason
    assert told != tried


LIES = {
    "stands still": itertools.repeat(5.0),
    "leaps": itertools.count(0.0, 1e4),
    "runs backwards": itertools.count(0.0, -1.0),
    "staggers": (random.Random(7).uniform(-1e6, 1e6) for _ in itertools.count()),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_clock_that_lies_changes_no_bit(monkeypatch, multiplies, lie):
    """Everything that a run may ask for the time gets nonsense; weights and metrics are those of an honest clock."""

    def weights_and_metrics():
        torch.manual_seed(3)
        model = tiny_model()
        result = train(model, TinyTask(), recipe(31, precision="auto", compile="auto"), seed=3)
        return result, [parameter.detach().clone() for parameter in model.parameters()]

    honest, expected = weights_and_metrics()
    clock = SimpleNamespace(perf_counter=lambda: next(LIES[lie]), monotonic=lambda: next(LIES[lie]))
    for name in ("run.loop", "run.trainer", "run.events", "speed.choosing"):
        monkeypatch.setattr(f"attnlab.training.{name}.time", clock)
    result, weights = weights_and_metrics()
    assert all(torch.equal(one, other) for one, other in zip(weights, expected, strict=True))
    assert result.metrics == honest.metrics
    assert (result.precision, result.compiled) == (honest.precision, honest.compiled)
