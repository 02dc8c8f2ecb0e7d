"""What a user's model can do wrong in a step is told in words."""

from __future__ import annotations

import pytest
import torch
from tests.training.tiny import N_BATCH, N_IN, N_OUT, TinyTask, tiny_model
from torch import nn

from attnlab.core.errors import ModuleError, TrainingError
from attnlab.training.run.step import Caller, LossWatch, clip_gradients, task_loss
from attnlab.training.speed.settings import Setting

PLAIN = Setting()
BATCH = TinyTask().train_batch(0, 0)


class Raises(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error


def call(model, step=3):
    return Caller(model, model, torch.device("cpu")).outputs(BATCH, PLAIN, step=step)


def test_raising_model():
    with pytest.raises(ModuleError, match="Raises raised KeyError in step 3"):
        call(Raises(KeyError("missing")))


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_what_is_not_the_models_fault_passes(error):
    with pytest.raises(type(error)):
        call(Raises(error))


def test_out_of_device_memory():
    with pytest.raises(TrainingError, match="step 3: out of memory; a smaller batch"):
        call(Raises(torch.OutOfMemoryError("tried to allocate")))


def test_wrong_return_type():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(ModuleError, match="Pair must return one tensor; got tuple"):
        call(Pair())


@pytest.mark.parametrize("shape", [(7, N_OUT, 1), (2, N_OUT), (7, 1)])
def test_wrong_shape(shape):
    outputs = torch.zeros(shape, requires_grad=True)
    with pytest.raises(ModuleError, match=r"loss cannot take what the model returned: shape .* for targets of shape"):
        task_loss(TinyTask(), outputs, BATCH, 0.0, strict=True)


@pytest.mark.parametrize("reads", [False, True])
def test_a_task_gets_float32_unless_it_reads_bfloat16(reads):
    """Its loss would be rounded to bfloat16 else, without a word."""

    class Looks(TinyTask):
        def loss(self, outputs, batch, label_smoothing=0.0):
            seen.append(outputs.dtype)
            return super().loss(outputs, batch)

    seen, task = [], Looks()
    if reads:
        task.reads_bfloat16 = True
    for dtype in (torch.bfloat16, torch.float64):
        task_loss(task, torch.zeros(N_BATCH, N_OUT, dtype=dtype), BATCH, 0.0, strict=True)
    assert seen == [torch.bfloat16 if reads else torch.float32, torch.float64]


def test_output_without_parameters():
    model = tiny_model()
    caller = Caller(model, model, torch.device("cpu"))
    with pytest.raises(ModuleError, match="does not depend on any of its parameters"):
        caller.backward(torch.zeros(()), BATCH, step=1)


def test_backward_that_raises():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("no gradient")

    model = nn.Linear(N_IN, 1)
    caller = Caller(model, model, torch.device("cpu"))
    with pytest.raises(ModuleError, match="no gradient"):
        caller.backward(Broken.apply(model(*BATCH.inputs)).sum(), BATCH, step=1)


def test_clipping():
    layer = nn.Linear(3, 2)
    layer.weight.grad, layer.bias.grad = torch.full((2, 3), 3.0), torch.full((2,), 4.0)
    parameters = list(layer.parameters())
    expected = torch.cat([p.grad.flatten() for p in parameters]).norm()
    assert clip_gradients(parameters, None) == pytest.approx(float(expected))
    assert layer.bias.grad[0] == 4.0
    clip_gradients(parameters, 0.5)
    assert torch.cat([p.grad.flatten() for p in parameters]).norm() == pytest.approx(0.5, abs=1e-4)


def test_watch_looks_now_and_then():
    watch, good, bad = LossWatch(3), torch.tensor(2.0), torch.tensor(torch.nan)
    assert [watch.add(good, good), watch.add(good, bad), watch.add(good, good)] == [False, False, True]
    losses, step = watch.look()
    assert losses == [2.0]
    assert step.behind == 1
    assert watch.look() == ([], None)
