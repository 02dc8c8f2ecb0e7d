"""Foreign code: what it prints, changes and seeds is put back; what does not end is interrupted."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.doctor import doctor
from attnlab.strangers.containment import CUDA, OF_BYTES, OvertimeError, Traces, contained, time_limit, wake


def test_prints_are_kept_from_the_screen(capsys):
    traces = Traces()
    with contained(traces):
        print("out")
        print("err", file=sys.stderr)
        warnings.warn("careful", stacklevel=1)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert traces.printed.getvalue().splitlines() == ["out", "err"]


def test_gains_that_start_closed_are_opened():
    module = nn.ParameterList([torch.zeros(3), torch.full((), 1e-6), torch.full((3,), 0.01)])
    wake(module)
    assert [bool((one.abs() > 1e-3).all()) for one in module] == [True, True, True]
    assert module[2].tolist() == torch.full((3,), 0.01).tolist()


def test_random_states_are_put_back():
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state())
    with contained(Traces()):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.random.get_rng_state(), before[2])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: torch.set_default_dtype(torch.float64), "the default dtype (from torch.float32 to torch.float64)"),
        (lambda: torch.set_default_device("meta"), "the default device (from cpu to meta)"),
        (lambda: torch.set_grad_enabled(False), "whether gradients are recorded (from True to False)"),
        (lambda: torch.use_deterministic_algorithms(True), "deterministic algorithms (from False to True)"),
        (lambda: sys.setrecursionlimit(4001), "the recursion limit"),
        (lambda: os.chdir("/"), "the working directory"),
    ],
)
def test_global_settings_are_put_back_and_named(change, name):
    before = (torch.get_default_dtype(), torch.is_grad_enabled(), os.getcwd(), sys.getrecursionlimit())
    traces = Traces()
    with contained(traces):
        change()
    assert len(traces.changed) == 1
    assert traces.changed[0].startswith(name)
    assert before == (torch.get_default_dtype(), torch.is_grad_enabled(), os.getcwd(), sys.getrecursionlimit())
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.zeros(1).device.type == "cpu"
    assert torch.overrides._get_current_function_mode_stack() == []


def test_they_are_put_back_after_an_exception_too():
    def fail():
        torch.set_default_dtype(torch.float64)
        raise ZeroDivisionError

    traces = Traces()
    with pytest.raises(ZeroDivisionError), contained(traces):
        fail()
    assert torch.get_default_dtype() == torch.float32
    assert traces.changed


def test_nothing_is_reported_of_code_that_behaves():
    traces = Traces()
    with contained(traces):
        torch.randn(3)
    assert not traces.changed
    assert not traces.printed.getvalue()


def test_an_endless_loop_is_interrupted():
    def forever():
        while True:
            pass

    with pytest.raises(OvertimeError), time_limit(0.05):
        forever()


def test_what_waits_has_longer_than_what_computes():
    with time_limit(0.1):
        time.sleep(0.15)  # as where other programs have the processor


def test_a_loop_that_swallows_the_first_interruption_gets_another():
    def stubborn():
        try:
            while True:
                pass
        except BaseException:
            pass
        while True:
            time.sleep(0.01)

    with pytest.raises(OvertimeError), time_limit(0.05):
        stubborn()


def test_after_the_limit_the_clock_is_off():
    with time_limit(0.05):
        pass
    time.sleep(0.1)


def test_in_another_thread_it_runs_without_a_limit():
    done = []

    def work():
        with time_limit(0.01):
            time.sleep(0.05)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_what_names_cuda_is_left_where_it_is_or_made_on_the_cpu():
    with contained(Traces(lent={CUDA})):
        x = torch.ones(2, device="meta")
        kept = [x.cuda(), x.to("cuda"), x.to(device="cuda:0", dtype=torch.float64), nn.Linear(2, 2).cuda().weight]
        made = [torch.zeros(2, device="cuda"), torch.tensor([1.0], device=torch.device("cuda")).cuda(0)]
    assert [one.device.type for one in (*kept, *made)] == ["meta"] * 3 + ["cpu"] * 3
    assert kept[2].dtype == torch.float64


ON_CUDA = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.map, self.scale = nn.Linear(dim, dim), torch.tensor([1.0, dim**0.5]).to("cuda")
    def forward(self, x):
        scores = x @ x.mT / self.scale[1]
        blocked = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1).cuda()
        return self.map(scores.masked_fill(blocked, float("-inf")).softmax(-1) @ x)
"""


def test_a_module_that_names_cuda_is_examined_without_and_told_so(tmp_path):
    (tmp_path / "mine.py").write_text(ON_CUDA)
    diagnosis = doctor(f"{tmp_path}/mine.py:Mine")
    assert "it names CUDA in its own code" in str(diagnosis)
    assert not diagnosis.errors, str(diagnosis)


def test_a_kernel_of_cuda_that_is_asked_for_by_name_is_done_without():
    q = torch.ones(1, 1, 3, 4)
    with contained(Traces(lent={CUDA})), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        assert nn.functional.scaled_dot_product_attention(q, q, q).shape == q.shape


def test_masks_of_bytes_are_taken_as_true_and_false_where_that_is_lent():
    x, hidden = torch.ones(3), torch.tensor([0, 1, 0], dtype=torch.uint8)
    with contained(Traces(lent={OF_BYTES})):
        given = [x.masked_fill(hidden, 0.0), x.masked_fill(mask=hidden, value=0.0), x.clone().masked_fill_(hidden, 0.0)]
        chosen = torch.masked_select(x, hidden)
    assert all(one.tolist() == [1.0, 0.0, 1.0] for one in given)
    assert chosen.tolist() == [1.0]
    with contained(Traces()), pytest.raises(RuntimeError):
        x.masked_fill(hidden, 0.0)


OF_AN_EARLIER_TORCH = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.map, self.scale = nn.Linear(dim, dim), dim**-0.5
    def forward(self, x):
        blocked = torch.ones(x.size(1), x.size(1), device=x.device).triu(1).byte()
        scores = self.map(x) @ x.mT * self.scale
        return self.map(scores.masked_fill(blocked, float("-inf")).softmax(-1) @ x)
"""


def test_a_module_that_masks_with_bytes_is_examined_and_told_that_it_raises(tmp_path):
    (tmp_path / "mine.py").write_text(OF_AN_EARLIER_TORCH)
    diagnosis = doctor(f"{tmp_path}/mine.py:Mine")
    assert [(one.check, one.severity) for one in diagnosis.errors] == [("mask-polarity", "error")], str(diagnosis)
    assert "masked_fill takes no more: it raises" in diagnosis.errors[0].message
    assert diagnosis.assumptions["causal"].startswith("yes")
