"""The operators keep what torch asks of operators, and cut any size into blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnlab.nn.kernels import recomputed as module_under_test
from attnlab.nn.kernels.recomputed import attend_recomputed


def parts(batch: int, heads: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v as a packed projection leaves them."""
    packed = torch.randn(batch, length, 3 * heads * 6, dtype=torch.float64)
    q, k, v = (x.unflatten(-1, (heads, 6)).transpose(1, 2) for x in packed.chunk(3, dim=-1))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


@pytest.mark.parametrize("masked", [False, True])
def test_torch_finds_no_fault_with_the_operator(masked: bool) -> None:
    mask = torch.zeros(5, 5, dtype=torch.float64).masked_fill(torch.rand(5, 5) > 0.7, -torch.inf) if masked else None
    arguments = (*parts(2, 3, 5), mask, not masked, 0.5)
    torch.library.opcheck(torch.ops.attnlab.attend.default, arguments)


@pytest.mark.parametrize("numbers", [1, 40, 200, 700, 10**6])
def test_the_size_of_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    q, k, v = parts(3, 2, 7)
    weights = (0.3 * q @ k.transpose(-2, -1)).masked_fill(~torch.ones(7, 7).bool().tril(), -torch.inf).softmax(-1)
    expected = torch.autograd.grad((weights @ v).pow(3).sum(), (q, k, v))
    monkeypatch.setattr(module_under_test, "BLOCK_NUMBERS", numbers)
    found = attend_recomputed(q, k, v, None, is_causal=True, scale=0.3)
    for one, other in zip(torch.autograd.grad(found.pow(3).sum(), (q, k, v)), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_of_the_size_of_the_scores_is_kept() -> None:
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        attend_recomputed(*parts(1, 2, 97), None, is_causal=True, scale=1.0)
    assert kept
    assert max(kept) <= 2 * 97 * 6


def test_gradients_lie_as_projections_do() -> None:
    q, k, v = parts(2, 3, 5)
    found = attend_recomputed(q, k, v, None, is_causal=True, scale=1.0)
    gradients = torch.autograd.grad(found.sum(), (q, k, v))
    assert all(x.transpose(1, 2).is_contiguous() for x in (found, *gradients))
