"""Attention as an explanation, and how far it agrees with what a logit hangs on."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.core.errors import SpecError
from attnlab.inspection.drawing.pieces import drawn
from attnlab.inspection.watch import Captured


@final
@dataclass(frozen=True)
class Agreement:
    """Hold how far two ways of weighing keys order them alike.

    Parameters
    ----------
    by_query : Tensor
        Kendall's tau of each query in float64: 1 where the order is the same, -1 where it is reversed; NaN where fewer
        than two keys count, or one side weighs all alike.
    mean : float
        Over the queries that have a tau.
    spread : float
        Their standard deviation.
    """

    by_query: Float[Tensor, "*queries"]
    mean: float
    spread: float

    def _repr_html_(self) -> str:
        """How far the two sides agree, in words."""
        counted = int((~self.by_query.isnan()).sum())
        return drawn("Agreement", f"Kendall's tau {self.mean:.2f} ± {self.spread:.2f} over {counted} queries").html


def attention_rollout(trace: Mapping[str, Captured]) -> Float[Tensor, "batch q_len k_len"]:
    """Follow attention through all layers down to the input, with half of every layer passing by.

    Parameters
    ----------
    trace : mapping of str to Captured
        What `capture` recorded of a stack, in the order of its layers: self-attention alone, of one sequence.

    Returns
    -------
    Tensor
        How much of each input position arrives at each position of the last layer; rows sum to 1.

    Raises
    ------
    SpecError
        If there is no attention, or the weights are not all of one sequence over itself.

    Notes
    -----
    The product of ``(W + I) / 2`` over layers, W the mean over heads, each row divided by its sum [1]_. It knows the
    weights only: not the values they weigh, nor the feed-forwards, nor how large the residual stream really is.

    References
    ----------
    .. [1] Abnar, Zuidema, 2020, arXiv:2005.00928, section 3, equation 1.

    Examples
    --------
    >>> attention_rollout({"first": Captured(weights=torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]))}).tolist()
    [[[1.0, 0.0], [0.5, 0.5]]]
    """
    weights = {name: captured.weights for name, captured in trace.items() if captured.weights is not None}
    if not weights:
        raise SpecError("a rollout needs the weights of an attention at least; the trace has none")
    first, *_ = sizes = [tuple(one.shape[:1] + one.shape[-2:]) for one in weights.values()]
    for name, size in zip(weights, sizes, strict=True):
        if size != first or size[1] != size[2]:
            raise SpecError(
                f"a rollout follows one sequence from layer to layer; {name} has (batch, q_len, k_len) {size}, the "
                f"first one {first}; leave out attention to another sequence, and all layers of one side"
            )
    layers = (one.detach().mean(dim=1) + torch.eye(first[-1]).to(one) for one in weights.values())
    mixing = [layer / layer.sum(dim=-1, keepdim=True) for layer in layers]  # (batch, q_len, k_len)
    return functools.reduce(lambda below, layer: layer @ below, mixing)


def agreement(first: Float[Tensor, "*queries keys"], second: Float[Tensor, "*queries keys"]) -> Agreement:
    """Compare, query by query, in which order two sides put the keys by size.

    Parameters
    ----------
    first : Tensor
        For example the weights of a head, a row of a rollout for each sequence, or scores of an attribution.
    second : Tensor
        What it is compared with, of the same shape.

    Returns
    -------
    Agreement
        Kendall's tau of each query, their mean and spread.

    Raises
    ------
    SpecError
        If the shapes differ, or no query has two keys to compare.

    Notes
    -----
    Tau-b, of absolute values, so that a key counts as important whether it raises a logit or lowers it [1]_. Keys that
    are zero on both sides, such as those behind a causal mask, are left out: they would agree for nothing. One number
    near 0 says that attention and attribution have nothing in common, which is no proof against either: small values in
    an order of chance lower tau as much as large ones.

    References
    ----------
    .. [1] Jain, Wallace, 2019, arXiv:1902.10186, section 4.1.
    """
    from scipy import stats

    if first.shape != second.shape:
        raise SpecError(f"agreement needs two of one shape; got {tuple(first.shape)} and {tuple(second.shape)}")
    pairs = torch.stack((first, second)).detach().cpu().double().abs()
    queries = pairs.reshape(2, -1, first.shape[-1]).unbind(dim=1)  # (2, keys) each
    counted = [pair[:, (pair != 0).any(dim=0)] for pair in queries]  # (2, keys that count) each
    taus = [float(stats.kendalltau(*pair.numpy()).statistic) if pair.shape[1] > 1 else torch.nan for pair in counted]
    by_query = torch.tensor(taus, dtype=torch.float64)
    known = by_query[~by_query.isnan()]
    if not len(known):
        raise SpecError("no query has two keys that are weighed differently on both sides: nothing can be compared")
    return Agreement(by_query.view(first.shape[:-1]), known.mean().item(), known.std(correction=0).item())
