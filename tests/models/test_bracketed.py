"""Whatever a model says, what comes out is a tree over the words that were given."""

from __future__ import annotations

import pytest
import torch

from attnlab.core.errors import SpecError
from attnlab.models.decoding.bracketed import BracketedWriter
from attnlab.models.decoding.generation import EndMarks, beam_search
from attnlab.models.parsers.possible import LONGEST_CHAIN
from attnlab.text.trees.linear import CLOSE, TreeVocabulary

VOCABULARY = TreeVocabulary(("?", "S", "NP"), ("?", "A", "B"))
MARKS = EndMarks(begin=1, end=2)


class Stubborn:
    """Say at random, or always the same."""

    def __init__(self, seed: int, spare: int = 0, prefers: int | None = None) -> None:
        self.generator, self.spare, self.prefers = torch.Generator().manual_seed(seed), spare, prefers

    def advance(self, tokens):
        logits = 5 * torch.randn(len(tokens), VOCABULARY.size + self.spare, generator=self.generator)
        if self.prefers is not None:
            logits[:, self.prefers] += 100
        return logits

    def select(self, rows):
        pass


def written(writer, words, limits, beam, allowed=None):
    if allowed is None:
        allowed = torch.zeros(len(words), max(words), VOCABULARY.size, dtype=torch.bool)
        allowed[..., VOCABULARY.words[1] :] = True
    opening = torch.zeros(VOCABULARY.size, dtype=torch.bool)
    opening[VOCABULARY.opening[1] : VOCABULARY.opening[-1] + 1] = True
    held = BracketedWriter(
        writer, allowed=allowed, words=words, opening=opening, close=CLOSE, marks=MARKS, limits=limits
    )
    return [found[0] for found in beam_search(held, len(words), MARKS, beam=beam, alpha=0.0, max_length=limits)]


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_random_logits_write_trees(seed, beam):
    words = [1, 2, 7, 12]
    limits = [count * 3 + 4 for count in words]
    for found, count, limit in zip(written(Stubborn(seed), words, limits, beam), words, limits, strict=True):
        assert found.ended
        assert len(found.tokens) < limit
        tree = VOCABULARY.decode(found.tokens, [str(number) for number in range(count)])
        assert {leaf.label for leaf in tree.leaves()} <= {"A", "B"}


@pytest.mark.parametrize("prefers", [*range(VOCABULARY.size), VOCABULARY.size + 2])
def test_a_model_that_wants_one_token_alone_writes_trees(prefers):
    for limits in ([5, 8], [40, 40]):
        for found, count in zip(written(Stubborn(0, 4, prefers), [2, 4], limits, 2), [2, 4], strict=True):
            tree = VOCABULARY.decode(found.tokens, ["w"] * count)
            assert len(tree.words()) == count


def test_no_more_brackets_open_at_one_word_than_may():
    (found,) = written(Stubborn(0, prefers=VOCABULARY.opening[1]), [1], [100], 1)
    pieces = VOCABULARY.pieces(found.tokens)
    assert pieces[:LONGEST_CHAIN] == ["(S"] * LONGEST_CHAIN
    assert pieces[LONGEST_CHAIN] in ("A", "B")
    assert pieces[LONGEST_CHAIN + 1 :] == [")"] * LONGEST_CHAIN


def test_a_word_gets_no_tag_but_those_it_may_have():
    allowed = torch.zeros(1, 3, VOCABULARY.size, dtype=torch.bool)
    for place, tag in enumerate((1, 2, 1)):
        allowed[0, place, VOCABULARY.words[tag]] = True
    for seed in range(5):
        (found,) = written(Stubborn(seed), [3], [20], 2, allowed)
        assert [leaf.label for leaf in VOCABULARY.decode(found.tokens, list("xyz")).leaves()] == ["A", "B", "A"]


@pytest.mark.parametrize(("words", "limit"), [(0, 10), (3, 5)])
def test_what_has_no_room_for_a_tree_is_refused(words, limit):
    with pytest.raises(SpecError, match=f"a tree over {words} words does not fit into {limit} tokens"):
        written(Stubborn(0), [words], [limit], 1, torch.ones(1, 3, VOCABULARY.size, dtype=torch.bool))
