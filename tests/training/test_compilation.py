"""Training steps are compiled where a compiler is; where none is, a run is told so or goes on without."""

from __future__ import annotations

import functools
import time

import pytest
import torch
from tests.training.tiny import N_IN, N_OUT, TinyTask, recipe, tiny_model
from torch import nn

from attnlab.core.errors import Interrupted, SpecError
from attnlab.training import read_result, train
from attnlab.training.keeping.result import RunState
from attnlab.training.speed.compilation import compile_model, missing_compiler

CPU = torch.device("cpu")


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def counted(monkeypatch):
    """Compile with Python as the target, which is fast, and list the modes in which a model is called compiled."""
    seen = []

    def compiled(model, device):
        graph = torch.compile(model, backend="eager")

        def call(*inputs):
            seen.append(model.training)
            return graph(*inputs)

        return call

    monkeypatch.setattr("attnlab.training.run.step.compile_model", compiled)
    return seen


@pytest.mark.usefixtures("no_compiler")
def test_no_compiler():
    with pytest.raises(SpecError, match=r"needs a C\+\+ compiler .* set compile: false"):
        compile_model(nn.Linear(2, 3), CPU)
    with pytest.raises(SpecError, match=r"compile: true needs a C\+\+ compiler"):
        train(tiny_model(), TinyTask(), recipe(5, compile=True))


@pytest.mark.usefixtures("no_compiler")
def test_auto_goes_on_without_a_compiler():
    result = train(tiny_model(), TinyTask(), recipe(30, compile="auto"))
    assert not result.compiled
    assert "not compiled: it needs a C++ compiler" in result.setting_reason


def test_no_triton(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SpecError, match="needs triton"):
        compile_model(nn.Linear(2, 3), torch.device("cuda"))


def test_steps_are_compiled_and_evaluation_is_not(counted):
    result = train(tiny_model(), TinyTask(), recipe(7, compile=True, evaluate_every=2))
    assert result.compiled
    assert result.setting_reason == "asked for by the recipe"
    assert counted == [True] * len(counted)
    assert len(counted) >= 7


@pytest.mark.usefixtures("counted")
def test_compiled_numbers_are_those_of_the_model():
    """Both run the same operations in the same order where the compiler's target is Python."""
    plain, compiled = (train(tiny_model(), TinyTask(), recipe(13, compile=value)) for value in (False, True))
    assert compiled.metrics == plain.metrics


def test_a_model_that_does_not_compile(monkeypatch):
    def broken(model, device):
        def call(*inputs):
            raise RuntimeError("error: expected ';' before '}'")

        return call

    monkeypatch.setattr("attnlab.training.run.step.compile_model", broken)
    with pytest.raises(SpecError, match=r"compile: true, but the model does not compile .*expected ';'.*auto"):
        train(tiny_model(), TinyTask(), recipe(5, compile=True))


def test_a_run_goes_on_in_its_setting(tmp_path, counted, monkeypatch):
    """The choice of the beginning stands, though the recipe says auto."""

    def adopt(state, choice, original=RunState.adopt):
        original(state, choice)
        state.compiled = True  # as if it had been measured to pay

    monkeypatch.setattr(RunState, "adopt", adopt)
    fields = {"compile": "auto", "checkpoint_every": 5, "evaluate_every": 10}

    def stop(event):
        if event["kind"] == "evaluation":
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train(tiny_model(), TinyTask(), recipe(20, **fields), folder=tmp_path, on_event=stop)
    monkeypatch.undo()
    monkeypatch.setattr("attnlab.training.run.step.compile_model", lambda model, device: model)
    told = []
    result = train(tiny_model(), TinyTask(), recipe(20, **fields), folder=tmp_path, on_event=told.append)
    start = next(event for event in told if event["kind"] == "start")
    assert (start["setting"], start["resumed"]) == ("float32, compiled", True)
    assert result.compiled
    assert result.resumed_at == [5]
    assert result == read_result(tmp_path, result.curve)
    unbroken = train(tiny_model(), TinyTask(), recipe(20, evaluate_every=10))
    assert result.metrics == unbroken.metrics


def test_compiling_is_part_of_a_budget_in_seconds(monkeypatch):
    compiled = []

    def slow(model, device):
        def call(*inputs):
            if not compiled:
                time.sleep(0.3)
                compiled.append(True)
            return model(*inputs)

        return call

    monkeypatch.setattr("attnlab.training.run.step.compile_model", slow)
    result = train(tiny_model(), TinyTask(), recipe(budget={"seconds": 0.2}, compile=True))
    assert 0.3 <= result.choosing_seconds < result.seconds
    assert result.steps == 1  # nothing of the budget was left


@pytest.mark.skipif(bool(missing_compiler(CPU)), reason=f"needs {missing_compiler(CPU)}")
def test_the_real_compiler_gives_the_same_to_rounding():
    def small():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(N_IN, 7), nn.GELU(), nn.Linear(7, N_OUT))

    plain, compiled = (train(small(), TinyTask(), recipe(11, compile=value)) for value in (False, True))
    assert compiled.compiled
    assert compiled.choosing_seconds > 0.0
    assert compiled.metrics == pytest.approx(plain.metrics, rel=1e-3)


def test_many_models_of_one_class_are_compiled_in_one_process(monkeypatch):
    """Torch stops compiling after eight and calls the ninth as it is, with a line in the log."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr("torch._dynamo.config.fail_on_recompile_limit_hit", True)
    for width in range(1, 13):
        model = nn.Sequential(*[nn.Linear(width, width) for _ in range(1 + width % 3)])
        compile_model(model, CPU)(torch.ones(2, width))
