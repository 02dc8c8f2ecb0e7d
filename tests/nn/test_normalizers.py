from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnlab.nn.axes.normalizers import (
    NORMALIZERS,
    Hardmax,
    LinearWeights,
    Sigmoid,
    Softmax,
    SoftmaxPlusOne,
    Sparsemax,
    UniformWeights,
)

SUM_TO_ONE = [Softmax(), Sparsemax(), Hardmax(), UniformWeights()]


def scores(scale: float = 2.0) -> Tensor:
    return scale * torch.randn(2, 3, 5, 7, dtype=torch.float64)


def mask() -> Tensor:
    allowed = torch.rand(5, 7) < 0.6
    allowed[2], allowed[0] = False, True
    return allowed


@pytest.mark.parametrize("name", NORMALIZERS)
def test_forbidden_scores_do_not_matter(name: str) -> None:
    normalizer, allowed, given = NORMALIZERS[name](), mask(), scores().requires_grad_()
    changed = torch.where(allowed, given, torch.tensor(float("nan"), dtype=given.dtype))
    weights = normalizer(given, allowed)
    torch.testing.assert_close(normalizer(changed, allowed), weights)
    assert torch.all(weights[:, :, ~allowed] == 0)
    (gradient,) = torch.autograd.grad(weights.pow(2).sum(), given)
    assert torch.isfinite(gradient).all()
    assert torch.all(gradient[:, :, ~allowed] == 0)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_everything_allowed_is_no_mask(name: str) -> None:
    given, normalizer = scores(), NORMALIZERS[name]()
    torch.testing.assert_close(normalizer(given, torch.ones(5, 7, dtype=torch.bool)), normalizer(given, None))


@pytest.mark.parametrize("normalizer", SUM_TO_ONE)
def test_weights_sum_to_one_where_anything_is_allowed(normalizer: torch.nn.Module) -> None:
    sums = normalizer(scores(), allowed := mask()).sum(-1)
    torch.testing.assert_close(sums, allowed.any(-1).to(sums).expand_as(sums))


@pytest.mark.parametrize("normalizer", [Softmax(), SoftmaxPlusOne(), Sparsemax(), Hardmax()])
@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_large_scores_stay_finite(normalizer: torch.nn.Module, shift: float) -> None:
    assert torch.isfinite(normalizer(scores(100.0).float() + shift, mask())).all()


def test_softmax_plus_one_is_softmax_with_a_zero() -> None:
    given = scores()
    with_zero = torch.cat((torch.zeros_like(given[..., :1]), given), dim=-1).softmax(-1)
    torch.testing.assert_close(SoftmaxPlusOne()(given, None), with_zero[..., 1:])


def test_sparsemax_is_the_projection() -> None:
    given = scores()
    weights = Sparsemax()(given, None)
    assert torch.all(weights >= 0)
    assert (weights == 0).double().mean() > 0.2
    # optimality on the simplex: s - w is one number on the support and not larger elsewhere
    gap = given - weights
    threshold = gap.masked_fill(weights == 0, -torch.inf).amax(-1, keepdim=True)
    torch.testing.assert_close(gap[weights > 0], threshold.expand_as(gap)[weights > 0])
    assert torch.all(gap <= threshold + 1e-12)


def test_sparsemax_gradient() -> None:
    allowed = mask()
    given = scores().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: Sparsemax()(s, allowed), given)


def test_hardmax_looks_up_the_first_of_the_highest() -> None:
    given = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 9.0, 0.0, 5.0], [1.0, 2.0, 3.0, 4.0]])
    allowed = torch.tensor([[True] * 4, [True, False, True, True], [False] * 4])
    expected = torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0] * 4])
    assert torch.equal(Hardmax()(given[None, None], allowed)[0, 0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hardmax_is_a_lookup_to_the_bit_with_the_gradient_of_softmax(dtype: torch.dtype) -> None:
    given, allowed, values = scores().to(dtype).requires_grad_(), mask(), torch.randn(2, 3, 5, 7).to(dtype)
    weights = Hardmax()(given, allowed)
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    found, expected = (
        torch.autograd.grad((normalizer(given, allowed) * values).sum(), given)[0]
        for normalizer in (Hardmax(), Softmax())
    )
    assert found.any()
    torch.testing.assert_close(found, expected)


def test_uniform_weights_are_equal_and_teach_scores_nothing() -> None:
    given, allowed = scores().requires_grad_(), mask()
    weights = UniformWeights()(given, allowed)
    expected = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(weights, expected.double().expand_as(weights))
    (gradient,) = torch.autograd.grad((weights * torch.randn_like(weights)).sum(), given)
    assert not gradient.any()


def test_sigmoid_by_hand() -> None:
    given = scores()
    expected = torch.sigmoid(given - torch.tensor(7.0).log().double())
    torch.testing.assert_close(Sigmoid()(given, None), expected)


def test_linear_is_the_scores() -> None:
    given = scores()
    assert torch.equal(LinearWeights()(given, None), given)
