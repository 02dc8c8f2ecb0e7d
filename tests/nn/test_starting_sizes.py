"""Which matrices start far above the usual size, and that they start at it then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.nn.init import bring_to_usual, start_far_above

WIDTH, LENGTH = 32, 9


class Drawn(nn.Module):
    """Matrices and tables that are drawn at size one, by the ways to write them, beside parts of torch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.matrix, self.heads = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(4, WIDTH, 16))
        self.places, self.first = nn.Parameter(torch.randn(LENGTH, WIDTH)), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.embed, self.conv = nn.Embedding(50, WIDTH), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.linear, self.one = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(1, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, batch_first=True)
        self.right = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        nn.init.kaiming_normal_(self.linear.weight)

    def forward(self, ids):
        x = self.embed(ids) + self.places + self.first
        x = torch.einsum("bld,hde->blhe", x @ self.matrix, self.heads).flatten(2)[..., :WIDTH]
        x = self.linear(self.layer(self.conv(x.mT).mT) @ self.right)
        return x[..., :WIDTH] + self.one(x[..., :1])


def test_matrices_that_multiply_are_told_from_tables_and_from_usual_starts():
    model, ids = Drawn(), torch.randint(50, (3, LENGTH))
    found = start_far_above(model, (ids,))
    assert found == {"matrix": pytest.approx(WIDTH**0.5, rel=0.1), "heads": pytest.approx(4, rel=0.1)}
    nn.init.normal_(model.conv.weight)
    assert start_far_above(model, (ids,))["conv.weight"] == pytest.approx((3 * WIDTH) ** 0.5, rel=0.1)


def test_beside_one_that_starts_far_above_others_that_start_above_do_too():
    hidden, few = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
    for one in (hidden, few):
        nn.init.normal_(one.weight, std=0.6)
    model, x = nn.Sequential(hidden, few), torch.randn(3, WIDTH)
    assert start_far_above(model, (x,)).keys() == {"0.weight", "1.weight"}
    bring_to_usual(model, ["1.weight"])
    assert float(few.weight.detach().square().mean()) == pytest.approx(1 / WIDTH)
    nn.init.normal_(few.weight, std=0.6)
    bring_to_usual(model, ["0.weight"])
    assert not start_far_above(model, (x,)), "few answers alone may start so"


def test_they_are_scaled_to_the_usual_size_and_the_others_stay():
    model, before = Drawn(), Drawn()
    bring_to_usual(model, ["layers.0.mixer.matrix", "right", "heady.heads", "ads"])
    changed = {
        name
        for (name, one), other in zip(model.named_parameters(), before.parameters(), strict=True)
        if not torch.equal(one, other)
    }
    assert changed == {"matrix", "heads"}
    torch.testing.assert_close(model.matrix, before.matrix / before.matrix.square().mean().sqrt() / WIDTH**0.5)
    bring_to_usual(before, ["xmatrix"])
    assert float(before.matrix.detach().std()) > 0.9
