"""Find the heads of another seed that behave most like those of a model, whose numbers mean nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.core.errors import DataError
from attnlab.core.layouts import Real
from attnlab.inspection.behaviour import head_distances, reads, real_or_all, shares_of, weights_of
from attnlab.inspection.watch import Captured


@final
@dataclass(frozen=True)
class HeadMatch:
    """Hold which heads of two models behave most alike.

    Parameters
    ----------
    pairs : tuple of (str, str, float)
        A head of the first model, its partner in the second, and the Jensen-Shannon distance of their weights.
    agreement : float
        1 less the mean distance of the pairs; 1 where all partners behave the same.
    chance : float
        The agreement to expect where heads are paired at random.
    """

    pairs: tuple[tuple[str, str, float], ...]
    agreement: float
    chance: float


@final
@dataclass(frozen=True)
class HeadMatches:
    """Hold the matches of two models, partners sought in the same layer and in all layers.

    Parameters
    ----------
    layers : dict of str to HeadMatch
        By name of the layer.
    whole : HeadMatch
        Partners may be of different layers that look from and at equally many positions.
    """

    layers: dict[str, HeadMatch]
    whole: HeadMatch


def match_heads(
    first: Mapping[str, Captured], second: Mapping[str, Captured], *, real: Real | None = None
) -> HeadMatches:
    """Find for each head of a model the head of another seed that behaves most like it.

    Parameters
    ----------
    first, second : mapping of str to Captured
        What `capture` recorded of two models of one form that read the same tokens. Attention whose weights could not
        be seen is left out.
    real : Tensor, optional
        Padding: True at the tokens that count, for self-attention over the same tokens; all of them if left out.

    Returns
    -------
    HeadMatches
        One partner for each head, such that the sum of distances is smallest.

    Raises
    ------
    DataError
        If the models have different layers or read different numbers of tokens, or padding is not that of all layers.

    Notes
    -----
    The distance of two heads is the mean, over queries, of the Jensen-Shannon distance of their weights, the square
    root of the divergence in bits, from 0 to 1 [1]_; 1 where no query gives weight in both. Partners are the best of
    all pairings, so that models that share nothing exceed `chance` as well: two untrained seeds show by how much.
    Where most heads look alike, as they do before training, agreement and chance are both close to 1.

    Time O(all_heads^2 * batch * length^2) and O(all_heads^3) for the assignment, memory O(all_heads * batch *
    length^2).

    References
    ----------
    .. [1] Endres, Schindelin, 2003, "A new metric for probability distributions", IEEE Transactions on Information
       Theory 49 (7).
    """
    ours, theirs = weights_of(first), weights_of(second)
    _require_comparable(ours, theirs)
    one, other = ([_shares(side[name], real) for name in ours] for side in (ours, theirs))
    blocks = [[_distances(mine, yours) for yours in other] for mine in one]  # (heads, heads) for each two layers
    places = [[f"{name}:{head}" for head in range(weights.shape[1])] for name, weights in ours.items()]
    layers = {name: _match(blocks[index][index], places[index]) for index, name in enumerate(ours)}
    whole = torch.cat([torch.cat(row, dim=1) for row in blocks])  # (all_heads, all_heads)
    return HeadMatches(layers, _match(whole, [place for layer in places for place in layer]))


def layer_agreement(trace: Mapping[str, Captured]) -> float:
    """How much the heads of one layer agree with each other: what `match_heads` compares agreement between seeds with.

    Parameters
    ----------
    trace : mapping of str to Captured
        What `capture` recorded.

    Returns
    -------
    float
        1 less the mean Jensen-Shannon distance of two heads of a layer; NaN where every layer has one head.
    """
    shares = [_shares(weights, None) for weights in weights_of(trace).values()]
    distances = torch.cat([head_distances(one, one).fill_diagonal_(torch.nan).flatten() for one in shares])
    return 1 - distances.nanmean().item()


def _require_comparable(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """Raise unless two models have the same layers, over equally many tokens."""
    mine, yours = ({(name, *weights.shape) for name, weights in side.items()} for side in (ours, theirs))
    if mine != yours or not mine:
        raise DataError(
            "heads are matched between layers of the same names and shapes; "
            f"got {sorted(mine ^ yours) or 'none'}: keep the layers of a trace that can be compared"
        )


def _shares(weights: Tensor, real: Real | None) -> Tensor:
    samples, queries, keys = reads(weights)
    if real is None:
        return shares_of(weights, *(torch.ones(samples, length, dtype=torch.bool) for length in (queries, keys)))
    if queries != keys:
        raise DataError("padding is that of the tokens of self-attention; leave out attention to another sequence")
    known = real_or_all(real, (samples, queries))
    return shares_of(weights, known, known)


def _distances(first: Tensor, second: Tensor) -> Float[Tensor, "heads heads"]:
    """The distances of the heads of two layers, infinite where they look from or at different numbers of positions."""
    if reads(first) != reads(second):
        return torch.full((first.shape[1], second.shape[1]), torch.inf, dtype=torch.float64)
    return head_distances(first, second)


def _match(distances: Float[Tensor, "heads heads"], places: Sequence[str]) -> HeadMatch:
    """The pairing with the smallest sum of distances."""
    from scipy import optimize

    known = distances.nan_to_num(nan=1.0, posinf=torch.inf)  # of a head that gives no weight
    rows, columns = optimize.linear_sum_assignment(known.numpy())
    chosen = known[rows, columns]
    pairs = zip((places[row] for row in rows), (places[column] for column in columns), chosen.tolist(), strict=True)
    return HeadMatch(tuple(pairs), 1 - chosen.mean().item(), 1 - known[known.isfinite()].mean().item())
