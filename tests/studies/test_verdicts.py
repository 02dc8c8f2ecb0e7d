"""The order in which a verdict is drawn, one test per rule."""

from __future__ import annotations

import numpy as np
import pytest

from attnlab.core.contracts import Metric
from attnlab.core.errors import SpecError
from attnlab.studies.judge.verdicts import verdicts

LOSS = Metric("val_loss", "nats/character", "lower")
NOISE = np.array([-0.02, 0.01, 0.0, 0.02, -0.01])
SEEDS = range(5)


def by_seed(values) -> dict[int, float]:
    return dict(enumerate(map(float, values)))


def judged(shifts: dict[str, object], *, smallest_effect=0.05, metric=LOSS, **rest):
    values = {"base": by_seed([1.0] * 5)} | {name: by_seed(1.0 + np.asarray(shift)) for name, shift in shifts.items()}
    found = verdicts(values, "base", metric=metric, smallest_effect=smallest_effect, **rest)
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
    one = judged({"same": [0.0] * 5}, smallest_effect=0.0)["same"]
    assert (one.verdict, one.seeds_needed) == ("undecided", None)
    assert "no smallest effect of interest" in one.reason


def test_one_seed_shows_nothing():
    found = verdicts({"base": {0: 1.0}, "new": {0: 0.1}}, "base", metric=LOSS, smallest_effect=0.01)[0]
    assert (found.verdict, found.reason, found.p_adjusted) == ("undecided", "one seed shows nothing", None)
    assert found.comparison.difference == pytest.approx(-0.9)


def test_a_variant_without_a_finished_seed_is_undecided():
    found = verdicts({"base": {0: 1.0, 1: 1.1}, "new": {}}, "base", metric=LOSS, smallest_effect=0.01)[0]
    assert (found.verdict, found.reason) == ("undecided", "no seed was finished by both")


def test_one_common_seed_of_several_is_one_seed():
    found = verdicts({"base": {0: 1.0, 1: 1.1}, "new": {1: 1.0}}, "base", metric=LOSS, smallest_effect=0.01)[0]
    assert found.reason == "one seed shows nothing: only one was finished by both"


@pytest.mark.parametrize("untuned", ["good", "base"])
def test_no_verdict_on_an_untuned_variant(untuned):
    one = judged({"good": NOISE - 0.5}, untuned={untuned})["good"]
    assert (one.verdict, one.seeds_needed) == ("undecided", None)
    assert "edge of the grid" in one.reason
    assert repr(untuned) in one.reason


def test_more_variants_need_more_evidence():
    borderline = {f"v{index}": 6 * NOISE + 0.13 for index in range(7)}
    alone = judged({"v0": borderline["v0"]})["v0"]
    among = judged(borderline)["v0"]
    assert alone.verdict == "worse"
    assert among.verdict == "undecided"
    assert among.p_adjusted == pytest.approx(7 * alone.p_adjusted)
    assert among.seeds_needed > 5
    assert f"{among.seeds_needed - 5} more seed" in among.reason


def test_hopeless_noise_is_said():
    one = judged({"noisy": 1000 * NOISE}, smallest_effect=0.001)["noisy"]
    assert one.seeds_needed is None
    assert "any practical number" in one.reason


def test_the_same_difference_in_every_seed_is_pointed_out():
    one = judged({"fixed": [0.5] * 5})["fixed"]
    assert one.verdict == "worse"
    assert "do the seeds reach the run?" in one.reason


def test_the_baseline_must_be_a_variant():
    with pytest.raises(SpecError, match="the baseline must be one of the variants; got 'nobody'; known: base"):
        verdicts({"base": {}}, "nobody", metric=LOSS, smallest_effect=0.01)
