from __future__ import annotations

import pytest
import torch

from attnlab.core.errors import SpecError
from attnlab.nn.axes.relative_positions import LinearBias, RelativeBias, RotaryPositions, slopes

HERE = {"dtype": torch.float64, "device": torch.device("cpu")}


def test_rotary_turns_pairs_by_hand() -> None:
    q = torch.randn(1, 1, 3, 4, dtype=torch.float64)
    turned, _ = RotaryPositions(4).rotate(q, q)
    pairs = torch.view_as_complex(q.unflatten(-1, (2, 2)))
    angles = torch.arange(3.0, dtype=torch.float64)[:, None] * torch.tensor([1.0, 10000**-0.5], dtype=torch.float64)
    by_hand = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    torch.testing.assert_close(turned, by_hand)


def test_rotary_scores_depend_on_distance_only() -> None:
    one = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    q, k = (vector.expand(1, 1, 7, 6) for vector in one)
    q, k = RotaryPositions(6).rotate(q, k)
    scores = (q @ k.transpose(-2, -1))[0, 0]
    for distance in range(-6, 7):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert not torch.allclose(scores[0], scores[0, 0].expand(7))


@pytest.mark.parametrize("q_len", [2, 9])
def test_positions_are_aligned_at_the_end(q_len: int) -> None:
    q, k = torch.randn(1, 2, 9, 6, dtype=torch.float64), torch.randn(1, 2, 5, 6, dtype=torch.float64)
    long_q, _ = RotaryPositions(6).rotate(q, q)
    short_q, short_k = RotaryPositions(6).rotate(q[:, :, -q_len:], k)
    _, long_k = RotaryPositions(6).rotate(q, torch.cat((q[:, :, :4], k), dim=2))
    expected = long_q[:, :, -q_len:] @ long_k[:, :, -5:].transpose(-2, -1)
    torch.testing.assert_close(short_q @ short_k.transpose(-2, -1), expected)
    bias = LinearBias(2)
    torch.testing.assert_close(bias.bias(range(3, 5), range(5), **HERE), bias.bias(range(5), range(5), **HERE)[:, -2:])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rotary_is_the_same_for_a_compiler(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 5, 3 * 6, dtype=dtype)
    q, k = (part.unflatten(-1, (3, 2)).transpose(1, 2) for part in (x[..., 1:7], x[..., 6:12]))  # pairs at odd places
    expected = RotaryPositions(2).rotate(q, k)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(RotaryPositions(2).rotate(q, k), expected)


def test_rotary_of_short_numbers_is_rounded_once() -> None:
    q = torch.randn(1, 1, 200, 8, dtype=torch.bfloat16)
    turned, _ = RotaryPositions(8).rotate(q, q)
    exact, _ = RotaryPositions(8).rotate(q.double(), q.double())
    torch.testing.assert_close(turned.double(), exact, rtol=2**-8, atol=1e-4)  # half of a last place


def test_rotary_needs_pairs() -> None:
    with pytest.raises(SpecError, match="d_head must be even; got d_head=5"):
        RotaryPositions(5)


def test_slopes_of_the_paper() -> None:
    assert slopes(8) == [2.0**-power for power in range(1, 9)]
    assert slopes(1) == [2.0**-8]
    sixteen = slopes(16)
    assert sixteen[0] == pytest.approx(2**-0.5)
    assert slopes(12) == slopes(8) + sixteen[0:8:2]
    assert [len(slopes(n_heads)) for n_heads in range(1, 40)] == list(range(1, 40))


def test_linear_bias_by_hand() -> None:
    bias = LinearBias(2).bias(range(3), range(3), **HERE)
    distance = torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]], dtype=torch.float64)
    torch.testing.assert_close(bias, torch.stack((-distance / 2**4, -distance / 2**8)))


def test_a_bias_depends_on_the_distance_alone() -> None:
    for positions in (LinearBias(3), RelativeBias(3, n_buckets=8, max_distance=32)):
        for parameter in positions.parameters():
            torch.nn.init.normal_(parameter)
        here, there = (positions.bias(range(at, at + 5), range(at - 2, at + 9), **HERE) for at in (2, 100))
        assert torch.equal(here, there)
        assert here.unique().numel() > 3


def buckets(relative: RelativeBias, length: int) -> torch.Tensor:
    with torch.no_grad():
        relative.table.copy_(torch.arange(relative.n_buckets).expand_as(relative.table))
    return relative.bias(range(length), range(length), **HERE)[0].long()


def test_causal_buckets() -> None:
    last_row = buckets(RelativeBias(3, causal=True, n_buckets=8, max_distance=32), 64)[-1].flip(0)
    assert last_row[:5].tolist() == [0, 1, 2, 3, 4]
    assert torch.all(last_row.diff() >= 0)
    assert torch.all(last_row[32:] == 7)
    assert last_row[16:].unique().tolist() == [6, 7]


def test_buckets_on_both_sides_are_different() -> None:
    table = buckets(RelativeBias(3, n_buckets=8, max_distance=32), 11)
    assert table[5, 5].item() == 0
    assert table[5, 4].item() == 1
    assert table[5, 6].item() == 5
    assert set(table.tril().unique().tolist()).isdisjoint(set(table.triu(1)[table.triu(1) > 0].tolist()))


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(2, 8), (5, 8), (8, 8)])
def test_buckets_that_make_no_sense(n_buckets: int, max_distance: int) -> None:
    with pytest.raises(SpecError, match=f"got n_buckets={n_buckets}, max_distance={max_distance}"):
        RelativeBias(3, n_buckets=n_buckets, max_distance=max_distance)
