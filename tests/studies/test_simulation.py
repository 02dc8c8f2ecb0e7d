"""Runs on simulated machines take what they must: nothing is lost but what failures lose."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.studies.plan.simulation import AWAY_S, CHECKPOINTS, DAY_S, START_S, Lane
from attnlab.studies.plan.simulation import simulate as simulate_lanes


def simulate(stages, slots, **how):
    """The simulation of one variant."""
    return simulate_lanes([Lane(stages)], slots, **how)


def test_each_run_begins_where_there_is_room_first_and_a_stage_after_the_one_before():
    found = simulate([[5, 3, 4, 2], [1]], [1, 1])
    assert found.seconds == pytest.approx(7 + 2 * START_S + 1 + START_S)  # 5 + 2 beside 3 + 4, then 1
    assert found.lost_seconds == 0
    assert simulate([[5, 3, 4, 2]], [4]).seconds == pytest.approx(5 + START_S)
    assert simulate([[]], [1]).seconds == 0
    assert simulate([[], [5], [], [3]], [1]).seconds == pytest.approx(8 + 2 * START_S)
    assert simulate([[5, 3]], [10**15]) == simulate([[5, 3]], [2])


def test_no_variant_waits_for_another_until_they_are_looked_at_together():
    stages = {"quick": [[1, 1], [1], [1]], "slow": [[9, 9], [9], [9]], "none": [[5], [5]]}
    apart = simulate_lanes([Lane(one) for one in stages.values()], [1] * 5)
    assert apart.seconds == pytest.approx(27 + 3 * START_S)  # as the slow one alone
    assert simulate_lanes([Lane(stages["quick"]), Lane(stages["none"])], [4]).seconds == pytest.approx(10 + 2 * START_S)
    pair = [Lane(stages["quick"], partners=[1], looks=1), Lane(stages["slow"], partners=[0], looks=1)]
    assert simulate_lanes(pair, [4]).seconds == pytest.approx(27 + 3 * START_S)
    quick_waits = [Lane([[1], [30]], partners=[1], looks=0), Lane([[9], [1]], partners=[0], looks=0)]
    assert simulate_lanes(quick_waits, [4]).seconds == pytest.approx(9 + 30 + 2 * START_S)


def test_of_three_the_baseline_goes_on_with_whoever_is_there_first():
    looks = {"baseline": [[1], [20]], "quick": [[1], [1]], "slow": [[9], [1]]}
    partners = {"baseline": [1, 2], "quick": [0], "slow": [0]}
    lanes = [Lane(looks[name], partners[name], looks=0) for name in looks]
    assert simulate_lanes(lanes, [3]).seconds == pytest.approx(21 + 2 * START_S)


@given(st.lists(st.floats(1, 100), min_size=1, max_size=30), st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_without_faults_the_clock_is_within_the_bounds_of_list_scheduling(runs, slots):
    clock, whole = simulate([runs], slots).seconds, [run + START_S for run in runs]
    least = max(*whole, sum(whole) / sum(slots), 0)
    assert least - 1e-6 <= clock <= sum(whole) / sum(slots) + max(whole)


def test_a_machine_that_fails_is_away_and_its_run_goes_on_from_its_last_checkpoint():
    whole, faults = 10_000.0, 8.0
    clocks = [simulate([[whole]], [1], faults=faults, seed=seed) for seed in range(2000)]
    rate = faults / DAY_S
    stretch = whole / CHECKPOINTS
    # each stretch is tried until no failure falls into it: Daly, 2006, equation 13, with the time a machine is away
    tries = (math.exp(rate * stretch) - 1) * (1 / rate + AWAY_S)
    assert statistics.fmean(one.seconds for one in clocks) == pytest.approx(CHECKPOINTS * tries, rel=0.02)
    lost = statistics.fmean(one.lost_seconds for one in clocks)
    assert lost == pytest.approx(CHECKPOINTS * ((math.exp(rate * stretch) - 1) / rate - stretch), rel=0.1)


def test_runs_of_a_failed_machine_go_on_on_another():
    one, two = (simulate([[1000.0] * slots], [1] * slots, faults=50.0, seed=3) for slots in (1, 2))
    assert one.lost_seconds > 0
    assert two.seconds >= 1000 + START_S
    both = [simulate([[1000.0]], [1, 1], faults=50.0, seed=seed).seconds for seed in range(200)]
    alone = [simulate([[1000.0]], [1], faults=50.0, seed=seed).seconds for seed in range(200)]
    assert max(both) < max(alone)  # nobody waits for a machine while another is there


def test_the_same_seed_is_the_same_simulation():
    runs = [[100.0] * 50]
    assert simulate(runs, [1] * 5, faults=20, seed=1) == simulate(runs, [1] * 5, faults=20, seed=1)
    assert simulate(runs, [1] * 5, faults=20, seed=1) != simulate(runs, [1] * 5, faults=20, seed=2)
