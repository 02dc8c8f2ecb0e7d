"""Receptive field: how far an output sees, and when that is worth a warning."""

from __future__ import annotations

import pytest
from tests.doctor.bedside import Attention, Causal, D, examine
from torch import nn

from attnlab.doctor.checks.receptive_field import check_receptive_field


class Convolutions(nn.Module):
    def __init__(self, layers=5, width=5):
        super().__init__()
        steps = [nn.Conv1d(D, D, width, padding=width // 2) for _ in range(layers)]
        self.net = nn.Sequential(
            *(step for pair in zip(steps, (nn.ReLU() for _ in steps), strict=True) for step in pair)
        )

    def forward(self, x):
        return self.net(x.mT).mT


class Pooled(Convolutions):
    def forward(self, x):
        return super().forward(x)[:, 0]


def only(module, text="", **usage):
    (finding,) = check_receptive_field(examine(module, text=text, **usage))
    assert finding.check == "receptive-field"
    return finding


def test_five_convolutions_of_width_five_see_21_of_100():
    finding = only(Convolutions())
    assert "sees 21 of 100 positions" in finding.message
    assert (finding.severity, finding.weighs) == ("warning", "set-up")
    assert "10 positions before and 10 after" in finding.evidence


def test_a_declared_window_is_a_fact():
    assert only(Convolutions(), text="looks at a local window").severity == "info"


def test_a_single_convolution_is_local_by_nature():
    assert only(Convolutions(layers=1)).severity == "info"


@pytest.mark.parametrize(("module", "words"), [(Attention(), "the whole input"), (Causal(), "everything before it")])
def test_attention_sees_everything(module, words):
    finding = only(module)
    assert finding.severity == "info"
    assert words in finding.message


def test_a_layer_that_never_mixes():
    finding = only(nn.Sequential(nn.Linear(D, D), nn.ReLU()))
    assert "sees 1 of 100 positions: no position sees another" in finding.message
    assert finding.severity == "warning"
    assert only(nn.Linear(D, D), text="a feed-forward layer").severity == "info"


def test_a_pooled_output_and_a_limited_length():
    finding = only(Pooled(), pooled=True, longest=40)
    assert "the output sees 11 of 40 positions" in finding.message
