from __future__ import annotations

import pytest
import torch

from attnlab.tasks.shapes.predictors import constant_error, linear_error


@pytest.fixture
def pairs():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(53, 5, generator=generator, dtype=torch.float64)
    weights = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    targets = inputs @ weights + torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    return (inputs[:37], targets[:37]), (inputs[37:], targets[37:])


def test_a_linear_relation_is_found_with_its_intercept(pairs):
    assert linear_error(*pairs) < 1e-20
    assert constant_error(*pairs) > 0.1


def test_the_constant_is_fitted_per_position_on_the_training_part():
    train = torch.zeros(2, 1), torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    held_out = torch.zeros(1, 1), torch.tensor([[2.0, 8.0]])
    assert constant_error(train, held_out) == pytest.approx((0**2 + 3**2) / 2)


def test_fewer_sequences_than_inputs_are_fitted_too(pairs):
    (inputs, targets), held_out = pairs
    assert linear_error((inputs[:3], targets[:3]), held_out) > 0
    assert linear_error((inputs[:3], targets[:3]), (inputs[:3], targets[:3])) < 1e-20
