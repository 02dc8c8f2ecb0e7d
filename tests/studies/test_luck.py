"""What luck in tuning may have cost, and the words that it takes back."""

from __future__ import annotations

import numpy as np
import pytest

from attnlab.core.contracts import Metric
from attnlab.studies.judge.luck import Tuned
from attnlab.studies.judge.verdicts import Look, verdicts

SPREAD = dict(enumerate([-0.02, 0.01, 0.0, 0.02, -0.01]))


@pytest.mark.parametrize("curvature", [0.1, 0.5, 2.0])
def test_what_was_lost_lies_within_its_bound(curvature):
    rng, held = np.random.default_rng(3), []
    for _ in range(2000):
        truth = curvature * (np.arange(5) - 2 + rng.uniform(-0.5, 0.5)) ** 2
        means = {str(n): float(v) for n, v in enumerate(truth + rng.standard_normal(5))}
        runs = dict.fromkeys(means, 1)
        for key in sorted(means, key=means.get)[:2]:
            means[key], runs[key] = (means[key] + truth[int(key)] + rng.standard_normal()) / 2, 2
        chosen = min((key for key in means if runs[key] == 2), key=means.get)
        tuned = Tuned(chosen, means, runs, dict(enumerate(rng.standard_normal(20))), "lower")
        held.append(truth[int(chosen)] - truth.min() <= tuned.lost(20, 0.05))
    assert np.mean(held) >= 0.94


def of(*means, better="lower", values=SPREAD):
    """Return what tuning tried, one run each; the first is what it chose."""
    by_setting = {str(place): mean for place, mean in enumerate(means)}
    return Tuned("0", by_setting, dict.fromkeys(by_setting, 1), values, better)


def test_the_direction_counts_and_the_seeds_so_far():
    half = 1.6449 * 2**0.5
    spread = {0: 0.0, 1: 1.0, 2: 5.0}
    assert of(2.0, 3.0, values=spread).lost(2, 0.05) == pytest.approx(half * 0.5**0.5 - 1.0, abs=1e-4)
    assert of(2.0, 1.0, better="higher", values=spread).lost(2, 0.05) == pytest.approx(half * 0.5**0.5 - 1.0, abs=1e-4)
    assert of(2.0, 3.0, values=spread).lost(3, 0.05) > of(2.0, 3.0, values=spread).lost(2, 0.05)


def test_a_smaller_chance_of_more_is_a_larger_loss():
    assert of(2.0, 2.0).lost(5, 0.01) > of(2.0, 2.0).lost(5, 0.05) > 0


def test_nothing_is_lost_with_one_setting_or_one_seed():
    assert (
        of(2.0).lost(5, 0.05)
        == of(2.0, None).lost(5, 0.05)
        == of(2.0, 2.0).lost(1, 0.05)
        == of(None, 1.0).lost(5, 0.05)
        == 0.0
    )


def judged(shift, tuned, *, better="lower", spread=SPREAD):
    sign = 1 if better == "lower" else -1
    runs = {"base": dict.fromkeys(spread, 1.0), "new": {seed: 1.0 + sign * shift + v for seed, v in spread.items()}}
    (found,) = verdicts(
        runs,
        [("new", "base")],
        metric=Metric("loss", "nats", better),
        smallest_effect=0.1,
        looks=[Look(5, 0.05)],
        tuned=tuned,
    )
    return found


def test_only_the_loser_s_luck_is_told():
    found = judged(-0.2, {"new": of(2.0, 1.9), "base": of(2.0, 1.7)})
    assert (
        found.reason
        == "better as tuned, but luck in tuning may have cost 'base' 0.34; more tune_seeds would narrow that"
    )


def test_no_number_of_seeds_is_named_where_luck_may_have_made_the_difference():
    wide = dict(enumerate([-0.5, 0.4, 0.1, 0.3, -0.2]))
    one, sure = (judged(0.3, {"new": of(2.0, other, values=wide)}, spread=wide) for other in (2.001, 9.0))
    assert (one.verdict, one.seeds_needed, one.settled) == ("undecided", None, False)
    assert "luck in tuning may have cost 'new' 0.8" in one.reason
    assert "no number of seeds would decide" in one.reason
    assert sure.seeds_needed > 5


LUCKY, SURE = of(2.0, 2.001), of(2.0, 9.0)


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize(
    ("shift", "tuned", "word"),
    [
        (0.2, {"new": LUCKY}, "worse"),  # it may have cost 0.036
        (0.05, {"new": LUCKY}, "equivalent"),
        (0.05, {"base": LUCKY}, "undecided"),
        (0.05, {"base": SURE}, "equivalent"),
        (-0.05, {"new": LUCKY}, "undecided"),
        (-0.2, {"base": of(2.0, 1.9)}, "better"),
        (-0.2, {"base": of(2.0, 1.7)}, "undecided"),
        (-0.2, {"new": of(2.0, 1.7)}, "better"),
        (0.2, {"new": of(2.0, 1.7)}, "undecided"),
    ],
)
def test_a_word_that_luck_may_have_made_is_taken_back(shift, tuned, word, better):
    flip = {name: of(*(-v for v in one.means.values()), better="higher") for name, one in tuned.items()}
    found = judged(shift, tuned if better == "lower" else flip, better=better)
    assert found.verdict == word
    if word == "undecided":
        assert f"as tuned, but luck in tuning may have cost '{next(iter(tuned))}' " in found.reason
        assert not found.settled
