"""The first layer that is not finite is named, whether a module or the code between modules made it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.core.contracts import Batch
from attnlab.training.keeping.diagnosis import first_non_finite_layer, module_error, non_finite_step


class Log(nn.Module):
    def forward(self, x):
        return torch.log(-x.abs())


class Holder(nn.Module):
    """Take a root of negative numbers between two layers, and hand an additive mask to the second."""

    def __init__(self, bad):
        super().__init__()
        self.first, self.second, self.bad = nn.Linear(3, 3), nn.Bilinear(3, 3, 2), bad

    def forward(self, x):
        x = self.first(x)
        x = torch.sqrt(-1.0 - x**2) if self.bad else x
        return self.second(x, torch.full_like(x, float("-inf")).nan_to_num(neginf=0.0))


BATCH = Batch((torch.randn(5, 3),), torch.randn(5, 2))


def test_module_that_makes_it():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Identity(), Log()), nn.Linear(3, 2))
    assert first_non_finite_layer(model, BATCH) == "1.1"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_code_between_modules():
    model = nn.Sequential(nn.Linear(3, 3), Holder(bad=True))
    assert first_non_finite_layer(model, BATCH) == "1"
    assert first_non_finite_layer(Holder(bad=True), BATCH) == "the model's own forward"
    assert first_non_finite_layer(Holder(bad=False), BATCH) == ""


def test_inputs_and_parameters():
    assert first_non_finite_layer(nn.Linear(3, 2), Batch((torch.full((5, 3), torch.nan),), BATCH.targets)) == "inputs"
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[1].bias.data[1] = torch.inf
    assert first_non_finite_layer(model, BATCH) == "1.bias"


def test_loss_and_gradient():
    model = nn.Linear(3, 2)
    assert non_finite_step(model, BATCH, step=3, loss=float("nan"), norm=1.0).layer == "loss"
    model(BATCH.inputs[0]).sum().backward()
    model.bias.grad[0] = torch.nan
    at_once = non_finite_step(model, BATCH, step=1, loss=float("nan"), norm=1.0)
    assert "no weight has been changed yet, so no setting of training is the cause" in str(at_once)
    error = non_finite_step(model, BATCH, step=3, loss=1.0, norm=float("nan"))
    assert (error.step, error.layer) == (3, "bias")
    assert "step 3: the gradient's norm is nan; it begins in the gradient of 'bias'" in str(error)
    assert "the layer is unknown" in str(non_finite_step(model, None, step=3, loss=float("inf"), norm=1.0))


def test_exception_names_the_deepest_module():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("no idea")

    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(Broken()))
    with pytest.raises(ValueError, match="no idea") as caught:
        model(*BATCH.inputs)
    text = str(module_error(model, BATCH, caught.value, step=7))
    assert "Sequential, in '1.0' (Broken), " in text
    assert "raised ValueError in step 7: no idea (called with (5, 3) torch.float32)" in text
