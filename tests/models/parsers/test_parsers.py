"""What every parser keeps to: losses of whole trees, trees over all words, and nothing from the rest of the batch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model

from attnlab.core.build import build
from attnlab.core.errors import SpecError
from attnlab.models import MODELS
from attnlab.models.parsers.brackets import Brackets, TreeSpan
from attnlab.models.parsers.grammars.symbols import Symbols
from attnlab.models.parsers.parser import AbstractParser, WordTable
from attnlab.models.parsers.transitions import DONE, Transitions
from attnlab.training.recipe.optim import AdamW, Em

BRACKETS = Brackets(close=3, labels=3, tags=4)
CLOSE, OTHER, S, NP, UNKNOWN, DT, NN, VB = range(3, 11)
DOG, CAT, THE, SEES, ED = range(3, 8)  # the last belongs to the word before it
OFFERED = {
    "source_vocab_size": 8,
    "target_vocab_size": BRACKETS.size,
    "max_length": 20,
    "pad": 0,
    "word_starts": [DOG, CAT, THE, SEES],
    "brackets": {"close": CLOSE, "labels": 3, "tags": 4},
    "chains": [[NP], [S], [S, NP]],
}
TREES = {
    (THE, DOG, SEES, ED, THE, CAT): [S, NP, DT, NN, CLOSE, VB, NP, DT, NN, CLOSE, CLOSE],
    (CAT, SEES): [S, NP, NN, CLOSE, VB, CLOSE],
    (DOG, ED): [S, NP, NN, CLOSE, CLOSE],
}
"""Tokens of trees by those of their sentences."""
SMALL: dict[str, dict[str, Any]] = {
    "latent-pcfg": {"splits": 1, "split_every": 30, "n_rules": 20, "n_words": 40},
    "reranked-pcfg": {
        "splits": 1,
        "split_every": 1,
        "n_rules": 20,
        "n_words": 40,
        "candidates": 5,
        "listed_every": 1,
        "features": 512,
    },
    "rnng-generative": {"d_model": 12, "n_layers": 1, "dropout": 0.0, "samples": 8},
    "self-attentive-parser": {"d_model": 12, "n_layers": 1, "d_span": 8, "dropout": 0.0},
    "shift-reduce": {"beam": 4, "features": 512},
}
COUNTED = {"latent-pcfg", "reranked-pcfg"}
"""Those whose parameters are counts."""


def make(name: str, seed: int = 0, **changes: Any) -> AbstractParser:
    torch.manual_seed(seed)
    return build({"name": name, **SMALL[name], **changes}, MODELS, axis="model", offered=OFFERED).eval()


def filled(rows) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def example() -> tuple[torch.Tensor, torch.Tensor]:
    return filled(TREES), filled([1, *tokens] for tokens in TREES.values())


def allowed(*, everything: bool = True) -> torch.Tensor:
    found = torch.zeros(len(TREES), 5, BRACKETS.size, dtype=torch.bool)
    for row, tokens in zip(found, TREES.values(), strict=True):
        for place, tag in enumerate(token for token in tokens if token in BRACKETS.words):
            row[place, [UNKNOWN, DT, NN, VB] if everything else [tag]] = True
    return found


@pytest.fixture(params=SMALL)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_parser_has_a_small_one_here():
    known = {name for name, kind in MODELS.items() if isinstance(kind, type) and issubclass(kind, AbstractParser)}
    assert known == set(SMALL)


def test_a_loss_for_every_tree_and_a_gradient_for_every_parameter(name):
    model = make(name).train()
    losses = model(*example())
    assert losses.shape == (len(TREES),)
    assert (losses > 0).all()
    losses.sum().backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


def test_trees_over_all_words_with_tags_that_they_may_have(name):
    model = make(name)
    for tokens, right in zip(model.trees(filled(TREES), allowed(everything=False)), TREES.values(), strict=True):
        spans, tags = BRACKETS.read(tokens)
        assert tags == [token for token in right if token in BRACKETS.words]
        assert (spans[0].start, spans[0].end) == (0, len(tags))
        assert BRACKETS.write(spans, tags) == tokens


def test_sentences_do_not_see_each_other(name):
    model, (source, target) = make(name), example()
    alone = [model(one[:, one[0] != 0], two[:, two[0] != 0]) for one, two in zip(source.split(1), target.split(1))]
    assert torch.allclose(torch.cat(alone), model(source, target), rtol=1e-4)
    one_by_one = [
        model.trees(one[:, one[0] != 0], may[:, may[0].any(dim=-1)])[0]
        for one, may in zip(source.split(1), allowed().split(1))
    ]
    assert one_by_one == model.trees(source, allowed())


def test_three_trees_are_learned(name):
    model = make(name).train()
    optimizer = Em() if name in COUNTED else AdamW()
    steps = optimizer.over(model, 1.0 if name in COUNTED else 0.02, 0.0)
    for _ in range(40):
        steps.zero_grad()
        model(*example()).mean().backward()
        steps.step()
    assert model.eval().trees(filled(TREES), allowed()) == [*TREES.values()]


def test_brackets_that_were_never_seen_together_cost_something_and_break_nothing(name):
    strange = filled([[NP, S, DT, CLOSE, NN, CLOSE], [CLOSE, S]])
    losses = make(name)(filled([[THE, DOG], [DOG]]), strange)
    assert torch.isfinite(losses).all()


def test_save_and_load(name, tmp_path):
    model, other = make(name), make(name, seed=1)
    save_model(model, str(tmp_path / "model.safetensors"))
    load_model(other, str(tmp_path / "model.safetensors"))
    assert torch.equal(model(*example()), other(*example()))


def test_words_are_sums_of_their_pieces():
    table = WordTable(8, 4, word_starts=OFFERED["word_starts"], pad=0)
    source = filled([(THE, DOG, ED, ED), (ED, CAT)])
    assert table.places(source).tolist() == [[0, 1, 1, 1], [0, 1, -1, -1]]
    words, weight = table(source, 2), table.pieces.weight
    assert torch.allclose(words[0], torch.stack((weight[THE], weight[DOG] + 2 * weight[ED])))
    assert torch.allclose(table(source, 1)[1, 0], weight[ED] + weight[CAT])  # of more words than there should be


def test_likelihoods_of_all_trees_over_two_words_sum_to_one():
    model = make("self-attentive-parser", objective="likelihood")
    chains = [*map(tuple, OFFERED["chains"])]
    every = [
        BRACKETS.write([TreeSpan(0, 2, top), TreeSpan(0, 1, left), TreeSpan(1, 2, right)], tags)
        for top, left, right in itertools.product(chains, [(), *chains], [(), *chains])
        for tags in itertools.product(BRACKETS.words, repeat=2)
    ]
    losses = model(torch.tensor([[THE, DOG]]).expand(len(every), -1), filled(every))
    assert float((-losses.detach()).exp().sum()) == pytest.approx(1, rel=1e-4)


def test_an_unknown_objective_is_refused():
    with pytest.raises(SpecError, match="objective"):
        make("self-attentive-parser", objective="least squares")


def test_actions_of_a_tree_build_it_and_any_possible_ones_build_some_tree():
    transitions = Transitions(Symbols(BRACKETS, tuple(tuple(chain) for chain in OFFERED["chains"])))
    for tokens in TREES.values():
        spans, tags = BRACKETS.read(tokens)
        assert transitions.spans(transitions.of_tree(spans, len(tags))) == spans
    draw = torch.Generator().manual_seed(0)
    for words in (1, 2, 5, 9):
        counts, tags = torch.tensor([words]), torch.zeros(1, words, dtype=torch.long)
        states, actions = transitions.begin(1, 1, words, torch.device("cpu")), []
        while not actions or actions[-1] != DONE:
            legal = transitions.legal(states, counts)[0, 0]
            actions.append(int(legal.float().multinomial(1, generator=draw)))
            states = transitions.advance(states, torch.tensor([[actions[-1]]]), tags)
        spans = transitions.spans(actions)
        assert BRACKETS.read(BRACKETS.write(spans, [DT] * words)) == (spans, [DT] * words)
        assert spans[0][:2] == (0, words)
        assert len(actions) <= 3 * words


def test_a_beam_that_keeps_all_finds_the_best_of_all_trees():
    model = make("shift-reduce", beam=100)
    source, may = filled([[CAT, SEES]]), allowed(everything=False)[1:2, :2]
    _, words = model._words(source, torch.tensor([2]), may[..., BRACKETS.words.start :])
    transitions, found = model.transitions, {}

    def go_on(states, actions, total):
        """All trees that begin so, each with the score of its actions and of waiting until the longest is done."""
        if len(actions) == 6:
            found[tuple(actions)] = total
            return
        scores = model._scores(states, words)[0, 0]
        for action in transitions.legal(states, words.counts)[0, 0].nonzero()[:, 0].tolist():
            after = transitions.advance(states, torch.tensor([[action]]), words.tags)
            go_on(after, [*actions, action], total + float(scores[action]))

    with torch.no_grad():
        go_on(transitions.begin(1, 1, 2, source.device), [], 0.0)
    assert len(found) == 4 * 4 * 3  # each word a tag or one of three chains, joined as one of three
    best = transitions.spans(max(found, key=found.__getitem__))
    assert model.trees(source, may) == [BRACKETS.write(best, [NN, VB])]


def test_the_loss_of_beginnings_is_the_same_where_it_is_differentiated():
    model = make("shift-reduce")
    with torch.no_grad():
        seen = model(*example())
    assert torch.allclose(seen, model(*example()), atol=1e-5)
