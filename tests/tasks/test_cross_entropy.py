"""The loss in blocks is torch's, in value and gradient, whatever is ignored, smoothed or rounded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from attnlab.tasks import cross_entropy
from attnlab.tasks.cross_entropy import BLOCK, LARGE, mean_cross_entropy

CLASSES = 5_000
ROWS = LARGE // CLASSES + 1  # the last block is not full
IGNORED = -100


@pytest.fixture
def targets():
    found = torch.randint(CLASSES, (ROWS,), generator=torch.Generator().manual_seed(1))
    found[::7] = IGNORED
    return found


def logits_of(dtype, rows=ROWS):
    drawn = 4 * torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(0))
    return drawn.to(dtype).requires_grad_()


def in_torch(logits, targets, smoothing):
    return F.cross_entropy(logits.float(), targets, ignore_index=IGNORED, label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_value_and_gradient_are_those_of_torch(targets, dtype, smoothing, factor):
    logits = logits_of(dtype)
    found = mean_cross_entropy(logits, targets, ignored=IGNORED, label_smoothing=smoothing)
    assert type(found.grad_fn).__name__ == "_InBlocksBackward"
    expected = in_torch(logits, targets, smoothing)
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(factor * found, logits)
    (wanted,) = torch.autograd.grad(factor * expected, logits)
    assert gradient.dtype == dtype
    precision = torch.finfo(dtype).eps
    torch.testing.assert_close(gradient, wanted, rtol=max(2 * precision, 1e-4), atol=precision * 1e-3)
    assert not gradient[targets == IGNORED].any()


def test_large_logits_do_not_overflow(targets):
    logits = (1000 * logits_of(torch.float32).detach()).requires_grad_()
    found = mean_cross_entropy(logits, targets, ignored=IGNORED)
    torch.testing.assert_close(found, in_torch(logits, targets, 0.0))
    (gradient,) = torch.autograd.grad(found, logits)
    assert gradient.isfinite().all()


def test_one_row_may_be_longer_than_a_block():
    rows = LARGE // BLOCK
    logits = torch.randn(rows, BLOCK + 1, requires_grad=True)
    targets = torch.arange(rows)
    found = mean_cross_entropy(logits, targets, ignored=IGNORED, label_smoothing=0.2)
    torch.testing.assert_close(found, in_torch(logits, targets, 0.2))


def test_rows_that_do_not_lie_side_by_side(targets):
    """Several runs' logits are one tensor when they train together; each run's are a view of it."""
    both = torch.stack([logits_of(torch.float32).detach() for _ in range(2)], dim=1).requires_grad_()
    found = mean_cross_entropy(both[:, 1], targets, ignored=IGNORED)
    (gradient,) = torch.autograd.grad(found, both)
    (wanted,) = torch.autograd.grad(in_torch(both[:, 1], targets, 0.0), both)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-10)


def test_not_a_number_where_every_row_is_ignored():
    targets = torch.full((ROWS,), IGNORED)
    assert mean_cross_entropy(logits_of(torch.float32), targets, ignored=IGNORED).isnan()


def test_a_target_outside_the_classes_is_an_error(targets):
    targets[1] = CLASSES
    with pytest.raises(RuntimeError, match="out of bounds"):
        mean_cross_entropy(logits_of(torch.float32), targets, ignored=IGNORED)


def test_few_logits_and_logits_without_gradient_are_left_to_torch(targets):
    few = mean_cross_entropy(logits_of(torch.float32, 10), targets[:10], ignored=IGNORED)
    assert "InBlocks" not in type(few.grad_fn).__name__
    assert mean_cross_entropy(logits_of(torch.float32).detach(), targets, ignored=IGNORED).grad_fn is None
    with torch.no_grad():
        assert mean_cross_entropy(logits_of(torch.float32), targets, ignored=IGNORED).grad_fn is None


def test_both_ways_give_one_number(targets, monkeypatch):
    logits = logits_of(torch.bfloat16)
    found = mean_cross_entropy(logits, targets, ignored=IGNORED, label_smoothing=0.1)
    monkeypatch.setattr(cross_entropy, "LARGE", logits.numel() + 1)
    expected = mean_cross_entropy(logits, targets, ignored=IGNORED, label_smoothing=0.1)
    assert "InBlocks" not in type(expected.grad_fn).__name__
    torch.testing.assert_close(found, expected)
