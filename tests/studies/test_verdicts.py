"""The order in which a verdict is drawn, one test per rule."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from attnlab.core.contracts import Metric
from attnlab.core.errors import SpecError
from attnlab.studies.judge.verdicts import Look, verdicts

LOSS = Metric("val_loss", "nats/character", "lower")
NOISE = np.array([-0.02, 0.01, 0.0, 0.02, -0.01])
SEEDS = range(5)


def by_seed(values) -> dict[int, float]:
    return dict(enumerate(map(float, values)))


def fixed(seeds: int, comparisons: int = 1) -> list[Look]:
    return [Look(seeds, 0.05 / comparisons)]


def judged(shifts: dict[str, object], *, smallest_effect=0.05, metric=LOSS, looks=None, base=None, **rest):
    base = by_seed([1.0] * 20) if base is None else base
    values = {"base": base} | {name: by_seed(1.0 + np.asarray(shift)) for name, shift in shifts.items()}
    looks = looks or fixed(5, len(shifts))
    found = verdicts(
        values, [(name, "base") for name in shifts], metric=metric, smallest_effect=smallest_effect, looks=looks, **rest
    )
    return {one.variant: one for one in found}


def test_each_word_has_its_case():
    found = judged({"good": NOISE - 0.5, "bad": NOISE + 0.5, "same": NOISE, "open": 20 * NOISE + 0.1})
    words = {name: one.verdict for name, one in found.items()}
    assert words == {"good": "better", "bad": "worse", "same": "equivalent", "open": "undecided"}


def test_the_direction_of_the_metric_decides_what_better_means():
    accuracy = Metric("val_accuracy", "%", "higher")
    assert judged({"up": NOISE + 0.5}, metric=accuracy)["up"].verdict == "better"


def test_a_sure_difference_too_small_to_matter_is_equivalent():
    one = judged({"tiny": NOISE / 100 + 0.01})["tiny"]
    assert one.p_adjusted < 0.05
    assert one.verdict == "equivalent"
    assert "too small to matter" in one.reason


def test_a_sure_difference_that_may_be_too_small_says_so():
    one = judged({"some": NOISE / 4 + 0.048}, smallest_effect=0.05)["some"]
    assert one.verdict == "worse"
    assert "may be smaller" in one.reason


def test_an_interval_outside_the_band_is_never_equivalent():
    one = judged({"wide": NOISE}, smallest_effect=0.015)["wide"]
    assert one.verdict == "undecided"


def test_no_smallest_effect_means_no_equivalence():
    assert judged({"same": NOISE}, smallest_effect=0.0)["same"].verdict == "undecided"


def of(base, new, seeds, **rest):
    (found,) = verdicts(
        {"base": base, "new": new}, [("new", "base")], metric=LOSS, smallest_effect=0.01, looks=fixed(seeds), **rest
    )
    return found


def test_one_seed_shows_nothing():
    found = of({0: 1.0}, {0: 0.1}, 1)
    assert (found.verdict, found.reason, found.p_adjusted) == ("undecided", "one seed shows nothing", None)
    assert found.comparison.difference == pytest.approx(-0.9)


def test_a_variant_without_a_finished_seed_is_undecided():
    found = of({0: 1.0, 1: 1.1}, {0: None, 1: math.nan}, 2)
    assert (found.verdict, found.reason, found.failures) == ("undecided", "no seed was finished by both", 2)


def test_one_common_seed_of_several_is_one_seed():
    found = of({0: 1.0, 1: 1.1}, {0: None, 1: 1.0}, 2)
    assert found.reason == "one seed shows nothing: only one was finished by both"


def test_nothing_is_concluded_before_all_seeds_of_a_look_have_ended():
    found = of(by_seed([1.0] * 5), by_seed(0.5 + NOISE[:4]), 5)
    assert (found.verdict, found.look, found.settled, found.reason) == ("undecided", None, False, "4 of 5 seeds so far")
    assert found.comparison.pairs == 4


@pytest.mark.parametrize(
    ("shift", "untuned"), [(-0.5, "base"), (0.5, "new"), (0.0, "new"), (0.0, "base"), (-0.5, "base new")]
)
def test_no_verdict_that_tuning_could_change(shift, untuned):
    one = judged({"new": NOISE + shift}, untuned=set(untuned.split()))["new"]
    assert (one.verdict, one.seeds_needed, one.settled) == ("undecided", None, True)
    assert "edge of the grid" in one.reason
    assert all(repr(name) in one.reason for name in untuned.split())


@pytest.mark.parametrize(("shift", "untuned", "word"), [(-0.5, "new", "better"), (0.5, "base", "worse")])
def test_what_tuning_could_only_confirm_stands(shift, untuned, word):
    assert judged({"new": NOISE + shift}, untuned={untuned})["new"].verdict == word


def test_more_variants_need_more_evidence():
    borderline = {f"v{index}": 6 * NOISE + 0.13 for index in range(7)}
    alone = judged({"v0": borderline["v0"]})["v0"]
    among = judged(borderline)["v0"]
    assert alone.verdict == "worse"
    assert among.verdict == "undecided"
    assert among.p_adjusted == pytest.approx(7 * alone.p_adjusted)
    assert among.seeds_needed > 5
    assert f"about {among.seeds_needed} seeds in a study begun anew would decide" in among.reason


def test_hopeless_noise_is_said():
    one = judged({"noisy": 1000 * NOISE}, smallest_effect=0.001)["noisy"]
    assert one.seeds_needed is None
    assert "any practical number" in one.reason


@pytest.mark.parametrize(
    ("better", "times", "text"),
    [
        ("lower", 1, "at most 0.3 better and 0.5"),
        ("higher", 1, "at most 0.5 better and 0.3"),
        ("higher", 200, "at most 100 better and 60"),
    ],
)
def test_what_is_undecided_says_which_differences_are_excluded(better, times, text):
    half = float(stats.t.ppf(0.975, 3)) * np.std(NOISE[:4], ddof=1) / 2
    values = times * (0.1 + (NOISE[:4] - np.mean(NOISE[:4])) * 0.4 / half)  # an interval of -0.3 to +0.5, times so many
    runs = {"base": dict.fromkeys(range(4), 0.0), "new": dict(enumerate(values))}
    metric = dataclasses.replace(LOSS, better=better)
    (one,) = verdicts(runs, [("new", "base")], metric=metric, smallest_effect=0.01, looks=fixed(4))
    assert one.verdict == "undecided"
    assert one.reason.startswith(f"{text} worse; about ")


def test_the_same_difference_in_every_seed_decides_nothing():
    one = judged({"fixed": [0.5] * 5})["fixed"]
    assert (one.verdict, one.settled) == ("undecided", True)
    assert "perhaps the seeds do not reach the run" in one.reason


def test_what_is_compared_must_be_variants():
    with pytest.raises(SpecError, match="what is compared must be one of the variants; got 'nobody'; known: base"):
        verdicts({"base": {}}, [("base", "nobody")], metric=LOSS, smallest_effect=0.01, looks=fixed(3))


@pytest.mark.parametrize("smallest_effect", [-0.1, math.nan, math.inf])
def test_smallest_effect_must_mean_something(smallest_effect):
    with pytest.raises(SpecError, match=r"smallest_effect must be a number >= 0 .*; got"):
        judged({"new": NOISE}, smallest_effect=smallest_effect)


# Runs that failed, and a few far from the others


def failing(values, *seeds):
    return {seed: None if seed in seeds else value for seed, value in values.items()}


@pytest.mark.parametrize(("shift", "word"), [(-0.5, "better"), (0.0, "equivalent")])
def test_a_variant_whose_runs_fail_is_not_called_as_good(shift, word):
    found = of(by_seed([1.0] * 7), failing(by_seed(1.0 + shift + 0.1 * NOISE[[0, 1, 2, 3, 4, 0, 1]]), 2, 5), 7)
    assert (found.verdict, found.settled, found.failures) == ("undecided", True, 2)
    assert found.reason == f"{word} where it trains: 2 of its 7 runs failed"


def test_a_variant_whose_runs_fail_may_be_worse():
    found = of(by_seed([1.0] * 7), failing(by_seed(1.5 + NOISE[[0, 1, 2, 3, 4, 0, 1]]), 2, 5), 7)
    assert found.verdict == "worse"
    assert found.reason.endswith("; 2 of its 7 runs failed")


def test_a_variant_is_not_called_worse_than_a_baseline_whose_runs_fail():
    found = of(failing(by_seed([1.0] * 7), 3), by_seed(1.5 + NOISE[[0, 1, 2, 3, 4, 0, 1]]), 7)
    assert found.reason == "worse where the baseline trains: 1 of its 7 runs failed"


def test_where_runs_of_both_failed_no_seeds_help():
    runs = {"base": by_seed([1.0] * 5) | {1: None}, "new": by_seed(1.0 + 9 * NOISE) | {2: None}}
    found = of(runs["base"], runs["new"], 5)
    assert (found.verdict, found.settled, found.seeds_needed) == ("undecided", True, None)
    assert found.reason == "runs of both failed: 1 of its 5 runs failed, and 1 of the baseline's"


def test_no_verdict_on_a_mean_that_the_median_contradicts():
    seeds = np.full(20, 0.03) + np.tile(NOISE / 10, 4)
    seeds[:5] = -1.0
    one = judged({"new": seeds}, looks=[Look(20, 0.05)], smallest_effect=0.0)["new"]
    assert one.comparison.high < 0 < one.comparison.median
    assert one.verdict == "undecided"
    assert "by the mean, not by the median" in one.reason


# Numbers that cannot be true


@pytest.mark.parametrize(("shift", "suspect"), [(-0.5, "new"), (0.0, "new"), (0.5, "base"), (-0.5, "base new")])
def test_what_is_too_good_to_be_true_gets_no_word_and_no_number_of_seeds(shift, suspect):
    one = judged({"new": NOISE + shift}, suspect=set(suspect.split()))["new"]
    assert (one.verdict, one.seeds_needed, one.settled) == ("undecided", None, True)
    assert "before its alarm is explained" in one.reason


@pytest.mark.parametrize(("shift", "suspect", "word"), [(0.5, "new", "worse"), (-0.5, "base", "better")])
def test_a_suspect_may_lose(shift, suspect, word):
    assert judged({"new": NOISE + shift}, suspect={suspect})["new"].verdict == word


# Several looks


LOOKS = [Look(3, 0.004), Look(5, 0.008), Look(8, 0.014)]


def test_the_first_look_that_decides_counts():
    spread = np.array([0.0, 0.3, -0.3, 0.1, -0.1, 0.2, -0.2, 0.0])
    found = judged({"far": spread / 100 - 0.5, "near": spread / 6 + 0.3, "open": spread}, looks=LOOKS)
    assert [(one.verdict, one.look) for one in found.values()] == [("better", 3), ("worse", 5), ("undecided", 8)]
    assert found["far"].comparison.pairs == 3
    assert "too much for any practical number" in found["open"].reason
    assert not found["open"].settled


def test_p_is_adjusted_for_all_looks_so_far():
    spread = np.array([0.0, 0.3, -0.3, 0.1, -0.1, 0.2, -0.2, 0.0])
    one = judged({"open": spread + 0.1}, looks=LOOKS)["open"]
    each = [judged({"open": (spread + 0.1)[: look.seeds]}, looks=[look])["open"].p_adjusted for look in LOOKS]
    assert one.p_adjusted == min(each)
