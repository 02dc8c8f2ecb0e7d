"""Attention of features to features: its keys are features, and its scores are summed over positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from attnlab.inspection.tape.attentions import TapedAttention
from attnlab.inspection.tape.dependence import Dependence, differs
from attnlab.inspection.tape.replay import replay
from attnlab.inspection.tape.tape import Event
from attnlab.inspection.tape.tracing import places_in

Projected = Literal["over features", "over positions"]
"""What queries, keys and values are linear maps of: the features of a position, or the positions of a feature."""

_SEED = 43  # of what a feature is replaced by; any
_MOST = 0.5  # of the keys must follow a position; a ReLU closes half of them
_UNIT = 1e-3  # what lengths of normalized vectors differ by at most, an epsilon in the divisor included


def over_features(dependence: Dependence, attention: TapedAttention) -> Projected | None:
    """Whether features look at each other in an attention, and what its values were projected over; None if not.

    Notes
    -----
    Right values have one row a position. Here a position is a column, which all keys share; or each feature of the
    input has a row, and every position changes every row.
    """
    if not attention.softmaxes or attention.products is None or attention.weights.shape[0] != dependence.batch:
        return None
    event, number = attention.sources.values
    before, places = dependence.tape.events[event].inputs[number], attention.sources.value_places[0]

    def changed(events: Sequence[Event]) -> Bool[Tensor, "heads k_len d_v"]:
        return differs(before, events[event].inputs[number]).flatten()[places]

    if _columns_are_positions(dependence, changed):
        return "over features"
    return "over positions" if _rows_are_features(dependence, changed) else None


def chooses_summaries(dependence: Dependence, attention: TapedAttention) -> bool:
    """Whether scores are no products of queries and keys, and every value sums up all positions.

    So it is where a softmax over the features of a query is meant, which then weighs sums over all keys.

    References
    ----------
    .. [1] Shen et al., 2021, "Efficient Attention", arXiv:1812.01243, section 3.2.
    """
    pairing, tape = attention.sources.pairing, dependence.tape
    if pairing.keys is not None and pairing.products is not None and pairing.scores is not None:
        learned = dependence.is_learned(tape.events[pairing.keys[0]], pairing.keys[1])
        if not learned and places_in(tape, pairing.products, pairing.scores) is not None:
            return False
    event, number = attention.sources.values
    before, places = tape.events[event].inputs[number], attention.sources.value_places[0]
    changed = differs(before, dependence.with_position(0)[event].inputs[number]).flatten()[places]
    return bool(changed.any(2).all())


def _columns_are_positions(dependence: Dependence, changed: Callable[[Sequence[Event]], Tensor]) -> bool:
    """Whether each position changes its own column of the values, and not all of them."""
    first, last = 0, dependence.length - 1
    for position, far in ((first, last), (last, first)):
        table = changed(dependence.with_position(position))
        if table.shape[2] != dependence.length or table[..., far].any():
            return False
        if float(table[..., position].double().mean()) < _MOST:
            return False
    return True


def _rows_are_features(dependence: Dependence, changed: Callable[[Sequence[Event]], Tensor]) -> bool:
    """Whether each feature of the input changes its own row of the values, and each position all of them."""
    count = dependence.convention.d_in
    table = changed(dependence.with_position(0))
    if count < 2 or table.shape[1] != count or not table.any(2).all():
        return False
    own = torch.eye(count, dtype=torch.bool)
    rows = {feature: changed(_with_feature(dependence, feature)).any(2) for feature in (0, count - 1)}
    return all(torch.equal(row, own[feature].expand_as(row)) for feature, row in rows.items())


def _with_feature(dependence: Dependence, feature: int) -> Sequence[Event]:
    """The events with one feature of the first sample replaced at all positions."""

    def replaced(tensor: Tensor) -> Tensor:
        if not dependence.is_input(tensor):
            return tensor
        other = torch.randn(tensor.shape[1], generator=torch.Generator().manual_seed(_SEED), dtype=torch.float64)
        tensor = tensor.clone()
        tensor[0, :, feature] = other.to(tensor.dtype)
        return tensor

    return replay(dependence.tape, outside=replaced)


def has_unit_factors(attention: TapedAttention) -> bool:
    """Whether queries and keys are divided by their lengths, as where features are compared on purpose."""
    factors = [factor for factor in (attention.q, attention.k) if factor is not None]
    return bool(factors) and all(float((one.norm(dim=-1) - 1).abs().max()) < _UNIT for one in factors)
