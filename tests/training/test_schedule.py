"""Schedules are pure functions of progress, with their peak at the end of the warm-up."""

from __future__ import annotations

from itertools import pairwise

import pytest

from attnlab.core.errors import SpecError
from attnlab.training.recipe.schedule import SCHEDULES, Cosine, InverseSquareRoot, Linear, rate_factor

POINTS = [number / 97 for number in range(98)]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [0.0, 0.13, 1.0])
def test_factor_is_a_fraction_and_never_rises_after_warmup(name, warmup):
    factors = [rate_factor(SCHEDULES[name](), point, warmup) for point in POINTS]
    assert all(0.0 <= factor <= 1.0 for factor in factors)
    late = [factor for point, factor in zip(POINTS, factors, strict=True) if point >= warmup]
    assert all(after <= before + 1e-12 for before, after in pairwise(late))


@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_is_linear_to_the_peak(name):
    schedule = SCHEDULES[name]()
    assert rate_factor(schedule, 0.05, 0.2) == pytest.approx(0.25)
    assert rate_factor(schedule, 0.2, 0.2) == pytest.approx(1.0)


def test_ends():
    assert rate_factor(Cosine(0.1), 1.0, 0.05) == pytest.approx(0.1)
    assert rate_factor(Linear(), 1.0, 0.05) == pytest.approx(0.0)
    assert rate_factor(Cosine(0.2), 0.5, 0.0) == pytest.approx(0.6)


def test_inverse_square_root_is_the_papers():
    """The source's formula in steps, divided by its peak."""
    warmup, total, d_model = 40, 1000, 512

    def source(step):
        return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)

    for step in (1, 7, 40, 41, 333, 1000):
        expected = source(step) / source(warmup)
        assert rate_factor(InverseSquareRoot(), step / total, warmup / total) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", [Cosine, Linear])
def test_final_out_of_range(schedule):
    with pytest.raises(SpecError, match=r"'final' must lie between 0 and 1; got 1\.5"):
        schedule(1.5)
