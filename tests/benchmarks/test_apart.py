from __future__ import annotations

import os
from functools import partial

import pytest
import torch

from attnlab.benchmarks.contenders.apart import Apart
from attnlab.benchmarks.contenders.steps import AbstractStepper
from attnlab.core.errors import RunError, SpecError
from attnlab.training.speed.settings import Setting


class Counter(AbstractStepper):
    """Answer with what the process knows, so that a test sees where it runs."""

    def __init__(self, refuse=None):
        if refuse:
            raise refuse
        self.parameters, self.setting, self.steps = 7, Setting(), 0

    def step_ms(self, steps):
        if steps < 0:
            raise ValueError("no such steps")
        if steps == 666:
            os._exit(3)
        self.steps += steps
        self.setting = Setting("bf16")
        self.reason = f"{os.getpid()} {torch.get_num_threads()} {os.environ.get('MALLOC_ARENA_MAX')}"
        self.reason += f" {os.environ.get('THP_MEM_ALLOC_ENABLE')}"
        return float(self.steps)

    def close(self):
        pass


@pytest.mark.parametrize("by_command_line", [False, True])
def test_steps_are_made_in_another_process_that_stays(by_command_line):
    threads = torch.get_num_threads()
    stepper = Apart(Counter, by_command_line=by_command_line)
    try:
        assert stepper.parameters == 7
        assert [stepper.step_ms(2), stepper.step_ms(3)] == [2.0, 5.0]
        process, their_threads, heaps, huge_pages = stepper.reason.split()
        assert int(process) != os.getpid()
        assert int(their_threads) == threads
        assert heaps == "1"
        assert huge_pages == str(int(by_command_line))
        assert stepper.setting == Setting("bf16")
        stepper.settle()
        assert stepper.ms > 0.0
        with pytest.raises(RuntimeError, match="ValueError: no such steps"):
            stepper.step_ms(-1)
        assert stepper.step_ms(0) > 5.0  # settling made some; an error ends nothing
        with pytest.raises(RunError, match=r"died \(exit code 3\)"):
            stepper.step_ms(666)
    finally:
        stepper.close()
    assert "MALLOC_ARENA_MAX" not in os.environ


def test_what_cannot_be_made_says_why():
    with pytest.raises(SpecError, match="no compiler"):
        Apart(partial(Counter, SpecError("no compiler")))
