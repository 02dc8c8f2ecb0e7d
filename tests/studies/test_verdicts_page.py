"""What docs/verdicts.md says of verdicts, sentence by sentence, as properties of the functions that judge."""

from __future__ import annotations

import copy
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist, fmean, median, pstdev, stdev
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.studies.conftest import TINY
from tests.studies.example_results import parts

from attnlab.cli import FINE, call
from attnlab.core.contracts import Floor, Metric
from attnlab.studies.define.looks import PATHS, Seeds, levels_of, looks_of
from attnlab.studies.define.rules import at_edge
from attnlab.studies.define.study import parse_study
from attnlab.studies.judge import alarms
from attnlab.studies.judge.claims import Target
from attnlab.studies.judge.luck import Tuned
from attnlab.studies.judge.results import UNBELIEVABLE, CellResults, VariantResults
from attnlab.studies.judge.statistics import POWER, paired_power
from attnlab.studies.judge.tuning import choose, record_of, setting_key
from attnlab.studies.judge.verdicts import Look, exploratory, verdicts
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.report.tables import verdicts as rows_of

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
PAGE = " ".join(TEXT.split())
LOSS = Metric("loss", "nats", "lower")
LOOKS = tuple(map(Look, looks_of(Seeds(at_least=3, at_most=10)), levels_of(looks_of(Seeds(at_most=10)), 1, 0.05)))
MOST = LOOKS[-1].seeds
FIVE = (Look(5, 0.05),)
SENTENCES: list[str] = []


def says(*sentences: str, examples: int = 60):
    """Name what of the page a test holds; the property is tried on many made-up studies."""
    SENTENCES.extend(sentences)
    return settings(max_examples=examples, deadline=None)


def states(*sentences: str):
    """Name what of the page a test holds that makes up no studies."""
    SENTENCES.extend(sentences)
    return lambda test: test


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
    table = TEXT.split("## Alarms")[1]
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


@says(
    "the difference *variant minus baseline* is taken",
    "and standard deviation *s*, the interval is",
    "with the quantile of Student's t",
)
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
    "undecided, with the number of seeds that would decide",
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


@states(
    "Seeds vary initial weights and data order. They vary the data only where the rules say",
    "Tuning is the same effort for every variant",
)
def test_seeds_vary_no_data_and_variants_are_tuned_alike(plan):
    judged_cells = plan.judged_cells({variant.name: {} for variant in plan.variants})
    assert len({cell.seed for cell in judged_cells}) > 1
    assert len({json.dumps(cell.spec["task"], sort_keys=True) for cell in judged_cells}) == 1
    tried = [
        sorted((cell.seed, setting_key(cell.tuned)) for cell in plan.tuning_cells() if cell.variant == variant.name)
        for variant in plan.variants
    ]
    assert len(tried[0]) == 4
    assert all(one == tried[0] for one in tried)


@states("How low is found by 400,000 simulated series")
def test_levels_rest_on_so_many_series():
    assert PATHS == 400_000


@states(
    "To look often and stop when something shows would be wrong far more often than 5 %, were the usual interval used."
)
def test_the_usual_interval_would_err_far_more_often():
    series = np.random.default_rng(0).standard_normal((1000, MOST))
    wrong = [stats.ttest_1samp(series[:, : look.seeds], 0, axis=1).pvalue < 0.05 for look in LOOKS]
    assert np.any(wrong, axis=0).mean() > 0.1


@states("The report says after how many seeds each was decided.", "the report says how long they would train.")
def test_the_report_says_when_and_at_what_price():
    full = parts()
    reasons = [row["reason"] for row in rows_of(full) if row["verdict"] in ("better", "worse", "equivalent")]
    assert reasons
    assert all(f"decided after {full.looks[-1].seeds} seeds" in reason for reason in reasons)
    assert any("of training" in row["reason"] for row in rows_of(full) if row["verdict"] == "undecided")


@states("which difference, in standard deviations, the most seeds of the rules can tell from none", "would be lost.")
def test_the_plan_says_what_its_seeds_can_tell(tmp_path, capsys):
    path = tmp_path / "study.yaml"
    rules = TINY["rules"] | {"seeds": 7, "smallest_effect": 0.1}
    path.write_text(json.dumps(TINY | {"rules": rules}), encoding="utf-8")
    assert call(["plan", str(path), "--no-calibrate", "--runs", str(tmp_path)]) == FINE
    told = " ".join(capsys.readouterr().out.split())
    seeds, effect, spread = re.search(
        r"(\d+) seeds tell a difference of (\S+) standard .* at most (\S+)", told
    ).groups()
    assert int(seeds) == 7
    assert paired_power(float(effect), 7, alpha=0.05) == pytest.approx(POWER, abs=0.02)
    assert float(spread) == pytest.approx(0.1 / float(effect), rel=0.05)


@says(
    "from the means of the tuning runs and the standard deviation of the judged ones, by the quantile of the normal "
    "distribution at the error that a comparison may have.",
    "`tune_seeds` is what helps",
)
@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=5),
    st.lists(st.floats(-3, 3), min_size=2, max_size=9),
    st.integers(1, 4),
    st.floats(0.001, 0.2),
)
def test_what_luck_may_have_cost_is_that_of_the_formula(means, values, runs, error):
    settings_tried = {str(place): mean for place, mean in enumerate(means)}

    def lost(each: int) -> float:
        tuned = Tuned("0", settings_tried, dict.fromkeys(settings_tried, each), dict(enumerate(values)), "lower")
        return tuned.lost(len(values), error)

    noise = NormalDist().inv_cdf(1 - error) * stdev(values) * math.sqrt(2 / runs)
    assert lost(runs) == pytest.approx(max(0.0, means[0] - min(means[1:]) + noise), abs=1e-9)
    assert lost(runs + 1) <= lost(runs)


@states("Where tuning looked at a metric of another unit than the judged one, or at lengths, nothing is reckoned.")
@pytest.mark.parametrize(("metric", "reckoned"), [("val_loss", True), ("val_accuracy", False), ("steps", False)])
def test_luck_is_reckoned_in_the_unit_that_is_judged(metric, reckoned):
    full = parts()
    told = {"chosen": "1", "metric": metric, "scores": {"1": 2.0, "2": 2.0}, "runs": {"1": 1, "2": 1}}
    variants = []
    for size, one in enumerate(full.variants, 1):
        apart = [dict.fromkeys(("val_loss", metric), size * (-1.0) ** cell.seed) for cell in one.cells]
        cells = [replace(cell, metrics=cell.metrics | of) for cell, of in zip(one.cells, apart, strict=True)]
        variants.append(replace(one, tuning=told, cells=tuple(cells)))
    reasons = [one.reason for one in replace(full, variants=tuple(variants), alarms=()).verdicts]
    assert any("luck in tuning" in reason for reason in reasons) == reckoned


@states("800 runs each of one small variant", "with a skewness of 6.6 and a kurtosis of 106", "with -1.1 and 4.2")
@pytest.mark.parametrize(("pool", "skewness", "kurtosis"), [("shapes", "6.6", "106"), ("char-lm", "-1.1", "4.2")])
def test_pools_are_as_skewed_as_is_said(pool, skewness, kurtosis):
    values = json.loads((ROOT / "docs" / "pools" / f"{pool}.json").read_text(encoding="utf-8"))["values"]
    away = [(value - fmean(values)) / pstdev(values) for value in values]
    assert len(values) == 800
    for power, told in ((3, skewness), (4, kurtosis)):
        assert f"{fmean(one**power for one in away):.{len(told.partition('.')[2])}f}" == told


def raised(
    values=(1.0, 1.01, 1.02),
    *,
    data=(),
    floors=(),
    causal=True,
    reach=None,
    before=None,
    errors=(),
    ran="float32",
    baseline="float32",
    tuning=None,
    target=None,
    looks=(3,),
    rules=MappingProxyType({"levels": [0.05]}),
):
    """Return the alarms about one variant that ended with such losses, in a study that is made up."""
    done = [CellResults(seed, "done", {"loss": v}, setting=ran, reach=reach) for seed, v in enumerate(values)]
    failed = [CellResults(len(values) + nth, "failed", error=error) for nth, error in enumerate(errors)]
    spec = {"task": {}, "model": {}, "training": {}}
    variants = (
        VariantResults("base", spec, 1, 1.0, 1, cells=(CellResults(0, "done", {"loss": 1.0}, setting=baseline),)),
        VariantResults("one", spec, 1, 1.0, 1, tuning=tuning, cells=(*done, *failed)),
    )
    asked = SimpleNamespace(smallest_effect=0.1, looks=looks, split=None, target=target)
    plan = SimpleNamespace(
        task=SimpleNamespace(alarms=lambda: data, floors=lambda: floors, causal=causal, metrics=(LOSS,), describe=dict),
        study=SimpleNamespace(rules=asked, baseline="base"),
        metric=LOSS,
        metrics=(LOSS,),
        judges_time=False,
        variant=lambda name: SimpleNamespace(reach=before if name == "one" else None),
    )
    return {alarm.check for alarm in alarms.alarms_of(plan, variants, rules)}


def limit(value, kind="floor", reach=None):
    return (Floor("limit", value, "nats", "loss", kind, reach),)


def reach(past=9, future=0, *, mixes_batch=False):
    return {"past": past, "future": future, "mixes_batch": mixes_batch}


def tried(chosen="2", runs=2, **changes):
    scores = {"1": 1.3, "2": 1.0, "3": 1.001}
    return {
        "setting": "lr",
        "metric": "loss",
        "chosen": chosen,
        "scores": scores,
        "runs": dict.fromkeys(scores, runs),
        **changes,
    }


FIRES = {
    "something about the data itself is suspicious": ("data", {"data": ("passages are shared",)}, {}),
    "depends on later positions, on a task where it must not": (
        "causality",
        {"reach": reach(future=1)},
        {"reach": reach(future=1), "causal": False},
    ),
    "the output depends on other samples of the batch": (
        "batch",
        {"reach": reach(mixes_batch=True)},
        {"reach": reach()},
    ),
    "below a floor that holds for the model's measured reach": (
        "floor",
        {"floors": limit(1.5, reach=4), "reach": reach(past=4)},
        {"floors": limit(1.5, reach=4), "reach": reach(past=5)},
    ),
    "a loss lies below a quarter of the best n-gram": (
        "floor",
        {"floors": limit(4.2, reach=4), "reach": reach()},
        {"floors": limit(4.0, reach=4), "reach": reach()},
    ),
    "the mean is better than the best known result": (
        "best known",
        {"floors": limit(1.02, "best")},
        {"floors": limit(1.0, "best")},
    ),
    "no variant is better than chance": (
        "not learned",
        {"floors": limit(1.0, "chance")},
        {"floors": limit(1.02, "chance")},
    ),
    "counts that see at most one position": (
        "not learned",
        {"floors": limit(1.0, reach=1), "reach": reach()},
        {"floors": limit(1.0, reach=2), "reach": reach()},
    ),
    "a standard deviation of ten times the smallest effect, or more": (
        "spread",
        {"values": (1.0, 2.01, 3.02)},
        {"values": (1.0, 1.99, 2.98)},
    ),
    "five seeds of a variant or more fall into two groups": (
        "groups",
        {"values": (1.0, 1.01, 1.02, 2.0, 2.01)},
        {"values": (1.0, 1.01, 2.0, 2.01)},
    ),
    "a run failed": ("failed", {"errors": ["not a number"]}, {}),
    "some tuning runs failed or missed the target": ("tuning", {"tuning": tried(failed=["1"])}, {"tuning": tried()}),
    "one run chose among settings that lie no farther apart than seeds": (
        "tuning",
        {"tuning": tried(runs=1)},
        {"tuning": tried(runs=2)},
    ),
    "the best setting lies at the edge of its grid": ("untuned", {"tuning": tried(at_edge=True)}, {"tuning": tried()}),
    "a run did not reach the target with its budget": (
        "target",
        {"target": {"loss": 1.01}},
        {"target": {"loss": 1.02}},
    ),
    "seeds, or variant and baseline, were computed in different precisions": ("setting", {"ran": "bf16"}, {}),
    "or one of them compiled": ("setting", {"baseline": "float32, compiled"}, {}),
    "the rules ask for a single seed": ("one seed", {"looks": (1,)}, {"looks": (2,)}),
    "by an earlier version, without looks and levels": ("earlier rules", {"rules": {}}, {}),
    "seeds were added after results were seen": (
        "extended",
        {"rules": {"levels": [0.05], "extended": [{"from": 3, "to": 5}]}},
        {},
    ),
    "the farther of the two counts": (
        "causality",
        {"reach": reach(), "before": reach(future=2)},
        {"reach": reach(), "before": reach()},
    ),
}


@states(*FIRES)
@pytest.mark.parametrize("said", FIRES)
def test_an_alarm_fires_where_the_page_says_and_not_beside_it(said):
    check, fires, beside = FIRES[said]
    assert check in raised(**fires)
    assert check not in raised(**beside)


def units(text: str) -> list[str]:
    """Return every sentence and row of a table, but those that docs/make_truth.py writes: it has tests of its own."""
    text = re.sub(r"<!-- truth:.*?<!-- end of truth -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    found = []
    for block in re.split(r"\n\n|\n(?=- )", text):
        if block.lstrip().startswith("|"):
            found += block.strip().splitlines()[2:]
        elif not block.lstrip().startswith("#"):
            found += re.split(r"(?<=[.!?]) (?=[*`A-Z0-9])", " ".join(block.split()))
    return [one.removeprefix("- ") for one in found if one]


def untold(text: str) -> list[str]:
    """Return the sentences and rows that no test quotes and that are not told of below."""
    page = " ".join(text.split())
    quoted = [(page.find(one), page.find(one) + len(one)) for one in SENTENCES if one in page]
    missing = []
    for one in units(text):
        start = page.find(one)
        assert start >= 0, one
        held = any(first < start + len(one) and start < last for first, last in quoted)
        if not held and not any(one.startswith(beginning) for beginning in TOLD):
            missing.append(one)
    return missing


DEFINITION = "definition"
"""What a word or a column means, advice, or what is not claimed: there is nothing to try."""

MEASURED = "measured once"
"""A number of runs that no test makes again."""

TOLD = {
    "A study ends with one word": DEFINITION,
    "This page says": DEFINITION,
    "The code is `src": DEFINITION,
    "Each variant is compared with the baseline, or": "test_seeds_are_spent_on_the_comparisons_of_the_rules_alone",
    "Below, *baseline*": DEFINITION,
    "Every variant runs with the seeds": "test_cells_pair_over_seeds_and_tuning_has_a_seed_of_its_own",
    "A seed fixes the initial weights": "test_same_seed_same_bits",
    "Initial weights are drawn": "test_what_two_models_have_in_common_starts_alike_whatever_else_they_have",
    "How much the two then share": MEASURED,
    "Over ten seeds, results": MEASURED,
    "Dropout draws": "test_what_two_models_have_in_common_starts_alike_whatever_else_they_have",
    "It is paired, exact for normal": "test_interval_covers_the_truth_as_often_as_it_says",
    "The word is read off it": DEFINITION,
    "It is then called equivalent": "test_a_sure_difference_too_small_to_matter_is_equivalent",
    "Five comparisons are five chances": DEFINITION,
    "The intervals of all comparisons": "test_verdicts_err_no_more_often_than_is_said",
    "`seeds: 5` has one look": "test_looks_grow_apart_and_end_where_they_must",
    "`seeds: {at_least: 3, at_most: 20}`": "test_looks_grow_apart_and_end_where_they_must",
    "A hash covers them": "test_what_was_changed_afterwards_is_not_judged",
    "Seeds cannot be added": "test_another_study_or_other_seeds_may_not_use_the_folder",
    "A word about the mean is not given": DEFINITION,
    "**Untuned settings** and": DEFINITION,
    "**A target that is not shown": DEFINITION,
    "Where the rules have a `target`": "test_a_study_about_time_uses_whole_budgets_one_run_at_a_time",
    "A study goes on while": "test_a_study_goes_on_while_its_baseline_is_not_shown_to_reach_the_target",
    "The report says of each variant": "test_the_first_look_that_shows_it_counts",
    "The standard deviation is itself": DEFINITION,
    "A study that has ended takes": "test_an_open_question_has_its_price",
    "Where `runs/` (or": "test_the_plan_says_whether_a_study_can_answer_its_question",
    "An earlier run of the study": "test_the_study_itself_counts_alone",
    "The remedy is a wider grid": DEFINITION,
    "A grid of one value": "test_one_value_is_no_tuning",
    "A verdict compares variants at": DEFINITION,
    "Simulated studies whose truth": DEFINITION,
    "Columns: any *better*": DEFINITION,
    "The aims are at most": "test_what_misses_its_aim_is_bold",
    "The rules promise the first three": "test_verdicts_err_no_more_often_than_is_said",
    "With *each tuned*": DEFINITION,
    "Each run has a seed of its own": DEFINITION,
    "The second table asks": "test_luck_in_tuning_leaves_more_undecided",
    "The aim, 85 %": "test_luck_in_tuning_leaves_more_undecided",
    "The last table: two equal": "test_a_study_that_is_begun_anew_is_a_second_chance_to_err",
    "**A study that is begun anew": "test_a_study_that_is_begun_anew_is_a_second_chance_to_err",
    "Seeds until it is decided": "test_a_study_that_is_begun_anew_is_a_second_chance_to_err",
    "A verdict does not know": DEFINITION,
    "Beside it stand alarms": DEFINITION,
    "Reach is measured on the model": "test_a_leak_is_found_at_whatever_position_it_is",
    "Code of your own is measured": "test_what_sees_ahead_only_late_is_said_before_training",
    "A verdict holds for this task": DEFINITION,
    "It says nothing about other": DEFINITION,
    "Parts of one text overlap": DEFINITION,
    "*Undecided* is not *equivalent*": DEFINITION,
    "Absence of evidence": DEFINITION,
    "Two variants of which neither": DEFINITION,
    "The t interval assumes": DEFINITION,
    "With few seeds nobody": DEFINITION,
    "Seeds that are stuck": DEFINITION,
    "Where that is so of every variant but the baseline": "test_stuck_runs_of_one_side_alone_are_not_foreseen",
    "An attention map in the report": DEFINITION,
    "It is not by itself": DEFINITION,
}
"""What is quoted by no test above: the test elsewhere that holds it, or why there is none."""


def test_every_sentence_of_the_page_is_tested_or_told_of():
    assert not untold(TEXT)


def test_a_sentence_or_a_row_that_nothing_tests_would_be_found():
    more = TEXT.replace("## Looks", "A verdict is always right. Really.\n\n## Looks")
    assert untold(more) == ["A verdict is always right.", "Really."]
    assert untold(TEXT.replace("| `failed` |", "| `mood` | it rains |\n| `failed` |")) == ["| `mood` | it rains |"]


@pytest.fixture(scope="module")
def tests_elsewhere():
    """Return the names of all tests of the suite."""
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)}


@pytest.mark.parametrize("beginning", TOLD)
def test_what_is_told_of_stands_on_the_page_and_its_test_exists(beginning, tests_elsewhere):
    assert sum(one.startswith(beginning) for one in units(TEXT)) == 1
    assert TOLD[beginning] in (DEFINITION, MEASURED) or TOLD[beginning] in tests_elsewhere
