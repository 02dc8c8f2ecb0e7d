"""Trace weights back to the scores they were made of, and these to the queries and keys that were multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from jaxtyping import Int
from torch import Tensor

from attnlab.inspection.tape.contractions import Contraction, Operand
from attnlab.inspection.tape.tape import Tape
from attnlab.inspection.tape.tracing import NORMALIZERS, NOWHERE, places_in
from attnlab.inspection.tape.weighted_sums import TapedSoftmax

Over = Literal["keys", "queries", "batch", "heads", "unknown"]
"""An axis of the canonical weights."""

_AXES: tuple[tuple[Over, int], ...] = (("keys", 3), ("queries", 2), ("heads", 1), ("batch", 0))

Places = Int[Tensor, "batch heads q_len k_len"]


@final
@dataclass(frozen=True, eq=False)
class Pairing:
    """Hold what the weights of one attention were made of.

    Parameters
    ----------
    scores : tuple of (int, int) or None
        Event and input that hold the scores.
    score_places : Tensor or None
        Where in it each weight's score lies.
    over : {"keys", "queries", "batch", "heads", "unknown"}
        Axis of the last softmax.
    products : int or None
        Event that multiplied queries and keys.
    product_places : Tensor or None
        Where in its output each weight's product lies.
    queries, keys : tuple of (int, int) or None
        Event and input that hold the factors.
    query_places, key_places : Tensor or None
        Where they lie in it, (batch, heads, length, d_head).
    """

    scores: Operand | None = None
    score_places: Places | None = None
    over: Over = "unknown"
    products: int | None = None
    product_places: Places | None = None
    queries: Operand | None = None
    query_places: Int[Tensor, "batch heads q_len d_head"] | None = None
    keys: Operand | None = None
    key_places: Int[Tensor, "batch heads k_len d_head"] | None = None


def pairing_of(
    tape: Tape,
    weights: Operand,
    *,
    places: Places,
    softmaxes: Sequence[TapedSoftmax],
    candidates: Sequence[Contraction],
) -> Pairing:
    """What weights were made of."""
    pairing = Pairing()
    start: tuple[Operand, Places] | None = (weights, places)
    if softmaxes:
        start = _scores(tape, weights, places, softmaxes[0])
        pairing = Pairing(over=_over(tape, weights, places, softmaxes[-1]))
    if start is None:
        return pairing
    if softmaxes:
        pairing = replace(pairing, scores=start[0], score_places=start[1])
    for product in candidates:
        factors = _factors(tape, product, start[0], start[1])
        if factors is not None:
            return replace(factors, scores=pairing.scores, score_places=pairing.score_places, over=pairing.over)
    return pairing


def _scores(tape: Tape, weights: Operand, places: Places, softmax: TapedSoftmax) -> tuple[Operand, Places] | None:
    """The scores of a softmax and where they lie."""
    output = tape.events[softmax.event].output
    event, number = softmax.scores
    if tape.events[event].inputs[number].shape != output.shape:
        return None
    found = _traced(tape, softmax.event, weights, places)
    return None if found is None else (softmax.scores, found)


def _traced(tape: Tape, start: int, operand: Operand, places: Places) -> Places | None:
    """Where in an event's output canonical elements of a later input come from, None if some do not.

    Where heads are mixed in between, an output of the very shape of the input or of the canonical one is taken to
    have its order.
    """
    table = places_in(tape, start, operand)
    if table is not None:
        found = table.flatten()[places]
        return None if bool((found == NOWHERE).any()) else found
    output = tape.events[start].output
    if output.shape == tape.events[operand[0]].inputs[operand[1]].shape:
        return places
    alike = output.numel() == places.numel() and output.shape[-1] == places.shape[-1]
    return torch.arange(output.numel()).view(places.shape) if alike else None


def _over(tape: Tape, weights: Operand, places: Places, softmax: TapedSoftmax) -> Over:
    """Along which canonical axis a softmax ran: entries that share a sum differ in this axis alone."""
    found = _traced(tape, softmax.event, weights, places)
    if found is None:
        return "unknown"
    group = _groups(tape, softmax).flatten()[found]  # (batch, heads, q_len, k_len)
    axes = [name for name, axis in _AXES if bool((group == group.narrow(axis, 0, 1)).all()) and group.shape[axis] > 1]
    return axes[0] if len(axes) == 1 else "keys" if not axes and group.shape[3] == 1 else "unknown"


def _groups(tape: Tape, softmax: TapedSoftmax) -> Tensor:
    """For each element of a softmax's output the number of the sum it was divided by."""
    event = tape.events[softmax.event]
    if event.call in NORMALIZERS:
        axis = event.arguments[0] % max(1, event.output.dim())
        sums = event.output.narrow(axis, 0, 1)
    else:
        sums = event.inputs[1]
    return torch.arange(sums.numel()).view(sums.shape).expand(event.output.shape)


def _factors(tape: Tape, product: Contraction, operand: Operand, places: Places) -> Pairing | None:
    """The queries and keys of a product that scores come from, None if they do not come from it pairwise."""
    found = _traced(tape, product.event, operand, places)
    if found is None:
        return None
    rows, left, right = _decoded(product, found)  # each (batch, heads, q_len, k_len)
    if _constant(left, 3) and _constant(right, 2):
        query, key = (rows[..., 0], left[..., 0]), (rows[:, :, 0], right[:, :, 0])
        queries, keys = product.left, product.right
        query_places, key_places = product.left_places[query], product.right_places.transpose(1, 2)[key]
    elif _constant(left, 2) and _constant(right, 3):
        query, key = (rows[..., 0], right[..., 0]), (rows[:, :, 0], left[:, :, 0])
        queries, keys = product.right, product.left
        query_places, key_places = product.right_places.transpose(1, 2)[query], product.left_places[key]
    else:
        return None
    return Pairing(
        products=product.event,
        product_places=found,
        queries=queries,
        query_places=query_places,
        keys=keys,
        key_places=key_places,
    )


def _decoded(product: Contraction, places: Places) -> tuple[Tensor, Tensor, Tensor]:
    """The three indices of a product's canonical form for places in its output."""
    n, a, b = product.out_places.shape
    inverse = torch.empty(n * a * b, dtype=torch.long)
    inverse[product.out_places.flatten()] = torch.arange(n * a * b)
    flat = inverse[places]
    return flat // (a * b), flat // b % a, flat % b


def _constant(index: Tensor, axis: int) -> bool:
    return bool((index == index.narrow(axis, 0, 1)).all())
