"""When a study looks, and how sure each look must be."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from attnlab.studies.define.looks import Seeds, checked_seeds, levels_of, looks_of


@pytest.mark.parametrize(
    ("seeds", "looks"),
    [
        (1, (1,)),
        (Seeds(), (3, 4, 5, 6, 8, 10, 13, 16, 20)),
        (Seeds(at_least=4, at_most=4), (4,)),
        (Seeds(at_least=7, at_most=14), (7, 8, 10, 13, 14)),
        (Seeds(at_least=15, at_most=40), (15, 16, 20, 25, 31, 38, 40)),
    ],
)
def test_looks_grow_apart_and_end_where_they_must(seeds, looks):
    assert looks_of(seeds) == looks


def test_one_look_shares_the_error_among_the_comparisons_alone():
    assert levels_of((5,), 4, 0.05) == (0.0125,)


def test_all_looks_together_err_as_often_as_is_allowed():
    looks = (3, 5, 8, 13)
    levels = levels_of(looks, 2, 0.2)
    assert list(levels) == sorted(levels)
    generator, wrong = np.random.default_rng(7), 0
    trials = 4000
    for _ in range(trials):
        series = generator.standard_normal(looks[-1])
        p_values = [stats.ttest_1samp(series[:look], 0.0).pvalue for look in looks]
        wrong += any(p < level for p, level in zip(p_values, levels, strict=True))
    assert wrong / trials == pytest.approx(0.1, abs=4 * (0.1 * 0.9 / trials) ** 0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"at_least": 5, "at_most": 3}, "at_most must not be below at_least; got 3 below 5"),
        ({"at_least": 30}, "at_most must not be below at_least; got 20 \\(its default\\) below 30"),
        ({"at_least": 1}, "at_least must be a whole number from 2 on, as one seed shows nothing; got 1"),
        ({"at_most": 100_000}, "at_most must be at most 200; got 100000"),
        ({"at_most": 2.5}, "at_most must be a whole number from 2 on"),
        ({"at_lest": 3}, "takes at_least and at_most; got 'at_lest'; did you mean 'at_least'?"),
    ],
)
def test_what_is_wrong_with_bounds_is_one_sentence(given, message):
    with pytest.raises(ValueError, match=message):
        checked_seeds(given)
