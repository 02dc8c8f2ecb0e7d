"""Choosing a precision measures without a trace; bf16 computes in bf16."""

from __future__ import annotations

import torch
from tests.training.tiny import N_IN, TinyTask
from torch import nn

from attnlab.training.precision import Precision, choose_precision
from attnlab.training.step import Caller

CPU = torch.device("cpu")


def test_measuring_leaves_no_trace():
    model = nn.Sequential(nn.Linear(N_IN, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    task = TinyTask()
    batch = task.train_batch(0, 0)
    caller = Caller(model, model, CPU)
    seen = []

    def loss(precision):
        seen.append(precision.name)
        return task.loss(caller.outputs(batch, precision, step=1), batch)

    chosen = choose_precision("auto", model, loss, CPU)
    assert set(seen) == {"float32", "bf16"}
    assert chosen.name in seen
    assert "ms a forward-backward" in chosen.reason
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_bf16_that_does_not_run_is_recorded():
    def loss(precision):
        if precision.name == "bf16":
            raise RuntimeError("not implemented for 'BFloat16'")
        return torch.zeros((), requires_grad=True)

    chosen = choose_precision("auto", nn.Linear(2, 3), loss, CPU)
    assert chosen.name == "float32"
    assert "bf16 does not run here: not implemented" in chosen.reason


def test_named_precision_is_not_measured():
    assert choose_precision("bf16", nn.Linear(2, 3), lambda _: 1 / 0, CPU).name == "bf16"


def test_autocast_computes_products_in_bf16():
    layer, inputs = nn.Linear(3, 5), torch.randn(2, 3)
    with Precision("bf16", "").autocast(CPU):
        assert layer(inputs).dtype == torch.bfloat16
    with Precision("float32", "").autocast(CPU):
        assert layer(inputs).dtype == torch.float32
