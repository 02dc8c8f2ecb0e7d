"""Follow the input of a block through everything it computes, as long as it survives as itself.

A value holds the input *as itself* if it is the input times something, plus other things: after views, sums, scaling,
gates, masks, and norms. A product with a matrix, a convolution, or a non-linearity ends that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from attnlab.inspection.tape.tape import Event, Tape

SAME = frozenset((
    "_fused_dropout", "_reshape_alias", "_reshape_copy", "_to_copy", "_unsafe_view", "alias", "as_strided",
    "bernoulli", "cat", "chunk", "clone", "constant_pad_nd", "contiguous", "copy", "detach", "dropout",
    "expand", "feature_dropout", "fill", "index_put", "lift_fresh", "masked_fill", "nan_to_num", "narrow",
    "native_dropout", "permute", "reshape", "select", "select_scatter", "slice", "slice_scatter", "split",
    "split_with_sizes", "squeeze", "stack", "t", "transpose", "unbind", "unsqueeze", "view", "where", "zero",
))  # fmt: skip
"""Operations after which the input is still there as itself, or part of it."""

_NORMS = frozenset((
    "_batch_norm_impl_index", "_fused_rms_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "batch_norm", "cudnn_batch_norm", "layer_norm",
    "native_batch_norm", "native_group_norm", "native_layer_norm", "rms_norm",
))  # fmt: skip
_ROOTS = frozenset((
    "linalg_vector_norm", "norm", "pow", "rsqrt", "sqrt", "std", "var",
))  # fmt: skip
_TWICE = 1.5  # a factor of 2 in front of the input, with room for rounding; gates and scales are not counted
_RARELY = 0.1  # of the values of a gate are negative: sigmoids have none, x * f(x) has half

INPUT = -1
"""Base of what is still the input itself; a norm makes a new base, named by its event."""


@final
@dataclass(frozen=True)
class Trail:
    """Say what of a value is the block's input as itself."""

    shares: dict[int, float] = field(default_factory=dict)
    """Base (`INPUT`, or the event of a norm) -> factor in front of it; NaN where the factor is learned or a gate."""
    sums: int = 0  # how many times something else was added on the way
    early: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    """Norms on the way, before anything was added and after."""
    suspect: int | None = None
    """The sum at which one base was added to itself, to be confirmed by the factor at the end."""
    doubled: int | None = None  # such a sum, confirmed by the factor at the next norm or at the output
    depends: bool = False  # whether the value depends on the input in any way

    @property
    def alive(self) -> bool:
        """Whether any of the input is there as itself."""
        return bool(self.shares)

    def times(self, factor: float) -> Trail:
        """The trail of the value times a number; NaN: a learned or changing one."""
        return replace(self, shares={base: share * factor for base, share in self.shares.items() if factor})

    def dead(self) -> Trail:
        """The trail of a value that depends on this one, but is not it."""
        return Trail(depends=self.depends)

    def confirmed(self) -> Trail:
        """The trail with its suspect sum judged by the factors as they are now."""
        twice = any(share >= _TWICE for share in self.shares.values()) or len(self.shares) > 1
        return replace(self, doubled=self.suspect if self.doubled is None and twice else self.doubled, suspect=None)


@final
@dataclass(frozen=True)
class Route:
    """Hold what became of a block's input."""

    trails: tuple[Trail, ...]  # for each event of the tape
    output: Trail  # of what the block returns
    ends: int | None  # the operation that ended it, where it does not arrive


def follow(tape: Tape, start: Tensor) -> Route:
    """What became of a block's input in a call."""
    begin = Trail({INPUT: 1.0}, depends=True)
    layouts = _layouts(start)
    trails: list[Trail] = []
    for event in tape.events:
        given = [
            trails[parent] if parent is not None else begin if name is None and _is_any(value, layouts) else Trail()
            for value, parent, name in zip(event.inputs, event.parents, event.parameters, strict=True)
        ]
        trails.append(_after(event, given, tape))
    last = _output_event(tape)
    if last is None:
        return Route(tuple(trails), Trail(), None)
    output = trails[last].confirmed()
    return Route(tuple(trails), output, None if output.alive else _end(tape, trails, last))


def is_carried_on(tape: Tape, index: int) -> bool:
    """Whether sums carry on what an operation gives."""
    trails = [Trail()] * index + [Trail({INPUT: 1.0}, depends=True)]
    for event in tape.events[index + 1 :]:
        given = [Trail() if parent is None else trails[parent] for parent in event.parents]
        trails.append(_after(event, given, tape))
    return any(one.alive and one.sums for one in trails)


def left_behind(tape: Tape, route: Route) -> int | None:
    """A sum of the input and an attention that no sum carries on, where what is returned starts from the input anew."""
    last = _output_event(tape)
    if last is None or not route.output.alive:
        return None
    kept, waiting = set[int](), [last]
    while waiting:
        at = waiting.pop()
        kept.add(at)
        parents = (parent for parent in tape.events[at].parents if parent is not None)
        waiting += [parent for parent in parents if route.trails[parent].alive and parent not in kept]
    for at in sorted(tape.ancestors(last) - kept):
        first = INPUT in route.trails[at].shares and route.trails[at].sums == 1 and "add" in tape.events[at].call
        made_of = {tape.events[one].call for one in tape.ancestors(at)} if first else ()
        if any("softmax" in call or "attention" in call for call in made_of) and not is_carried_on(tape, at):
            return at
    return None


def _layouts(start: Tensor) -> list[Tensor]:
    swaps = [(0, 1), (1, 2)] if start.dim() == 3 else []
    return [start, *(start.transpose(*swap) for swap in swaps)]


def _is_any(value: Tensor, layouts: Sequence[Tensor]) -> bool:
    return any(value.shape == one.shape and value.dtype == one.dtype and torch.equal(value, one) for one in layouts)


def _output_event(tape: Tape) -> int | None:
    """The last event that made what the call returned."""
    found = (e.index for e in reversed(tape.events) if _is_any(e.output, [tape.output]))
    return next(found, None)


def _end(tape: Tape, trails: Sequence[Trail], last: int) -> int | None:
    """The operation at which the input, alive for as long as possible, ended."""
    leading = tape.ancestors(last) | {last}
    alive = [index for index in leading if trails[index].alive]
    following = tape.children(max(alive)) if alive else sorted(leading)
    return min((index for index in following if index in leading), default=None)


def _after(event: Event, given: list[Trail], tape: Tape) -> Trail:
    """The trail of what one operation makes of values with trails."""
    call = event.call.rstrip("_")
    merged = _merged(given)
    found = merged if call in SAME else merged.dead()
    if call in _NORMS and given[0].alive:
        found = _normed(event.index, given[0])
    elif call in {"add", "sub", "rsub"}:
        found = _sum(event, given, call)
    elif call in {"mul", "div"}:
        found = _product(event, given, tape)
    elif call in {"addcmul", "addcdiv", "lerp"}:
        found = _merged([given[0], *(one.times(math.nan) for one in given[1:])])
    elif call == "neg":
        found = merged.times(-1.0)
    elif call in {"addmm", "baddbmm"} and given[0].alive and event.inputs[0].shape == event.output.shape:
        found = replace(given[0], sums=given[0].sums + 1)
    elif call in {"sum", "mean"} and _is_sum_of_stack(event, tape):
        found = merged if call == "sum" else merged.times(math.nan)
    return found


def _merged(given: Sequence[Trail]) -> Trail:
    """The trail of a value that holds several values side by side."""
    shares: dict[int, float] = {}
    for one in given:
        shares = one.shares | shares
    best = max((one for one in given if one.alive), key=lambda one: one.sums, default=Trail())
    return replace(best, shares=shares, depends=any(one.depends for one in given))


def _normed(index: int, trail: Trail) -> Trail:
    """The trail of a normalized value: a base of its own."""
    judged = trail.confirmed()
    if judged.sums:
        return replace(judged, shares={index: 1.0}, late=(*judged.late, index))
    return replace(judged, shares={index: 1.0}, early=(*judged.early, index))


def _sum(event: Event, given: list[Trail], call: str) -> Trail:
    """The trail of a sum or difference."""
    if len(given) < 2:
        return given[0].times(-1.0) if call == "rsub" else given[0]
    first, second = given[0], given[1].times(_alpha(event))
    second = second.times(-1.0) if call == "sub" else second
    first = first.times(-1.0) if call == "rsub" else first
    shares = dict(first.shares)
    for base, share in second.shares.items():
        shares[base] = shares.get(base, 0.0) + share
    merged = replace(_merged([first, second]), shares=shares)
    if first.alive and second.alive:
        suspect = event.index if _is_twice(first, second) else merged.suspect
        suspect = first.suspect or second.suspect if suspect is None else suspect
        return replace(merged, suspect=suspect, doubled=first.doubled or second.doubled)
    other = 0 if second.alive else 1
    centred = call in ("sub", "rsub") and event.inputs[other].numel() < event.output.numel()  # half of a norm
    added = event.parents[other] is not None and given[other].depends and not centred
    return replace(merged, sums=merged.sums + int(added and merged.alive))


def _alpha(event: Event) -> float:
    """The factor of the second summand."""
    numbers = [one for one in event.arguments if isinstance(one, int | float) and not isinstance(one, bool)]
    return float(numbers[-1]) if numbers else 1.0


def _is_twice(first: Trail, second: Trail) -> bool:
    """Whether two summands hold the same value: one base, or a norm of just what the other is."""
    if any(first.shares[base] > 0 and second.shares[base] > 0 for base in first.shares.keys() & second.shares.keys()):
        return True
    return any(_is_norm_of(a, b) for a, b in ((first, second), (second, first)))


def _is_norm_of(normed: Trail, plain: Trail) -> bool:
    """Whether one value is the norm of the other plus something else, nothing having been added between."""
    fresh = [*normed.early[len(plain.early) :], *normed.late[len(plain.late) :]]
    extra = len(fresh) == 1 and normed.shares.get(fresh[0], math.nan) > 0
    return extra and normed.sums == plain.sums + 1 and any(share > 0 for share in plain.shares.values())


def _product(event: Event, given: list[Trail], tape: Tape) -> Trail:
    """The trail of a product or quotient: scaled, gated, normalized, or dead."""
    if len(given) < 2:
        numbers = [one for one in event.arguments if isinstance(one, int | float) and not isinstance(one, bool)]
        factor = float(numbers[0]) if numbers else math.nan
        return given[0].times(factor if event.call.startswith("mul") else 1.0 / (factor or math.nan))
    alive = [index for index in (0, 1) if given[index].alive]
    if len(alive) != 1 or (alive == [1] and event.call.startswith("div")):
        return _merged(given).dead()
    other = 1 - alive[0]
    if given[other].depends and float((event.inputs[other] < 0).double().mean()) > _RARELY:
        return _merged(given).dead()  # a gate keeps the sign
    if _is_size(event, other, given[other], tape):
        return _normed(event.index, given[alive[0]])
    value = event.inputs[other]
    known = value.numel() == 1 and event.parents[other] is None and event.parameters[other] is None
    factor = float(value) if known else math.nan
    trail = given[alive[0]].times(factor if event.call.startswith("mul") else 1.0 / (factor or math.nan))
    return replace(trail, depends=True)


def _is_size(event: Event, other: int, trail: Trail, tape: Tape) -> bool:
    """Whether a factor is a size computed from the value itself, as norms written by hand do."""
    parent = event.parents[other]
    if not trail.depends or parent is None or event.inputs[other].numel() >= event.output.numel():
        return False
    for _ in range(6):  # root, epsilon, mean, views
        if tape.events[parent].call.rstrip("_") in _ROOTS:
            return True
        before = [one for one in tape.events[parent].parents if one is not None]
        if not before:
            return False
        parent = before[0]
    return False


def _is_sum_of_stack(event: Event, tape: Tape) -> bool:
    parent = event.parents[0]
    return parent is not None and tape.events[parent].call in {"stack", "cat"}
