from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from attnlab.text import ngrams
from attnlab.text.ngrams import compute_ladder, ladder


class PlainWittenBell:
    """The definition, one dictionary at a time."""

    def __init__(self, train: list[int], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.counts = Counter(tuple(train[i : i + size]) for size in range(1, 7) for i in range(len(train) - size + 1))
        self.total = len(train)

    def probability(self, context: tuple[int, ...], token: int) -> float:
        followers = [self.counts[(*context, other)] for other in range(self.vocab_size)]
        lower = self.probability(context[1:], token) if context else 1 / self.vocab_size
        total, types = sum(followers), sum(count > 0 for count in followers)
        return lower if not total else (followers[token] + types * lower) / (total + types)

    def distribution(self, context: tuple[int, ...]) -> list[float]:
        return [self.probability(context, token) for token in range(self.vocab_size)]


@pytest.fixture
def tokens(words):
    symbols = sorted(set(words))
    return np.array([symbols.index(character) for character in words[:601]]), len(symbols)


def test_it_is_the_definition(tokens):
    numbers, vocab_size = tokens
    train, held_out = numbers[:503], numbers[503:]
    plain = PlainWittenBell(train.tolist(), vocab_size + 1)
    for rung in compute_ladder(train, held_out, vocab_size + 1):
        losses, right, likely = [], 0, 0
        for position in range(1, len(held_out)):
            context = tuple(held_out[max(position - rung.order, 0) : position].tolist())
            distribution = plain.distribution(context)
            target = held_out[position]
            losses.append(-math.log(distribution[target]))
            right += distribution[target] > max(distribution) - 1e-12  # right, if ties go its way
            likely += distribution[target] > sorted(distribution)[-2] + 1e-12  # right, if they do not
        assert rung.loss == pytest.approx(sum(losses) / len(losses), rel=1e-9)
        assert likely / len(losses) - 1e-12 <= rung.accuracy <= right / len(losses) + 1e-12
        assert sum(distribution) == pytest.approx(1)


def test_the_limits_are_those_of_the_held_out_part_s_own_frequencies(tokens):
    numbers, vocab_size = tokens
    held_out = numbers[503:].tolist()
    for rung in compute_ladder(numbers[:503], numbers[503:], vocab_size):
        followers: dict[tuple[int, ...], Counter] = {}
        for position in range(max(rung.order, 1), len(held_out)):
            context = tuple(held_out[position - rung.order : position])
            followers.setdefault(context, Counter())[held_out[position]] += 1
        nats = -sum(n * math.log(n / c.total()) for c in followers.values() for n in c.values())
        best = sum(max(c.values()) for c in followers.values()) + max(rung.order - 1, 0)
        assert rung.loss_limit == pytest.approx(nats / (len(held_out) - 1), rel=1e-9)
        assert rung.accuracy_limit == pytest.approx(best / (len(held_out) - 1), rel=1e-9)
        assert rung.loss >= rung.loss_limit
        assert rung.accuracy <= rung.accuracy_limit


def test_what_estimating_costs_counts_the_distinct_grams():
    rungs = compute_ladder(np.array([0, 1, 0, 1, 1]), np.array([0, 1, 0]), 2, highest_order=2)
    distinct = (2, 3, 3)  # 0 1; 01 10 11; 010 101 011
    assert [rung.sampling_cost for rung in rungs] == [count / (2 * 5) for count in distinct]


@pytest.mark.parametrize("sizes", [(1, 2), (2, 2), (3, 11), (11, 2)])
def test_texts_shorter_than_the_order_are_judged(sizes):
    numbers = np.arange(sum(sizes)) % 3
    rungs = compute_ladder(numbers[: sizes[0]], numbers[sizes[0] :], 3)
    assert len(rungs) == 6
    assert all(math.isfinite(rung.loss) and 0 <= rung.accuracy <= 1 for rung in rungs)


def test_an_unseen_token_keeps_the_loss_finite():
    rungs = compute_ladder(np.zeros(29, dtype=int), np.array([0, 1, 0, 2, 0]), 3)
    assert all(math.isfinite(rung.loss) for rung in rungs)


def test_a_large_vocabulary_does_not_overflow():
    numbers = np.arange(997) * 1117 % 1_100_000
    rungs = compute_ladder(numbers[:907], numbers[:97], 1_100_000)
    assert rungs[5].loss < rungs[0].loss  # it reads what it has seen


def test_a_result_is_kept_and_read_again(tokens, monkeypatch):
    numbers, vocab_size = tokens
    first = ladder(numbers[:503], numbers[503:], vocab_size)

    def refuse(*arguments):
        raise AssertionError("computed again")

    monkeypatch.setattr(ngrams, "compute_ladder", refuse)
    assert ladder(numbers[:503], numbers[503:], vocab_size) == first
    for arguments in ((numbers[:504], numbers[503:], vocab_size), (numbers[:503], numbers[503:], vocab_size + 1)):
        with pytest.raises(AssertionError, match="computed again"):
            ladder(*arguments)
    monkeypatch.setattr(ngrams, "VERSION", -1)
    with pytest.raises(AssertionError, match="computed again"):
        ladder(numbers[:503], numbers[503:], vocab_size)


@pytest.mark.parametrize("content", ["", "[", "null", "7", '[{"order": 0}]', "{}", "[1]"])
def test_a_kept_result_that_is_no_ladder_is_ignored(tokens, private_cache, content):
    numbers, vocab_size = tokens
    first = ladder(numbers[:503], numbers[503:], vocab_size)
    (kept,) = (private_cache / "results").iterdir()
    kept.write_text(content)
    assert ladder(numbers[:503], numbers[503:], vocab_size) == first


def test_of_a_very_large_text_the_parts_next_to_each_other_count(tokens, monkeypatch):
    numbers, vocab_size = tokens
    monkeypatch.setattr(ngrams, "LARGEST", 83)
    expected = compute_ladder(numbers[503 - 83 : 503], numbers[503 : 503 + 83], vocab_size)
    assert ladder(numbers[:503], numbers[503:], vocab_size) == expected


@pytest.mark.data
def test_known_values_are_reproduced(tinyshakespeare):
    from attnlab.tasks.char_lm.char_lm import CharLM

    floors = CharLM(tinyshakespeare).floors()
    losses = [floor.value for floor in floors if floor.metric == "val_loss" and floor.kind == "floor"]
    accuracies = [floor.value for floor in floors if floor.metric == "val_accuracy" and floor.kind == "floor"]
    assert losses == pytest.approx([3.347, 2.486, 2.049, 1.774, 1.669, 1.698], abs=0.01)
    assert accuracies[:3] == pytest.approx([0.149, 0.270, 0.381], abs=0.001)
    # For 4 characters 0.512 is known of the most frequent continuation, where a context never seen counts as wrong.
    # Interpolation guesses there as well, so it must lie above.
    assert 0.512 < accuracies[4] < 0.54
