"""Tell by behaviour what on a tape depends on what: on the input at all, on one sample, on one position."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from attnlab.inspection.tape.replay import replay
from attnlab.inspection.tape.tape import Event, Tape
from attnlab.strangers.calling.convention import Convention

_SEED = 41  # of what is replaced; any


@final
class Dependence:
    """Answer what depends on the input of a recorded call; every question is answered once.

    Parameters
    ----------
    tape : Tape
        What was recorded.
    convention : Convention
        How the module was called; tells the input among what came from outside.
    given : sequence of Tensor
        The inputs, where they are known: all of them are replaced together.
    """

    def __init__(self, tape: Tape, convention: Convention, given: Sequence[Tensor] = ()) -> None:
        self.tape = tape
        self.convention = convention
        self.given = given
        self.batch = tape.output.shape[0] if tape.output.dim() else 1
        self._by_sample: dict[int, tuple[Event, ...]] = {}
        self._by_position: dict[int, tuple[Event, ...]] = {}

    @functools.cached_property
    def input(self) -> Tensor | None:
        """The module's first input as it came from outside, None if no operation uses it as it is."""
        if self.given:
            return self.given[0]
        from_outside = (
            tensor
            for event in self.tape.events
            for tensor, parent, name in zip(event.inputs, event.parents, event.parameters, strict=True)
            if parent is None and name is None
        )
        return next((tensor for tensor in from_outside if self._looks_like_input(tensor)), None)

    def _looks_like_input(self, tensor: Tensor) -> bool:
        if self.convention.takes == "tokens":
            whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
            return whole and tensor.dim() == 2 and tensor.shape[0] == self.batch
        wanted = tensor.dim() == 3 and tensor.shape[0] == self.batch and tensor.shape[2] == self.convention.d_in
        return wanted and tensor.is_floating_point()

    @property
    def length(self) -> int:
        """The number of positions of the input."""
        return self.convention.length if self.input is None else self.input.shape[1]

    def is_input(self, tensor: Tensor) -> bool:
        """Whether a tensor from outside is the input, or a copy of it."""
        inputs = self.given or (() if self.input is None else (self.input,))
        return any(tensor.shape == one.shape and torch.equal(tensor, one) for one in inputs)

    @functools.cached_property
    def on_input(self) -> frozenset[int]:
        """The events that depend on the input's values."""
        found: set[int] = set()
        for event in self.tape.events:
            named = zip(event.inputs, event.parents, event.parameters, strict=True)
            given = any(parent is None and name is None and self.is_input(value) for value, parent, name in named)
            if given or any(parent in found for parent in event.parents):
                found.add(event.index)
        return frozenset(found)

    @functools.cached_property
    def on_parameters(self) -> frozenset[int]:
        """The events that depend on a parameter; buffers do not count."""
        found: set[int] = set()
        for event in self.tape.events:
            learned = any(name in self.tape.learned for name in event.parameters)
            if learned or any(parent in found for parent in event.parents):
                found.add(event.index)
        return frozenset(found)

    def input_depends(self, event: Event, number: int) -> bool:
        """Whether one input of an event depends on the module's input."""
        parent = event.parents[number]
        return self.is_input(event.inputs[number]) if parent is None else parent in self.on_input

    def is_learned(self, event: Event, number: int) -> bool:
        """Whether one input of an event is made of parameters alone."""
        parent = event.parents[number]
        if parent is None:
            return event.parameters[number] in self.tape.learned
        return parent in self.on_parameters and parent not in self.on_input

    def with_sample(self, sample: int) -> tuple[Event, ...]:
        """The events with one sample of the input replaced."""
        if sample not in self._by_sample:
            self._by_sample[sample] = self._with(sample, slice(None))
        return self._by_sample[sample]

    def with_position(self, position: int) -> tuple[Event, ...]:
        """The events with one position of the first sample replaced."""
        if position not in self._by_position:
            self._by_position[position] = self._with(0, position)
        return self._by_position[position]

    def _with(self, sample: int, positions: int | slice) -> tuple[Event, ...]:
        return replay(self.tape, outside=lambda tensor: self._replaced(tensor, sample, positions))

    def _replaced(self, tensor: Tensor, sample: int, positions: int | slice) -> Tensor:
        if not self.is_input(tensor):
            return tensor
        changed = tensor.clone()
        generator = torch.Generator().manual_seed(_SEED)
        if self.convention.takes == "tokens":
            size = int(tensor.max()) + 1 if self.given else self.convention.vocab_size or 2
            step = torch.randint(1, max(2, size), tensor.shape, generator=generator)
            changed[sample, positions] = ((tensor + step) % max(2, size))[sample, positions]
        else:
            other = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
            changed[sample, positions] = other[sample, positions]
        return changed


def dependence_of(tape: Tape, convention: Convention) -> Dependence:
    """What depends on what on a tape; asked again, the same object answers."""
    return tape.known.setdefault("dependence", Dependence(tape, convention))


_MASKED = 1e4  # scores of this size and more stand for a mask; the others are not rounded by them


def rounding(values: Tensor) -> float:
    """The size of differences that rounding alone makes between calculations of equal numbers.

    Three quarters of a format's digits count: a sum over other strides or by another instruction set is rounded
    otherwise in its last digits, and some layers carry that on.
    """
    if not values.is_floating_point() and not values.is_complex():
        return 0.0
    sizes = values.detach().abs()
    ordinary = sizes[sizes < _MASKED]  # NaN and infinity are not
    return float(torch.finfo(values.dtype).eps ** 0.75 * ordinary.max()) if ordinary.numel() else 0.0


def differs(first: Tensor, second: Tensor) -> Bool[Tensor, " *shape"]:
    """Which elements of two tensors differ by more than rounding; NaN equals NaN."""
    unequal = (first != second) & ~(torch.isnan(first) & torch.isnan(second))
    floor = max(rounding(first), rounding(second))
    return unequal & ~((first - second).abs() <= floor) if floor else unequal
