"""The parts of a model that attend are found by what they do, and the lab's attention can stand in their place."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnlab.inspection.reach import reach
from attnlab.nn.replaced_attention import ReplacedAttention, attention_in, behind_a_layer, put_in

VOCAB, WIDTH, LENGTH, BATCH = 7, 16, 9, 3


class Heads(nn.Module):
    """Two heads of one projection, whose rows are scrambled."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (one.reshape(len(x), 2, x.shape[1], WIDTH // 2) for one in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))


class Head(nn.Module):
    """One head of a list, narrower than the model."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH // 4) for _ in range(3))

    def forward(self, x):
        return (self.q(x) @ self.k(x).mT).softmax(-1) @ self.v(x)


class ListOfHeads(nn.Module):
    """Four heads, each a module of its own."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(4))

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], -1)


class WithWeights(nn.Module):
    """Attention that returns its weights, too."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        weights = torch.softmax(x @ x.mT, -1)
        return self.linear(weights @ x), weights


class Net(nn.Module):
    """Layers with a norm around a part that attends."""

    def __init__(self, *parts):
        super().__init__()
        self.embed, self.answer = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "mix": part}) for part in parts)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            mixed = layer["mix"](layer["norm"](x))
            x = x + (mixed[0] if isinstance(mixed, tuple) else mixed)
        return self.answer(x)


class OfTorch(nn.Module):
    """An encoder of torch, in either layout."""

    def __init__(self, batch_first):
        super().__init__()
        self.batch_first = batch_first
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=batch_first)
        self.embed, self.answer = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        x = self.embed(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.encoder(x, mask=mask, is_causal=True)
        return self.answer(x if self.batch_first else x.transpose(0, 1))


class InLine(nn.Module):
    """A layer that attends by itself, with a norm and a path around it."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        return x + self.linear(torch.softmax(y @ y.mT, -1) @ y)


def ids():
    return torch.randint(0, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (lambda: Net(Heads(), Heads()), {"layers.0.mix": (2, False, False), "layers.1.mix": (2, False, False)}),
        (lambda: Net(ListOfHeads()), {"layers.0.mix": (4, False, False)}),
        (lambda: Net(WithWeights()), {"layers.0.mix": (1, False, True)}),
        (lambda: OfTorch(True), {f"encoder.layers.{i}.self_attn": (4, False, True) for i in range(2)}),
        (lambda: OfTorch(False), {f"encoder.layers.{i}.self_attn": (4, True, True) for i in range(2)}),
        (lambda: Net(InLine()), {}),
        (lambda: Net(nn.Linear(WIDTH, WIDTH)), {}),
    ],
    ids=["heads", "list of heads", "with weights", "torch", "torch, length first", "a whole layer", "none"],
)
def test_what_attends_is_found_and_can_be_replaced(net, expected):
    torch.manual_seed(0)
    model = net()
    found = attention_in(model, (ids(),), causal=True)
    assert {name: (how["n_heads"], how["length_first"], how["several"]) for name, how in found.items()} == expected
    put_in(model, found)
    assert sum(type(part) is ReplacedAttention for part in model.modules()) == len(expected)
    for part in (model.train(), model.eval()):
        assert part(ids()).shape == (BATCH, LENGTH, VOCAB)
    if expected:
        assert reach(model, (ids(),)).future == 0
        assert reach(model, (ids(),)).past == LENGTH


class Convolutions(nn.Module):
    """Two convolutions that see few positions, over channels that come first."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(2)))

    def forward(self, x):
        return self.layers(x.mT).mT


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("net", "name", "channels_first"),
    [(Convolutions, "layers.0", True), (lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in "ab")), "0", False)],
)
def test_attention_behind_a_layer_sees_all(net, name, channels_first, causal):
    torch.manual_seed(0)
    model, x = net(), torch.randn(BATCH, LENGTH, WIDTH)
    before = reach(model, (x,), position=LENGTH // 2)
    found = behind_a_layer(model, (x,), causal=causal)
    assert {place: how["channels_first"] for place, how in found.items()} == {name: channels_first}
    put_in(model, found)
    after = reach(model, (x,), position=LENGTH // 2)
    assert before.past < after.past == LENGTH // 2 + 1
    assert (after.future == before.future) if causal else (after.future >= LENGTH - LENGTH // 2 - 1)


def test_behind_what_gives_no_vectors_for_positions_stands_nothing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(LENGTH * WIDTH, 8), nn.Linear(8, 2))
    assert behind_a_layer(model, (torch.randn(BATCH, LENGTH, WIDTH),), causal=False) == {}


def test_what_stands_in_the_place_is_the_labs_attention():
    model = Net(Heads())
    before = reach(model.eval(), (ids(),))
    put_in(model, attention_in(model, (ids(),), causal=True))
    x, layer = model.embed(ids()), model.layers[0]
    expected = model.answer(x + layer["mix"].attention(layer["norm"](x)))
    torch.testing.assert_close(model(ids()), expected)
    assert (before.past, before.future) != (LENGTH, 0)
