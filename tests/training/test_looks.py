"""Attention and gradients are looked at without a trace in the run, and what is seen is what is there."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from tests.training.test_together import DoubleTask, together
from tests.training.tiny import N_BATCH, N_IN, N_OUT, TinyTask, recipe, tiny_model
from torch import nn

from attnlab.core.contracts import Batch
from attnlab.core.errors import Interrupted, SpecError
from attnlab.inspection.capture import capture
from attnlab.nn import Attention
from attnlab.training import Recipe, read_metrics, train
from attnlab.training.run import looks
from attnlab.training.run.looks import Looks, attention_seen, few

WATCH = {"watch": ["attention", "gradients"]}
N_HEADS, LENGTH = 3, 5


@pytest.fixture(autouse=True)
def looks_in_short_runs(monkeypatch):
    monkeypatch.setattr(looks, "LEAST_STEPS", 4)


class OverFeatures(nn.Module):
    """Attend over the features of an input as positions, and keep all that a look could leave a trace in."""

    def __init__(self, attention: nn.Module):
        super().__init__()
        self.widen, self.attention = nn.Linear(1, 6), attention
        self.norm, self.narrow = nn.BatchNorm1d(6), nn.Linear(6 * N_IN, N_OUT)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        h = self.attention(self.widen(x.unsqueeze(-1)))
        h = F.relu(self.norm(h.transpose(1, 2)).flatten(1))
        return self.narrow(h + 0.01 * torch.rand_like(h) + 0.01 * self.calls)


class Written(nn.Module):
    """Attention as people write it, with a mask of large negative numbers."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6, bias=False) for _ in range(3))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (N_HEADS, 2)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) * 2**-0.5
        scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)


class Fused(Written):
    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (N_HEADS, 2)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)


class Torchs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(6, N_HEADS, batch_first=True)

    def forward(self, x):
        return self.layer(x, x, x, attn_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))[0]


def lab():
    return Attention(6, n_heads=N_HEADS, masks="causal")


ATTENTIONS = [lab, Written, Fused, Torchs]


def weights(model):
    return torch.cat([tensor.flatten() for tensor in (*model.parameters(), *model.buffers())])


def watched(curve):
    return [record for record in curve if "watch" in record]


@pytest.mark.parametrize("make", [*ATTENTIONS, nn.Identity])
def test_no_bit_of_a_run_changes(make):
    ends = []
    for fields in ({}, WATCH):
        torch.manual_seed(3)
        model = OverFeatures(make())
        result = train(model, TinyTask(), recipe(11, **fields))
        curve = [{k: v for k, v in one.items() if k != "seconds"} for one in result.curve if "watch" not in one]
        ends.append((weights(model).tolist(), result.metrics, result.train_loss, curve))
    assert ends[0] == ends[1]
    assert len(watched(result.curve)) == 3


def seen_by(attention, x, change=lambda layer: None):
    torch.manual_seed(3)
    layer = attention()
    change(layer)
    with torch.no_grad(), capture(layer) as trace:
        layer(x)
    return attention_seen(trace)


def without_scores(layer):
    for name, parameter in layer.named_parameters():
        if not name.startswith("v"):
            parameter.data.zero_()


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_equal_weights_on_what_may_be_seen_have_entropy_1(attention):
    (found,) = zip(*(one.values() for one in seen_by(attention, torch.randn(2, LENGTH, 6), without_scores).values()))
    assert found == ([1.0] * N_HEADS, [0.0] * N_HEADS, [0.0] * N_HEADS)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_what_is_seen_is_the_formula(attention):
    x = torch.randn(2, LENGTH, 6, generator=torch.Generator().manual_seed(5))
    with torch.no_grad(), capture(layer := attention()) as trace:
        layer(x)
    (one,) = trace.values()
    q, k = one.q[:, 1].double(), one.k[:, 1].double()
    scores = q @ k.transpose(-2, -1) * 2**-0.5
    rows = [scores[item, row, : row + 1] for item in range(2) for row in range(LENGTH)]
    entropies = [-(p * p.log()).sum() / math.log(len(p)) for p in (row.softmax(-1) for row in rows if len(row) > 1)]
    found = {name: next(iter(heads.values()))[1] for name, heads in attention_seen(trace).items()}
    assert found["entropy"] == pytest.approx(float(sum(entropies)) / len(entropies), rel=1e-4)
    assert found["logit_max"] == pytest.approx(float(torch.cat(rows).max()), rel=1e-4)
    assert found["logit_std"] == pytest.approx(float(torch.cat(rows).std(correction=0)), rel=1e-4)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_weights_that_vanish_are_no_mask(attention):
    def sharpened(layer):
        for parameter in layer.parameters():
            parameter.data.mul_(100)

    (entropy,) = seen_by(attention, torch.randn(2, LENGTH, 6), sharpened)["entropy"].values()
    assert all(0 <= one < 0.1 for one in entropy)


def test_gradients_and_updates_by_layer_are_those_of_the_step():
    rate, model = 0.01, nn.Sequential(nn.Linear(N_IN, 4), nn.Linear(4, N_OUT))
    twin, task = nn.Sequential(nn.Linear(N_IN, 4), nn.Linear(4, N_OUT)), TinyTask()
    twin.load_state_dict(model.state_dict())
    how = {"optimizer": {"name": "sgd", "momentum": 0.0}, "weight_decay": 0.0, "schedule": "constant", "warmup": 0}
    curve = train(model, task, recipe(1, lr=rate, clip=1e-3, **how, watch=["gradients"])).curve
    task.loss(twin(*(batch := task.train_batch(0, 0)).inputs), batch).backward()
    whole = math.hypot(*(float(one.grad.norm()) for one in twin.parameters()))
    (seen,) = [record["watch"] for record in watched(curve)]
    for name, layer in twin.named_children():
        gradient = math.hypot(*(float(one.grad.norm()) for one in layer.parameters()))
        size = math.hypot(*(float(one.detach().norm()) for one in layer.parameters()))
        assert seen["gradient_norm"][name] == pytest.approx(gradient, rel=1e-3)
        assert seen["update_ratio"][name] == pytest.approx(rate * gradient * 1e-3 / whole / size, rel=1e-2)
    assert set(seen) == {"gradient_norm", "update_ratio"}


def test_dead_features_are_counted_by_module():
    model = nn.Sequential(nn.Linear(N_IN, 8), nn.ReLU(), nn.Linear(8, N_OUT))
    model[0].bias.data[:6] = -1e3
    found = watched(train(model, TinyTask(), recipe(9, lr=1e-6, **WATCH)).curve)
    assert [record["watch"]["dead_share"] for record in found] == [{"1": 0.75}] * 3


def test_a_stopped_run_has_no_hole_and_no_double(tmp_path):
    class Stops(TinyTask):
        def train_batch(self, step, seed):
            if step == 10:
                raise KeyboardInterrupt
            return super().train_batch(step, seed)

    whole = train(tiny_model(), TinyTask(), recipe(23, checkpoint_every=7, **WATCH)).curve
    with pytest.raises(Interrupted):
        train(tiny_model(), Stops(), recipe(23, checkpoint_every=7, **WATCH), folder=tmp_path)
    assert [record["step"] for record in watched(read_metrics(tmp_path))] == [1, 5, 9]
    train(tiny_model(), TinyTask(), recipe(23, checkpoint_every=7, **WATCH), folder=tmp_path)
    found = [(record["step"], record["watch"]) for record in watched(read_metrics(tmp_path))]
    assert found == [(record["step"], record["watch"]) for record in watched(whole)]
    assert [step for step, _ in found] == [1, 5, 9, 13, 17, 21]


def test_runs_together_are_watched_as_they_are_alone():
    recipes = [recipe(9, **WATCH), recipe(9)]
    makers = [lambda: tiny_model(seed=1).double(), lambda: tiny_model(seed=2).double()]
    models, results = together(makers, DoubleTask(), recipes)
    unwatched, others = together(makers, DoubleTask(), [recipe(9)] * 2)
    assert all(torch.equal(weights(one), weights(other)) for one, other in zip(models, unwatched, strict=True))
    assert {result.together for result in results} == {2}
    assert [len(watched(result.curve)) for result in (*results, *others)] == [3, 0, 0, 0]
    alone = watched(train(makers[0](), DoubleTask(), recipes[0]).curve)
    for record, expected in zip(watched(results[0].curve), alone, strict=True):
        for name in ("gradient_norm", "update_ratio"):
            assert record["watch"][name] == pytest.approx(expected["watch"][name], rel=1e-3)


def test_what_cannot_be_seen_is_said_and_the_run_goes_on():
    class Alone(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("there is one of me")

    told = []
    for model in (tiny_model(), Alone(N_IN, N_OUT)):
        train(model, TinyTask(), recipe(9, **WATCH), on_event=told.append)
    notes = [event["seen"]["note"] for event in told if event["kind"] == "watch"]
    assert notes[:3] == ["no attention was seen in Sequential: gradients alone are watched"] * 3
    assert notes[3:] == ["Alone cannot be looked into: there is one of me"] * 3
    (seen, *_) = watched(train(tiny_model(), TinyTask(), recipe(3, watch=["attention"])).curve)
    assert seen["watch"] == {"note": "no attention was seen in Sequential: nothing is watched"}
    assert all(event["seen"]["gradient_norm"] for event in told if event["kind"] == "watch")


@pytest.mark.parametrize("steps", [7, 15_001, None])
def test_looks_are_far_apart_and_few(steps, monkeypatch):
    monkeypatch.undo()
    every = Looks(nn.Identity(), ["gradients"], steps)
    due = [step for step in range(15_001) if every.is_due(step)]
    assert due[0] == 0
    assert len(due) <= 201
    assert all(later - earlier >= 75 for earlier, later in pairwise(due))
    assert not any(Looks(nn.Identity(), [], steps).is_due(step) for step in range(7))


@pytest.mark.parametrize(("shape", "items"), [((9, 3), 8), ((9, 3, 2), 8), ((9, 400), 3), ((9, 2000), 1), ((9,), 8)])
def test_long_sequences_are_looked_at_in_smaller_number(shape, items):
    batch = few(Batch((torch.zeros(shape),), torch.zeros(9)))
    assert len(batch.inputs[0]) == len(batch.targets) == items
    assert len(few(Batch((torch.zeros(N_BATCH, 2),), torch.zeros(N_BATCH))).targets) == N_BATCH


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (["attention", "norms"], "'watch.1': should be 'attention' or 'gradients'"),
        ("attention", "'watch': should be a valid list"),
    ],
)
def test_what_cannot_be_watched_is_refused(value, text):
    with pytest.raises(SpecError, match=text):
        Recipe.parse({"budget": {"steps": 3}, "watch": value})
