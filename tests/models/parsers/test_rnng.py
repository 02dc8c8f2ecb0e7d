"""Recurrent neural network grammars: stacks by hand, writing from what is kept, and likelihoods that add up."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from attnlab.core.errors import SpecError
from attnlab.models.decoding.generation import EndMarks, beam_search
from attnlab.models.decoding.writers import writer_for
from attnlab.models.parsers.generative import GenerativeRnng
from attnlab.models.parsers.rnng import Rnng

BRACKETS = {"close": 3, "labels": 3, "tags": 4}
CLOSE, OTHER, S, NP, UNKNOWN, DT, NN, VB, SIZE = range(3, 12)
SENTENCES = [[3, 4, 5, 6, 3], [4, 7, 5]]
"""Of pieces; 7 belongs to the word before it, so that the second has two words."""
TREES = [[1, S, NP, DT, NN, CLOSE, VB, NP, DT, NN, CLOSE, CLOSE], [1, S, NP, NN, CLOSE, VB, CLOSE]]


def make(**changes):
    torch.manual_seed(0)
    given = {"word_starts": range(3, 7), "brackets": BRACKETS, "d_model": 6, "dropout": 0.0}
    return Rnng(8, SIZE, **given | changes).double().eval()


def filled(rows):
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def last(network, vectors):
    return network(torch.stack(vectors)[None])[0][0, -1]


def by_hand(model, words, actions):
    """The logits behind the last of some actions, with a list for a stack."""
    reader, stack, todo = model.reader, [], [*words]
    for token in actions:
        if token == CLOSE:
            start = max(place for place, (_, is_open) in enumerate(stack) if is_open)
            label, *children = [vector for vector, _ in stack[start:]]
            ends = last(reader.forwards, [label, *children]), last(reader.backwards, [label, *children[::-1]])
            stack[start:] = [(reader.composed(torch.cat(ends)).tanh(), False)]
        elif token >= UNKNOWN:
            stack.append((reader.symbols.weight[token] + todo.pop(0), False))
        else:
            stack.append((reader.symbols.weight[token], token > CLOSE))
    states, x = [None] * len(reader.stack), None
    for vector, _ in stack:
        x = vector[None]
        for layer, cell in enumerate(reader.stack):
            states[layer] = cell(x, states[layer])
            x = states[layer][0]
    history = last(reader.history, [reader.actions.weight[token] for token in actions])
    ahead = last(model.buffer, [model.no_word, *todo[::-1]])
    return model.logits(model.readout(torch.cat((x[0], history, ahead))).tanh())


@pytest.mark.parametrize("n_layers", [1, 2])
def test_stack_composition_and_words_to_come_by_hand(n_layers):
    model = make(n_layers=n_layers)
    found = model(filled(SENTENCES), filled(TREES))
    for row, (pieces, tree) in enumerate(zip(SENTENCES, TREES, strict=True)):
        words = model.words(torch.tensor([pieces]), 5 - 3 * row)[0]
        for length in range(1, len(tree) + 1):
            torch.testing.assert_close(found[row, length - 1], by_hand(model, words, tree[:length]))


def test_it_writes_the_same_with_and_without_what_is_kept():
    model, marks = make(), EndMarks(1, 2)
    kept, anew = (
        beam_search(writer_for(model, filled(SENTENCES), cached=cached), 2, marks, beam=3, max_length=9)
        for cached in (True, False)
    )
    for one, other in zip(kept, anew, strict=True):
        assert [each.tokens for each in one] == [each.tokens for each in other]
        assert [each.score for each in one] == pytest.approx([each.score for each in other])


def test_actions_that_cannot_be_leave_the_rest_alone():
    strange = filled([[CLOSE, CLOSE, NP, CLOSE, DT, DT, DT, DT, S], [0, 2, DT, CLOSE, CLOSE, 0, 0, 0, 0]])
    assert torch.isfinite(make()(filled(SENTENCES), strange)).all()


def test_a_size_that_cannot_be():
    with pytest.raises(SpecError, match="sizes must be positive integers; got n_layers=0"):
        make(n_layers=0)


def generative(**changes):
    torch.manual_seed(0)
    given = {"word_starts": range(3, 7), "brackets": BRACKETS, "d_model": 6, "n_layers": 1, "dropout": 0.0}
    return GenerativeRnng(8, **given | changes).eval()


@torch.no_grad()
def test_joint_probabilities_by_hand():
    """A word of two pieces: its tag, its pieces one by the other, and that it ends behind the second only."""
    model, tree = generative(), [1, S, NN, CLOSE]
    pieces = torch.tensor([[4, 7]])
    word = model.words(pieces, 1)[0, 0]
    reader = model.reader
    under, history = [], []
    for length in range(1, 4):
        vectors = [reader.symbols.weight[token] + word * (token == NN) for token in tree[:length]]
        state = None
        for vector in vectors:
            state = reader.stack[0](vector[None], state)
        under.append(state[0][0])
        history.append(last(reader.history, [reader.actions.weight[token] for token in tree[:length]]))
    states = [model.readout(torch.cat(pair)).tanh() for pair in zip(under, history, strict=True)]
    expected = sum(model.actions(one).log_softmax(-1)[tree[place]] for place, one in enumerate(states, 1))
    by_class = states[1] + model.classes.weight[NN]
    for before, piece in ((0, 4), (4, 7)):
        expected += model.pieces((by_class + model.before.weight[before]).tanh()).log_softmax(-1)[piece]
    ends = [model.ends((by_class + model.before.weight[piece]).tanh())[0].sigmoid() for piece in (4, 7)]
    expected += (1 - ends[0]).log() + ends[1].log()
    torch.testing.assert_close(model.joint(pieces, torch.tensor([tree]))[0], expected)


@torch.no_grad()
def test_trees_are_drawn_as_often_as_they_are_likely_and_weigh_what_all_come_to():
    """All trees over one word, up to eight brackets of two labels, against those that were drawn."""
    model = generative(samples=300)
    source = torch.tensor([[4]])
    allowed = torch.zeros(1, 1, SIZE, dtype=torch.bool)
    allowed[0, 0, [NN, VB]] = True
    chains = [chain for length in range(1, 9) for chain in itertools.product((S, NP), repeat=length)]
    every = [[1, *chain, tag, *[CLOSE] * len(chain)] for chain in chains for tag in (NN, VB)]
    joint = model.joint(source.expand(len(every), -1), pad_sequence([torch.tensor(one) for one in every], True))
    drawn = model.propose(source, allowed)
    likely = {tuple(tree): chance for tree, chance in zip(drawn.tokens[0].tolist(), drawn.proposal[0].exp().tolist())}
    counts = Counter(map(tuple, drawn.tokens[0].tolist()))
    usual, count = counts.most_common(1)[0]
    assert count / 300 == pytest.approx(likely[usual], abs=0.08)
    assert 0.8 < sum(likely.values()) < 1.0001  # of nearly all trees
    estimate = model.log_likelihoods(source, allowed)
    assert float(estimate) == pytest.approx(float(joint.logsumexp(0)), abs=0.2)
    assert model.trees(source, allowed)[0] == every[int(joint.argmax())][1:]


def test_no_samples_are_refused():
    with pytest.raises(SpecError, match="sizes must be positive integers; got samples=0"):
        generative(samples=0)
