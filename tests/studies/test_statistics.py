"""Laws of the paired comparison: coverage, family error, power, and what happens at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.core.errors import SpecError
from attnlab.studies.judge.statistics import (
    compare,
    detectable_effect,
    paired_power,
    seeds_needed,
    two_groups,
)

TRIALS = 1500
FOUR_SIGMA = 4.0  # a correct procedure fails such a test once in 16,000 seeds


def binomial_margin(probability: float, trials: int) -> float:
    return FOUR_SIGMA * math.sqrt(probability * (1 - probability) / trials)


def by_seed(values) -> dict[int, float]:
    return dict(enumerate(map(float, values)))


def compared(differences, *, better="lower", **rest):
    ours = np.asarray(differences, dtype=float)
    return compare(by_seed(ours), by_seed(np.zeros_like(ours)), better=better, **rest)


@pytest.mark.parametrize("count", [3, 5])
def test_interval_covers_the_truth_as_often_as_it_says(count):
    rng = np.random.default_rng(count)
    truth = 0.7
    covered = 0
    for _ in range(TRIALS):
        shared = rng.normal(0, 5, count)
        baseline = shared + rng.normal(0, 1, count)
        variant = shared + truth + rng.normal(0, 1, count)
        found = compare(by_seed(variant), by_seed(baseline), better="lower")
        covered += found.low <= truth <= found.high
    assert abs(covered / TRIALS - 0.95) < binomial_margin(0.95, TRIALS)


def test_pairing_removes_what_the_seeds_share():
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 100, 5)
    noise = rng.normal(0, 1, 5)
    found = compare(by_seed(shared + noise + 3), by_seed(shared), better="higher")
    assert found.sd == pytest.approx(np.std(noise, ddof=1))
    assert found.improves


def test_difference_test_agrees_with_scipy():
    from scipy import stats

    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(0, 1, 7), rng.normal(0.5, 1, 7)
    found = compare(by_seed(ours), by_seed(theirs), better="lower")
    reference = stats.ttest_rel(ours, theirs)
    interval = reference.confidence_interval(0.95)
    assert found.p == pytest.approx(reference.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_a_lower_level_is_a_wider_interval():
    rng = np.random.default_rng(2)
    differences = rng.normal(0, 1, 6)
    wide, usual = compared(differences, level=0.001), compared(differences)
    assert wide.low < usual.low < usual.high < wide.high
    assert wide.p == usual.p


def test_median_and_chance_of_being_better_stand_beside_the_mean():
    found = compare({0: 1.0, 1: 2.0, 2: 9.0}, {0: 3.0, 1: 3.0, 2: 3.0}, better="lower")
    assert (found.difference, found.median) == (1.0, -1.0)
    assert found.better_share == pytest.approx(2 / 3)
    assert compare({0: 1.0}, {0: 1.0}, better="higher").better_share == 0.5


@pytest.mark.parametrize(("count", "effect"), [(3, 3.26), (5, 1.68), (10, 1.00), (20, 0.66)])
def test_detectable_effect_gives_the_known_table(count, effect):
    assert detectable_effect(count) == pytest.approx(effect, abs=0.005)


def test_power_is_what_simulation_gives():
    rng = np.random.default_rng(4)
    found = sum(compared(rng.normal(1.68, 1, 5)).p < 0.05 for _ in range(TRIALS))
    assert abs(found / TRIALS - paired_power(1.68, 5)) < binomial_margin(0.8, TRIALS)


def test_power_is_finite_and_grows_where_the_noncentral_t_is_not_a_number():
    powers = [paired_power(effect, 5) for effect in (0.0, 0.5, 1, 2, 5, 20, 1e3, 1e6)]
    assert powers[0] == pytest.approx(0.05)
    assert all(math.isfinite(power) for power in powers)
    assert powers == sorted(powers)
    assert powers[-1] == pytest.approx(1)


def test_power_falls_back_to_the_normal_approximation(monkeypatch):
    from scipy import stats

    exact = paired_power(0.9, 11)
    monkeypatch.setattr(stats.nct, "sf", lambda *_: math.nan)
    assert paired_power(0.9, 11) == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("effect", [0.4, 1.0, 2.5])
def test_seeds_needed_is_the_smallest_number_with_the_power(effect):
    needed = seeds_needed(1.0, effect, present=2)
    assert paired_power(effect, needed) >= 0.8
    assert needed == 3 or paired_power(effect, needed - 1) < 0.8


def test_seeds_needed_is_more_than_there_are():
    assert seeds_needed(1.0, 100.0, present=7) == 8
    assert seeds_needed(0.0, 0.3, present=5) == 6


def test_seeds_needed_gives_up():
    assert seeds_needed(1.0, 1e-6, present=3) is None
    assert seeds_needed(1.0, 0.0, present=3) is None


def test_only_seeds_in_both_are_paired():
    found = compare({0: 1.0, 1: 2.0, 2: 3.0, 5: 9.0}, {1: 1.5, 2: 2.0, 3: 4.0}, better="lower")
    assert (found.pairs, found.unpaired) == (2, 3)
    assert found.difference == pytest.approx(0.75)


def test_a_value_that_is_not_finite_is_a_seed_that_did_not_finish():
    found = compare({0: 1.0, 1: math.nan, 2: 3.0}, {0: 1.5, 1: 2.0, 2: 3.0}, better="lower")
    assert (found.pairs, found.unpaired) == (2, 1)


def test_one_pair_has_a_difference_and_nothing_else():
    found = compared([0.5])
    assert (found.pairs, found.difference, found.sd, found.low, found.p) == (1, 0.5, None, None, None)


def test_no_pair_has_nothing():
    found = compare({0: 1.0}, {1: 1.0}, better="lower")
    assert (found.pairs, found.unpaired, found.difference, found.improves) == (0, 2, None, False)


@pytest.mark.parametrize("difference", [0.0, -0.5, 0.5])
def test_no_spread_says_nothing_about_chance(difference):
    found = compare(by_seed([2 + difference] * 3), by_seed([2.0] * 3), better="lower")
    assert (found.sd, found.p, found.low, found.high) == (0, None, None, None)
    assert found.difference == pytest.approx(difference, abs=1e-12)


def test_rounding_of_equal_differences_is_no_noise():
    baseline = [0.1, 0.2, 0.3, 0.7]
    found = compare(by_seed(value + 0.1 for value in baseline), by_seed(baseline), better="lower")
    assert found.sd == 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=7))
@settings(deadline=None)
def test_every_number_is_finite_and_ordered(differences):
    found = compared(differences)
    assert 0 <= found.better_share <= 1
    if found.sd:
        assert found.low <= found.difference <= found.high
        assert 0 <= found.p <= 1


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=7))
@settings(deadline=None)
def test_swapping_variant_and_baseline_mirrors_everything(differences):
    ours = by_seed(differences)
    zeros = dict.fromkeys(ours, 0.0)
    there = compare(ours, zeros, better="lower")
    back = compare(zeros, ours, better="lower")
    assert back.better_share == pytest.approx(1 - there.better_share)
    if there.sd:
        assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
        assert back.p == pytest.approx(there.p)


@pytest.mark.parametrize("level", [0, 1, 95])
def test_level_must_be_a_probability(level):
    with pytest.raises(SpecError, match=r"level must lie between 0 and 1; got"):
        compared([1, 2], level=level)


@pytest.mark.parametrize("count", [5, 8, 20])
def test_normal_seeds_fall_into_groups_as_seldom_as_promised(count):
    samples = np.random.default_rng(0).normal(2.0, 0.1, (TRIALS, count))
    share = np.mean([two_groups(list(sample)) is not None for sample in samples])
    assert abs(share - 0.01) <= binomial_margin(0.01, TRIALS)


def test_seeds_on_a_plateau_are_a_group_of_their_own():
    rng = np.random.default_rng(1)
    low, high = rng.normal(2.1, 0.02, 9), rng.normal(2.5, 0.02, 3)
    mixed = rng.permutation(np.concatenate([low, high]))
    assert two_groups(list(mixed)) == (sorted(low), sorted(high))
    assert two_groups(list(1000 - 7 * mixed)) is not None, "neither unit nor direction matters"


@pytest.mark.parametrize(
    "values",
    [[], [1.0], [1.0, 1.0, 2.0, 2.0], [3.0] * 9, [1e9, 1e9 + 1e-7] * 4, [1.0, 1.1, 1.2, 1.3, 9.0]],
    ids=["none", "one", "four", "equal", "rounding", "one far away"],
)
def test_too_little_makes_no_groups(values):
    assert two_groups(values) is None
