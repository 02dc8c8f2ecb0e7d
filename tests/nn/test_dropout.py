"""Dropout: how much is dropped, what the rest becomes, and when nothing happens."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.core.errors import SpecError
from attnlab.nn.kernels.dropout import Dropout, dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.93])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_drops_a_part_and_keeps_the_mean(p, kind):
    torch.manual_seed(0)
    x = torch.ones(1000, 1000, dtype=kind)
    y = dropout(x, p)
    assert y.dtype == kind
    deviation = (p * (1 - p) / x.numel()) ** 0.5
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=5 * deviation)
    kept = y[y != 0].double()
    assert kept.unique().numel() == 1
    assert kept[0].item() == pytest.approx(1 / (1 - p), rel=torch.finfo(kind).eps + 2**-17 / (1 - p))  # 16 bits


def test_elements_are_dropped_independently_of_their_neighbors():
    """Four elements share one random number: none may tell another."""
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(100_000, 8), 0.3) == 0).double()
    correlations = torch.corrcoef(dropped.T) - torch.eye(8)
    assert correlations.abs().max() < 0.02


def test_gradient_is_zero_where_a_value_was_dropped():
    torch.manual_seed(0)
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.4)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y / x).detach())
    assert (x.grad == 0).any()
    assert (x.grad > 1).any()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5), (0, 4)])
def test_any_shape(shape):
    assert dropout(torch.ones(shape), 0.5).shape == shape


def test_transposed_tensor():
    torch.manual_seed(0)
    y = dropout(torch.ones(4, 6).T, 0.5)
    assert y.shape == (6, 4)
    assert set(y.unique().tolist()) == {0.0, 2.0}


def test_same_seed_drops_the_same():
    x = torch.ones(10, 10)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    assert dropout(x, 0.5).equal(first)
    assert not second.equal(first)


def test_nothing_happens_in_evaluation_or_at_zero():
    x = torch.randn(3, 4)
    state = torch.get_rng_state()
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0) is x
    assert Dropout(0.5).eval()(x) is x
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("p", [1e-9, 1 - 1e-9])
def test_probabilities_too_fine_for_16_bits_are_left_to_torch(p):
    x = torch.ones(100)
    torch.manual_seed(0)
    expected = F.dropout(x, p)
    torch.manual_seed(0)
    assert dropout(x, p).equal(expected)


def test_layer_is_one_of_torchs_for_whoever_looks_for_dropout():
    layer = Dropout(0.25)
    assert isinstance(layer, nn.Dropout)
    assert layer.p == 0.25
    assert (layer(torch.ones(1000)) == 0).any()


@pytest.mark.parametrize("p", [-0.1, 1.0, 7])
def test_what_is_no_probability_is_refused(p):
    with pytest.raises(SpecError, match=r"dropout must be a probability in \[0, 1\); got"):
        Dropout(p)
