"""Every variant goes its own way through a study, and what is found does not depend on which is faster."""

from __future__ import annotations

import json
import random

import pytest
from tests.studies.test_execute import numbers, seeds_on_disk

from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.judge.asking import SeedsAsked
from attnlab.studies.run.executor import InProcess


class Drawn:
    """Compute jobs one after another, the next one chosen by a rule among those that are there."""

    elsewhere = True  # no steps are timed in turns

    def __init__(self, choose):
        self.choose, self.order = choose, []

    def run(self, jobs, on_message):
        left, taken = [], 0
        while len(jobs) > taken or left:
            left += range(taken, len(jobs))
            taken = len(jobs)
            number = min(left, key=lambda one: self.choose(jobs[one]))
            left.remove(number)
            self.order += ["/".join(folder.rsplit("/", 3)[1:]) for folder in jobs[number].folders]
            InProcess().run([jobs[number]], lambda _, message, number=number: on_message(number, message))


class Once:
    """Compute the jobs that are there at the start alone, as an executor may that knows nothing of later ones."""

    def run(self, jobs, on_message):
        InProcess().run(tuple(jobs), on_message)


def by_chance(seed):
    draw = random.Random(seed)
    return Drawn(lambda _: draw.random())


def last(variant):
    """An executor that leaves a variant's runs to the end."""
    return Drawn(lambda job: f"/{variant}/" in job.folders[0])


@pytest.fixture
def study(tiny):
    tiny["variants"]["alike"] = {}
    tiny["rules"] |= {"seeds": {"at_least": 2, "at_most": 4}, "budget": {"steps": 2}, "smallest_effect": 0.0}
    tiny["rules"]["tune"] = {"lr": [1e-3, 3e-3, 1e-2]}
    return tiny


def test_the_order_in_which_runs_end_changes_no_number_and_no_verdict(study, tmp_path):
    orders = {"as given": InProcess(), "phase by phase": Once()}
    orders |= {f"by chance {seed}": by_chance(seed) for seed in range(2)}
    orders |= {f"{one} last": last(one) for one in ("plain", "with-attention")}
    found = {name: run_study(parse_study(study), tmp_path / name, executor=one) for name, one in orders.items()}
    assert len({one.order.__repr__() for one in orders.values() if isinstance(one, Drawn)}) == 4
    first = found["as given"]
    assert first.complete
    assert seeds_on_disk(tmp_path / "as given", "alike") == [0, 1]
    assert seeds_on_disk(tmp_path / "as given", "plain") == list(range(max(one.look for one in first.verdicts)))
    for name, one in found.items():
        assert numbers(tmp_path / name) == numbers(tmp_path / "as given")
        assert one.verdicts == first.verdicts
        assert (tmp_path / name / "tuning.json").read_bytes() == (tmp_path / "as given" / "tuning.json").read_bytes()


def places(order, variant):
    """By tuning and judged runs of a variant at which places they were computed."""
    mine = [(place, run) for place, run in enumerate(order) if f"{variant}/" in run]
    tuned = [place for place, run in mine if "/tune-" in run]
    return tuned, [place for place, run in mine if "/tune-" not in run]


def test_a_variant_that_is_tuned_does_not_wait_for_others(study, tmp_path):
    executor = last("with-attention")
    run_study(parse_study(study), tmp_path / "out", executor=executor)
    tuned, judged = places(executor.order, "with-attention")
    others = places(executor.order, "plain"), places(executor.order, "alike")
    for of_others, judged_of_others in others:
        assert max(of_others) < min(judged_of_others)
        assert min(judged_of_others) < min(tuned)
    assert max(tuned) < min(judged)


def test_a_look_waits_for_the_runs_that_it_compares_alone(study, tmp_path):
    del study["rules"]["tune"]
    study["variants"]["slow"] = {"channels": 5}
    executor = last("slow")
    run_study(parse_study(study), tmp_path / "out", executor=executor)
    first_of_slow = min(places(executor.order, "slow")[1])
    later = [place for place in places(executor.order, "with-attention")[1] if executor.order[place].endswith("seed-2")]
    assert later
    assert later[0] < first_of_slow


def test_where_time_is_judged_all_variants_go_on_together(study, tmp_path):
    study["rules"] |= {"metric": "seconds_to_target", "target": {"val_mse": 1e9}, "seeds": 2, "tune_again": 1}
    executor = last("with-attention")
    run_study(parse_study(study), tmp_path / "out", executor=executor)
    all_places = [places(executor.order, name) for name in ("plain", "alike", "with-attention")]
    for tuned, _ in all_places:
        assert all(max(tuned) < min(judged) for _, judged in all_places)


def test_what_was_decided_before_a_stop_is_kept_while_others_are_tuned(study, tmp_path):
    class Stop(Exception):
        pass

    class StopsAtJudged:
        def run(self, jobs, on_message):
            def hear(number, message):
                on_message(number, message)
                if message["kind"] == "finished" and "/tune-" not in jobs[number].folders[0]:
                    raise Stop

            last("with-attention").run(jobs, hear)

    with pytest.raises(Stop):
        run_study(parse_study(study), tmp_path / "out", executor=StopsAtJudged())
    begun = json.loads((tmp_path / "out" / "tuning.json").read_text())
    assert "with attention" not in begun
    assert begun.keys() & {"plain", "alike"}
    found = run_study(parse_study(study), tmp_path / "out", executor=InProcess())
    undisturbed = run_study(parse_study(study), tmp_path / "undisturbed", executor=InProcess())
    assert found.verdicts == undisturbed.verdicts
    assert numbers(tmp_path / "out") == numbers(tmp_path / "undisturbed")


def asked(open_at, *, looks=(2, 3, 4)):
    """Seeds of three variants of which comparisons are left open up to some look."""
    return SeedsAsked(
        ("base", "one", "two"),
        [("one", "base"), ("two", "base")],
        baseline="base",
        looks=looks,
        left_open=lambda group, seeds: set(group) if seeds <= open_at.get(group[0], 0) else set(),
    )


def test_the_baseline_goes_on_with_the_first_comparison_that_is_left_open():
    seeds = asked({"one": 3})
    assert seeds.had("base") == []
    assert sorted(seeds.had("one")) == ["base", "one"]
    assert seeds.counts == {"base": 3, "one": 3, "two": 2}
    assert seeds.had("two") == []
    assert seeds.had("base") == []
    assert sorted(seeds.had("one")) == ["base", "one"]
    assert (seeds.had("one"), seeds.had("base")) == ([], [])
    assert seeds.counts == {"base": 4, "one": 4, "two": 2}


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_first_as_many_seeds_are_asked_for(seed):
    draw, open_at = random.Random(seed), {"one": 3, "two": 2}
    seeds, waiting = asked(open_at), ["base", "one", "two"]
    while waiting:
        waiting += seeds.had(waiting.pop(draw.randrange(len(waiting))))
    assert seeds.counts == {"base": 4, "one": 4, "two": 3}


def test_after_one_look_no_seeds_are_asked_for():
    seeds = asked({"one": 9, "two": 9}, looks=(2,))
    assert [seeds.had(name) for name in ("base", "one", "two")] == [[], [], []]
    assert set(seeds.counts.values()) == {2}
