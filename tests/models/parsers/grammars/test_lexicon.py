"""Words take the tags that they were seen with, those of words that end like them, and any other in this order."""

from __future__ import annotations

import pytest
import torch

from attnlab.models.parsers.grammars.counts import Counts, smoothed
from attnlab.models.parsers.grammars.lexicon import Lexicon, WordShares
from attnlab.models.parsers.parser import BITS

NOUN, VERB, DET = range(3)
ENDS_S, ENDS_ED, ENDS_OTHER = range(BITS + 1, BITS + 4)
PAIRS = [  # word, ending, tag
    *[(word, ENDS_S, NOUN) for word in range(2, 8)],
    *[(word, ENDS_ED, VERB) for word in range(10, 16)],
    *[(20, ENDS_OTHER, DET)] * 300,
    *[(2, ENDS_S, NOUN)] * 300,
]


def counted() -> Lexicon:
    lexicon = Lexicon(50, tags=3, kinds=2)
    words, endings, tags = torch.tensor(PAIRS).T
    lexicon.count(lexicon.keys(words, tags), lexicon.keys(endings, tags))
    return lexicon


def shares(lexicon: Lexicon, word: int, ending: int) -> torch.Tensor:
    """The probability of a word under each tag, all together 1."""
    of = WordShares(lexicon, lexicon.counts(2).merged(1))
    found = of(torch.full((3,), word), torch.full((3,), ending), torch.arange(3))[:, 0].detach() * of.totals[:, 0]
    return found / found.sum()


def test_words_are_counted_each_time_and_endings_with_each_new_word():
    lexicon = counted()
    words, endings, tags = torch.tensor([(2, ENDS_S, NOUN), (20, ENDS_OTHER, DET)]).T
    for keys, expected in ((words, [301, 300]), (endings, [6, 1])):
        assert lexicon.seen[lexicon.registry.find(lexicon.keys(keys, tags))].tolist() == expected


def test_a_word_that_is_new_has_the_tags_of_its_ending():
    lexicon = counted()
    assert shares(lexicon, 99, ENDS_S).argmax() == NOUN
    assert shares(lexicon, 99, ENDS_ED).argmax() == VERB
    unknown = shares(lexicon, 99, BITS + 9)
    assert unknown[NOUN] == pytest.approx(6 / 13, abs=1e-5)  # of the words of all endings
    assert unknown[DET] == pytest.approx(1 / 13, abs=1e-5)


def test_a_rare_word_may_have_a_tag_that_it_was_never_seen_with_and_a_frequent_one_hardly():
    rare, frequent = (shares(counted(), word, ENDS_ED) for word in (3, 2))  # nouns that end like verbs
    assert rare.argmax() == frequent.argmax() == NOUN
    assert float(rare[VERB]) > 0.3
    assert float(frequent[VERB]) < 0.01


def test_probabilities_of_all_words_under_a_tag_sum_to_one():
    lexicon = counted()
    torch.nn.init.uniform_(lexicon.kinds)
    of = WordShares(lexicon, lexicon.counts(2))
    words, endings, _ = torch.tensor(sorted(set(PAIRS))).T
    for tag in range(3):
        sums = of(words, endings, torch.full_like(words, tag)).sum(dim=0)
        assert sums.tolist() == pytest.approx([1, 1])


def test_smoothing_draws_kinds_together_and_keeps_sums():
    torch.manual_seed(0)
    counts = torch.rand(5, 3, 3, 3)
    found = counts / counts.sum(dim=(0, 2, 3), keepdim=True)
    drawn = smoothed(found, 0.25)
    assert torch.allclose(drawn.sum(dim=(0, 2, 3)), torch.ones(3))
    assert torch.allclose(drawn.var(dim=1), 0.75**2 * found.var(dim=1), rtol=1e-4)


def test_what_was_seen_divides_among_kinds_as_they_are_expected():
    counts = Counts(torch.tensor([6.0, 2.0]).double(), torch.tensor([[1.0, 2.0], [5.0, 5.0]]), torch.tensor([0, 1]))
    assert counts.at(torch.tensor([1, 0, 2])).tolist() == [[1, 1], [2, 4], [0, 0]]
    assert counts.of_parents().tolist() == [[2, 4], [1, 1]]


def test_merged_kinds_are_as_frequent_as_those_that_stand_beside_each_other():
    torch.manual_seed(0)
    counts = Counts(torch.tensor([6.0, 2.0]).double(), torch.rand(2, 4, 4), torch.tensor([0, 1]))
    fewer, rules = counts.merged(2), torch.tensor([0, 1])
    assert torch.allclose(fewer.at(rules)[:, 0, 1], counts.at(rules)[:, :2, 2:].sum(dim=(1, 2)))
    assert torch.allclose(fewer.of_parents()[:, 0], counts.of_parents()[:, :2].sum(dim=1))
