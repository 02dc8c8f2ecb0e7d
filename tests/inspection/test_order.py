"""Whether a model, or its layers, tell the order of inputs."""

import pytest
import torch
from torch import nn

from attnlab.inspection.order import by_chance, sees_order

LENGTH, WIDTH = 6, 8


class Net(nn.Module):
    """Two causal layers of torch, with positions before them, behind them, or none."""

    def __init__(self, positions="none", batch_first=True, recurrent=False):
        super().__init__()
        self.positions, self.batch_first = positions, batch_first
        self.embed, self.places = nn.Embedding(10, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH))
        layer = nn.LSTM(WIDTH, WIDTH, batch_first=True) if recurrent else None
        self.layers = nn.ModuleList(
            layer or nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=batch_first) for _ in range(2)
        )
        self.answer = nn.Linear(WIDTH, 10)

    def forward(self, ids):
        x = self.embed(ids) + (self.places if self.positions == "before" else 0)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=x.dtype)
        x = x if self.batch_first else x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x)[0] if isinstance(layer, nn.LSTM) else layer(x, src_mask=mask)
        x = x if self.batch_first else x.transpose(0, 1)
        return self.answer(x + (self.places if self.positions == "behind" else 0))


def sees(model, batch=3, causal=True):
    torch.manual_seed(0)
    ids = torch.randint(0, 10, (batch, LENGTH))
    model = model.double().eval()
    assert not by_chance(model, ids)
    return sees_order(model, model.layers, ids, causal=causal)


@pytest.mark.parametrize(("batch", "batch_first"), [(3, True), (LENGTH, True), (3, False)])
@pytest.mark.parametrize(("positions", "expected"), [("before", True), ("behind", False), ("none", False)])
def test_layers_without_positions_are_told_from_those_with_them(positions, expected, batch, batch_first):
    assert sees(Net(positions, batch_first), batch) is expected


def test_the_mask_alone_does_not_count_as_positions_though_outputs_change_by_it():
    torch.manual_seed(0)
    model = Net().double().eval()
    ids = torch.randint(0, 10, (3, LENGTH))
    assert not torch.allclose(model(ids)[:, -1], model(ids[:, [1, 2, 3, 4, 0, 5]])[:, -1])
    assert sees_order(model, [], ids, causal=True)
    assert not sees_order(model, model.layers, ids, causal=True)


def test_a_recurrent_layer_sees_order_by_itself():
    assert sees(Net(recurrent=True))
    assert sees(Net("behind", recurrent=True))


def test_dropout_that_acts_is_chance():
    model = Net().double().train()
    assert by_chance(model, torch.zeros(2, LENGTH, dtype=torch.long))
