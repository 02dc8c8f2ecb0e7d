"""Recurrent translators: formulas by hand, and sizes that cannot be."""

from __future__ import annotations

import pytest
import torch

from attnlab.core.errors import SpecError
from attnlab.models import AdditiveRnn, MultiplicativeRnn

VOCAB = 19


def tokens(length, seed, rows=3):
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_additive_attention_by_hand():
    """Three steps, from the formulas of the source: each aligns by the state before it."""
    torch.manual_seed(0)
    model = AdditiveRnn(VOCAB, VOCAB, d_model=6, hidden=5, dropout=0.0).double()
    source, target = tokens(4, 1, rows=1), tokens(3, 2, rows=1)
    states, last = model.encoder(model.source_embedding(source))
    state = torch.tanh(model.start.weight @ last[1, 0] + model.start.bias)
    expected = []
    for y in model.target_embedding(target)[0]:
        asked = model.query.weight @ state
        hidden = [torch.tanh(asked + model.key.weight @ one + model.key.bias) for one in states[0]]
        energies = torch.stack([model.alignment.weight[0] @ one for one in hidden])
        context = (energies.softmax(0)[:, None] * states[0]).sum(0)
        state = model.decoder(torch.cat((y, context))[None], state[None])[0]
        expected.append(model.logits(torch.tanh(model.readout(torch.cat((state, context, y))))))
    torch.testing.assert_close(model(source, target)[0], torch.stack(expected))


@pytest.mark.parametrize("score", ["general", "dot"])
def test_multiplicative_attention_by_hand(score):
    torch.manual_seed(0)
    model = MultiplicativeRnn(VOCAB, VOCAB, d_model=6, score=score, dropout=0.0).double()
    source, target = tokens(4, 1, rows=1), tokens(3, 2, rows=1)
    states, last = model.encoder(model.source_embedding(source))
    found, _ = model.decoder(model.target_embedding(target), last)
    between = model.key.weight if score == "general" else torch.eye(6).double()
    expected = []
    for h in found[0]:
        energies = torch.stack([h @ between @ one for one in states[0]])
        context = (energies.softmax(0)[:, None] * states[0]).sum(0)
        expected.append(model.logits(torch.tanh(model.readout.weight @ torch.cat((context, h)))))
    torch.testing.assert_close(model(source, target)[0], torch.stack(expected))


@pytest.mark.parametrize("kind", [AdditiveRnn, MultiplicativeRnn])
def test_bad_sizes(kind):
    with pytest.raises(SpecError, match="sizes must be positive integers; got d_model=0"):
        kind(10, 10, d_model=0)
    with pytest.raises(SpecError, match="dropout must be a probability"):
        kind(10, 10, dropout=1.0)
