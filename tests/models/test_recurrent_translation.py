"""Recurrent translators: formulas by hand, and sizes that cannot be."""

from __future__ import annotations

import pytest
import torch

from attnlab.errors import SpecError
from attnlab.models import AdditiveRnn, MultiplicativeRnn

VOCAB = 19


def tokens(length, seed, rows=3):
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_additive_attention_by_hand():
    """The first step, from the formulas of the source."""
    torch.manual_seed(0)
    model = AdditiveRnn(VOCAB, VOCAB, d_model=6, hidden=5, dropout=0.0).double()
    source, target = tokens(4, 1, rows=1), tokens(1, 2, rows=1)
    states, last = model.encoder(model.source_embedding(source))
    state = torch.tanh(model.start.weight @ last[1, 0] + model.start.bias)
    energies = torch.stack(
        [
            model.alignment.weight[0] @ torch.tanh(model.query.weight @ state + model.key.weight @ one + model.key.bias)
            for one in states[0]
        ]
    )
    context = (energies.softmax(0)[:, None] * states[0]).sum(0)
    y = model.target_embedding(target)[0, 0]
    state = model.decoder(torch.cat((y, context))[None], state[None])[0]
    readout = torch.tanh(model.readout(torch.cat((state, context, y))))
    torch.testing.assert_close(model(source, target)[0, 0], model.logits(readout))


@pytest.mark.parametrize("kind", [AdditiveRnn, MultiplicativeRnn])
def test_bad_sizes(kind):
    with pytest.raises(SpecError, match="sizes must be positive integers; got d_model=0"):
        kind(10, 10, d_model=0)
    with pytest.raises(SpecError, match="dropout must be a probability"):
        kind(10, 10, dropout=1.0)
