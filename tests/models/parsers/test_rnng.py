"""Recurrent neural network grammars: stacks by hand, writing from what is kept, and likelihoods that add up."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from attnlab.core.errors import SpecError
from attnlab.models.decoding.generation import EndMarks, beam_search
from attnlab.models.decoding.writers import writer_for
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
