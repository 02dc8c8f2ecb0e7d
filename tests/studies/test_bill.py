"""What a study comes to follows from its runs, their seconds and the machines that are there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from attnlab.cli import FINE, call
from attnlab.cli.plan import _cores, _told_by_bill
from attnlab.core.errors import SpecError
from attnlab.studies.define.study import parse_study
from attnlab.studies.plan.bill import HELD_BYTES, KEPT_BYTES, bill
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.plan.simulation import START_S


@pytest.fixture
def plan(tiny):
    """A plan whose variants take 360 and 720 seconds a run."""
    tiny["rules"] |= {"seeds": 3, "tune": {"lr": [0.1, 0.03, 0.01]}}
    planned = plan_study(parse_study(tiny))
    timed = zip(planned.variants, (360.0, 720.0), strict=True)
    return replace(planned, variants=tuple(replace(one, seconds_per_seed=seconds) for one, seconds in timed))


def test_hours_and_price_are_those_of_all_runs(plan):
    due = bill(plan, [2, 3], price=0.5)
    rounds = 3 + plan.tried_again + 3
    assert (due.nodes, due.cores, due.at_once, due.runs) == (2, 5, 5, 2 * rounds)
    assert due.core_hours == pytest.approx(0.3 * rounds)
    assert due.price == pytest.approx(0.15 * rounds)
    assert (due.lost_core_hours, due.most_runs) == (0, due.runs)
    assert due.seconds_range == (due.seconds, due.seconds)


def test_it_takes_as_long_as_the_slowest_variant_or_all_work_shared_out(plan):
    stages = (3, plan.tried_again, 3)
    assert bill(plan, [1]).seconds == pytest.approx((1080 + 2 * START_S) * sum(stages))
    assert bill(plan, [500]).seconds == pytest.approx((720 + START_S) * len(stages))


def test_variants_that_are_compared_with_nothing_have_the_first_look_alone(tiny):
    tiny["rules"] |= {"seeds": {"at_least": 3, "at_most": 8}}
    tiny["variants"]["third"] = {"channels": 5}
    tiny["compare"] = {"with attention": "plain"}
    planned = plan_study(parse_study(tiny))
    timed = tuple(replace(one, seconds_per_seed=60.0) for one in planned.variants)
    due = bill(replace(planned, variants=timed), [100])
    assert (due.runs, due.most_runs) == (9, 19)


def test_where_time_is_judged_no_variant_goes_on_alone(tiny):
    tiny["rules"] |= {"metric": "seconds_to_target", "target": {"val_mse": 0.1}, "seeds": {"at_least": 3, "at_most": 4}}
    planned = plan_study(parse_study(tiny))
    timed = zip(planned.variants, (60.0, 120.0), strict=True)
    planned = replace(planned, variants=tuple(replace(one, seconds_per_seed=seconds) for one, seconds in timed))
    due = bill(planned, [1])
    assert due.seconds == pytest.approx(3 * (180 + 2 * START_S))
    assert due.most_seconds == pytest.approx(4 * (180 + 2 * START_S))


def test_if_every_look_is_needed_all_seeds_are_paid_for(tiny):
    tiny["rules"] |= {"seeds": {"at_least": 3, "at_most": 8}}
    planned = plan_study(parse_study(tiny))
    due = bill(replace(planned, variants=tuple(replace(one, seconds_per_seed=60.0) for one in planned.variants)), [100])
    assert (due.runs, due.most_runs) == (6, 16)
    assert due.most_seconds == pytest.approx(due.seconds * len(planned.study.rules.looks))


def test_failures_cost_time_and_work(plan):
    alone, failing = bill(plan, [1] * 4, price=1.0), bill(plan, [1] * 4, price=1.0, faults=24.0)
    assert failing.seconds > alone.seconds
    assert failing.seconds_range[0] < failing.seconds < failing.seconds_range[1]
    assert failing.price == pytest.approx(alone.price + failing.lost_core_hours)
    assert 0 < failing.lost_core_hours < 0.2 * alone.core_hours


def test_storage_is_that_of_runs_that_are_done_and_of_those_under_way(plan):
    parameters, rounds = sum(variant.parameters for variant in plan.variants), 3 + plan.tried_again + 3
    for cores, under_way in (([4], 4), ([3, 3], 6), ([1000] * 9, 6)):  # there are three rates of two variants
        held = HELD_BYTES * under_way * parameters // 2
        assert bill(plan, cores).storage_bytes == KEPT_BYTES * rounds * parameters + held


@pytest.mark.parametrize(
    ("cores", "price", "sentence"),
    [
        ([2], -1.0, "--price must be 0 or more an hour of a core; got -1"),
        ([2], float("nan"), "--price must be 0 or more an hour of a core; got nan"),
        ([0], None, "no node of the cluster has the 1 CPU"),
    ],
)
def test_what_cannot_be_bought_is_refused(plan, cores, price, sentence):
    with pytest.raises(SpecError, match=sentence):
        bill(plan, cores, price=price)


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        (-1.0, "--faults must be 0 or more a day and machine; got -1"),
        (float("inf"), "--faults must be 0 or more a day and machine; got inf"),
        (5000.0, "machines that fail 5000 times a day do not live long enough for a run: .* 72 s apart"),
    ],
)
def test_machines_that_compute_nothing_are_refused(plan, faults, sentence):
    with pytest.raises(SpecError, match=sentence):
        bill(plan, [2], faults=faults)


def test_a_plan_without_timed_steps_is_refused(tiny):
    with pytest.raises(SpecError, match="follows from timed steps; leave out --no-calibrate"):
        bill(plan_study(parse_study(tiny)), [2])


def test_the_command_tells_the_price_of_a_study(write_study, tiny, capsys):
    assert call(["plan", str(write_study(json.dumps(tiny))), "--price", "3600", "--json"]) == FINE
    due = json.loads(capsys.readouterr().out)["bill"]
    assert due["nodes"] == 1
    assert due["price"] == pytest.approx(3600 * due["core_hours"])


def test_the_command_takes_machines_that_are_nowhere_yet(write_study, tiny, capsys):
    tiny["rules"]["seeds"] = {"at_least": 3, "at_most": 20}
    path = str(write_study(json.dumps(tiny)))
    assert call(["plan", path, "--on", "1000x8", "--faults", "0.1"]) == FINE
    told = capsys.readouterr().out
    assert "1,000 nodes with 8,000 cores, 8,000 runs at once" in told
    assert "if every look is needed" in told


def test_faults_without_machines_are_an_error(capsys):
    assert call(["plan", "gelu", "--faults", "1"]) != FINE
    assert "--faults counts in what a study comes to on machines; name them (--on)" in capsys.readouterr().err


def test_no_more_nodes_are_imagined_than_there_could_be():
    assert _cores("3x8") == [8] * 3
    with pytest.raises(SpecError, match="--on 99999999x4: at most 100,000 nodes are simulated; name fewer"):
        _cores("99999999x4")


def test_a_bill_is_told_in_words(plan):
    told = _told_by_bill(bill(plan, [4, 4], price=1.0))
    assert "2 nodes with 8 cores, 8 runs at once: " in told
    assert "on the clock, simulated, and" in told
    assert told.endswith(f"; price {bill(plan, [4], price=1.0).price:,.2f}")
