"""Measure how many directions scores and weights use, head by head, and whether heads read the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab.inspection.watch import Captured
from attnlab.nn.axes.heads import repeat_heads

Projected = Literal["q", "k", "v"]
MAP_AXES = 4
"""Axes of the weights of whole sequences: batch, heads, queries, keys."""
MASKED = 1e4
"""Size from which a score is taken for a mask that was written into it."""


@final
@dataclass(frozen=True)
class Rank:
    """Hold the effective ranks of one attention, a number for each head.

    Parameters
    ----------
    scores : tuple of float, optional
        Of the scores; None where they could not be seen.
    weights : tuple of float
        Of the weights.
    d_head : int, optional
        Width of a query; None where it could not be seen. Scores that are dot products have no larger rank.
    length : int
        Queries or keys that were compared, whichever are fewer: no rank is larger.
    """

    scores: tuple[float, ...] | None
    weights: tuple[float, ...]
    d_head: int | None
    length: int


def effective_rank(
    matrices: Float[Tensor, "*batch rows columns"], *, smallest: Float[Tensor, "*batch"] | None = None
) -> Float[Tensor, "*batch"]:
    """Number of directions that a matrix uses, those that carry little counted as less than one.

    Parameters
    ----------
    matrices : Tensor
        Any number of matrices, in any floating-point type.
    smallest : Tensor, optional
        Singular values that count as zero; up to the norm of the matrix times the relative precision of its type unless
        given, since they may come of rounding.

    Returns
    -------
    Tensor
        ``exp(-sum_i p_i log p_i)`` in float64, where ``p_i`` is a singular value over the sum of all: k where k of them
        are equal and the others zero, at most the rank; 0 for a matrix of zeros, NaN where not all numbers are finite.

    Notes
    -----
    Time O(rows * columns * min(rows, columns)) for each matrix.

    References
    ----------
    .. [1] Roy, Vetterli, 2007, "The effective rank: a measure of effective dimensionality", EUSIPCO, section 3.

    Examples
    --------
    >>> round(effective_rank(torch.eye(5)).item(), 6)
    5.0
    """
    exact = matrices.detach().double()
    known = exact.isfinite().all(dim=(-2, -1))
    sizes = torch.linalg.svdvals(torch.where(known[..., None, None], exact, 0.0))  # (*batch, min(rows, columns))
    smallest = torch.finfo(matrices.dtype).eps * sizes.norm(dim=-1) if smallest is None else smallest
    sizes = torch.where(sizes > smallest[..., None], sizes, 0.0)
    parts = sizes / sizes.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(exact.dtype).tiny)
    ranks = torch.exp(-torch.xlogy(parts, parts).sum(dim=-1)) * (sizes > 0).any(dim=-1)
    return ranks.masked_fill(~known, torch.nan)


def attention_rank(captured: Captured, *, sample: int = 0, real: Bool[Tensor, " q_len"] | None = None) -> Rank | None:
    """Measure the effective rank of the scores and of the weights of every head.

    Parameters
    ----------
    captured : Captured
        What `capture` recorded of one attention.
    sample : int, default 0
        Which sequence of the batch.
    real : Tensor, optional
        True at the queries that count, where some are padding; otherwise all of them count.

    Returns
    -------
    Rank or None
        None where the weights could not be seen or are those of pieces of the sequence, or no query looks at any key.

    Notes
    -----
    Keys that no query gives weight, such as padding, and queries that give none, are left out. Scores are taken before
    the mask and less the mean of their row: a number that all keys of a query have in common changes no softmax. Where
    a mask was written into them, the products of queries and keys are taken instead, without what positions add.

    Scores that are dot products of queries and keys of width ``d_head`` have a rank of ``d_head`` at most, which is the
    bottleneck of narrow heads: not all weights can be made with ``d_head`` below the length [1]_. A softmax raises the
    rank, so weights show the bottleneck less sharply; those under a causal mask are triangular, and of full rank where
    no weight of a position for itself is zero. Their effective rank says more: 1 where all queries look alike.

    References
    ----------
    .. [1] Bhojanapalli et al., 2020, arXiv:2002.07028, theorem 1.

    Examples
    --------
    >>> [round(rank, 6) for rank in attention_rank(Captured(weights=torch.eye(3)[None, None])).weights]
    [3.0]
    """
    if captured.weights is None or captured.weights.ndim != MAP_AXES:
        return None
    scores = _unmasked(captured)
    d_head = None if captured.q is None else captured.q.shape[-1]
    return rank_of(captured.weights[sample], None if scores is None else scores[sample], d_head=d_head, real=real)


def rank_of(
    weights: Float[Tensor, "heads q_len k_len"],
    scores: Float[Tensor, "heads q_len k_len"] | None,
    *,
    d_head: int | None,
    real: Bool[Tensor, " q_len"] | None = None,
) -> Rank | None:
    """The ranks of the attention of one sequence, as `attention_rank` has them."""
    weights = weights.detach().cpu()
    asking, seen = (weights != 0).any(dim=(0, 2)), (weights != 0).any(dim=(0, 1))
    asking = asking if real is None else asking & real.cpu()
    length = min(int(asking.sum()), int(seen.sum()))
    if not length:
        return None
    of_weights = effective_rank(weights[:, asking][..., seen])
    if scores is None:
        return Rank(None, _numbers(of_weights), d_head, length)
    compared = scores.detach().cpu()[:, asking][..., seen].double()
    centered = compared - compared.mean(dim=-1, keepdim=True)
    rounding = torch.finfo(scores.dtype).eps * compared.norm(dim=(-2, -1))  # of the scores, not of what is left
    of_scores = effective_rank(centered, smallest=rounding)
    return Rank(_numbers(of_scores), _numbers(of_weights), d_head, length)


def _unmasked(captured: Captured) -> Tensor | None:
    """The scores of a batch without a mask, as far as they could be seen."""
    q, k, scores = captured.q, captured.k, captured.scores
    if scores is not None and bool((scores.abs() < MASKED).all()):
        return scores
    if q is None or k is None or q.shape[-1] != k.shape[-1]:
        return None
    return q.double() @ repeat_heads(k, q.shape[1]).transpose(-2, -1).double()


def _numbers(ranks: Tensor) -> tuple[float, ...]:
    return tuple(ranks.tolist())


def subspace_overlap(trace: Mapping[str, Captured]) -> dict[str, dict[Projected, float]]:
    """Measure how much of what one head reads another head of its layer reads too.

    Parameters
    ----------
    trace : mapping of str to Captured
        What `capture` recorded.

    Returns
    -------
    dict of str to dict of str to float
        By attention, for its queries, keys and values: the mean over pairs of heads of the squared canonical
        correlations of their vectors over all positions [1]_. 1: each is a linear map of the other's, as heads of one
        subspace are; 0: they have nothing in common. What could not be seen, or has one head, is left out.

    Notes
    -----
    Heads of width ``d_head`` that read random directions of activations that use D of them equally overlap to ``d_head
    / D``; activations that use few directions much overlap more, so compare with an untrained model. Of positions not
    many more than ``d_head`` it is too large: by about ``d_head`` over their number.

    References
    ----------
    .. [1] Hotelling, 1936, "Relations between two sets of variates", Biometrika 28; Raghu et al., 2017,
       arXiv:1706.05806 (of layers of networks).

    Examples
    --------
    >>> v = torch.randn(1, 1, 50, 4, generator=torch.Generator().manual_seed(0)).repeat(1, 2, 1, 1)
    >>> round(subspace_overlap({"mixer": Captured(v=v)})["mixer"]["v"], 6)
    1.0
    """
    found: dict[str, dict[Projected, float]] = {}
    for name, captured in trace.items():
        seen = {step: getattr(captured, step) for step in get_args(Projected)}
        overlaps = {step: _overlap(one) for step, one in seen.items() if one is not None and one.shape[1] > 1}
        if overlaps:
            found[name] = overlaps
    return found


def _overlap(vectors: Float[Tensor, "batch heads length d_head"]) -> float:
    rows = vectors.detach().cpu().double().transpose(0, 1).flatten(1, 2)  # (heads, positions, d_head)
    left, sizes, _ = torch.linalg.svd(rows - rows.mean(dim=1, keepdim=True), full_matrices=False)
    smallest = sizes[:, :1] * max(rows.shape[1:]) * torch.finfo(vectors.dtype).eps
    bases = left * (sizes > smallest)[:, None]  # orthonormal columns of the directions that are used
    shared = (bases.mT[:, None] @ bases).square().sum(dim=(-2, -1))  # (heads, heads)
    widths = (sizes > smallest).sum(dim=-1)
    most = torch.minimum(widths[:, None], widths).clamp(min=1)
    pairs = ~torch.eye(len(rows), dtype=torch.bool)
    return (shared / most)[pairs].mean().item()
