"""How large the products of queries and keys are inside one module, against the queries and keys they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attnlab.doctor.over_features import chooses_summaries
from attnlab.inspection.tape.attentions import TapedAttention, attentions
from attnlab.inspection.tape.contractions import Operand, contraction_of
from attnlab.inspection.tape.dependence import Dependence, dependence_of
from attnlab.inspection.tape.replay import replay
from attnlab.inspection.tape.tape import Event, Tape
from attnlab.inspection.tape.tracing import back_to, places_in
from attnlab.inspection.tape.weighted_sums import Products, softmaxes
from attnlab.strangers.calling.convention import Convention

_PROJECTIONS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "mv", "addmv"})
_NORMS = frozenset(
    {"native_layer_norm", "_fused_rms_norm", "native_group_norm", "_native_batch_norm_legit_no_training"}
)
_LENGTHS = frozenset({"linalg_vector_norm", "norm"})
_UNMOVED = 1.2  # of scores whose queries and keys are doubled: 4 without normalization, 1 with it
_SMALLEST = 1e-8  # a standard deviation below this is that of zeros


@final
@dataclass(frozen=True)
class LogitSize:
    """Hold the size of one attention's logits."""

    d_head: int  # features of one query, those of further products that are added to the same scores included
    n_heads: int  # number of heads, those beside it in other modules included
    std: float
    """Standard deviation of the part of the logits that comes from queries and keys, scale included, mask and biases
    left out."""
    q_std: float
    k_std: float
    """Standard deviations of queries and keys as their projections gave them."""
    coherence: float
    """Size of the products of these queries and keys by that of independent ones: above 1 where all share a direction,
    as behind a ReLU, below it where few are tried, as where all are nearly one vector."""
    excuse: str  # why their size says nothing about the scale: ``"normalized"``, ``"of features"``, ..., or nothing
    where: str  # dotted path of the submodule
    projected: bool  # whether queries and keys are both made by a projection

    @property
    def relative(self) -> float:
        """The logits' size by that of queries and keys that are independent and scaled by d_head ** -0.5."""
        return self.std / (self.q_std * self.k_std * self.coherence)


def logit_sizes(tape: Tape, convention: Convention) -> list[LogitSize]:
    """The size of the logits of each attention that multiplies queries and keys before a softmax."""
    dependence = dependence_of(tape, convention)
    measured = [_measured(tape, dependence, attention) for attention in attentions(tape, convention)]
    found = [(size, projected) for size, projected in measured if size is not None]
    return [replace(size, n_heads=_beside(size, projected, found)) for size, projected in found]


def factors_of(tapes: Sequence[Tape], conventions: Sequence[Convention]) -> list[tuple[float, ...]]:
    """What the products of each attention of positions are multiplied by on their way to its softmax, by sequence.

    The first sequence is the shortest; the pairs of positions that it has are looked at in all, as how far apart two
    positions are may count.
    """
    found = [_products_and_scores(*one) for one in zip(tapes, conventions, strict=True)]
    if len({len(some) for some in found}) > 1:
        return []
    return [factors for some in zip(*found, strict=True) if (factors := _of_same_pairs(some))]


def factors_of_learned(tapes: Sequence[Tape], conventions: Sequence[Convention]) -> list[tuple[float, ...]]:
    """The same for what projections make of positions before a softmax over these, as learned queries do of keys."""
    found = [_projected_and_scores(*one) for one in zip(tapes, conventions, strict=True)]
    if len({len(some) for some in found}) > 1:
        return []
    return [factors for some in zip(*found, strict=True) if (factors := _of_same_pairs(some))]


def _projected_and_scores(tape: Tape, convention: Convention) -> list[tuple[Tensor, Tensor]]:
    """What was projected and the scores made of it, (1, 1, n, length), of each softmax over positions."""
    dependence = dependence_of(tape, convention)
    pairs, found = Products(tape, dependence).ends, list[tuple[Tensor, Tensor]]()
    for softmax in softmaxes(tape, dependence):
        event, reached = tape.events[softmax.event], back_to(tape, softmax.scores, stop=set())
        ends = [index for index in reached & dependence.on_input if _sums_features(tape, index)]
        made = max(ends, default=None)
        if softmax.written_out or made is None or made in pairs:
            continue
        axis, places = event.arguments[0], places_in(tape, made, softmax.scores)
        if event.output.shape[axis] == convention.length and places is not None and bool((places >= 0).all()):
            both = (tape.events[made].output.flatten()[places], _turned(tape, made, softmax.scores))
            found.append((_rows(both[0], axis), _rows(both[1], axis)))
    return found


def _sums_features(tape: Tape, index: int) -> bool:
    event = tape.events[index]
    return event.call in _PROJECTIONS or contraction_of(tape, event) is not None


def _rows(tensor: Tensor, axis: int) -> Tensor:
    return tensor.movedim(axis, -1).flatten(0, -2)[None, None]


def _products_and_scores(tape: Tape, convention: Convention) -> list[tuple[Tensor, Tensor]]:
    found = (one for one in attentions(tape, convention) if one.along == "positions" and one.softmaxes)
    both = [(_products(one), _turned_with_products(tape, one)) for one in found]
    return [(made, scores) for made, scores in both if made is not None and scores is not None]


def _of_same_pairs(some: Sequence[tuple[Tensor, Tensor]]) -> tuple[float, ...]:
    """Sizes of scores by those of products, at the places that all have; nothing where there are none."""
    _, _, n_queries, n_keys = some[0][0].shape
    cut = [tuple(one[:, :, :n_queries, :n_keys] for one in both) for both in some]
    if len({one.shape for both in cut for one in both}) > 1:
        return ()
    known = torch.stack([scores.isfinite() & (scores != 0) for _, scores in cut]).all(dim=0)
    places = _off_diagonal(known)
    sizes = [[_size(_off_diagonal(one)[places]) for one in both] for both in cut]
    return tuple(scores / made for made, scores in sizes) if all(made > 0 for made, _ in sizes) else ()


def _beside(size: LogitSize, projected: Tensor | None, found: Sequence[tuple[LogitSize, Tensor | None]]) -> int:
    """The number of heads that are projected from one tensor to one size, each in a module of its own or together."""
    if projected is None:
        return size.n_heads
    alike = [other for other, source in found if other.d_head == size.d_head and _same(source, projected)]
    return sum(other.n_heads for other in alike)


def _same(first: Tensor | None, second: Tensor) -> bool:
    return first is not None and first.shape == second.shape and torch.equal(first, second)


def _measured(tape: Tape, dependence: Dependence, attention: TapedAttention) -> tuple[LogitSize | None, Tensor | None]:
    """The size of one attention's logits, None if it cannot be told; and what its queries are projected from."""
    queries, keys = attention.sources.pairing.queries, attention.sources.pairing.keys
    if queries is None or keys is None or attention.q is None or not attention.softmaxes:
        return None, None
    before = [_projections(tape, dependence, operand) for operand in (queries, keys)]
    of_one_input = before == [[], []] and attention.q.size(2) != attention.weights.size(3)
    if of_one_input:  # in windows: products of a position with itself are among the others
        return None, None
    stds = [_std_at(tape, events, operand) for events, operand in zip(before, (queries, keys), strict=True)]
    std = _std_of_products(tape, attention)
    if std is None or min(std, *stds) < _SMALLEST:
        return None, None
    summed = _summed_features(tape, dependence, attention)
    size = LogitSize(
        d_head=summed,
        n_heads=attention.n_heads,
        std=std,
        q_std=stds[0],
        k_std=stds[1],
        coherence=_coherence(attention) * (attention.q.shape[3] / summed) ** 0.5,
        excuse=_excuse(tape, dependence, attention, [*before[0], *before[1]]),
        where=attention.where,
        projected=[] not in before,
    )
    return size, _projected_from(before[0])


def _summed_features(tape: Tape, dependence: Dependence, attention: TapedAttention) -> int:
    """How many features the scores are summed over: of all products of the input with itself that are added up."""
    pairing = attention.sources.pairing
    own, features = pairing.products, 0 if attention.q is None else attention.q.shape[3]
    if own is None or pairing.scores is None:
        return features
    ends = Products(tape, dependence).ends
    others = (back_to(tape, pairing.scores, stop=set(ends)) & set(ends)) - {own}
    size = tape.events[own].output.numel()
    return features + sum(ends[one].left_places.shape[2] for one in others if tape.events[one].output.numel() == size)


def _projected_from(projections: Sequence[Event]) -> Tensor | None:
    """What a single projection by a matrix multiplies."""
    if len(projections) != 1 or projections[0].call not in ("mm", "addmm"):
        return None
    return projections[0].inputs[projections[0].call == "addmm"]


def _projections(tape: Tape, dependence: Dependence, operand: Operand) -> list[Event]:
    """The events that projected queries or keys, each other features of them; none if they are the input itself."""
    reached = [tape.events[index] for index in back_to(tape, operand, stop=set())]
    ends = [event for event in reached if event.index in dependence.on_input]
    made = [event for event in ends if event.call in _PROJECTIONS or event.call in _NORMS]
    found: list[Event] = []
    covered = torch.zeros((), dtype=torch.bool)
    for event in sorted(made, key=lambda event: (-event.output.numel(), event.index)):
        places = places_in(tape, event.index, operand)
        here = torch.ones((), dtype=torch.bool) if places is None else places >= 0
        if not (covered & here).any():
            found, covered = [*found, event], covered | here
    return found


def _std_at(tape: Tape, events: Sequence[Event], operand: Operand) -> float:
    """The standard deviation, around zero, of what became queries or keys when their projections gave it."""
    tensor = tape.events[operand[0]].inputs[operand[1]]
    if not events:  # the input itself, perhaps scaled on the way
        first = min(back_to(tape, operand, stop=set()), default=None)
        return _size(tensor if first is None else tape.events[first].inputs[0])
    traced = [(event, places_in(tape, event.index, operand)) for event in events]
    parts = [event.output.flatten()[places[places >= 0]] for event, places in traced if places is not None]
    return _size(torch.cat(parts) if parts else tensor)


def _coherence(attention: TapedAttention) -> float:
    """How large the products of queries and keys are, by those of independent vectors of their size."""
    q, k, products = attention.q, attention.k, _products(attention)
    if q is None or k is None or products is None:
        return 1.0
    return max(_SMALLEST, _size(_off_diagonal(products))) / max(_SMALLEST, _size(q) * _size(k) * q.size(3) ** 0.5)


def _products(attention: TapedAttention) -> Tensor | None:
    """The products of queries and keys (batch, heads, q_len, k_len)."""
    q, k = attention.q, attention.k
    if q is None or k is None or q.shape[:2] != k.shape[:2] or q.size(3) != k.size(3):
        return None
    return q.double() @ k.double().mT


def _off_diagonal(products: Tensor) -> Tensor:
    """Products without those of a position with itself: where queries and keys are one, they are no random ones."""
    square = products.shape[2] == products.shape[3]
    return products[:, :, ~torch.eye(products.shape[2], dtype=torch.bool)] if square else products


def _size(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else math.nan


def _std_of_products(
    tape: Tape, attention: TapedAttention, changes: Mapping[int, Callable[[Tensor], Tensor]] | None = None
) -> float | None:
    """The size of what changes its sign in the scores when the products do."""
    part = _turned_with_products(tape, attention, changes)
    if part is None:
        return None
    part = _off_diagonal(part)
    part = part[torch.isfinite(part) & (part != 0)]
    return _size(part) if part.numel() else None


def _turned_with_products(
    tape: Tape, attention: TapedAttention, changes: Mapping[int, Callable[[Tensor], Tensor]] | None = None
) -> Tensor | None:
    """What changes its sign in the scores when the products do, (batch, heads, q_len, k_len): no masks, no biases."""
    scores, places = attention.sources.pairing.scores, attention.sources.pairing.score_places
    if attention.products_index is None or scores is None or places is None:
        return None
    return _turned(tape, attention.products_index, scores, changes).flatten()[places]


def _turned(
    tape: Tape, made: int, scores: Operand, changes: Mapping[int, Callable[[Tensor], Tensor]] | None = None
) -> Tensor:
    """What changes its sign in scores when the output of an event does."""
    signs: list[dict[int, Callable[[Tensor], Tensor]]] = [{}, {made: torch.neg}]
    replays = [replay(tape, {**(changes or {}), **sign}, until=scores[0]) for sign in signs]
    plus, minus = (events[scores[0]].inputs[scores[1]] for events in replays)
    return (plus - minus) / 2


def _excuse(tape: Tape, dependence: Dependence, attention: TapedAttention, before: Sequence[Event]) -> str:
    """Why the size of the logits says nothing about the scale."""
    if chooses_summaries(dependence, attention):
        return "of features"
    if any(_normed(tape, event) for event in before) or _unmoved(tape, attention, before):
        return "normalized"
    pairing = attention.sources.pairing
    if any(_of_unit_length(tape, operand) for operand in (pairing.queries, pairing.keys) if operand is not None):
        return "normalized"
    stop = set() if pairing.products is None else {pairing.products}
    operands = [operand for operand in (pairing.scores, pairing.queries, pairing.keys) if operand is not None]
    passed = {index for operand in operands for index in back_to(tape, operand, stop=stop)}
    return "learned temperature" if any(_tempered(dependence, tape.events[index]) for index in passed) else ""


def _normed(tape: Tape, event: Event) -> bool:
    """Whether queries or keys are a norm of something projected."""
    if event.call not in _NORMS:
        return False
    reached = back_to(tape, (event.index, 0), stop=set())
    return any(tape.events[index].call in _PROJECTIONS for index in reached)


def _of_unit_length(tape: Tape, operand: Operand) -> bool:
    """Whether queries or keys are divided by their length behind their projection, as Reformer's keys are."""
    projections = {event.index for event in tape.events if event.call in _PROJECTIONS}
    return any(tape.events[index].call in _LENGTHS for index in back_to(tape, operand, stop=projections))


def _unmoved(tape: Tape, attention: TapedAttention, before: Sequence[Event]) -> bool:
    """Whether larger queries and keys leave the scores as they are."""
    doubled = _std_of_products(tape, attention, {event.index: _double for event in before})
    usual = _std_of_products(tape, attention)
    return doubled is not None and usual is not None and doubled < _UNMOVED * usual


def _double(output: Tensor) -> Tensor:
    return 2 * output


def _tempered(dependence: Dependence, event: Event) -> bool:
    """Whether a learned number multiplies or divides in an event."""
    if event.call.rstrip("_") not in ("mul", "div"):
        return False
    return any(dependence.is_learned(event, number) for number in range(len(event.inputs)))
