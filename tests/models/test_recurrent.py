"""The two LSTMs: one reads positions, the other samples."""

from __future__ import annotations

import pytest
import torch

from attnlab.core.errors import SpecError
from attnlab.inspection import Reach, count_parameters, reach
from attnlab.models import Lstm, LstmBatchAsTime

LENGTH, BATCH = 7, 3


def x() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(BATCH, LENGTH, 1)


def test_parameters_of_the_mistake() -> None:
    assert count_parameters(LstmBatchAsTime(100)) == 130_660


def test_parameters_of_both_directions() -> None:
    hidden, directions = 5, 2
    per_direction = 4 * hidden * (1 + hidden) + 2 * 4 * hidden
    assert count_parameters(Lstm(1, 3, hidden=hidden)) == directions * per_direction + 3 * (2 * hidden + 1)


def test_positions_are_time() -> None:
    assert reach(Lstm(1, 2, hidden=5), (x(),)) == Reach(LENGTH, LENGTH - 1, mixes_batch=False)
    assert reach(Lstm(1, 2, hidden=5, bidirectional=False), (x(),)) == Reach(LENGTH, 0, mixes_batch=False)


def test_the_mistake_lets_samples_see_those_before_them() -> None:
    model = LstmBatchAsTime(LENGTH, hidden=5)
    assert reach(model, (x(),)).mixes_batch
    changed = x()
    changed[1] += 1
    differs = (model(changed) != model(x())).flatten(1).any(1)
    assert differs.tolist() == [False, True, True]


@pytest.mark.parametrize("size", ["hidden", "n_layers"])
def test_sizes_below_one_are_refused(size: str) -> None:
    with pytest.raises(SpecError, match=f"sizes must be positive integers; got {size}=0"):
        Lstm(1, 1, **{size: 0})
    with pytest.raises(SpecError, match=f"sizes must be positive integers; got {size}=0"):
        LstmBatchAsTime(LENGTH, **{size: 0})
