"""A setting computes in what it says; what is left of a budget counts in steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.training.speed.settings import Remaining, Setting

CPU = torch.device("cpu")


def test_autocast_computes_products_in_bf16():
    layer, inputs = nn.Linear(3, 5), torch.randn(2, 3)
    with Setting("bf16").autocast(CPU):
        assert layer(inputs).dtype == torch.bfloat16
    with Setting("float32").autocast(CPU):
        assert layer(inputs).dtype == torch.float32


def test_words():
    assert str(Setting("bf16").compiled()) == "bf16, compiled"
    assert str(Setting("bf16").compiled().eager()) == "bf16"
    for setting in (Setting(), Setting("bf16"), Setting("bf16", compile=True)):
        assert Setting.parse(str(setting)) == setting


@pytest.mark.parametrize(
    ("remaining", "expected"),
    [(Remaining(steps=70), 70.0), (Remaining(seconds=10.0), 5.0), (Remaining(seconds=-1.0), 0.0)],
)
def test_steps_left(remaining, expected):
    assert remaining.steps_at(step_seconds=2.0) == expected
