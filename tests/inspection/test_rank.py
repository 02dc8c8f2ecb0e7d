"""Ranks must be those of matrices whose rank is known, and masks, padding and types must not change them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.inspection import Captured, attention_rank, capture, effective_rank, subspace_overlap
from attnlab.nn import Attention

LENGTH, D_MODEL, N_HEADS = 13, 12, 3


def seen(layer: nn.Module, x: Tensor, **given: Tensor) -> Captured:
    with torch.no_grad(), capture(layer) as trace:
        layer(x, **given)
    (captured,) = trace.values()
    return captured


def of_known_rank(rank: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a matrix with as many equal singular values."""
    left, right = (torch.linalg.qr(torch.randn(size, rank, dtype=torch.float64))[0] for size in (11, 17))
    return (left @ right.T).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 4, 11])
def test_equal_singular_values_count_one_each(rank: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rank)
    found = effective_rank(of_known_rank(rank, dtype)[None, None])
    assert found.shape == (1, 1)
    assert found.item() == pytest.approx(rank, rel=0.05 if dtype == torch.bfloat16 else 1e-6)


def test_singular_values_that_differ_count_by_their_entropy() -> None:
    sizes = torch.tensor([4.0, 2.0, 2.0], dtype=torch.float64)
    expected = math.exp(0.5 * math.log(2) + 2 * 0.25 * math.log(4))
    assert effective_rank(torch.diag(sizes)).item() == pytest.approx(expected)
    assert effective_rank(7 * torch.diag(sizes)).item() == pytest.approx(expected)


def test_zeros_have_none_and_what_is_not_finite_has_no_number() -> None:
    given = torch.stack([torch.zeros(3, 3), torch.full((3, 3), torch.nan), torch.eye(3)])
    zero, unknown, whole = effective_rank(given).tolist()
    assert (zero, whole) == (0.0, pytest.approx(3.0))
    assert math.isnan(unknown)


@pytest.mark.parametrize("causal", [False, True])
def test_scores_have_no_larger_rank_than_heads_are_wide(causal: bool) -> None:
    torch.manual_seed(0)
    layer, x = Attention(D_MODEL, N_HEADS, causal=causal), torch.randn(2, LENGTH, D_MODEL)
    rank = attention_rank(seen(layer, x), sample=1)
    assert rank is not None
    assert rank.scores is not None
    assert (rank.d_head, rank.length) == (4, LENGTH)
    assert all(1 < one <= 4 + 1e-4 for one in rank.scores)
    wide = attention_rank(seen(Attention(D_MODEL, N_HEADS, heads="full-width"), x))
    assert wide is not None
    assert wide.scores is not None
    assert min(wide.scores) > 4


def test_a_causal_map_is_of_full_rank_by_its_diagonal_and_its_effective_rank_says_more() -> None:
    alike = torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.float64))
    alike /= alike.sum(-1, keepdim=True)
    assert torch.linalg.matrix_rank(alike) == LENGTH
    causal, full = (attention_rank(Captured(weights=w[None, None])) for w in (alike, torch.ones_like(alike) / LENGTH))
    assert causal is not None
    assert full is not None
    assert causal.weights[0] < 0.7 * LENGTH
    assert full.weights == (pytest.approx(1.0),)


def test_what_all_keys_of_a_query_share_changes_no_rank() -> None:
    torch.manual_seed(1)
    scores = torch.randn(1, 2, LENGTH, LENGTH, dtype=torch.float64)
    moved = scores + 100 * torch.randn(1, 2, LENGTH, 1, dtype=torch.float64)
    constant = attention_rank(Captured(scores=0.1 + 0 * scores.float(), weights=scores.softmax(-1)))
    assert constant is not None
    assert constant.scores == (0.0, 0.0)
    one, other = (attention_rank(Captured(scores=s, weights=s.softmax(-1))) for s in (scores, moved))
    assert one is not None
    assert other is not None
    assert other.scores == pytest.approx(one.scores)


def test_padding_changes_no_rank() -> None:
    torch.manual_seed(2)
    layer, x = Attention(D_MODEL, N_HEADS), torch.randn(1, LENGTH, D_MODEL)
    longer, padding = F.pad(x, (0, 0, 0, 5), value=9.0), (torch.arange(LENGTH + 5) < LENGTH)[None]
    alone = attention_rank(seen(layer, x))
    padded = attention_rank(seen(layer, longer, padding=padding), real=padding[0])
    assert alone is not None
    assert padded is not None
    assert padded.length == LENGTH
    assert padded.weights == pytest.approx(alone.weights, rel=1e-4)
    assert padded.scores == pytest.approx(alone.scores, rel=1e-4)
    unsaid = attention_rank(seen(layer, longer, padding=padding))
    assert unsaid is not None
    assert unsaid.weights != pytest.approx(alone.weights, rel=1e-4)


class WithMaskInScores(nn.Module):
    def __init__(self, hidden: float) -> None:
        super().__init__()
        self.hidden, self.qkv = hidden, nn.Linear(6, 18)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return (q @ k.transpose(-2, -1)).masked_fill(ahead, self.hidden).softmax(-1) @ v


@pytest.mark.parametrize("hidden", [-math.inf, -1e9, -1e4])
def test_a_mask_in_the_scores_is_not_taken_for_their_rank(hidden: float) -> None:
    torch.manual_seed(3)
    rank = attention_rank(seen(WithMaskInScores(hidden), torch.randn(1, LENGTH, 6)))
    assert rank is not None
    assert rank.scores is not None
    assert 1 < rank.scores[0] <= 6 + 1e-4
    masked = torch.zeros(1, 1, 3, 3).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), hidden)
    unseen = attention_rank(Captured(scores=masked, weights=masked.softmax(-1)))
    assert unseen is not None
    assert unseen.scores is None


def test_scores_in_bfloat16_are_of_the_rank_they_were_rounded_from() -> None:
    torch.manual_seed(4)
    q, k = torch.randn(1, 1, 64, 4, dtype=torch.float64), torch.randn(1, 1, 64, 4, dtype=torch.float64)
    exact = q @ k.transpose(-2, -1)
    whole, rounded = (
        attention_rank(Captured(q, k, scores=exact.to(dtype), weights=exact.softmax(-1).to(dtype)))
        for dtype in (torch.float64, torch.bfloat16)
    )
    assert whole is not None
    assert rounded is not None
    assert rounded.scores == pytest.approx(whole.scores, rel=0.01)


def test_where_nothing_is_seen_or_looked_at_there_is_no_rank() -> None:
    assert attention_rank(Captured()) is None
    assert attention_rank(Captured(weights=torch.zeros(1, 2, 3, 3))) is None
    half = torch.eye(3).repeat(1, 2, 1, 1)
    half[0, 1] = 0
    rank = attention_rank(Captured(weights=half))
    assert rank is not None
    assert rank.weights == (pytest.approx(3.0), 0.0)


def test_heads_overlap_by_the_directions_that_they_share() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 9, dtype=torch.float64)
    x = torch.linalg.qr(x - x.mean(0))[0]  # nine directions, centered, that have nothing in common
    heads = torch.stack([x[:, :4] @ torch.randn(4, 4).double(), x[:, 3:7], x[:, [0, 1, 7, 8]]])[None]
    found = subspace_overlap({"mixer": Captured(q=heads, k=heads[:, :1], v=5 + heads[:, [0, 0]])})["mixer"]
    assert found["q"] == pytest.approx((1 / 4 + 2 / 4 + 0) / 3)  # of four directions one, two and none
    assert found["v"] == pytest.approx(1)
    assert "k" not in found  # one head


def test_heads_that_use_fewer_directions_are_compared_by_those() -> None:
    torch.manual_seed(0)
    narrow = torch.randn(1, 1, 30, 1).expand(-1, -1, -1, 3)  # one direction in three features
    wide = torch.cat((narrow[..., :1], torch.randn(1, 1, 30, 2)), dim=-1)
    found = subspace_overlap({"mixer": Captured(v=torch.cat((narrow, wide), dim=1))})
    assert found["mixer"]["v"] == pytest.approx(1, abs=1e-6)
    assert subspace_overlap({"mixer": Captured(weights=torch.ones(1, 2, 3, 3))}) == {}


def test_heads_of_random_maps_overlap_by_their_share_of_the_width() -> None:
    torch.manual_seed(0)
    layer = Attention(64, 8)
    with torch.no_grad(), capture(layer) as trace:
        layer(torch.randn(8, 500, 64))
    (found,) = subspace_overlap(trace).values()
    assert set(found) == {"q", "k", "v"}
    assert all(value == pytest.approx(8 / 64, rel=0.1) for value in found.values())
