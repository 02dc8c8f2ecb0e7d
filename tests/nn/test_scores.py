from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnlab.core.build import build
from attnlab.core.errors import SpecError
from attnlab.nn.axes.scores import SCORES, AdditiveScore, BilinearScore, CosineScore, DotScore, ScaledDotScore


def pair() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 5, 7, dtype=torch.float64), torch.randn(2, 3, 11, 7, dtype=torch.float64)


@pytest.mark.parametrize("name", SCORES)
def test_as_dot_is_the_score(name: str) -> None:
    score = build(name, SCORES, axis="score", offered={"d_head": 7, "n_heads": 3}).double()
    with torch.no_grad():
        for parameter in score.parameters():
            parameter.add_(torch.randn_like(parameter))
    q, k = pair()
    found = score.as_dot(q, k)
    if found is not None:
        torch.testing.assert_close(found[2] * found[0] @ found[1].transpose(-2, -1), score(q, k))


def test_dots_by_hand() -> None:
    q, k = pair()
    one = (q[1, 2, 3] * k[1, 2, 4]).sum()
    torch.testing.assert_close(DotScore()(q, k)[1, 2, 3, 4], one)
    torch.testing.assert_close(ScaledDotScore(7)(q, k)[1, 2, 3, 4], one / math.sqrt(7))


def test_a_power_of_the_width_divides() -> None:
    q, k = pair()
    torch.testing.assert_close(ScaledDotScore(7, power=1.0)(q, k), q @ k.transpose(-2, -1) / 7)
    torch.testing.assert_close(ScaledDotScore(7, power=0.0)(q, k), DotScore()(q, k))
    assert all(ScaledDotScore(width).scale == 1 / math.sqrt(width) for width in range(1, 513))  # to the bit
    for power in (-0.5, math.inf):
        with pytest.raises(SpecError, match=f"power must be a number of at least 0; got {power}"):
            ScaledDotScore(7, power=power)


def test_bilinear_starts_as_scaled_dot_and_has_a_matrix_per_head() -> None:
    (q, k), score = pair(), BilinearScore(7, n_heads=3).double()
    torch.testing.assert_close(score(q, k), ScaledDotScore(7)(q, k))
    with torch.no_grad():
        score.weight.normal_()
    by_hand = q[1, 2, 3] @ score.weight[2] @ k[1, 2, 4] / math.sqrt(7)
    torch.testing.assert_close(score(q, k)[1, 2, 3, 4], by_hand)


def test_additive_by_hand() -> None:
    (q, k), score = pair(), AdditiveScore(7, d_hidden=13).double()
    hidden = score.from_q.weight @ q[1, 2, 3] + score.from_q.bias + score.from_k.weight @ k[1, 2, 4]
    torch.testing.assert_close(score(q, k)[1, 2, 3, 4], score.to_score.weight[0] @ hidden.tanh())
    assert score.as_dot(q, k) is None


def test_cosine_does_not_know_lengths() -> None:
    (q, k), score = pair(), CosineScore(3).double()
    torch.testing.assert_close(score(3 * q, k / 5), score(q, k))
    cosine = torch.cosine_similarity(q[1, 2, 3], k[1, 2, 4], dim=0)
    torch.testing.assert_close(score(q, k)[1, 2, 3, 4], 10 * cosine)


def test_sizes_must_be_positive() -> None:
    with pytest.raises(SpecError, match="got d_hidden=0"):
        AdditiveScore(7, d_hidden=0)
