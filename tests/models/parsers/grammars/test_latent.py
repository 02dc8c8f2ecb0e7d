"""A grammar's counts become those of the treebank, and its charts say what all trees of a sentence say."""

from __future__ import annotations

import pytest
import torch

from attnlab.core.errors import SpecError
from attnlab.models.parsers.brackets import Brackets
from attnlab.models.parsers.grammars import latent
from attnlab.models.parsers.grammars.counts import FREE, Registry
from attnlab.models.parsers.grammars.latent import LatentPcfg
from attnlab.models.parsers.grammars.posteriors import posteriors, posteriors_of_kinds
from attnlab.training.recipe.em import StepwiseEm
from attnlab.training.recipe.optim import Em

BRACKETS = Brackets(close=3, labels=3, tags=3)
CLOSE, S, NP, PP, DT, NN, IN = range(3, 10)
DOG, CAT, THE, OF = range(3, 7)
SENTENCES = [[THE, DOG], [THE, CAT, OF, THE, DOG], [DOG, OF, CAT, OF, DOG], [DOG]]
TREES = [
    [S, NP, DT, NN, CLOSE, CLOSE],
    [S, NP, NP, DT, NN, CLOSE, PP, IN, NP, DT, NN, CLOSE, CLOSE, CLOSE, CLOSE],
    [S, NP, NN, CLOSE, PP, IN, NP, NP, NN, CLOSE, PP, IN, NP, NN, CLOSE, CLOSE, CLOSE, CLOSE, CLOSE],
    [S, NP, NN, CLOSE, CLOSE],
]


def filled(rows) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def grammar(**changes) -> LatentPcfg:
    torch.manual_seed(0)
    return LatentPcfg(
        7,
        word_starts=range(3, 7),
        brackets={"close": CLOSE, "labels": 3, "tags": 3},
        chains=[[NP], [S], [PP], [S, NP]],
        **{"splits": 0, "split_every": 8, "n_rules": 30, "n_words": 40, **changes},
    )


def learned(model: LatentPcfg, steps: int) -> LatentPcfg:
    optimizer = Em(power=0.0).over(model.train(), 0.5, 0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        model(filled(SENTENCES), filled(TREES)).sum().backward()
        optimizer.step()
    return model.eval()


def test_a_plain_grammar_counts_how_often_rules_are_used():
    model = learned(grammar(), steps=30)
    found = model._grammar(model._counts())
    shares = found.binary(found.used).flatten().tolist()
    binary = dict(zip(zip(found.parents.tolist(), found.lefts.tolist(), found.rights.tolist()), shares))
    dt, nn, in_, np, _, pp, s_np = range(7)
    assert binary[np, dt, nn] == pytest.approx(2 / 6, rel=1e-4)  # of six noun phrases under others
    assert binary[np, np, pp] == pytest.approx(1 / 6, rel=1e-4)
    assert binary[pp, in_, np] == pytest.approx(1, rel=1e-4)
    assert float(found.root[s_np].detach()) == pytest.approx(3 / 4, rel=1e-4)
    assert float(found.unary(torch.tensor([model.symbols.unary(np, nn)])).detach()) == pytest.approx(3 / 6, rel=1e-4)


def test_a_word_that_is_met_first_teaches_what_new_words_look_like():
    model = grammar().train()
    first = model(filled(SENTENCES[:1]), filled(TREES[:1]))
    again = model(filled(SENTENCES[:1]), filled(TREES[:1]))
    assert model.lexicon.registry.find(torch.tensor([FREE - 1])) == model.lexicon.registry.unknown
    assert model.lexicon.registry.used == 4  # two words and their endings
    assert model.lexicon.seen[:4].sort().values.tolist() == [1, 1, 2, 2]  # words twice, endings when they were new
    assert torch.isfinite(first).all()
    assert torch.isfinite(again).all()


@pytest.mark.parametrize("sentence", SENTENCES[:3])
def test_posteriors_by_levels_are_those_by_spans(sentence):
    model = learned(grammar(), steps=3)
    with torch.no_grad():
        one = model._grammar(model._counts())
        keys = model.places.keys(torch.tensor([sentence]), len(sentence))
        leaves = model._leaves(one, type(keys)(*(one[0] for one in keys)), torch.ones(len(sentence), 3) > 0)
    found = posteriors(one, model.symbols, leaves[..., 0])
    other = posteriors_of_kinds(one, model.symbols, leaves, torch.ones_like(found) > 0)
    assert torch.allclose(found, other, atol=1e-9)
    assert float(found[0, len(sentence), 3:7].sum()) == pytest.approx(1)  # one of the constituents
    words = torch.arange(len(sentence))
    assert torch.allclose(found[words, words + 1, :3].sum(dim=1), torch.ones(len(sentence), dtype=torch.float64))


def test_kinds_part_after_a_split_and_raise_the_likelihood():
    plain = learned(grammar(), steps=60)
    split = learned(grammar(splits=2, split_every=40), steps=60)
    kinds = split._counts()[0].kinds.shape[1]
    assert kinds == 4
    counts = split.binary[: int((split.rules.keys != FREE).sum())]
    assert float((counts.detach().amax(dim=(1, 2, 3)) / counts.detach().mean(dim=(1, 2, 3))).max()) > 2
    losses = [one(filled(SENTENCES), filled(TREES)).sum() for one in (split, plain)]
    assert losses[0] < losses[1] - 0.5


def test_kinds_in_steps_find_the_posteriors_of_all_kinds_where_no_label_is_passed_over(monkeypatch):
    model = learned(grammar(splits=3, split_every=20), steps=30)
    grammars = model.grammars()
    assert [one.root.shape[1] for one in grammars] == [1, 4, 8]
    sentence = filled(SENTENCES[1:2])
    allowed = torch.ones(1, len(SENTENCES[1]), BRACKETS.size) > 0
    keys, may = next(model.sentences(sentence, allowed))
    leaves = model._leaves_of(grammars, keys, may)
    monkeypatch.setattr(latent, "KEPT", (-1.0, -1.0))
    whole = torch.ones(len(may) + 1, len(may) + 1, model.symbols.count) > 0
    expected = posteriors_of_kinds(grammars[-1], model.symbols, leaves[-1], whole)
    assert torch.allclose(model._shares(grammars, leaves), expected, atol=1e-9)


def test_a_registry_that_is_full_leaves_the_rest_unknown():
    registry = Registry(2)
    registry.add(torch.tensor([5, 9, 5]))
    registry.add(torch.tensor([7, 9]))
    assert registry.find(torch.tensor([9, 7, 5])).tolist() == [1, registry.unknown, 0]


def test_expected_counts_are_gradients():
    counts = torch.nn.Parameter(torch.tensor([1.0, 3.0]))
    optimizer = StepwiseEm([counts], lr=1.0, power=1.0)
    for expected in ([4.0, 0.0], [0.0, 4.0], [2.0, 2.0]):
        share = counts / counts.detach().sum()
        optimizer.zero_grad()
        (-(torch.tensor(expected) * share.log()).sum()).backward()
        optimizer.step()
    assert counts.tolist() == pytest.approx([2.0, 2.0])  # the mean of the three


def test_what_the_optimizer_cannot_learn_is_refused():
    with pytest.raises(SpecError, match="'power' must lie in"):
        Em(power=2)
    with pytest.raises(SpecError, match="negative weights"):
        Em().over(torch.nn.Linear(3, 3), 1.0, 0.0)
    with pytest.raises(SpecError, match="'times' must be a number above 0"):
        Em(times=0)
    with pytest.raises(SpecError, match="splits"):
        grammar(splits=-1)
    with pytest.raises(SpecError, match="n_rules"):
        grammar(n_rules=0)
