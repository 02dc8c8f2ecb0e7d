"""Deep stacks of LSTMs: formulas by hand, a layer at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.core.errors import SpecError
from attnlab.models import DeepAtt, Gnmt

VOCAB, D = 19, 6


def tokens(length, seed):
    return torch.randint(3, VOCAB, (1, length), generator=torch.Generator().manual_seed(seed))


def gates(layer, x):
    """What the gates of an LSTM read of its input, at one position."""
    suffix = "_l0" if isinstance(layer, nn.LSTM) else ""
    return getattr(layer, f"weight_ih{suffix}") @ x + getattr(layer, f"bias_ih{suffix}")


def moved(layer, read, h, c):
    """An LSTM's next state, from what its gates read."""
    suffix = "_l0" if isinstance(layer, nn.LSTM) else ""
    i, f, g, o = (read + getattr(layer, f"weight_hh{suffix}") @ h + getattr(layer, f"bias_hh{suffix}")).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def along(layer, reads):
    h = c = torch.zeros(D).double()
    found = []
    for read in reads:
        h, c = moved(layer, read, h, c)
        found.append(h)
    return found


def looked(bottom, h, source):
    energies = [bottom.alignment.weight[0] @ torch.tanh(bottom.query.weight @ h + bottom.key(one)) for one in source]
    return (torch.stack(energies).softmax(0)[:, None] * torch.stack(source)).sum(0)


def bottom_states(model, source, target):
    """The states of the bottom layer and what it reads."""
    h = c = torch.zeros(D).double()
    states, inputs = [], []
    for y in model.target_embedding(target)[0]:
        inputs.append(torch.cat((y, looked(model.bottom, h, source))))
        h, c = moved(model.bottom.cell, gates(model.bottom.cell, inputs[-1]), h, c)
        states.append(h)
    return states, inputs


def test_fast_forward_connections_by_hand():
    torch.manual_seed(0)
    model = DeepAtt(VOCAB, VOCAB, d_model=D, n_layers=3, n_decoder_layers=3, dropout=0.0).double()
    source, target = tokens(4, 1), tokens(3, 2)
    ends = []
    for column, ways in zip(model.columns, ((1, -1, 1), (-1, 1, -1)), strict=True):
        inputs = list(model.source_embedding(source)[0])
        for layer, way in zip(column, ways, strict=True):
            f = [gates(layer, one) for one in inputs]
            h = along(layer, f[::way])[::way]
            inputs = [torch.cat((one[: 2 * D], other)) for one, other in zip(f, h, strict=True)]
        ends.append((h, f))
    states = [model.source_states(torch.cat(one)) for one in zip(*ends[0], *ends[1], strict=True)]
    h, inputs = bottom_states(model, states, target)
    f = [gates(model.bottom.cell, one) for one in inputs]
    for layer in model.decoder:
        f = [gates(layer, torch.cat((one[: 2 * D], other))) for one, other in zip(f, h, strict=True)]
        h = along(layer, f)
    torch.testing.assert_close(model(source, target)[0], model.logits(torch.stack(h)))


@pytest.mark.parametrize("experts", [None, {"name": "noisy-mixture-of-experts", "d_ff": 5}])
def test_residual_layers_by_hand(experts):
    torch.manual_seed(0)
    model = Gnmt(VOCAB, VOCAB, d_model=D, n_layers=4, n_decoder_layers=3, experts=experts, dropout=0.0).double().eval()
    source, target = tokens(4, 1), tokens(3, 2)
    for one in model.experts:
        nn.init.normal_(one.router.weight)
    mixed = [lambda x, mixture=one: x + mixture(x[None])[0] for one in model.experts] or [lambda x: x] * 2
    embedded = list(model.source_embedding(source)[0])
    ways = ((model.first, 1), (model.backwards, -1))
    both = [along(layer, [gates(layer, one) for one in embedded[::way]])[::way] for layer, way in ways]
    x = [torch.cat(one) for one in zip(*both, strict=True)]
    x = along(model.encoder[0], [gates(model.encoder[0], one) for one in x])
    x = [
        one + h for one, h in zip(x, along(model.encoder[1], [gates(model.encoder[1], one) for one in x]), strict=True)
    ]
    x = [mixed[0](one) for one in x]
    x = [
        one + h for one, h in zip(x, along(model.encoder[2], [gates(model.encoder[2], one) for one in x]), strict=True)
    ]
    h, inputs = bottom_states(model, x, target)
    contexts = [one[D:] for one in inputs]
    first, second = model.decoder
    h = along(first, [gates(first, torch.cat(one)) for one in zip(h, contexts, strict=True)])
    h = [mixed[1](one) for one in h]
    more = along(second, [gates(second, torch.cat(one)) for one in zip(h, contexts, strict=True)])
    found = torch.stack([one + other for one, other in zip(h, more, strict=True)])
    torch.testing.assert_close(model(source, target)[0], model.logits(found))


def test_bad_sizes():
    for kind in (DeepAtt, Gnmt):
        with pytest.raises(SpecError, match="sizes must be positive integers; got n_decoder_layers=0"):
            kind(10, 10, n_decoder_layers=0)
    with pytest.raises(SpecError, match="it needs 2 layers in the encoder; got 1 and 4"):
        Gnmt(10, 10, n_layers=1, n_decoder_layers=4)
    with pytest.raises(SpecError, match="experts need 3 layers in the encoder and 2 in the decoder; got 3 and 1"):
        Gnmt(10, 10, n_layers=3, n_decoder_layers=1, experts="mixture-of-experts")
