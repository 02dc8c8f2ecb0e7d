"""Hand-written attention is recognized by what it does, and nothing else is."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.inspection import capture

BATCH, LENGTH, HEADS, D_HEAD = 3, 7, 2, 5
WIDTH = HEADS * D_HEAD


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(5)
    return torch.randn(BATCH, LENGTH, WIDTH)


class SingleHead(nn.Module):
    """One head, three axes, masked, with dropout between softmax and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, D_HEAD) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = (q @ k.transpose(1, 2)) * D_HEAD**-0.5
        scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), float("-inf"))
        return self.dropout(F.softmax(scores, dim=-1)) @ v


class Fused(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **self.options)


def test_single_head_by_hand(x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), SingleHead()).eval()
    expected = model(x)
    with capture(model) as trace:
        seen = model(x)
    assert torch.equal(seen, expected)
    assert list(trace) == ["1"]
    found = trace["1"]
    inner = model[0](x)
    torch.testing.assert_close(found.q[:, 0], model[1].q(inner))
    torch.testing.assert_close(found.k[:, 0], model[1].k(inner))
    torch.testing.assert_close(found.v[:, 0], model[1].v(inner))
    torch.testing.assert_close(found.scores.softmax(-1), found.weights)
    torch.testing.assert_close(found.weights @ found.v, found.head_outputs)
    assert found.weights.shape == (BATCH, 1, LENGTH, LENGTH)
    assert found.output is seen


@pytest.mark.parametrize(
    "softmax",
    [
        lambda s: s.softmax(-1),
        lambda s: s.softmax(dim=3),
        lambda s: torch.softmax(s, 3),
        lambda s: F.softmax(s, dim=-1),
        lambda s: F.softmax(input=s, dim=-1),
        nn.Softmax(dim=-1),
    ],
)
@pytest.mark.parametrize("product", [torch.matmul, Tensor.matmul, lambda a, b: a @ b])
def test_every_spelling_is_seen(softmax, product) -> None:
    class Spelled(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return product(softmax(product(q, q.transpose(-2, -1)) / math.sqrt(D_HEAD)), q)

    q = torch.randn(BATCH, HEADS, LENGTH, D_HEAD)
    model = Spelled()
    with capture(model) as trace:
        model(q)
    torch.testing.assert_close(trace["model"].weights, (q @ q.mT / math.sqrt(D_HEAD)).softmax(-1))
    torch.testing.assert_close(trace["model"].k, q)


def test_einsum_shows_scores_and_weights() -> None:
    class Einsum(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            scores = torch.einsum("bqhd,bkhd->bhqk", q, q)
            return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), q)

    q = torch.randn(BATCH, LENGTH, HEADS, D_HEAD)
    model = Einsum()
    with capture(model) as trace:
        model(q)
    found = trace["model"]
    assert found.weights.shape == found.scores.shape == (BATCH, HEADS, LENGTH, LENGTH)
    assert found.q is found.v is found.head_outputs is None


def test_a_softmax_that_weights_nothing_is_no_attention(x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, LENGTH), nn.Softmax(dim=-1))
    with capture(model) as trace:
        model(x)
    assert trace == {}


def test_a_softmax_over_another_axis_is_no_attention(x: Tensor) -> None:
    class OverHeads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x @ x.transpose(1, 2)).softmax(0) @ x

    model = OverHeads()
    with capture(model) as trace:
        model(x)
    assert trace == {}


def test_turned_weights_are_not_reported_as_they_were(x: Tensor) -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x @ x.transpose(1, 2)).softmax(-1).mT @ x

    model = Turned()
    with capture(model) as trace:
        model(x)
    assert trace == {}


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.ones(LENGTH, LENGTH).tril(2).bool()}],
)
def test_fused_calls_are_worked_out(options: dict[str, object]) -> None:
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, D_HEAD) for _ in range(3))
    model = Fused(**options)
    expected = model(q, k, v)
    with capture(model) as trace:
        assert torch.equal(model(q, k, v), expected)
    found = trace["model"]
    torch.testing.assert_close(found.weights @ v, expected)
    assert torch.equal(found.q, q)
    assert torch.equal(found.head_outputs, expected)
