"""Heads made by hand must score what their making says, and untrained ones must rarely be called anything."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attnlab.core.errors import DataError, SpecError
from attnlab.inspection import (
    Captured,
    HeadScores,
    Place,
    capture,
    head_scores,
    kinds,
    match_heads,
    repeated_loss,
    repeated_tokens,
    thresholds,
)
from attnlab.inspection.matching import layer_agreement
from attnlab.models import Decoder

BATCH, LENGTH, VOCAB = 3, 14, 11
PATTERNS = (
    "previous-token shifted-2 shifted-3 next-token same-position first-token duplicate-token induction delimiter "
    "rare-token local"
)


def seen(*heads: Tensor) -> dict[str, Captured]:
    """One attention with heads of these weights, (length, length) or (batch, length, length) each."""
    weights = torch.stack([head if head.ndim == 3 else head[None] for head in heads], dim=1)
    return {"mixer": Captured(weights=weights)}


def uniform(length: int, *, causal: bool) -> Tensor:
    weights = torch.ones(length, length)
    weights = weights.tril() if causal else weights
    return weights / weights.sum(-1, keepdim=True)


def shifted(by: int, length: int = LENGTH) -> Tensor:
    """Each query looks that many positions back; those that cannot, at the first."""
    return torch.eye(length)[(torch.arange(length) - by).clamp(min=0)]


def inducing(tokens: Tensor) -> Tensor:
    """Look at the token after the last time the same token was there, and where there is none at the first."""
    weights = torch.zeros(*tokens.shape, tokens.shape[1])
    for sample, row in enumerate(tokens.tolist()):
        for query, token in enumerate(row):
            earlier = [key for key in range(query - 1) if row[key] == token]
            weights[sample, query, earlier[-1] + 1 if earlier else 0] = 1
    return weights


def captured(seed: int, tokens: Tensor) -> dict[str, Captured]:
    """What an untrained decoder does with tokens."""
    torch.manual_seed(seed)
    model = Decoder(VOCAB, LENGTH, d_model=6, n_layers=2, mixer={"name": "attention", "n_heads": 3}).eval()
    with torch.no_grad(), capture(model) as trace:
        model(tokens)
    return trace


def highest(rows: Sequence[HeadScores], pattern: str) -> float:
    return max(row.patterns[pattern] for row in rows)


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return repeated_tokens(VOCAB, LENGTH, batch=BATCH, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def untrained(tokens: Tensor) -> list[tuple[HeadScores, ...]]:
    return [head_scores(captured(seed, tokens), tokens, delimiters=[1]) for seed in range(20)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_exact_patterns_score_one(tokens: Tensor, dtype: torch.dtype) -> None:
    exact = {
        "previous-token": shifted(1),
        "shifted-2": shifted(2),
        "shifted-3": shifted(3),
        "same-position": torch.eye(LENGTH),
        "first-token": shifted(LENGTH),
        "induction": inducing(tokens),
    }
    trace = seen(*(weights.expand(BATCH, LENGTH, LENGTH).to(dtype) for weights in exact.values()))
    rows = head_scores(trace, tokens)
    assert " ".join(rows[0].patterns) == PATTERNS
    for row, pattern in zip(rows, exact, strict=True):
        assert row.patterns[pattern] == 1
        assert row.place == f"mixer:{row.head}" == str(Place.parse(row.place))
        assert all(math.isnan(score) or 0 <= score <= 1 for score in row.patterns.values())
        assert sum(score == 1 for name, score in row.patterns.items() if name != "local") == 1
        assert row.measures["entropy"] == row.measures["relative-entropy"] == 0
    assert rows[0].patterns["local"] == rows[2].patterns["local"] == 1
    assert rows[4].patterns["local"] == 0
    assert rows[1].measures["mean-distance"] == pytest.approx((2 * LENGTH - 3) / LENGTH)


@given(st.integers(8, 23))
def test_equal_weights_under_a_causal_mask_score_what_follows_from_the_length(length: int) -> None:
    (row,) = head_scores(seen(uniform(length, causal=True)), torch.arange(length)[None], delimiters=[2])
    alike = {query: 1 / (query + 1) for query in range(length)}
    for pattern, start in {
        "previous-token": 1,
        "shifted-3": 3,
        "same-position": 1,
        "first-token": 1,
        "delimiter": 2,
    }.items():
        assert row.patterns[pattern] == pytest.approx(sum(alike[q] for q in range(start, length)) / (length - start))
    assert row.patterns["local"] == pytest.approx(sum(6 * alike[q] for q in range(6, length)) / (length - 6))
    assert math.isnan(row.patterns["next-token"])
    assert row.measures["entropy"] == pytest.approx(sum(math.log(q + 1) for q in range(length)) / length)
    assert row.measures["relative-entropy"] == pytest.approx(1)
    assert row.measures["mean-distance"] == pytest.approx((length - 1) / 4)


@given(st.integers(2, 17))
def test_equal_weights_without_a_mask_score_one_over_the_length(length: int) -> None:
    (row,) = head_scores(seen(uniform(length, causal=False)), torch.arange(length)[None])
    for pattern in ("previous-token", "next-token", "same-position", "first-token"):
        assert row.patterns[pattern] == pytest.approx(1 / length)
    assert row.measures["entropy"] == pytest.approx(math.log(length))
    assert row.measures["mean-distance"] == pytest.approx((length**2 - 1) / (3 * length))


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.booleans())
def test_scores_and_measures_of_any_weights_stay_in_their_bounds(seed: int, causal: bool) -> None:
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, (2, 9), generator=random)
    weights = (5 * torch.randn(2, 3, 9, 9, generator=random)).softmax(-1)
    for row in head_scores({"a": Captured(weights=weights.tril() if causal else weights)}, tokens, delimiters=[1, 3]):
        assert all(math.isnan(score) or 0 <= score <= 1 for score in row.patterns.values())
        assert 0 <= row.measures["relative-entropy"] <= 1
        assert 0 < row.measures["diversity"] <= 1
        assert 0 <= row.measures["mean-distance"] <= 8


def test_induction_looks_after_and_duplicates_at_earlier_occurrences() -> None:
    tokens = torch.tensor([[7, 8, 7, 7, 9, 8]])
    weights = torch.zeros(6, 6)
    weights[0, 0] = weights[1, 1] = weights[4, 4] = 1
    weights[2, :3] = torch.tensor([0.25, 0.5, 0.25])  # 7 was at 0: after it is 1
    weights[3, :4] = torch.tensor([0.2, 0.3, 0.4, 0.1])  # 7 was at 0 and 2: after them are 1 and the query itself
    weights[5, :6] = torch.tensor([0.1, 0.6, 0.2, 0.1, 0.0, 0.0])  # 8 was at 1: after it is 2
    (row,) = head_scores(seen(weights), tokens, delimiters=[9])
    assert row.patterns["duplicate-token"] == pytest.approx((0.25 + (0.2 + 0.4) + 0.6) / 3)
    assert row.patterns["induction"] == pytest.approx((0.5 + 0.3 + 0.2) / 3)
    assert row.patterns["delimiter"] == pytest.approx((1 + 0) / 2)


def test_the_rarest_token_of_a_sequence_is_counted_over_all_and_without_padding() -> None:
    tokens = torch.tensor([[5, 6, 5, 7], [6, 5, 6, 8]])
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(2, 4, 4)
    (row,) = head_scores(seen(weights), tokens)
    assert row.patterns["rare-token"] == pytest.approx(0.4)  # 7 and 8 occur once, 5 and 6 three times
    real = torch.tensor([[True] * 4, [True, True, True, False]])
    (row,) = head_scores(
        seen(weights), tokens, real=real
    )  # then 6 and 5 occur three times each in the second: all rare
    assert row.patterns["rare-token"] == pytest.approx(0.4)


def test_what_no_query_has_is_no_number() -> None:
    (row,) = head_scores(seen(uniform(3, causal=True)), torch.tensor([[4, 5, 6]]))
    none = {name for name, score in row.patterns.items() if math.isnan(score)}
    assert none == {"shifted-3", "next-token", "duplicate-token", "induction", "delimiter", "rare-token", "local"}
    assert math.isnan(row.measures["diversity"])
    (alone,) = head_scores(seen(torch.ones(1, 1)), torch.tensor([[4]]))
    assert all(math.isnan(score) for score in alone.patterns.values())
    assert alone.measures["entropy"] == alone.measures["mean-distance"] == 0
    assert math.isnan(alone.measures["relative-entropy"])


@pytest.mark.parametrize("before", [0, 4])
def test_padding_on_either_side_changes_no_score(tokens: Tensor, before: int) -> None:
    torch.manual_seed(0)
    weights = torch.randn(BATCH, 2, LENGTH, LENGTH).softmax(-1).tril()
    inside = slice(before, before + LENGTH)
    padded, longer, real = (
        torch.rand(BATCH, 2, 18, 18).tril(),
        torch.zeros(BATCH, 18).long(),
        torch.zeros(BATCH, 18).bool(),
    )
    padded[:, :, inside, inside], longer[:, inside], real[:, inside] = weights, tokens, True
    alone = head_scores({"a": Captured(weights=weights)}, tokens, delimiters=[0])
    within = head_scores({"a": Captured(weights=padded)}, longer, delimiters=[0], real=real)
    for one, other in zip(alone, within, strict=True):
        assert other.patterns == pytest.approx(one.patterns, nan_ok=True)
        assert other.measures == pytest.approx(one.measures)
    unsaid = head_scores({"a": Captured(weights=padded)}, longer, delimiters=[0])
    assert unsaid[0].patterns != pytest.approx(alone[0].patterns, nan_ok=True)
    matched = match_heads({"a": Captured(weights=weights)}, {"a": Captured(weights=weights.flip(1))})
    within_padding = match_heads({"a": Captured(weights=padded)}, {"a": Captured(weights=padded.flip(1))}, real=real)
    assert within_padding.whole.chance == pytest.approx(matched.whole.chance)


def test_weights_that_are_no_probabilities_count_by_their_share_and_idle_queries_do_not(tokens: Tensor) -> None:
    weights = -0.3 * shifted(1)
    weights[5] = 0
    idle = torch.zeros(LENGTH, LENGTH)
    looking, dead = head_scores(seen(*(one.expand(BATCH, LENGTH, LENGTH) for one in (weights, idle))), tokens)
    assert looking.patterns["previous-token"] == 1
    assert all(math.isnan(number) for number in (*dead.patterns.values(), *dead.measures.values()))


def test_diversity_is_0_where_heads_are_alike_and_1_where_they_share_no_key() -> None:
    tokens = torch.arange(LENGTH)[None]
    alike = head_scores(seen(uniform(LENGTH, causal=True), uniform(LENGTH, causal=True)), tokens)
    assert [row.measures["diversity"] for row in alike] == [0, 0]
    first, second, third = shifted(0), shifted(0).roll(1, 1), shifted(0).roll(1, 1)
    apart = head_scores(seen(first, second, third), tokens)
    assert [row.measures["diversity"] for row in apart] == pytest.approx([1, 0.5, 0.5])


def test_attention_over_other_tokens_is_left_out(tokens: Tensor) -> None:
    trace = seen(uniform(LENGTH, causal=True).expand(BATCH, -1, -1))
    cross = {"cross": Captured(weights=torch.rand(BATCH, 2, LENGTH, 5)), "unseen": Captured()}
    assert [row.place for row in head_scores(trace | cross, tokens)] == ["mixer:0"]
    with pytest.raises(
        DataError, match=r"none of the 2 attentions captured has weights .* = \(3, 14\): give the tokens"
    ):
        head_scores(cross, tokens)
    with pytest.raises(DataError, match=r"padding must be that of the tokens, \(3, 14\); got \(3, 2\)"):
        head_scores(trace, tokens, real=torch.ones(BATCH, 2, dtype=torch.bool))


def test_of_untrained_models_no_more_than_the_share_exceed_what_the_others_set(
    untrained: list[tuple[HeadScores, ...]],
) -> None:
    flagged = [kinds(one, thresholds([other for other in untrained if other is not one])) for one in untrained]
    for pattern in set(PATTERNS.split()) - {"next-token"}:
        assert sum(any(pattern in names for names in heads.values()) for heads in flagged) == 1  # of 20: the highest


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60, unique=True), st.sampled_from([0.05, 0.1, 0.3]))
def test_the_level_is_the_part_of_models_that_exceed(draws: list[float], share: float) -> None:
    models = [
        [HeadScores("a", head, {"local": part * draw, "induction": math.nan}, {}) for head, part in enumerate([1, 0.5])]
        for draw in draws
    ]
    found = thresholds(models, share)
    assert found.values.keys() == found.levels.keys() == {"local"}
    exceeding = sum(highest(rows, "local") > found.values["local"] for rows in models)
    assert found.levels["local"] == (exceeding + 1) / (len(models) + 1)
    assert found.levels["local"] <= share or not exceeding
    assert found.levels["local"] + 1 / (len(models) + 1) > share  # no lower value would do


def test_heads_made_by_hand_are_found_among_untrained_ones_narrowest_pattern_first(
    tokens: Tensor, untrained: list[tuple[HeadScores, ...]]
) -> None:
    found = thresholds(untrained[1:])
    trace = captured(0, tokens)
    (first, second) = trace
    trace[first].weights[:, 2] = shifted(1)
    trace[second].weights[:, 1] = inducing(tokens)
    told = kinds(head_scores(trace, tokens), found)
    assert {"previous-token", "local"} <= told[f"{first}:2"].keys()
    assert next(iter(told[f"{first}:2"].items())) == ("previous-token", 1 - found.values["previous-token"])
    assert next(iter(told[f"{second}:1"])) == "induction"
    assert set(told) == {f"{layer}:{head}" for layer in trace for head in range(3)}
    assert found.levels["induction"] == pytest.approx(0.05)


def test_thresholds_are_those_of_the_same_heads(tokens: Tensor) -> None:
    one, two = (
        head_scores(seen(*[uniform(LENGTH, causal=True).expand(BATCH, -1, -1)] * count), tokens) for count in (1, 2)
    )
    with pytest.raises(DataError, match=r"with the same heads; got 2 models with 2 sets of heads"):
        thresholds([one, two])
    with pytest.raises(DataError, match=r"got 0 models with 0 sets"):
        thresholds([])
    with pytest.raises(SpecError, match=r"share must be between 0 and 1; got 1.5"):
        thresholds([one], 1.5)
    with pytest.raises(DataError, match=r"with the same 2 heads; got those of 1: mixer:0"):
        kinds(two, thresholds([one]))


def test_heads_that_only_changed_places_are_found_again(tokens: Tensor) -> None:
    first = captured(3, tokens)
    one, other = first
    second = {
        one: Captured(weights=first[one].weights[:, [2, 0, 1]]),
        other: Captured(weights=first[other].weights.flip(1)),
    }
    found = match_heads(first, second)
    assert [pair[:2] for pair in found.layers[one].pairs] == [
        (f"{one}:{a}", f"{one}:{b}") for a, b in ((0, 1), (1, 2), (2, 0))
    ]
    assert found.layers[other].agreement == found.whole.agreement == 1
    assert found.whole.chance < found.layers[one].chance < 1
    moved = match_heads(first, {one: second[other], other: second[one]})
    assert moved.whole.agreement == 1
    assert moved.layers[one].agreement < 1
    assert (f"{one}:0", f"{other}:1", 0.0) in moved.whole.pairs


def test_heads_that_share_no_key_agree_in_nothing_and_a_dead_head_with_none() -> None:
    here, there, dead = shifted(0), shifted(0).roll(1, 1), torch.zeros(LENGTH, LENGTH)
    assert match_heads(seen(here, here), seen(there, there)).whole.agreement == 0
    half = match_heads(seen(here, there), seen(there, dead)).whole
    assert (half.agreement, half.chance) == (0.5, 0.25)
    assert half.pairs == (("mixer:0", "mixer:1", 1.0), ("mixer:1", "mixer:0", 0.0))


def test_only_layers_of_the_same_shape_are_matched() -> None:
    trace, longer = seen(shifted(1)), {"longer": Captured(weights=torch.rand(1, 1, 5, 5))}
    for second in (longer, {}, seen(shifted(1), shifted(2))):
        with pytest.raises(DataError, match=r"heads are matched between layers of the same names and shapes"):
            match_heads(trace, second)
    both = match_heads(trace | longer, trace | longer).whole
    assert [(one, other) for one, other, _ in both.pairs] == [("mixer:0", "mixer:0"), ("longer:0", "longer:0")]
    assert (both.agreement, both.chance) == (1, 1)
    across = {"cross": Captured(weights=torch.rand(1, 2, 5, 7))}
    assert match_heads(across, across).whole.agreement == pytest.approx(1)
    with pytest.raises(DataError, match=r"leave out attention to another sequence"):
        match_heads(across, across, real=torch.ones(1, 5, dtype=torch.bool))
    with pytest.raises(DataError, match=r"got none: keep the layers"):
        match_heads({}, {"a": Captured()})


@given(st.integers(1, 9), st.integers(2, 8), st.integers(0, 2**31))
def test_tokens_repeat_once(vocab_size: int, half: int, seed: int) -> None:
    one, other = (
        repeated_tokens(vocab_size, 2 * half, batch=3, generator=torch.Generator().manual_seed(seed)) for _ in range(2)
    )
    assert torch.equal(one, other)
    assert one.shape == (3, 2 * half)
    assert torch.equal(one[:, :half], one[:, half:])
    assert one.min() >= 0
    assert one.max() < vocab_size


def test_what_copies_from_its_context_loses_nothing_the_second_time(tokens: Tensor) -> None:
    half = LENGTH // 2
    blind = torch.zeros(BATCH, LENGTH, VOCAB)
    equal = repeated_loss(blind, tokens)
    assert equal.first == equal.second == pytest.approx(math.log(VOCAB))
    assert equal.gain == 0
    copying = blind.clone()
    copying[:, half:-1] = 100.0 * nn.functional.one_hot(tokens[:, half + 1 :], VOCAB)
    found = repeated_loss(copying.bfloat16(), tokens)
    assert found.second == pytest.approx(0, abs=1e-9)
    assert found.gain == pytest.approx(math.log(VOCAB))
    copying[:, half - 1] = -50.0 * nn.functional.one_hot(tokens[:, half], VOCAB)  # where nothing tells that they repeat
    assert repeated_loss(copying, tokens).gain == pytest.approx(found.gain)


def test_tokens_that_do_not_repeat_are_refused(tokens: Tensor) -> None:
    for length in (2, 7):
        with pytest.raises(SpecError, match=rf"length must be even and at least 4, two equal halves; got {length}"):
            repeated_tokens(VOCAB, length, batch=1)
    with pytest.raises(SpecError, match=r"positive integers; got batch=0"):
        repeated_tokens(VOCAB, 6, batch=0)
    with pytest.raises(DataError, match=r"must repeat the first: take them from repeated_tokens"):
        repeated_loss(torch.zeros(BATCH, LENGTH, VOCAB), tokens.roll(1, 1) + torch.arange(LENGTH))
    with pytest.raises(
        DataError, match=r"logits must be of the \(3, 14\) tokens that the model read; got \(3, 13, 11\)"
    ):
        repeated_loss(torch.zeros(BATCH, 13, VOCAB), tokens)


def test_heads_of_a_layer_agree_as_much_as_their_weights_are_alike():
    previous, first = shifted(1), shifted(LENGTH)
    assert layer_agreement(seen(previous, previous)) == pytest.approx(1)
    apart = layer_agreement(seen(previous, first))
    assert apart == pytest.approx(2 / LENGTH)  # the first two queries look at the first token in both
    assert layer_agreement({**seen(previous, previous), "other": seen(previous)["mixer"]}) == pytest.approx(1)
    assert math.isnan(layer_agreement(seen(previous)))
