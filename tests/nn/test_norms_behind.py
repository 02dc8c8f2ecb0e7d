"""Norms behind parts of a person's own are found by what they are given, and can stand before them."""

from __future__ import annotations

import copy

import torch
from torch import nn

from attnlab.nn.mended import Mending
from attnlab.nn.norms_behind import norms_behind

WIDTH, LENGTH = 12, 5


class Post(nn.Module):
    """Layers with the norm behind each part, one of them given its input three times."""

    def __init__(self, depth=2):
        super().__init__()
        self.attention = nn.ModuleList(nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(depth))
        self.maps = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * depth))
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        for number, (attention, maps) in enumerate(zip(self.attention, self.maps, strict=True)):
            x = self.norms[2 * number](x + self.drop(attention(x, x, x)[0]))
            x = self.norms[2 * number + 1](x + self.drop(maps(x)))
        return x

    def with_norms_first(self, x):
        for number, (attention, maps) in enumerate(zip(self.attention, self.maps, strict=True)):
            y = self.norms[2 * number](x)
            x = x + self.drop(attention(y, y, y)[0])
            x = x + self.drop(maps(self.norms[2 * number + 1](x)))
        return self.norms[-1](x)


class Pre(Post):
    """The same with norms first."""

    def forward(self, x):
        return self.with_norms_first(x)


class Branches(nn.Module):
    """Branches that each begin with a norm, and one behind them all."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        for branch in self.branches:
            x = x + branch(x)
        return self.norm(x)


PAIRS = [("attention.0", "norms.0"), ("maps.0", "norms.1"), ("attention.1", "norms.2"), ("maps.1", "norms.3")]


def test_norms_behind_parts_are_found_and_those_before_are_not():
    x = torch.randn(3, LENGTH, WIDTH)
    assert norms_behind(Post(), (x,)) == PAIRS
    assert norms_behind(Pre(), (x,)) == []
    assert norms_behind(Branches(), (x,)) == []
    assert norms_behind(nn.TransformerEncoderLayer(WIDTH, 2, 20, batch_first=True), (x,)) == []  # says it itself


def test_they_can_stand_before_them_and_one_stays_behind_all():
    model, x = Post().eval(), torch.randn(3, LENGTH, WIDTH)
    mending = Mending.of({"norms_first": PAIRS})
    mended = mending.start(copy.deepcopy(model))
    torch.testing.assert_close(mending.call(mended, x), model.with_norms_first(x))
    torch.testing.assert_close(copy.deepcopy(mended)(x), model.with_norms_first(x))
    assert not torch.allclose(model(x), model.with_norms_first(x))
    mended(x).sum().backward()
    assert all(weight.grad is not None for weight in mended.parameters())
