"""What finishes a run the earliest is chosen from measured times, and choosing leaves no trace."""

from __future__ import annotations

import pytest
import torch
from tests.training.tiny import N_IN, TinyTask
from torch import nn

from attnlab.core.errors import ModuleError, SpecError
from attnlab.training.run.step import Caller
from attnlab.training.speed.choosing import (
    CLEAR_ROUNDS,
    COMPILE_SECONDS_A_LAYER,
    COMPILED_FRACTION,
    TIMED_ROUNDS,
    WARM_UPS,
    choose_for_model,
    choose_setting,
    expected_compile_seconds,
)
from attnlab.training.speed.settings import Remaining, Setting

CPU = torch.device("cpu")
PLAIN, SHORT = Setting("float32"), Setting("bf16")
COMPILE_SECONDS = 20.0
"""What these tests expect compiling to take."""
LONG_RUN = Remaining(steps=100_000)


class Machine:
    """A machine whose clock moves only when steps run on it: seconds a step, seconds to compile, what is impossible."""

    def __init__(self, seconds, compile_seconds=20.0, impossible=()):
        self.step_seconds, self.compile_seconds, self.impossible = seconds, compile_seconds, impossible
        self.now, self.compiled = 0.0, set()
        self.ran = []

    def run_step(self, setting, number):
        if setting in self.impossible:
            raise RuntimeError(f"no way\nfor {setting}")
        self.ran.append(setting)
        if setting.compile and setting not in self.compiled:
            self.compiled.add(setting)
            self.now += self.compile_seconds
        self.now += self.step_seconds[setting]

    def choose(self, precision="auto", compiled="auto", remaining=LONG_RUN, **missing):
        return choose_setting(
            self.run_step,
            remaining,
            precision=precision,
            compiled=compiled,
            compile_seconds=COMPILE_SECONDS,
            clock=lambda: self.now,
            **missing,
        )


def machine(float32=0.4, bf16=0.3, compiled_float32=0.25, compiled_bf16=0.2, **rest):
    times = {PLAIN: float32, SHORT: bf16, PLAIN.compiled(): compiled_float32, SHORT.compiled(): compiled_bf16}
    return Machine(times, **rest)


def test_the_fastest_is_chosen_and_everything_measured_is_told():
    here = machine()
    choice = here.choose()
    assert choice.setting == SHORT.compiled()
    assert "float32 400.0 ms; bf16 300.0 ms; bf16, compiled 200.0 ms a forward-backward" in choice.reason
    assert "20.4 s to compile bf16" in choice.reason
    assert choice.seconds == pytest.approx(here.now)


def test_compiling_that_slows_down_is_not_kept():
    choice = machine(compiled_bf16=0.31, compiled_float32=0.31).choose()
    assert choice.setting == SHORT
    assert "bf16, compiled 310.0 ms" in choice.reason


def test_compiling_that_gains_little_is_kept_since_it_is_paid_for():
    assert machine(compiled_bf16=0.297, compiled_float32=0.31).choose().setting == SHORT.compiled()


def test_the_other_precision_is_compiled_where_it_may_still_win():
    here = machine(float32=0.31, bf16=0.3, compiled_bf16=0.28, compiled_float32=0.2)
    assert here.choose().setting == PLAIN.compiled()
    assert SHORT.compiled() in here.ran


def test_the_other_precision_is_not_compiled_where_it_cannot_win():
    here = machine(float32=1.0)
    assert "compiling float32 not tried: it is not expected to be faster" in here.choose().reason
    assert PLAIN.compiled() not in here.ran


def test_a_gain_within_the_noise_is_no_gain():
    assert machine(bf16=0.39).choose(compiled=False).setting == PLAIN


@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_compiling_must_pay_in_the_steps_left(precision):
    here = machine()
    saved_per_step = 0.3 * (1.0 - COMPILED_FRACTION)
    few = int(COMPILE_SECONDS / saved_per_step) - 1
    choice = here.choose(precision, remaining=Remaining(steps=few))
    assert choice.setting == SHORT
    assert f"compiling bf16 not tried: it could save {few * saved_per_step:.1f} s" in choice.reason
    assert not here.compiled
    assert machine().choose(precision, remaining=Remaining(steps=few + 2)).setting == SHORT.compiled()


def test_seconds_left_count_after_what_was_spent():
    """At 0.3 s a step, compiling pays in four times what it takes, if 75 % of the time is what compiled steps take."""
    measuring = (WARM_UPS + TIMED_ROUNDS) * (0.4 + 0.3)
    assert not machine().choose(remaining=Remaining(seconds=4 * COMPILE_SECONDS + measuring - 1.0)).setting.compile
    assert machine().choose(remaining=Remaining(seconds=4 * COMPILE_SECONDS + measuring + 1.0)).setting.compile


@pytest.mark.parametrize("remaining", [Remaining(steps=59), Remaining(seconds=20.0)])
def test_a_tiny_run_is_not_measured(remaining):
    here = machine()
    choice = here.choose(remaining=remaining)
    assert choice.setting == PLAIN
    assert "steps are too few" in choice.reason
    assert len(here.ran) <= WARM_UPS


@pytest.mark.parametrize("steps", [60, 80, 100, 150, 1_000, 10_000])
def test_choosing_costs_little_or_pays(steps):
    here = machine(compile_seconds=COMPILE_SECONDS, compiled_bf16=0.18)
    choice = here.choose(remaining=Remaining(steps=steps))
    simplest = steps * here.step_seconds[PLAIN]
    assert choice.seconds + steps * here.step_seconds[choice.setting] <= 1.1 * simplest


@pytest.mark.parametrize("steps", [60, 400, 410, 1_000, 10_000])
def test_choosing_in_vain_is_bounded(steps):
    """A run for which nothing is faster loses at most a third of its time, and that only if it is short."""
    here = machine(bf16=0.4, compiled_bf16=0.4, compiled_float32=0.4, compile_seconds=COMPILE_SECONDS)
    choice = here.choose(remaining=Remaining(steps=steps))
    assert choice.setting == PLAIN
    assert choice.seconds <= steps * 0.4 / 3


def test_what_is_clear_is_not_timed_again():
    unclear, clear = machine(), machine(bf16=0.2)
    for here in (unclear, clear):
        here.choose(compiled=False)
    assert unclear.ran.count(PLAIN) == WARM_UPS + TIMED_ROUNDS
    assert clear.ran.count(PLAIN) == WARM_UPS + CLEAR_ROUNDS


@pytest.mark.parametrize(("precision", "compiled"), [("float32", False), ("bf16", False)])
def test_a_forced_setting_is_not_measured(precision, compiled):
    here = machine()
    choice = here.choose(precision, compiled)
    assert (choice.setting, choice.reason, choice.seconds) == (Setting(precision), "asked for by the recipe", 0.0)
    assert not here.ran


def test_forced_compiling_is_done_and_timed():
    here = machine()
    choice = here.choose("bf16", compiled=True, remaining=Remaining(steps=3))
    assert choice.setting == SHORT.compiled()
    assert choice.reason == "asked for by the recipe; 20.4 s to compile bf16"
    assert here.ran == [SHORT.compiled()] * WARM_UPS


def test_forced_compiling_with_a_free_precision():
    assert machine().choose(compiled=True).setting == SHORT.compiled()
    late = machine(compiled_float32=0.1).choose(compiled=True)
    assert late.setting == SHORT.compiled()  # 0.75 of float32's 0.4 s is more than what compiled bf16 takes
    near = machine(float32=0.31, bf16=0.3, compiled_bf16=0.28, compiled_float32=0.15)
    assert near.choose(compiled=True).setting == PLAIN.compiled()


def test_no_compiler():
    here = machine()
    choice = here.choose(against_compiling="it needs a C++ compiler")
    assert choice.setting == SHORT
    assert "compiling not tried: it needs a C++ compiler" in choice.reason
    assert not here.compiled


def test_a_failing_compiler():
    here = machine(impossible={SHORT.compiled(), PLAIN.compiled()})
    choice = here.choose()
    assert choice.setting == SHORT
    assert choice.reason.endswith("bf16 does not compile: no way")
    with pytest.raises(SpecError, match="the model does not compile \\(no way\\); set compile: false or auto"):
        here.choose("bf16", compiled=True)


def test_bf16_that_does_not_run_is_recorded():
    choice = machine(impossible={SHORT}).choose(compiled=False)
    assert choice.setting == PLAIN
    assert "bf16 does not run here: no way" in choice.reason


@pytest.mark.parametrize("compiled", [True, "auto"])
def test_a_model_that_does_not_run_tells_its_own_error(compiled):
    def broken(setting, number):
        raise ModuleError(f"the model is wrong, {'compiled' if setting.compile else 'as it is'}")

    with pytest.raises(ModuleError, match="wrong, as it is"):
        choose_setting(broken, LONG_RUN, precision="float32", compiled=compiled, compile_seconds=1.0)


def test_measuring_leaves_no_trace():
    model = nn.Sequential(nn.Linear(N_IN, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    task, caller, seen = TinyTask(), Caller(model, model, CPU), []

    def run_step(setting, number):
        seen.append((setting, number))
        batch = task.train_batch(number, 0)
        task.loss(caller.outputs(batch, setting, step=1), batch).backward()

    choice = choose_for_model(
        model,
        run_step,
        Remaining(steps=1000),
        precision="auto",
        compiled="auto",
        compile_seconds=1e9,
        first_batches=lambda number: task.train_batch(number, 0),
        device=CPU,
    )
    assert {setting for setting, _ in seen} == {PLAIN, SHORT}
    assert len({number for _, number in seen}) > 1
    assert choice.setting in {PLAIN, SHORT}
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("sizes", "tried"),
    [((4, 4, 4, 4, 4, 4, 4, 4), True), ((4, 4, 2, 4, 4, 2, 4, 4), True), ((4, 3, 2, 4, 4, 4, 4, 4), False)],
)
def test_compiling_is_not_tried_where_batches_come_in_many_shapes(monkeypatch, sizes, tried):
    monkeypatch.setattr("attnlab.training.speed.choosing.missing_compiler", lambda device: "")
    here, task = machine(), TinyTask()
    choice = choose_for_model(
        nn.Linear(N_IN, 3),
        here.run_step,
        Remaining(seconds=1e6),
        precision="float32",
        compiled="auto",
        compile_seconds=0.0,
        first_batches=lambda number: task.batch(number, sizes[number]),
        device=CPU,
    )
    assert bool(here.compiled) == tried
    told = "compiling not tried: the first 8 batches have 3 shapes, and each would be compiled anew" in choice.reason
    assert told != tried


def test_compiling_is_expected_to_take_longer_the_more_layers_a_model_has():
    layer = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    assert expected_compile_seconds(layer) == COMPILE_SECONDS_A_LAYER
    assert (
        expected_compile_seconds(nn.Sequential(layer, nn.LayerNorm(3), nn.Linear(3, 1))) == 3 * COMPILE_SECONDS_A_LAYER
    )
