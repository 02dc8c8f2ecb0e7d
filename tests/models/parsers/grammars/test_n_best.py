"""The best trees of a forest are those that enumeration finds, and they have the grammar's posteriors."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from tests.models.parsers.grammars.test_latent import SENTENCES, grammar, learned

from attnlab.models.parsers.grammars.n_best import n_best
from attnlab.models.parsers.grammars.posteriors import posteriors


def every(ways, node):
    """All trees below a node, each by its score and its nodes."""
    for score, children in ways[node]:
        for below in itertools.product(*(list(every(ways, child)) for child in children)):
            yield score + sum(part[0] for part in below), [node, *itertools.chain(*(part[1] for part in below))]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_trees_are_those_of_all_that_score_highest(seed):
    chance = random.Random(seed)
    ways = [[(chance.random(), ())] for _ in range(4)]
    for node in range(4, 11):
        below = {tuple(sorted(chance.sample(range(node), chance.choice([1, 2])))) for _ in range(3)}
        ways.append([(chance.random(), children) for children in sorted(below)])
    ways[5] = []  # a node that nothing makes
    right = sorted(every(ways, 10), reverse=True)
    for count in (1, 3, len(right) + 5):
        found = n_best(ways, 10, count)
        assert [score for score, _ in found] == pytest.approx([score for score, _ in right[:count]])
        assert all(any(nodes == other for _, other in right) for _, nodes in found)


@pytest.mark.parametrize("splits", [0, 1])
@pytest.mark.parametrize("sentence", SENTENCES[1:3])
def test_likelihoods_of_listed_trees_are_the_posteriors_of_their_constituents(splits, sentence):
    model = learned(grammar(splits=splits), steps=4)
    with torch.no_grad():
        (words,) = model.sentences(torch.tensor([sentence]), torch.ones(1, len(sentence), 10) > 0)
        trees, scores = model.n_best(model.grammars(), *words, 500)
        likely = (-model.losses(torch.tensor([sentence]).expand(len(trees), -1), trees, new=0)).double().softmax(0)
        right = model._shares(model.grammars(), model._leaves_of(model.grammars(), *words))
    written = [tuple(model.symbols.brackets.write(*tree)) for tree in trees]
    assert len(set(written)) == len(written) > 1
    assert scores[:, 0].tolist() == sorted(scores[:, 0].tolist(), reverse=True)
    found = torch.zeros_like(right)
    for share, (spans, _) in zip(likely, trees, strict=True):
        for start, end, chain in spans:
            found[start, end, model.symbols.of(chain)] += share
    of_constituents = slice(model.symbols.constituents.start, model.symbols.constituents.stop)
    assert torch.allclose(found[..., of_constituents], right[..., of_constituents], atol=1e-2)


def test_a_sentence_without_a_tree_gets_its_words_side_by_side():
    model = grammar().eval()
    (words,) = model.sentences(torch.tensor([SENTENCES[1]]), torch.ones(1, 5, 10) > 0)
    with torch.no_grad():
        assert not bool(posteriors(model.grammars()[0], model.symbols, torch.ones(5, 3).double()).isfinite().all())
        ((spans, tags),), _ = model.n_best(model.grammars(), *words, 5)
    assert [span[:2] for span in spans] == [(0, 5)]
    assert len(tags) == 5
