"""The trees of a sentence by dynamic programming over spans, all sentences of a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

SpanScores = Float[Tensor, "batch places places"]
"""Of the words between two places; a sentence of n words has n + 1 places."""
Reduce = Callable[[Tensor], Tensor]
"""From the scores of the ways to cut each span, last, to one for each span."""


def inside(scores: SpanScores, reduce: Reduce) -> SpanScores:
    """What all binary trees over each span come to: a tree's score is the sum over its spans.

    Parameters
    ----------
    scores : Tensor
        Of each span; those whose end is not behind their start do not count.
    reduce : callable
        The best or the logarithm of the summed exponentials, over the last axis.

    Returns
    -------
    Tensor
        Of each span; zero where there is none.

    Notes
    -----
    Time O(batch n^3) in n steps, one for each width. Two copies are kept, by the first place of a span and by its last,
    so that both halves of all spans of a width are slices.

    References
    ----------
    .. [1] Younger, 1967, "Recognition and parsing of context-free languages in time n^3".
    """
    places = scores.shape[-1]
    by_start, by_end = torch.zeros_like(scores), torch.zeros_like(scores)  # [:, place, width]
    for width in range(1, places):
        found = scores.diagonal(width, dim1=1, dim2=2)  # (batch, spans)
        if width > 1:
            spans = places - width
            left = by_start[:, :spans, 1:width]
            right = by_end[:, width:, 1:width].flip(-1)
            found = found + reduce(left + right)
        by_start[:, : places - width, width] = found
        by_end[:, width:, width] = found
    starts = torch.arange(places, device=scores.device)
    widths = (starts[None, :] - starts[:, None]).clamp(min=0)
    return by_start.gather(2, widths.expand_as(scores))


def best_trees(scores: SpanScores, words: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The spans of the best binary tree over each sentence, each before those inside it."""
    totals = inside(scores, lambda ways: ways.amax(dim=-1)).cpu()
    found = []
    for total, count in zip(totals.numpy(), words, strict=True):
        spans, waiting = [], [(0, count)]
        while waiting:
            start, end = waiting.pop()
            spans.append((start, end))
            if end - start > 1:
                cut = start + 1 + int((total[start, start + 1 : end] + total[start + 1 : end, end]).argmax())
                waiting += [(cut, end), (start, cut)]
        found.append(spans)
    return found
