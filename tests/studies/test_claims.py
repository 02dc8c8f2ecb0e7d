"""The claim that a variant reaches a target in the mean, and what it allows a verdict about time to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.studies.example_results import parts

from attnlab.core.contracts import Metric
from attnlab.studies.define.looks import Seeds
from attnlab.studies.define.rules import CLAIM_ERROR, Rules
from attnlab.studies.judge.claims import Target
from attnlab.studies.judge.statistics import chance_above
from attnlab.studies.judge.verdicts import Look, verdicts

LOSS, TIME = Metric("val_loss", "nats", "lower"), Metric("seconds_to_target", "s", "lower")
RULES = Rules(budget={"steps": 1}, target={"val_loss": 1.0}, seeds=Seeds(at_least=3, at_most=20), smallest_effect=0.0)
NOISE = np.array([0.01, -0.02, 0.0, 0.02, -0.01])


def target(runs, *, rules=RULES, metric=LOSS) -> Target:
    by_seed = {name: dict(enumerate(values)) for name, values in runs.items()}
    return Target(metric, 1.0, by_seed, rules.looks, rules.claim_levels())


@pytest.mark.parametrize("seeds", [3, 10, Seeds(at_least=3, at_most=20)])
def test_a_mean_at_the_target_is_rarely_said_to_reach_or_to_miss_it(seeds):
    rules, studies = RULES.model_copy(update={"seeds": seeds}), 4000
    drawn = 1.0 + np.random.default_rng(5).standard_normal((studies, rules.looks[-1]))
    states = [target({"one": row}, rules=rules).claim("one").state for row in drawn]
    for state in ("reached", "missed"):
        assert states.count(state) / studies < CLAIM_ERROR + 3 * (CLAIM_ERROR / studies) ** 0.5


def test_the_first_look_that_shows_it_counts():
    rng = np.random.default_rng(1)
    runs = {
        "low": 0.9 + 0.001 * rng.standard_normal(20),
        "high": 1.1 + 0.001 * rng.standard_normal(20),
        "near": 0.99 + 0.02 * rng.standard_normal(20),
    }
    claims = {name: target(runs).claim(name) for name in runs}
    assert (claims["low"].state, claims["low"].look) == ("reached", 3)
    assert claims["low"].reason.startswith("reaches the target (mean val_loss 0.9")
    assert (claims["high"].state, claims["high"].look) == ("missed", 3)
    assert claims["near"].look > 3
    assert target(runs).claim("near", last=3).state == "open"


def test_a_metric_that_should_be_high_reaches_from_above():
    accuracy = Metric("val_accuracy", "", "higher")
    assert target({"one": 1.2 + np.tile(NOISE, 4)}, metric=accuracy).claim("one").state == "reached"


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5, 0.5], []])
def test_without_spread_nothing_is_shown(values):
    assert chance_above(values, 1.0) == 0.5


def test_a_claim_waits_for_its_runs():
    claim = target({"one": [0.5, 0.51]}).claim("one")
    assert (claim.state, claim.look) == ("open", None)
    assert "not looked at yet" in claim.reason


def judged(*, seconds, losses):
    """Judge five runs of a variant against a baseline, by their times and by the losses they ended with."""
    runs = {"base": 10.0 + NOISE, "new": 10.0 + seconds + NOISE[::-1]}
    rules = RULES.model_copy(update={"seeds": 5})
    ends = {name: np.array(loss) + NOISE / 10 for name, loss in zip(runs, losses, strict=True)}
    (found,) = verdicts(
        {name: dict(enumerate(map(float, values))) for name, values in runs.items()},
        [("new", "base")],
        metric=TIME,
        smallest_effect=0.5,
        looks=[Look(5, 0.05)],
        target=target(ends, rules=rules),
    )
    return found


BELOW, AT, ABOVE = 0.9, 1.0, 1.1


@pytest.mark.parametrize(
    ("seconds", "losses", "word"),
    [
        (-2.0, (BELOW, BELOW), "better"),
        (-2.0, (ABOVE, BELOW), "better"),
        (-2.0, (BELOW, AT), "undecided"),
        (-2.0, (BELOW, ABOVE), "undecided"),
        (2.0, (BELOW, BELOW), "worse"),
        (2.0, (BELOW, ABOVE), "worse"),
        (2.0, (AT, BELOW), "undecided"),
        (0.0, (BELOW, BELOW), "equivalent"),
        (0.0, (AT, BELOW), "undecided"),
        (0.0, (BELOW, ABOVE), "undecided"),
    ],
)
def test_a_time_counts_for_what_reaches_the_target(seconds, losses, word):
    found = judged(seconds=seconds, losses=losses)
    assert found.verdict == word
    if word == "undecided":
        assert " in time, but '" in found.reason
        assert found.settled == (ABOVE in losses)
        assert ("misses the target" in found.reason) == found.settled


def test_where_neither_reaches_the_target_no_seeds_help():
    found = judged(seconds=0.3, losses=(ABOVE, ABOVE))
    assert (found.verdict, found.settled) == ("undecided", True)
    assert found.reason.startswith("neither reaches the target: 'new' misses the target (mean val_loss 1.1 over 5 runs")


def test_a_study_goes_on_while_its_baseline_is_not_shown_to_reach_the_target():
    ends = {"val_loss": [1.01, 0.99, 1.0], TIME.name: [5.0, 5.1, 5.2]}
    example = parts()
    rules = {**example.rules, "target": {"val_loss": 1.0}, "looks": [3, 5], "levels": [0.01, 0.01]}
    rules["claim_levels"] = [0.005, 0.005]
    (first, *_) = example.variants
    cells = tuple(
        replace(cell, seed=seed, status="done", metrics={name: values[seed] for name, values in ends.items()})
        for seed, cell in zip(range(3), [first.cells[0]] * 3, strict=True)
    )
    alone = replace(
        example,
        variants=(replace(first, cells=cells),),
        baseline=first.name,
        contrasts=(),
        rules=rules,
        metric=TIME,
        metrics=(TIME, LOSS),
    )
    assert alone.left_open(3) == {first.name}
    reached = replace(alone, rules=rules | {"target": {"val_loss": 1.5}})
    assert reached.left_open(3) == set()
