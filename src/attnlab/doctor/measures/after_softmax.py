"""What happens to the weights of an attention between its softmax and the values, read from the tape."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attnlab.inspection.tape.attentions import TapedAttention
from attnlab.inspection.tape.dependence import Dependence
from attnlab.inspection.tape.replay import replay
from attnlab.inspection.tape.tape import Event, Tape
from attnlab.inspection.tape.tracing import NORMALIZERS, back_to

_RANDOM = frozenset({"bernoulli", "bernoulli_", "native_dropout", "rand", "rand_like", "randn_like"})
_MANY = 1e4  # times the products of queries and keys
_MASKED = 100.0  # below the largest score: what is masked
_NEGLIGIBLE = 1e-4  # what is added to a divisor to keep it from zero, at most


@final
@dataclass(frozen=True)
class AfterSoftmax:
    """Say what happened to weights on their way to the values."""

    logarithm: bool  # whether they are the output of a log-softmax, no exponential after it
    repeated: bool  # whether a softmax got what another softmax gave
    squeezed: bool  # whether it gets numbers within 1 of each other, however large products of queries and keys become
    meant_otherwise: bool
    """Whether something learned, or computed from the input, or random, changes them after the softmax, or the softmax
    itself has more terms than there are keys."""
    masked: bool  # whether a mask is applied to them
    thinned: bool
    """Whether nothing but a rule about themselves, such as the largest k, makes them other than a softmax gave them."""
    constant: float | None  # what they are multiplied by
    random_scores: bool  # whether a random factor multiplies the scores before


def course_of(tape: Tape, dependence: Dependence, attention: TapedAttention) -> AfterSoftmax:
    """What happened to an attention's weights after its softmax."""
    events = [softmax.event for softmax in attention.softmaxes]
    first, last = events[0], events[-1]
    passed = [tape.events[index] for index in sorted(_between(tape, first, attention))]
    final = [event for event in passed if event.index > last]
    foreign = [(event, value) for event in final for value in _foreign(tape, dependence, event, last)]
    learned = any(value.gate for _, value in foreign)
    random = any(value.random for _, value in foreign) or any(event.call in _RANDOM for event in final)
    own_mask, more = _own_mask(tape, final, last), _more_terms(tape, attention)
    return AfterSoftmax(
        logarithm=tape.events[last].call == "_log_softmax" and not any(event.call == "exp" for event in final),
        repeated=_repeated(tape, events),
        squeezed=_squeezed(tape, dependence, attention),
        meant_otherwise=learned or random or own_mask or more,
        masked=any(value.mask for _, value in foreign),
        thinned=own_mask and not (learned or random or more),
        constant=_constant(final),
        random_scores=_random_scores(tape, attention),
    )


def _between(tape: Tape, start: int, attention: TapedAttention) -> set[int]:
    """The events between a softmax and the product with the values."""
    return tape.descendants(start) & tape.ancestors(attention.outputs_index)


def _repeated(tape: Tape, softmaxes: list[int]) -> bool:
    """Whether one softmax gets what another gave, through nothing that mixes elements."""
    pairs = itertools.pairwise(softmaxes)
    return any(
        before in back_to(tape, (after, 0), stop=set()) and _reaches(tape, before, after) for before, after in pairs
    )


def _squeezed(tape: Tape, dependence: Dependence, attention: TapedAttention) -> bool:
    """Whether scores that are not masked stay within 1 of each other where all products are many times as large.

    Not where something learned meets them behind the products, which can make more of them.
    """
    operand, places = attention.sources.pairing.scores, attention.sources.pairing.score_places
    if attention.products_index is None or operand is None or places is None:
        return False
    passed = [tape.events[index] for index in back_to(tape, operand, stop={attention.products_index})]
    passed = [event for event in passed if event.index != attention.products_index]
    if any(dependence.is_learned(event, number) for event in passed for number in range(len(event.inputs))):
        return False
    larger = replay(tape, {attention.products_index: lambda products: _MANY * products}, until=operand[0])
    usual, moved = (events[operand[0]].inputs[operand[1]].flatten()[places] for events in (tape.events, larger))
    seen = usual > usual.max() - _MASKED
    usual, moved = usual[seen], moved[seen]
    if not moved.numel():
        return False
    before, after = (float(one.max() - one.min()) for one in (usual, moved))
    return 0 < after <= 1 + _NEGLIGIBLE and after < _MANY / 100 * before  # else they are only small


def _reaches(tape: Tape, before: int, after: int) -> bool:
    """Whether what one event gave is in what another gets: both may work on parts of one tensor."""
    moved = replay(tape, {before: lambda weights: weights + 1.0}, until=after)
    return not torch.equal(moved[after].inputs[0], tape.events[after].inputs[0])


@final
@dataclass(frozen=True)
class _Foreign:
    """What a tensor that meets the weights is."""

    gate: bool
    mask: bool
    random: bool


def _foreign(tape: Tape, dependence: Dependence, event: Event, softmax: int) -> list[_Foreign]:
    """What meets the weights in one event: inputs that do not come from the softmax."""
    derived = {softmax} | tape.descendants(softmax)
    found = []
    for number, value in enumerate(event.inputs):
        parent = event.parents[number]
        if parent in derived:
            continue
        origin = set() if parent is None else {parent} | tape.ancestors(parent)
        random = any(tape.events[index].call in _RANDOM for index in origin)
        mask = not random and _zeroes(event, value) and not _is_of_rows(value)
        depends = dependence.input_depends(event, number) or dependence.is_learned(event, number)
        found.append(_Foreign(gate=depends and not _is_switch(value), mask=mask, random=random))
    return found


def _is_switch(value: Tensor) -> bool:
    """Whether a tensor holds nothing but zeros and ones."""
    return value.dtype == torch.bool or bool(((value == 0) | (value == 1)).all())


def _zeroes(event: Event, value: Tensor) -> bool:
    """Whether a tensor switches some of what it meets off."""
    if event.call.rstrip("_") not in ("mul", "masked_fill", "where", "index_put", "masked_scatter"):
        return False
    return _is_switch(value) and value.dim() > 0 and bool(value.any()) and not bool(value.all())


def _is_of_rows(value: Tensor) -> bool:
    """Whether a switch is the same for all keys of a query: rows that look at nothing, or padding that asks."""
    return bool((value == value[..., :1]).all())


def _own_mask(tape: Tape, final: list[Event], softmax: int) -> bool:
    """Whether weights are switched off by a rule about themselves, such as the largest k."""
    derived = {softmax} | tape.descendants(softmax)
    for event in final:
        for value, parent in zip(event.inputs, event.parents, strict=True):
            if parent in derived and _zeroes(event, value):
                return True
    return any(event.call in ("topk", "sort", "gt", "ge", "lt", "le", "cumsum") for event in final)


def _more_terms(tape: Tape, attention: TapedAttention) -> bool:
    """Whether a softmax divides by more than the weights of the keys: a sink, or one added to the sum."""
    softmax = attention.softmaxes[-1]
    event = tape.events[softmax.event]
    if event.call in NORMALIZERS:
        terms = event.output.shape[event.arguments[0]] if event.output.dim() else 1
        return attention.normalized_over == "keys" and terms > attention.weights.shape[3]
    if not softmax.written_out or len(event.inputs) < 2:
        return False
    divisor = [tape.events[index] for index in back_to(tape, (event.index, 1), stop=set())]
    return any(_adds_something(other) for other in divisor)


def _adds_something(event: Event) -> bool:
    """Whether an event adds more than what keeps a divisor from zero."""
    if event.call.rstrip("_") != "add":
        return False
    numbers = [abs(value) for value in event.arguments if isinstance(value, int | float)]
    tensors = [float(value.abs().max()) for value in event.inputs[1:]]
    return max([*numbers[:1], *tensors], default=0.0) > _NEGLIGIBLE


def _constant(final: list[Event]) -> float | None:
    """By what number weights are multiplied after the softmax, None if by none."""
    factor = 1.0
    for event in final:
        numbers = [value for value in event.arguments if isinstance(value, int | float) and not isinstance(value, bool)]
        numbers += [float(value) for value in event.inputs[1:] if value.dim() == 0]
        if event.call.rstrip("_") in ("mul", "div") and numbers:
            factor = factor * numbers[0] if event.call.rstrip("_") == "mul" else factor / numbers[0]
    return None if factor == 1.0 else factor


def _random_scores(tape: Tape, attention: TapedAttention) -> bool:
    """Whether scores are multiplied by random numbers on the way from the products to the softmax."""
    if attention.products_index is None:
        return False
    before = back_to(tape, attention.softmaxes[0].scores, stop={attention.products_index})
    passed = [tape.events[index] for index in before if attention.products_index in tape.ancestors(index)]
    factors = [parent for event in passed if event.call.rstrip("_") == "mul" for parent in event.parents]
    return any(event.call == "native_dropout" for event in passed) or any(_is_random(tape, at) for at in factors)


def _is_random(tape: Tape, index: int | None) -> bool:
    """Whether an event draws random numbers, or scales or casts what such an event drew."""
    while index is not None and tape.events[index].call.rstrip("_") in ("div", "mul", "to_copy", "lt", "ge", "add"):
        index = tape.events[index].parents[0] if tape.events[index].parents else None
    return index is not None and tape.events[index].call in _RANDOM
