"""Choosing among a grammar's trees finds what the grammar cannot see, from lists that are honest."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from tests.models.parsers.grammars.test_latent import filled

from attnlab.core.errors import SpecError
from attnlab.models.parsers.brackets import Brackets
from attnlab.models.parsers.grammars.latent import LatentPcfg
from attnlab.models.parsers.grammars.reranked import RerankedPcfg
from attnlab.models.parsers.grammars.tree_features import SEEN, TreeFeatures
from attnlab.training.recipe.optim import Em

BRACKETS = Brackets(close=3, labels=4, tags=4)
CLOSE, S, NP, VP, PP, DT, NN, VB, IN = range(3, 12)
THE, SEES, OF, WITH, *NOUNS = range(3, 20)


def made(count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Sentences and trees: a phrase with one preposition belongs to the noun, with the other to the verb."""
    chance = random.Random(seed)
    noun = [NP, DT, NN, CLOSE]
    found = []
    for _ in range(count):
        first = chance.choice([OF, WITH])
        phrase = [PP, IN, *noun, CLOSE]
        below = [NP, *noun, *phrase, CLOSE] if first == OF else [*noun, *phrase]
        words = [chance.choice(NOUNS), SEES, THE, chance.choice(NOUNS), first, THE, chance.choice(NOUNS)]
        found.append((words, [S, NP, NN, CLOSE, VP, VB, *below, CLOSE, CLOSE]))
    return found


def model(**changes) -> RerankedPcfg:
    torch.manual_seed(0)
    sizes = {"splits": 0, "split_every": 40, "n_rules": 30, "n_words": 100, "candidates": 4, "listed_every": 2}
    return RerankedPcfg(
        20,
        word_starts=range(3, 20),
        brackets={"close": 3, "labels": 4, "tags": 4},
        chains=[[NP], [S], [VP], [PP]],
        **{**sizes, "features": 4096, **changes},
    )


def learned(steps: int, **changes) -> RerankedPcfg:
    parser, data = model(**changes).train(), made(8 * steps, seed=1)
    optimizer = Em(power=0.5, times=10).over(parser, 0.05, 0.0)
    for step in range(steps):
        words, trees = (filled(side) for side in zip(*data[8 * step : 8 * step + 8], strict=True))
        optimizer.zero_grad()
        parser(words, trees).sum().backward()
        optimizer.step()
    return parser.eval()


def right(trees: list[list[int]], gold: tuple[list[int], ...]) -> float:
    return sum(map(list.__eq__, trees, gold)) / len(gold)


def test_what_a_plain_grammar_cannot_see_is_chosen_on_sentences_that_are_new():
    parser = learned(24)
    words, gold = zip(*made(30, seed=2), strict=True)
    source, allowed = torch.tensor(words), torch.ones(30, 7, BRACKETS.size) > 0
    first = right(parser.grammar.trees(source, allowed), gold)
    assert first < 0.8  # one of the two whenever
    assert right(parser.trees(source, allowed), gold) == 1
    for trees, scores in parser.lists(source, allowed):
        assert 1 < len(trees) == len(scores) <= 4


def test_before_choosing_is_learned_the_tree_is_that_of_the_grammar():
    parser = learned(5, splits=1, listed_every=1)  # two stages of 40 trees come first
    words, _ = zip(*made(9, seed=2), strict=True)
    source, allowed = torch.tensor(words), torch.ones(9, 7, BRACKETS.size) > 0
    assert parser.trees(source, allowed) == parser.grammar.trees(source, allowed)
    assert float(parser.table.weight.sum().detach()) == 1


def test_lists_to_learn_from_come_from_a_grammar_that_did_not_see_their_sentence(monkeypatch):
    parser, makers = model(listed_every=1, split_every=1).train(), []
    listing = LatentPcfg.n_best
    monkeypatch.setattr(LatentPcfg, "n_best", lambda maker, *given: makers.append(maker) or listing(maker, *given))
    learners = []
    for words, tree in made(12, seed=3):
        before = [int(half.seen) for half in parser.halves]
        parser(torch.tensor([words]), torch.tensor([tree]))
        learners += [half for half, seen in zip(parser.halves, before, strict=True) if int(half.seen) > seen]
    assert len(learners) == len(makers) == 12
    assert all(maker in parser.halves for maker in makers)
    assert not any(maker is learner for maker, learner in zip(makers, learners, strict=True))
    assert learners[0] in makers  # both are used
    parser.eval()(torch.tensor([words]), torch.tensor([tree]))
    assert makers[-1] is parser.grammar


def test_trees_are_seen_alike_but_for_what_differs():
    features = TreeFeatures(model().grammar.symbols, 1 << 40)
    spans, tags = BRACKETS.read(made(1, seed=0)[0][1])
    last = [*spans[:-1], spans[-1]._replace(chain=(PP,))]
    rows, trees = features([(spans, tags), (last, tags), (spans, tags)], torch.arange(7))
    assert rows.shape == (3 * (len(spans) + len(tags)), len(SEEN))
    one, changed, same = (rows[trees == number] for number in range(3))
    assert torch.equal(one, same)
    differing = (one != changed).any(dim=1)
    assert differing[-3:].all()  # the constituent and the words in it
    assert not differing[1]  # the first noun phrase of the sentence


@pytest.mark.parametrize("size", ["candidates", "listed_every", "features", "n_rules"])
def test_sizes_below_one_are_refused(size):
    with pytest.raises(SpecError, match=size):
        model(**{size: 0})


def test_counts_are_learned_by_em_and_weights_beside_them():
    parser = model()
    members = Em().over(parser, 0.1, 0.0).members
    (weights,) = [one for group in members["adamw"].param_groups for one in group["params"]]
    assert weights is parser.table.weight
    assert {*members} == {"em", "adamw"}
    with pytest.raises(SpecError, match="'em' learns counts, and Embedding has none"):
        Em().over(torch.nn.Embedding(3, 3), 1.0, 0.0)


def test_training_goes_on_from_what_is_saved_as_if_it_had_not_stopped():
    data = made(80, seed=4)

    def step(parser, optimizer, number):
        words, trees = (filled(side) for side in zip(*data[8 * number : 8 * number + 8], strict=True))
        optimizer.zero_grad()
        parser(words, trees).sum().backward()
        optimizer.step()

    parser, other = (model(split_every=20, listed_every=2).train() for _ in range(2))
    optimizer, later = (Em(power=0.5).over(one, 0.1, 0.0) for one in (parser, other))
    for number in range(10):
        if number == 5:
            assert float(parser.table.weight.abs().sum().detach()) > 1  # choosing has begun
            other.load_state_dict(copy.deepcopy(parser.state_dict()))
            later.load_state_tensors(copy.deepcopy(optimizer.state_tensors()))
        for one, steps in ((parser, optimizer), (other, later))[: 1 + (number >= 5)]:
            step(one, steps, number)
    assert all(torch.equal(one, again) for one, again in zip(parser.parameters(), other.parameters(), strict=True))
