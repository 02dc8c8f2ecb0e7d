"""Searches find what an exhaustive search finds, and know nothing of the model but its logits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from attnlab.core.errors import SpecError
from attnlab.models.decoding.generation import Chooser, EndMarks, beam_search, length_penalty, sample

BEGIN, END = 0, 1
MARKS = EndMarks(BEGIN, END)
VOCAB = 5


class Table:
    """Answer with logits that depend on a number for each row and on all tokens before."""

    def __init__(self, seeds, sharpness=2.0):
        self.seeds, self.sharpness = list(seeds), sharpness
        self.prefixes = [() for _ in self.seeds]
        self.rows_asked = 0

    def advance(self, tokens):
        assert len(tokens) == len(self.prefixes)
        self.rows_asked += len(tokens)
        self.prefixes = [(*prefix, token) for prefix, token in zip(self.prefixes, tokens.tolist(), strict=True)]
        return torch.stack([self.logits(seed, prefix) for seed, prefix in zip(self.seeds, self.prefixes, strict=True)])

    def logits(self, seed, prefix):
        generator = torch.Generator().manual_seed(hash((seed, prefix)) % 2**31)
        return self.sharpness * torch.randn(VOCAB, generator=generator)

    def select(self, rows):
        self.seeds = [self.seeds[row] for row in rows.tolist()]
        self.prefixes = [self.prefixes[row] for row in rows.tolist()]


def log_probability(seed, tokens, *, ended=True):
    table, total = Table([seed]), 0.0
    prefix = (BEGIN,)
    for token in (*tokens, *([END] if ended else [])):
        total += table.logits(seed, prefix).log_softmax(-1)[token].item()
        prefix = (*prefix, token)
    return total


def every_sequence(max_length):
    """Return all sequences that end within a length."""
    others = [token for token in range(VOCAB) if token != END]
    for length in range(max_length):
        yield from itertools.product(others, repeat=length)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_wide_beam_finds_the_best_of_all(alpha):
    length = 4
    found = beam_search(Table(range(6)), 6, MARKS, beam=400, alpha=alpha, max_length=length)
    for seed, hypotheses in enumerate(found):
        ended = [one for one in hypotheses if one.ended]
        ranked = sorted(
            every_sequence(length),
            key=lambda tokens: -log_probability(seed, tokens) / length_penalty(len(tokens) + 1, alpha),
        )
        assert ended[0].tokens == ranked[0]
        assert {one.tokens for one in ended} == set(ranked)


def test_scores_are_those_of_the_sequence():
    for seed, hypotheses in enumerate(beam_search(Table(range(5)), 5, MARKS, beam=3, alpha=0.6, max_length=6)):
        assert 1 <= len(hypotheses) <= 3
        assert hypotheses == sorted(hypotheses, key=lambda one: (not one.ended, -one.score))
        for one in hypotheses:
            assert one.log_probability == pytest.approx(log_probability(seed, one.tokens, ended=one.ended), abs=1e-4)
            length = len(one.tokens) + one.ended
            assert one.score == pytest.approx(one.log_probability / length_penalty(length, 0.6))


def test_what_ended_comes_before_what_was_cut():
    """A loop of likely tokens never pays for its end, and must not win by that."""
    loop, word = 3, 4

    class Looping(Table):
        def logits(self, seed, prefix):
            likely = {BEGIN: [loop, word], word: [END]}.get(prefix[-1], [loop])
            logits = torch.full((VOCAB,), -9.0)
            logits[END] = -99.0
            logits[likely] = 9.0
            return logits

    first, *others = beam_search(Looping([0]), 1, MARKS, beam=2, alpha=0.6, max_length=20)[0]
    assert (first.tokens, first.ended) == ((word,), True)
    assert [(one.tokens, one.ended) for one in others] == [((loop,) * 20, False)]
    assert others[0].score > first.score


def greedy(seed, max_length):
    table, prefix = Table([seed]), (BEGIN,)
    while len(prefix) <= max_length:
        token = table.logits(seed, prefix).argmax().item()
        if token == END:
            return prefix[1:], True
        prefix = (*prefix, token)
    return prefix[1:], False


def test_a_beam_of_one_is_greedy():
    found = beam_search(Table(range(20)), 20, MARKS, beam=1, max_length=7)
    for seed, (one,) in enumerate(found):
        assert (one.tokens, one.ended) == greedy(seed, 7)
    assert {one.ended for (one,) in found} == {True, False}


@pytest.mark.parametrize("beam", [1, 3])
def test_sentences_do_not_see_each_other(beam):
    together = beam_search(Table(range(8)), 8, MARKS, beam=beam, max_length=6)
    alone = [beam_search(Table([seed]), 1, MARKS, beam=beam, max_length=6)[0] for seed in range(8)]
    assert [[one.tokens for one in found] for found in together] == [[one.tokens for one in found] for found in alone]


def test_a_sentence_that_is_done_leaves_the_batch():
    class Soon(Table):
        def logits(self, seed, prefix):
            sure = torch.full((VOCAB,), -20.0)
            sure[END if len(prefix) >= seed else 2] = 20.0
            return sure

    table = Soon([1, 2, 3])
    found = beam_search(table, 3, MARKS, beam=1, max_length=50)
    assert [one.tokens for (one,) in found] == [(), (2,), (2, 2)]
    assert table.rows_asked == 3 + 2 + 1


def test_nothing_to_write():
    assert beam_search(Table([]), 0, MARKS) == []


@pytest.mark.parametrize("beam", [1, 3])
def test_every_sentence_has_its_own_longest_length(beam):
    limits = [1, 6, 3, 2]
    together = beam_search(Table(range(4)), 4, MARKS, beam=beam, max_length=limits)
    alone = [beam_search(Table([seed]), 1, MARKS, beam=beam, max_length=limit)[0] for seed, limit in enumerate(limits)]
    assert [[one.tokens for one in found] for found in together] == [[one.tokens for one in found] for found in alone]
    with pytest.raises(SpecError, match="one for each of 4 sentences; got 3"):
        beam_search(Table(range(4)), 4, MARKS, max_length=[1, 2, 3])


@pytest.mark.parametrize(
    ("search", "text"),
    [
        ({"beam": 0}, "beam must be at least 1; got 0"),
        ({"beam": 10**6}, "beam must be at most 1,000; got 1,000,000"),
        ({"max_length": 0}, "max_length must be at least 1; got 0"),
        ({"max_length": [0]}, r"max_length must be at least 1; got \[0\]"),
        ({"alpha": -0.5}, "alpha must be a number of at least 0; got -0.5"),
        ({"alpha": math.inf}, "alpha must be a number of at least 0; got inf"),
    ],
)
def test_what_cannot_be_searched_with(search, text):
    with pytest.raises(SpecError, match=text):
        beam_search(Table([0]), 1, MARKS, **search)


LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).log_softmax(-1)


def frequencies(**arguments):
    choose = Chooser(generator=torch.Generator().manual_seed(0), **arguments)
    return choose(LOGITS.expand(20_000, -1)).bincount(minlength=4) / 20_000


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_chosen_by_their_probability(temperature):
    expected = (LOGITS[0] / temperature).softmax(-1)
    torch.testing.assert_close(frequencies(temperature=temperature), expected, atol=0.015, rtol=0)


def test_top_k_and_top_p():
    probabilities = LOGITS[0].exp()  # 0.64, 0.24, 0.09, 0.03
    for arguments, kept in (({"top_k": 2}, 2), ({"top_k": 9}, 4), ({"top_p": 0.8}, 2), ({"top_p": 0.01}, 1)):
        expected = torch.where(torch.arange(4) < kept, probabilities, 0.0)
        torch.testing.assert_close(frequencies(**arguments), expected / expected.sum(), atol=0.015, rtol=0)
    assert frequencies(temperature=0.0).tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"temperature": -1.0}, "temperature must be a number of at least 0"),
        ({"temperature": math.inf}, "temperature must be a number of at least 0"),
        ({"temperature": 1e-320}, "temperature must be 0 or at least 1e-06"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\]"),
        ({"top_p": 1.5}, r"top_p must lie in \(0, 1\]"),
    ],
)
def test_what_cannot_be_chosen_by(arguments, text):
    with pytest.raises(SpecError, match=text):
        Chooser(**arguments)


def test_sampling_follows_the_tokens_chosen():
    seeds = range(4)
    written = sample(Table(seeds), torch.full((4,), BEGIN), length=5, choose=Chooser(temperature=0.0), end=END)
    for seed, row in zip(seeds, written.tolist(), strict=True):
        tokens, _ = greedy(seed, 5)
        assert row == [*tokens, *[END] * (written.shape[1] - len(tokens))]
    assert math.prod(sample(Table([1]), torch.zeros(1, dtype=torch.long), length=0, choose=Chooser()).shape) == 0
