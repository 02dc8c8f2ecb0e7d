"""The parts of a model that attend are found by what they do, and the lab's attention can stand in their place."""

from __future__ import annotations

import copy
from dataclasses import asdict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnlab.inspection.reach import reach
from attnlab.nn.axes.positions import sinusoids
from attnlab.nn.exchanged import ATTENTION, Slot, StandIn, behind_a_layer, put_in, slots_in

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


def of_kind(kind, places):
    return {name: place for name, place in places.items() if place.kind == kind}


def said(places):
    """Slots as a specification has them."""
    return {name: asdict(place) for name, place in places.items()}


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
    found = of_kind(ATTENTION, slots_in(model, (ids(),), causal=True))
    assert {name: (place.n_heads, place.length_first, place.several) for name, place in found.items()} == expected
    put_in(model, said(found))
    assert sum(type(part) is StandIn for part in model.modules()) == len(expected)
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
    assert {place: how.channels_first for place, how in found.items()} == {name: channels_first}
    put_in(model, said(found))
    after = reach(model, (x,), position=LENGTH // 2)
    assert before.past < after.past == LENGTH // 2 + 1
    assert (after.future == before.future) if causal else (after.future >= LENGTH - LENGTH // 2 - 1)


def test_behind_what_gives_no_vectors_for_positions_stands_nothing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(LENGTH * WIDTH, 8), nn.Linear(8, 2))
    assert behind_a_layer(model, (torch.randn(BATCH, LENGTH, WIDTH),), causal=False) == {}


def test_what_stands_in_the_place_is_the_labs_attention():
    model = Net(Heads())
    before = reach(model.eval(), (ids(),))
    put_in(model, said(of_kind(ATTENTION, slots_in(model, (ids(),), causal=True))))
    x, layer = model.embed(ids()), model.layers[0]
    expected = model.answer(x + layer["mix"].part(layer["norm"](x)))
    torch.testing.assert_close(model(ids()), expected)
    assert (before.past, before.future) != (LENGTH, 0)


class OwnNorm(nn.Module):
    """A norm of one's own over the wrong axis: time."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.gain * (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-3)


class OwnFeedForward(nn.Module):
    """Two maps, of which little is left."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.ReLU(), nn.Linear(3 * WIDTH, WIDTH), nn.Dropout(0.5))

    def forward(self, x):
        return 0.01 * self.net(x)


class OwnPositions(nn.Module):
    """A table that is added, with dropout behind it."""

    def __init__(self):
        super().__init__()
        self.table, self.drop = nn.Parameter(torch.randn(LENGTH, WIDTH)), nn.Dropout(0.5)

    def forward(self, x, offset=0):
        return self.drop(x + self.table[offset : offset + x.shape[1]])


class OwnLayer(nn.Module):
    """All of these with attention, behind norms."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.mix, self.ff = OwnNorm(), nn.LayerNorm(WIDTH), Heads(), OwnFeedForward()

    def forward(self, x, mask=None):
        x = x + self.mix(self.first(x))
        return x + self.ff(self.second(x))


class OwnModel(nn.Module):
    """Two such layers, called with activations of either layout."""

    def __init__(self, length_first=False):
        super().__init__()
        self.embed, self.positions, self.bend = nn.Embedding(VOCAB, WIDTH), OwnPositions(), nn.GELU()
        self.layers, self.answer = nn.ModuleList(OwnLayer() for _ in "ab"), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.positions(self.embed(ids), offset=0)
        for layer in self.layers:
            x = layer(x, mask=None)
        return self.answer(self.bend(x))


def test_parts_are_told_by_what_they_do():
    places = slots_in(OwnModel(), (ids(),), causal=True)
    layers = {f"layers.{i}": ("layer", "OwnLayer") for i in range(2)}
    parts = (("mix", "attention", "Heads"), ("ff", "feed-forward", "OwnFeedForward"), ("first", "norm", "OwnNorm"))
    within = {f"layers.{i}.{name}": (kind, of) for i in range(2) for name, kind, of in parts}
    expected = {"positions": ("positions", "OwnPositions"), **layers, **within}
    assert {name: (place.kind, place.of) for name, place in places.items()} == expected
    assert places["layers.0.ff"].d_ff == 3 * WIDTH
    assert places["layers.1"].n_heads == 2


@pytest.mark.parametrize(
    "kinds", [{one} for one in ("attention", "feed-forward", "norm", "positions", "layer")] + [None]
)
def test_parts_of_each_kind_can_be_exchanged(kinds):
    torch.manual_seed(0)
    model = OwnModel()
    places = {
        name: one for name, one in slots_in(model, (ids(),), causal=True).items() if not kinds or one.kind in kinds
    }
    put_in(model, said(places))
    outer = [name for name in places if not any(name.startswith(f"{other}.") for other in places)]
    assert all(type(model.get_submodule(name)) is StandIn for name in outer)
    for part in (model.train(), model.eval()):
        output = part(ids())
        assert output.shape == (BATCH, LENGTH, VOCAB)
        output.square().mean().backward()
    own = {OwnNorm, OwnFeedForward, OwnPositions, Heads, OwnLayer} & set(map(type, model.modules()))
    gone = {place.of for place in places.values()}
    assert {one.__name__ for one in own}.isdisjoint(gone)


class Grid(nn.Module):
    """Half a vector by row and half by column of a grid, which is not added to anything here."""

    def __init__(self):
        super().__init__()
        self.rows, self.columns = nn.Embedding(3, WIDTH // 2), nn.Embedding(3, WIDTH // 2)

    def forward(self):
        places = torch.arange(LENGTH)
        return torch.cat([self.rows(places // 3), self.columns(places % 3)], 1)


class OnAGrid(OwnModel):
    """The same with places given by themselves, and those of torch beside them."""

    def __init__(self):
        super().__init__()
        self.positions, self.numbered = Grid(), nn.Embedding(LENGTH, WIDTH)

    def forward(self, ids):
        x = self.embed(ids) + self.positions() + self.numbered(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.answer(x)


def test_vectors_of_places_that_are_given_by_themselves_are_exchanged():
    model = OnAGrid().eval()
    found = slots_in(model, (ids(),), causal=True)
    places = {name: one for name, one in found.items() if one.kind == "positions"}
    assert {name: (one.of, one.by_themselves) for name, one in places.items()} == {
        "positions": ("Grid", True),
        "numbered": ("Embedding", True),
    }
    put_in(model, said({"positions": places["positions"]}))
    torch.testing.assert_close(model.positions(), sinusoids(LENGTH, WIDTH))
    x = model.embed(ids()) + sinusoids(LENGTH, WIDTH) + model.numbered.weight[:LENGTH]
    for layer in model.layers:
        x = layer(x)
    torch.testing.assert_close(model(ids()), model.answer(x))


def test_a_part_that_stands_in_is_called_in_the_layout_of_what_stood_there():
    model, x = nn.LayerNorm(WIDTH), torch.randn(LENGTH, BATCH, WIDTH)
    layer = Slot("layer", WIDTH, n_heads=2, causal=True, length_first=True, several=True).filled(model)
    output, nothing = layer(x, torch.zeros(LENGTH, LENGTH), key_padding_mask=None)
    changed = x.clone()
    changed[5] += 1
    assert nothing is None
    assert (output != layer(changed)[0]).any(-1).any(-1).nonzero().flatten().tolist() == list(range(5, LENGTH))


class OfTwo(nn.Module):
    """Reads one sequence, and writes another that looks at it."""

    def __init__(self):
        super().__init__()
        self.embed, self.answer = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.reads, self.writes = OwnLayer(), OwnLayer()
        self.across = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, source, target):
        memory, x = self.reads(self.embed(source)), self.writes(self.embed(target))
        return self.answer(x + self.across(x, memory, memory, need_weights=False)[0])


def test_of_two_sequences_only_the_written_one_is_seen_from_its_past():
    model, target = OfTwo(), ids()
    found = slots_in(model, (target[:, :5], target), causal=True)
    attention = of_kind(ATTENTION, found)
    assert {name: slot.causal for name, slot in attention.items()} == {"reads.mix": False, "writes.mix": True}
    assert {slot.kind for slot in slots_in(model, (target, target), causal=True).values()} == {"feed-forward", "norm"}
    put_in(model, said(found))
    assert model(target[:, :5], target).shape == (BATCH, LENGTH, VOCAB)


class OverBatch(nn.Module):
    """A norm over the batch, around torch's own."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, momentum=0.001)

    def forward(self, x):
        return self.norm(x.mT).mT


class WithFirst(nn.Module):
    """Reads a class off a vector that it puts before its input, with a layer of torch and a norm over the batch."""

    def __init__(self):
        super().__init__()
        self.embed, self.first = nn.Embedding(VOCAB, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True)
        self.norm, self.answer = OverBatch(), nn.Linear(WIDTH, 2)

    def forward(self, ids):
        x = torch.cat([self.first.expand(len(ids), -1, -1), self.embed(ids)], dim=1)
        return self.answer(self.norm(self.layer(x))[:, 0])


def test_more_positions_than_inputs_and_norms_over_the_batch_are_seen():
    model = WithFirst()
    found = slots_in(model, (ids(),), causal=False)
    kinds = {name: (slot.kind, slot.n_heads) for name, slot in found.items()}
    assert kinds == {"layer.self_attn": ("attention", 4), "norm": ("norm", 1)}
    put_in(model, said(found))
    assert model(ids()).shape == (BATCH, 2)


class AcrossTheBatch(nn.Module):
    """Attention of convolutions, (batch, channels, length), among the items of a batch."""

    def __init__(self, heads):
        super().__init__()
        self.heads, self.project, self.back = heads, nn.Conv1d(WIDTH, 3 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x):
        n, c, t = x.shape
        q, k, v = (one.reshape(n, self.heads, -1, t).permute(1, 3, 0, 2) for one in self.project(x).chunk(3, 1))
        return self.back(((q @ k.mT).softmax(-1) @ v).permute(2, 0, 3, 1).reshape(n, c, t))


class OfChannels(nn.Module):
    """Convolutions around a part that attends."""

    def __init__(self):
        super().__init__()
        self.into, self.mix = nn.Conv1d(2, WIDTH, 3, padding=1), AcrossTheBatch(4)

    def forward(self, x):
        x = self.into(x.mT)
        return (x + self.mix(x)).mT


def test_what_takes_items_for_positions_attends_and_channels_may_be_first():
    model, x = OfChannels(), torch.randn(BATCH, LENGTH, 2)
    slots = slots_in(model, (x,), causal=False)
    assert slots == {"mix": Slot(ATTENTION, WIDTH, "AcrossTheBatch", n_heads=4, channels_first=True)}
    assert reach(model.eval(), (x,), position=4).mixes_batch
    put_in(model, {name: asdict(slot) for name, slot in slots.items()})
    seen = reach(model.eval(), (x,), position=4)
    assert not seen.mixes_batch
    assert min(seen.past, 5) + min(seen.future, 4) == LENGTH


@pytest.mark.parametrize(
    ("kind", "width", "positions"), [(ATTENTION, 16, "rotary"), (ATTENTION, 6, "none"), ("layer", 16, "rotary")]
)
def test_attention_that_stands_in_can_tell_places(kind, width, positions):
    part = Slot(kind, width, n_heads=2, rotary=True).filled(nn.Identity()).double()
    x = torch.randn(2, LENGTH, width, dtype=torch.float64)
    swapped = torch.tensor([1, 0, *range(2, LENGTH)])
    alike = torch.allclose(part(x)[:, -1], part(x[:, swapped])[:, -1])
    assert alike == (positions == "none")


class WithSummaries(nn.Module):
    """Attention to positions and to means of two of them each."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (6, -1)).transpose(1, 2).chunk(3, 1)  # (batch, heads, length, d_head)
        k, v = (torch.cat([one[:, :, ::2], one], 2) for one in (k, v))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_what_attends_to_more_than_the_positions_attends():
    model = Net(WithSummaries())
    slots = slots_in(model, (torch.randint(VOCAB, (BATCH, LENGTH)),), causal=True)
    assert slots["layers.0.mix"] == Slot(ATTENTION, WIDTH, "WithSummaries", n_heads=2, causal=True)


class ThroughFew(nn.Module):
    """A layer in which positions see each other through two vectors."""

    def __init__(self):
        super().__init__()
        self.norm, self.few = nn.LayerNorm(WIDTH), nn.Parameter(torch.randn(2, WIDTH))

    def forward(self, x):
        y = self.norm(x)
        heard = (self.few @ y.mT).softmax(-1) @ y
        return x + (y @ heard.mT).softmax(-1) @ heard


class OfFew(nn.Module):
    """Such layers."""

    def __init__(self):
        super().__init__()
        self.embed, self.answer = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList(ThroughFew() for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.answer(x)


def test_a_layer_in_which_positions_see_each_other_otherwise_is_one():
    slots = slots_in(OfFew(), (torch.randint(VOCAB, (BATCH, LENGTH)),), causal=False)
    assert {name: slot.kind for name, slot in slots.items()} == {"layers.0": "layer", "layers.1": "layer"}


class Asked(OfTorch):
    """Reads off its parts what they are, as torch's encoder does."""

    def __init__(self):
        super().__init__(True)
        self.places = nn.Embedding(LENGTH, WIDTH)

    def forward(self, ids):
        x = self.embed(ids) + self.places(torch.arange(LENGTH).clamp(max=self.places.num_embeddings - 1))
        return self.answer(self.encoder(x, src_key_padding_mask=torch.arange(LENGTH).expand(len(ids), -1) >= 5))


@pytest.mark.parametrize("kind", ["positions", "layer", "attention"])
def test_what_stands_in_answers_to_what_is_read_of_the_part_before_it(kind):
    model = Asked()
    model.encoder.use_nested_tensor = True  # in evaluation it then computes with weights that it reads
    slots = of_kind(kind, slots_in(model, (ids(),), causal=False))
    assert slots
    put_in(model, said(slots))
    for part in (model.train(), copy.deepcopy(model).eval()):
        with torch.no_grad():
            assert part(ids()).shape == (BATCH, LENGTH, VOCAB)
    stands_in = model.double().get_submodule(next(iter(slots)))
    assert {one.dtype for one in (*stands_in.parameters(), *stands_in.before.parameters())} == {torch.float64}
    assert not {*map(id, stands_in.before.parameters())} & {*map(id, model.parameters())} or kind == "positions"
    with pytest.raises(AttributeError, match="nowhere"):
        stands_in.nowhere
