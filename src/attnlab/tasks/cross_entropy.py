"""Cross-entropy over a large vocabulary on a CPU, block by block: each block of logits is in a cache while it is used.

Torch's loss passes over all logits again and again, 131 MB in float32 for 4,096 tokens and a vocabulary of 8,000. Here
they are read once and their gradient, found in the same pass, is written once, in their own type.
"""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGE = 2**21  # logits; fewer than these stay in the cache by themselves
BLOCK = 2**18  # logits: 1 MB of float32, what a second-level cache holds
TYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


def mean_cross_entropy(
    logits: Float[Tensor, "rows classes"], targets: Int[Tensor, " rows"], *, ignored: int, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """The mean cross-entropy over the rows that are not ignored, computed in float32.

    Notes
    -----
    The same as `torch.nn.functional.cross_entropy` of the logits in float32, up to rounding. Where a gradient is asked
    for on a CPU and there are many logits, it is not differentiable twice.

    References
    ----------
    .. [1] Szegedy et al., 2016, arXiv:1512.00567, section 7 (label smoothing).
    .. [2] Hsu et al., 2024, arXiv:2410.10989, section 3.2 (gradients in the forward pass, in blocks).
    """
    wanted = logits.requires_grad and torch.is_grad_enabled()
    if wanted and logits.is_cpu and logits.numel() >= LARGE and logits.dtype in TYPES:
        return _InBlocks.apply(logits, targets, ignored, label_smoothing)  # pyrefly: ignore[bad-return]
    return F.cross_entropy(logits.float(), targets, ignore_index=ignored, label_smoothing=label_smoothing)


@final
class _InBlocks(torch.autograd.Function):
    """The loss of blocks of rows, and at once its gradient, softmax minus target distribution."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignored: int, label_smoothing: float) -> Tensor:
        """The mean loss."""
        classes = logits.shape[1]
        kept = targets != ignored
        weights = (kept / kept.sum()).unsqueeze(1)
        right = targets.where(kept, 0).unsqueeze(1)
        spread = label_smoothing / classes
        gradient, loss = torch.empty_like(logits), logits.new_zeros((), dtype=torch.float32)
        rows = max(1, BLOCK // classes)
        space = torch.empty(rows, classes, dtype=torch.float32)
        parts = (x.split(rows) for x in (logits, gradient, weights, right))
        for x, gradient_part, weight, place in zip(*parts, strict=True):
            block = space[: len(x)].copy_(x)
            expected = (1 - label_smoothing) * block.gather(1, place)
            if spread:
                expected += spread * block.sum(1, keepdim=True)
            largest = block.amax(1, keepdim=True)
            total = block.sub_(largest).exp_().sum(1, keepdim=True)
            loss += (weight * (largest + total.log() - expected)).sum()
            block.mul_(weight / total)
            if spread:
                block.sub_(weight * spread)
            block.scatter_add_(1, place, weight * (label_smoothing - 1))
            gradient_part.copy_(block)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:  # pyrefly: ignore[bad-override]
        """The gradient of the logits."""
        (gradient,) = ctx.saved_tensors
        return gradient if upstream == 1 else gradient * upstream.to(gradient.dtype), None, None, None
