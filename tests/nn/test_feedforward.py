from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from attnlab.build import build
from attnlab.errors import SpecError
from attnlab.nn.feedforward import (
    FEEDFORWARDS,
    GatedFeedForward,
    GeluFeedForward,
    NoFeedForward,
    ReluFeedForward,
    SquaredReluFeedForward,
)


def test_by_hand() -> None:
    x = torch.randn(2, 5, 12)
    for part, bend in ((ReluFeedForward(12, d_ff=7), F.relu), (GeluFeedForward(12, d_ff=7), F.gelu)):
        torch.testing.assert_close(part(x), part.to_residual(bend(part.widen(x))))
    squared = SquaredReluFeedForward(12, d_ff=7)
    hidden = squared.widen(x)
    torch.testing.assert_close(squared(x), squared.to_residual(torch.where(hidden > 0, hidden * hidden, 0.0)))
    gated = GatedFeedForward(12, d_ff=7)
    gate, value = gated.widen(x)[..., :7], gated.widen(x)[..., 7:]
    torch.testing.assert_close(gated(x), gated.to_residual(gate * gate.sigmoid() * value))
    assert NoFeedForward()(x) is x


def test_default_widths() -> None:
    assert ReluFeedForward(10).to_residual.in_features == SquaredReluFeedForward(10).to_residual.in_features == 40
    assert GatedFeedForward(10).to_residual.in_features == 26
    gated, plain = (sum(p.numel() for p in kind(128).parameters()) for kind in (GatedFeedForward, GeluFeedForward))
    assert gated == pytest.approx(plain, rel=0.01)


def test_bad_arguments() -> None:
    with pytest.raises(SpecError, match="feed-forward 'gelu': sizes must be positive integers; got d_ff=0"):
        build({"name": "gelu", "d_ff": 0}, FEEDFORWARDS, axis="feed-forward", offered={"d_model": 12})
    with pytest.raises(SpecError, match=r"dropout must be a probability in \[0, 1\); got -0.1"):
        ReluFeedForward(12, dropout=-0.1)
