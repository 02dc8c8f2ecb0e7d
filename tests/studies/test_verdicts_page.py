"""What docs/verdicts.md says of verdicts, sentence by sentence, as properties of the functions that judge."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.studies.conftest import TINY

from attnlab.core.contracts import Metric
from attnlab.studies.define.looks import Seeds, levels_of, looks_of
from attnlab.studies.define.rules import at_edge
from attnlab.studies.define.study import parse_study
from attnlab.studies.judge import alarms
from attnlab.studies.judge.claims import Target
from attnlab.studies.judge.luck import Tuned
from attnlab.studies.judge.results import UNBELIEVABLE
from attnlab.studies.judge.statistics import POWER, paired_power
from attnlab.studies.judge.verdicts import Look, exploratory, verdicts
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.run.tuning import choose, record_of, setting_key

PAGE = " ".join((Path(__file__).parents[2] / "docs" / "verdicts.md").read_text(encoding="utf-8").split())
LOSS = Metric("loss", "nats", "lower")
LOOKS = tuple(map(Look, looks_of(Seeds(at_least=3, at_most=10)), levels_of(looks_of(Seeds(at_most=10)), 1, 0.05)))
MOST = LOOKS[-1].seeds
FIVE = (Look(5, 0.05),)
SENTENCES: list[str] = []


def says(*sentences: str, examples: int = 60):
    """Name what of the page a test holds; the property is tried on many made-up studies."""
    SENTENCES.extend(sentences)
    return settings(max_examples=examples, deadline=None)


@st.composite
def studies(draw, seeds: int = MOST):
    """Draw the runs of a variant and a baseline: an effect from none to one that any seed shows."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    effect = draw(st.sampled_from([-5.0, -1.0, 0.0, 0.3, 1.0, 5.0]))
    values = generator.standard_normal((2, seeds))
    values[0] += effect
    return {name: dict(enumerate(map(float, row))) for name, row in zip(("variant", "base"), values, strict=True)}


SMALLEST = st.sampled_from([0.0, 0.1, 1.0, 3.0])


def judged(runs, *, smallest=0.0, looks=LOOKS, metric=LOSS, **doubts):
    """Return the verdict on the variant."""
    contrasts = [("variant", "base")]
    return verdicts(runs, contrasts, metric=metric, smallest_effect=smallest, looks=looks, **doubts)[0]


def without_runs(runs, name, seeds):
    """Return runs of which some have failed."""
    return runs | {name: {seed: None if seed in seeds else value for seed, value in runs[name].items()}}


def differences(runs, seeds=MOST):
    return [runs["variant"][seed] - runs["base"][seed] for seed in range(seeds)]


def test_every_sentence_stands_on_the_page():
    assert [one for one in SENTENCES if one not in PAGE] == []


def test_the_page_names_every_alarm():
    source = Path(alarms.__file__).read_text(encoding="utf-8")
    table = (Path(__file__).parents[2] / "docs" / "verdicts.md").read_text(encoding="utf-8").split("## Alarms")[1]
    raised = set(re.findall(r'Alarm\(\s*"([a-z ]+)"', source))
    assert raised == set(re.findall(r"^\| `([a-z ]+)` \|", table, re.MULTILINE))
    assert raised >= set(UNBELIEVABLE)


@says("Nothing else is judged.")
@given(studies(), studies(), SMALLEST)
def test_what_is_not_compared_changes_no_verdict(runs, others, smallest):
    assert judged(runs | {"other": others["variant"]}, smallest=smallest) == judged(runs, smallest=smallest)


@says(
    "What the two share through the seed cancels, and the rest of the calculation works with these differences alone."
)
@given(studies(), st.integers(0, 10**6), SMALLEST)
def test_what_a_seed_does_to_both_changes_no_verdict(runs, number, smallest):
    shared = 0.5 * np.random.default_rng(number).standard_normal(MOST)
    moved = {name: {seed: v + shared[seed] for seed, v in row.items()} for name, row in runs.items()}
    one, other = judged(runs, smallest=smallest), judged(moved, smallest=smallest)
    assert (one.verdict, one.look) == (other.verdict, other.look)
    assert (one.comparison.low, one.comparison.high) == pytest.approx((other.comparison.low, other.comparison.high))


@says("A seed that only one of them finished is left out.")
@given(studies(5), st.sampled_from(["variant", "base"]), st.integers(0, 4))
def test_a_seed_that_one_did_not_finish_counts_for_neither(runs, name, seed):
    both = without_runs(without_runs(runs, "variant", {seed}), "base", {seed})
    one, other = (judged(some, looks=FIVE).comparison for some in (without_runs(runs, name, {seed}), both))
    assert (one.difference, one.low, one.high, one.pairs) == (other.difference, other.low, other.high, 4)


@says("with the quantile of Student's t")
@given(studies(), st.sampled_from([2, 3, 5, 10]), st.floats(1e-4, 0.5))
def test_the_interval_is_that_of_the_formula(runs, seeds, level):
    one = judged(runs, looks=(Look(seeds, level),)).comparison
    expected = stats.ttest_1samp(differences(runs, seeds), 0).confidence_interval(1 - level)
    assert (one.low, one.high) == pytest.approx(tuple(expected))


@says("fewer than two pairs, or the same difference on every seed", "that says nothing about chance")
@given(studies(5), st.floats(-3, 3), SMALLEST)
def test_one_pair_or_no_spread_decides_nothing(runs, shift, smallest):
    assert judged(without_runs(runs, "base", {0, 1, 2, 3}), smallest=smallest, looks=FIVE).verdict == "undecided"
    moved = runs | {"variant": {seed: value + shift for seed, value in runs["base"].items()}}
    assert judged(moved, smallest=smallest, looks=FIVE).verdict == "undecided"


@says(
    "the interval lies inside plus or minus `smallest_effect`",
    "the interval excludes zero",
    "Equivalence comes before difference on purpose",
)
@given(studies(5), SMALLEST)
def test_the_word_is_read_off_the_interval(runs, smallest):
    one = judged(runs, smallest=smallest, looks=FIVE)
    low, high, middle = one.comparison.low, one.comparison.high, median(differences(runs, 5))
    if -smallest < low and high < smallest:
        assert one.verdict == ("equivalent" if abs(middle) < smallest else "undecided")
    elif not low <= 0 <= high:
        assert one.verdict == ("undecided" if middle * (low + high) <= 0 else "worse" if low > 0 else "better")
    else:
        assert one.verdict == "undecided"


@says("better or worse, by the sign and the metric's direction")
@given(studies(), SMALLEST)
def test_the_direction_of_the_metric_turns_the_words_around(runs, smallest):
    turned = {name: {seed: -value for seed, value in row.items()} for name, row in runs.items()}
    upwards = judged(turned, smallest=smallest, metric=replace(LOSS, better="higher"))
    assert upwards.verdict == judged(runs, smallest=smallest).verdict


@says("where the interval's nearer end lies beyond `smallest_effect`, the reason says that it is larger than that.")
@given(studies(), SMALLEST)
def test_the_reason_says_larger_where_the_whole_interval_is(runs, smallest):
    one = judged(runs, smallest=smallest)
    assume(one.verdict in ("better", "worse"))
    nearer = min(abs(one.comparison.low), abs(one.comparison.high))
    assert ("it is larger than" in one.reason) == (nearer >= smallest)


@says("The error left, 5 %, is divided by the number of comparisons")
@given(st.integers(1, 40), st.integers(2, 20))
def test_one_look_has_its_share_of_the_error(comparisons, seeds):
    assert levels_of((seeds,), comparisons, 0.05) == pytest.approx((0.05 / comparisons,))


@says("in proportion to its degrees of freedom", examples=2)
@given(st.sampled_from([(3, 4, 5), (3, 5, 8)]))
def test_levels_of_looks_are_in_proportion_to_their_degrees_of_freedom(looks):
    levels = levels_of(looks, 2, 0.05)
    assert [level / levels[0] for level in levels] == pytest.approx([(n - 1) / 2 for n in looks], rel=1e-3)
    assert levels[-1] < 0.025 < sum(levels)


@says("a comparison that is decided, or that more seeds cannot decide, needs no more")
@given(studies(), studies(), SMALLEST)
def test_seeds_after_the_look_that_settled_change_nothing(runs, others, smallest):
    one = judged(runs, smallest=smallest)
    assume(one.settled)
    later = {name: {s: (runs if s < one.look else others)[name][s] for s in range(MOST)} for name in runs}
    assert judged(later, smallest=smallest) == one
    for look in LOOKS:
        so_far = {name: {seed: row[seed] for seed in range(look.seeds)} for name, row in runs.items()}
        assert judged(so_far, smallest=smallest).settled == (look.seeds >= one.look)


@says("A look counts when every seed up to it has finished or failed, for the variant and for the baseline.")
@given(studies(), st.sampled_from(["variant", "base"]), st.integers(0, MOST - 1))
def test_no_look_is_taken_before_its_seeds_have_ended(runs, name, missing):
    del runs[name][missing]
    one = judged(runs)
    assert one.look is None or one.look <= missing
    assert one.look is not None or missing < LOOKS[0].seeds


@says(
    "A variant that failed on some seeds is not *better* or *equivalent*",
    "it may be *worse*. A variant is not *worse* than a baseline that failed.",
)
@given(studies(5), SMALLEST, st.sets(st.integers(0, 4), min_size=1, max_size=3))
def test_failed_runs_take_words_back(runs, smallest, failed):
    both = without_runs(without_runs(runs, "variant", failed), "base", failed)
    ours = judged(without_runs(runs, "variant", failed), smallest=smallest, looks=FIVE)
    theirs = judged(without_runs(runs, "base", failed), smallest=smallest, looks=FIVE)
    assert ours.verdict in ("worse", "undecided")
    assert theirs.verdict in ("better", "undecided")
    assert judged(both, smallest=smallest, looks=FIVE).verdict == "undecided"
    assert ours.failures == len(failed)


@says("A run that never measured the metric counts as failed.")
@given(studies(5), SMALLEST, st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 4))
def test_what_is_no_number_has_failed(runs, smallest, value, seed):
    broken = runs | {"variant": runs["variant"] | {seed: value}}
    failed = without_runs(runs, "variant", {seed})
    assert judged(broken, smallest=smallest, looks=FIVE) == judged(failed, smallest=smallest, looks=FIVE)


@says(
    "No *better* or *worse* where the median of the differences has another sign than the mean",
    "no *equivalent* where it is not within `smallest_effect`",
)
@given(st.floats(0.01, 100), st.floats(1.6, 3.5))
def test_a_few_seeds_far_from_the_others_decide_nothing(size, far):
    shifts = [size * shift for shift in (1.0, 1.01, 1.02, -far, -far)]  # the mean is negative, and smaller than most
    runs = {"variant": dict(enumerate(shifts)), "base": dict.fromkeys(range(5), 0.0)}
    looks = (Look(5, 0.999),)  # an interval that is hardly wider than the mean
    for smallest in (0.0, 0.95 * size):
        one = judged(runs, looks=looks, smallest=smallest)
        assert one.verdict == "undecided"
        assert "by the mean, not by the median" in one.reason


@says("`better_share`, the chance that a run of the variant is better than a run of the baseline")
@given(studies())
def test_better_share_counts_pairs_of_runs(runs):
    pairs = [(ours, theirs) for ours in runs["variant"].values() for theirs in runs["base"].values()]
    share = judged(runs, looks=(Look(MOST, 0.05),)).comparison.better_share
    assert share == pytest.approx(np.mean([ours < theirs for ours, theirs in pairs]))


@says("such a variant is neither *better* nor *equivalent*, and no number of seeds would decide; it may be *worse*.")
@given(studies(5), SMALLEST)
def test_what_cannot_be_true_is_not_believed(runs, smallest):
    one, trusted = (judged(runs, smallest=smallest, looks=FIVE, suspect=names) for names in (["variant"], []))
    assert one.verdict == ("worse" if trusted.verdict == "worse" else "undecided")
    assert one.seeds_needed is None


@says(
    'What is known is said first: the interval excludes all larger differences ("at most 0.11 better and 0.098 worse").'
)
@given(studies(5))
def test_what_is_undecided_says_what_is_excluded(runs):
    one = judged(runs, looks=FIVE)
    assume(one.verdict == "undecided" and not one.settled and one.comparison.low <= 0 <= one.comparison.high)
    assert one.reason.startswith(f"at most {-one.comparison.low:.2g} better and {one.comparison.high:.2g} worse; ")


@says(
    "the total number of seeds at which a paired t test would detect the effect with a power of 80 %",
    "at the level of the last look",
    "The effect is the larger of two distances",
    "It is absent where more seeds would not help: an untuned variant, failed runs, or more than 100 seeds.",
)
@given(studies(5), SMALLEST)
def test_so_many_seeds_have_the_power_and_one_less_has_not(runs, smallest):
    one = judged(runs, smallest=smallest, looks=FIVE)
    assume(one.verdict == "undecided" and not one.settled and one.comparison.low <= 0 <= one.comparison.high)
    effect = max(abs(one.comparison.difference), smallest - abs(one.comparison.difference)) / one.comparison.sd
    needed = one.seeds_needed
    if needed is None:
        assert paired_power(effect, 100, alpha=0.05) < POWER
        return
    assert 5 < needed <= 100
    assert paired_power(effect, needed, alpha=0.05) >= POWER
    assert needed == 6 or paired_power(effect, needed - 1, alpha=0.05) < POWER
    assert judged(runs, smallest=smallest, looks=FIVE, untuned=["variant", "base"]).seeds_needed is None
    assert judged(without_runs(runs, "base", {4}), smallest=smallest, looks=FIVE).seeds_needed is None


@says(
    "a verdict that better tuning could change is not given.",
    "an untuned variant better than a tuned baseline, or one that is *worse* than an untuned baseline.",
)
@given(studies(5), SMALLEST, st.sampled_from([["variant"], ["base"], ["variant", "base"]]))
def test_only_what_tuning_could_confirm_stays(runs, smallest, untuned):
    one, tuned = (judged(runs, smallest=smallest, looks=FIVE, untuned=names) for names in (untuned, []))
    confirmed = {("variant",): "better", ("base",): "worse"}.get(tuple(untuned))
    assert one.verdict == (confirmed if tuned.verdict == confirmed else "undecided")


@says("A word that would be another one if a variant gained that much is taken back")
@given(studies(5), st.sampled_from(["variant", "base"]), st.floats(0, 3))
def test_no_word_stands_that_luck_in_tuning_may_have_made(runs, name, gap):
    tuned = Tuned("a", {"a": 0.0, "b": gap}, {"a": 1, "b": 1}, runs[name], "lower")
    gained = {seed: value - tuned.lost(5, 0.05) for seed, value in runs[name].items()}
    one = judged(runs, looks=FIVE, tuned={name: tuned})
    alone, lucky = judged(runs, looks=FIVE), judged(runs | {name: gained}, looks=FIVE)
    assume(alone.verdict != "undecided" and "by the mean" not in lucky.reason)
    assert one.verdict == (alone.verdict if lucky.verdict == alone.verdict else "undecided")


@says(
    "such that over all looks a variant that does not reach it is said to with a chance of at most 1 %",
    "it may be *worse*, and one may be *better* than such a baseline; nothing else is said.",
    "Where a word would need one that is shown to miss the target, or neither reaches it, no more seeds are spent.",
)
@given(studies(), SMALLEST, st.sampled_from(["variant", "base"]), st.sampled_from([-50.0, 0.0, 50.0]))
def test_a_time_counts_where_the_target_is_reached(runs, smallest, name, beyond):
    seeds = tuple(look.seeds for look in LOOKS)
    sure = {seed: -9 + seed % 2 for seed in range(MOST)}
    ends = {"variant": sure, "base": sure, name: {seed: beyond + (-1) ** seed for seed in range(MOST)}}
    goal = Target(LOSS, 0.0, ends, seeds, tuple(level / 2 for level in levels_of(seeds, 1, 0.02)))
    one, alone = judged(runs, smallest=smallest, target=goal), judged(runs, smallest=smallest)
    state = goal.claim(name).state
    assert state == {-50.0: "reached", 0.0: "open", 50.0: "missed"}[beyond]
    allowed = {"reached": ("better", "worse", "equivalent"), "variant": ("worse",), "base": ("better",)}
    if one.verdict != "undecided":
        assert one.verdict in allowed["reached" if state == "reached" else name]
    elif state == "missed" and alone.verdict != "undecided":
        assert one.settled


@says("with an interval that holds for itself alone, and without a verdict.")
@given(studies(), st.integers(2, MOST), st.sampled_from([0.8, 0.95, 0.99]))
def test_what_is_shown_beside_has_an_interval_of_its_own(runs, seeds, confidence):
    few = {name: {seed: row[seed] for seed in range(seeds)} for name, row in runs.items()}
    (beside,) = exploratory(few, [("variant", "base")], metric=LOSS, confidence=confidence)
    alone = judged(few, looks=(Look(seeds, 1 - confidence),)).comparison
    assert beside.verdict == "exploratory"
    assert (beside.comparison.low, beside.comparison.high) == (alone.low, alone.high)


@pytest.fixture(scope="module")
def plan():
    """Return a plan whose rules tune one setting over four values."""
    study = copy.deepcopy(TINY)
    study["rules"] |= {"tune": {"lr": [1.0, 2.0, 3.0, 4.0]}, "smallest_effect": 0.1, "metric": "val_mse"}
    return plan_study(parse_study(study))


@says(
    "If the best value of a tuned setting is the smallest or the largest of its grid, a better one may lie outside",
    "better than its neighbor by more than `smallest_effect`, and on every seed that tuning tried with both",
)
@given(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=2), min_size=4, max_size=4))
@example([[0.0, 5e-324], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])  # equal means of unequal sums
def test_an_edge_counts_where_it_is_better_than_its_neighbor(plan, values):
    runs = {f"{setting:g}": of for setting, of in zip((1, 2, 3, 4), values, strict=True)}
    chosen = choose(plan, runs)
    best = min(runs, key=lambda key: sum(runs[key]) / 2)
    assert setting_key(chosen) == best
    neighbor = {"1": "2", "4": "3"}.get(best)
    if neighbor is None:
        assert not at_edge(plan.study.rules, chosen)
        return
    apart = [theirs - ours for ours, theirs in zip(runs[best], runs[neighbor], strict=True)]
    assert record_of(plan, "plain", runs, chosen)["at_edge"] == (sum(apart) / 2 >= 0.1 and min(apart) >= 0)
