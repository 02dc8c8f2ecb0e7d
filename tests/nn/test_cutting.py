"""Pieces of the score matrix: they cover what a mask allows, once, and nothing is computed that is out of reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.nn.attention import Attention
from attnlab.nn.axes.masks import AbstractMask, Causal, Dilated, Full, Padding, Window
from attnlab.nn.kernels import cutting
from attnlab.nn.kernels.cutting import AbstractPiece, Band, Whole, block_size, in_blocks, in_chunks, pays_in_blocks

MASKS: list[AbstractMask] = [
    Window(3),
    Causal() & Window(4),
    Dilated(2, 2),
    Causal() & Window(1),
    Window(2) & Window(9),
]
LENGTHS = [(13, 13), (13, 7), (5, 17), (1, 13), (13, 1)]
BATCH = 2


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short sequences have several blocks."""
    monkeypatch.setattr(cutting, "SMALLEST_BLOCK", 3)


def marks(q_len: int, k_len: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, and as keys and values a one-hot vector for each position."""
    keys = torch.eye(k_len).expand(BATCH, 1, k_len, k_len)
    return torch.zeros(BATCH, 1, q_len, k_len), keys, keys


def count(q: Tensor, k: Tensor, v: Tensor, piece: AbstractPiece) -> Tensor:
    """Return how often each query of a piece meets each key."""
    allowed = piece.allowed(q.device)
    met = torch.ones(q.shape[-2], k.shape[-2]) if allowed is None else allowed.float()
    return met.expand(len(q), 1, q.shape[-2], k.shape[-2]) @ v


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize(("q_len", "k_len"), LENGTHS)
@pytest.mark.parametrize("padded", [False, True])
def test_blocks_meet_what_the_mask_allows_once(mask: AbstractMask, q_len: int, k_len: int, padded: bool) -> None:
    if padded:
        mask = mask & Padding(torch.arange(k_len) < torch.tensor([k_len, k_len // 2])[:, None])
    met = in_blocks(count, *marks(q_len, k_len), mask)
    assert torch.equal(met, mask.allowed(q_len, k_len).float().expand(BATCH, 1, q_len, k_len))


@pytest.mark.parametrize("mask", [Full(), Causal(), ~Causal(), *MASKS], ids=repr)
@pytest.mark.parametrize(("q_len", "k_len"), LENGTHS)
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_chunks_meet_what_the_mask_allows_once(mask: AbstractMask, q_len: int, k_len: int, rows: int) -> None:
    met = in_chunks(count, *marks(q_len, k_len), mask, rows=rows)
    assert torch.equal(met, mask.allowed(q_len, k_len).float().expand(BATCH, 1, q_len, k_len))


def test_chunks_leave_out_keys_that_are_out_of_reach() -> None:
    seen = []

    def watch(q: Tensor, k: Tensor, v: Tensor, piece: AbstractPiece) -> Tensor:
        seen.append((piece.queries.stop - piece.queries.start, k.shape[-2]))
        return count(q, k, v, piece)

    in_chunks(watch, *marks(12, 12), Causal(), rows=4)
    in_chunks(watch, *marks(12, 12), Causal() & Window(3), rows=4)
    assert seen == [(4, 4), (4, 8), (4, 12), (4, 4), (4, 6), (4, 6)]


def test_a_mask_without_bounds_has_no_band() -> None:
    with pytest.raises(ModuleError, match=r"bounded reach; Causal\(\) lets a query see any distance"):
        in_blocks(count, *marks(5, 5), Causal())


def test_only_a_square_of_the_past_is_causal() -> None:
    assert Whole(Causal(), slice(0, 5), slice(0, 5)).is_causal
    assert not Whole(Causal(), slice(2, 5), slice(0, 5)).is_causal
    assert not Whole(Causal() & Window(2), slice(0, 5), slice(0, 5)).is_causal
    assert not Band(Causal() & Window(2), batch=1, q_len=5, k_len=5).is_causal


def test_distances_of_a_band_are_those_of_its_positions() -> None:
    band = Band(Window(4), batch=1, q_len=12, k_len=17)
    positions = band.fold_keys(torch.arange(17.0).reshape(1, 1, 17, 1)).flatten(1)  # (blocks, columns)
    queries = band.fold_queries(torch.arange(5.0, 17.0).reshape(1, 1, 12, 1)).flatten(1)  # (blocks, 3)
    inside = band.allowed(torch.device("cpu")).squeeze(1)
    expected = (queries[:, :, None] - positions[:, None])[inside]
    distances = torch.arange(band.queries.start, band.queries.stop)[:, None]
    distances = distances - torch.arange(band.keys.start, band.keys.stop)
    assert torch.equal(distances.expand(inside.shape)[inside].float(), expected)


def test_blocks_pay_where_the_reach_is_short() -> None:
    assert block_size(40, 0) == 20
    assert not pays_in_blocks((None, 0), 10**6)
    assert not pays_in_blocks((40, 40), 100)
    assert pays_in_blocks((40, 40), 400)


@pytest.mark.parametrize("spec", [{"scores": "additive"}, {"normalizers": "sparsemax", "combiners": "talking-heads"}])
def test_chunks_draw_the_same_dropout_twice(monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]) -> None:
    """The gradient in a direction is the slope of the function, which it is not if dropout differs between passes."""
    monkeypatch.setattr("attnlab.nn.attention.LARGEST_BYTES", 3000)
    layer = Attention(20, 4, causal=True, dropout=0.4, path="chunked", **spec).double().train()
    x, direction = torch.randn(2, 11, 20, dtype=torch.float64), torch.randn(2, 11, 20, dtype=torch.float64)

    def loss(step: float) -> Tensor:
        torch.manual_seed(7)
        return layer(x + step * direction).pow(2).sum()

    x.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(0.0), x)
    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    torch.testing.assert_close((gradient * direction).sum(), slope.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", [{}, {"positions": "relative-bias"}, {"scores": "additive", "normalizers": "sigmoid"}])
def test_a_band_compiles_as_one_graph(spec: dict[str, Any]) -> None:
    layer = Attention(20, 4, causal=True, masks={"name": "window", "width": 3}, path="local", **spec)
    x, padding = torch.randn(2, 13, 20), torch.arange(13) < torch.tensor([13, 6])[:, None]
    torch.compiler.reset()  # torch keeps few programs of one function, and other tests compile it too
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, None, padding), layer(x, None, padding))
