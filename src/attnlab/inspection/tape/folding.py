"""Tell how the first axis of a product folds samples and heads, and what its keys are, by replacing inputs.

An index of the folded axis belongs to the sample whose replacement changes it; the indices that one sample owns are
its heads. Keys are positions if replacing one position changes some keys and not others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnlab.inspection.tape.contractions import Operand
from attnlab.inspection.tape.dependence import Dependence, differs
from attnlab.inspection.tape.tape import Event

Along = Literal["positions", "samples", "heads", "unknown"]
"""What the keys of an attention are; ``samples``: the batch is read as time."""


@final
@dataclass(frozen=True, eq=False)
class Folding:
    """Hold how samples and heads lie in the first axis of a product."""

    order: Int[Tensor, "batch heads"]
    """(batch, heads): indices of the first axis. Where the batch is read as time, positions stand for samples."""
    along: Along  # what the keys are


def folding_of(dependence: Dependence, values: Operand, places: Int[Tensor, "n k_len d_v"]) -> Folding:
    """How samples and heads lie in the values of a weighted sum, and what its keys are."""
    samples = range(dependence.batch)
    by_sample = [_changed(dependence, dependence.with_sample(sample), values, places) for sample in samples]
    order = owners([changed.any(1) for changed in by_sample])
    if order is not None:
        return Folding(order, _along(dependence, values, places, order))
    own_key = torch.eye(places.shape[1], dtype=torch.bool)
    if places.shape[1] == dependence.batch and all(
        torch.equal(changed, own_key[sample].expand_as(changed)) for sample, changed in enumerate(by_sample)
    ):
        return Folding(_positions_order(dependence, values, places), "samples")
    n = places.shape[0]
    rows = dependence.batch if n % dependence.batch == 0 else 1
    return Folding(torch.arange(n).view(rows, -1), "unknown")


def owners(changed: Sequence[Bool[Tensor, " n"]]) -> Int[Tensor, "owners each"] | None:
    """The indices that each of several replacements changes, one row a replacement."""
    table = torch.stack(list(changed))  # (owners, n)
    n = table.shape[1]
    if not bool((table.sum(0) == 1).all()) or len(set(table.sum(1).tolist())) != 1:
        return None
    return table.nonzero()[:, 1].view(table.shape[0], n // table.shape[0])


def _positions_order(dependence: Dependence, values: Operand, places: Tensor) -> Tensor:
    """The indices that belong to each position, or all as heads of one."""
    changed = [
        _changed(dependence, dependence.with_position(position), values, places).any(1)
        for position in range(dependence.length)
    ]
    order = owners(changed)
    return torch.arange(places.shape[0])[None] if order is None else order


def _along(dependence: Dependence, values: Operand, places: Tensor, order: Tensor) -> Along:
    """What the keys are, given the order of samples and heads."""
    length = dependence.length
    by_size: Along = "positions" if places.shape[1] == length else "unknown"
    changed = _changed(dependence, dependence.with_position(length // 2), values, places)[order[0]]  # (heads, k_len)
    of_keys, of_heads = changed.any(0), changed.any(1)
    if not of_keys.any() or not torch.equal(changed, of_heads[:, None] & of_keys[None]):
        return by_size
    if not of_keys.all():
        return "positions"
    return by_size if of_heads.all() else "heads"


def _changed(
    dependence: Dependence, events: Sequence[Event], operand: Operand, places: Int[Tensor, "n k_len d_v"]
) -> Bool[Tensor, "n k_len"]:
    """Which entries of an operand are others after a replacement."""
    at, number = operand
    before, after = dependence.tape.events[at].inputs[number], events[at].inputs[number]
    return differs(before, after).flatten()[places].any(2)


def heads_in_rows(
    dependence: Dependence, queries: Operand | None, places: Int[Tensor, "batch heads rows d_head"] | None, *, keys: int
) -> Callable[[Tensor], Tensor] | None:
    """How to part heads from positions where a product folds both into its rows, None where it does not.

    Notes
    -----
    This is how ``einsum`` multiplies the queries of all heads with keys that they share.
    """
    length = dependence.length
    if queries is None or places is None or keys != length or places.shape[2] % length or places.shape[2] == length:
        return None
    each = places.shape[2] // length
    position = length // 2
    flat = places.flatten(0, 1)  # (batch * heads, rows, d_head)
    changed = _changed(dependence, dependence.with_position(position), queries, flat).any(0)  # (rows)
    if changed.view(length, each)[position].all() and changed.sum() == each:
        return lambda table: _parted(table.unflatten(2, (length, each)).transpose(2, 3))
    return lambda table: _parted(table.unflatten(2, (each, length)))


def _parted(table: Tensor) -> Tensor:
    return table.flatten(1, 2)  # (batch, heads * each, length, columns)
