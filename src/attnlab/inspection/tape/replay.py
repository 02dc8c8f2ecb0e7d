"""Do the operations of a tape again with other values, without running the module's own code.

What follows from a changed value is computed anew, everything else is taken from the tape. So it costs little to ask
what depends on one sample, one position or one row. How many things were chosen, as the tokens of an expert are, stays
as it is on the tape, like what the module's own code decided by a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import Tensor

from attnlab.inspection.tape.tape import Event, Origin, Tape

_RANDOM = frozenset(
    {
        *("bernoulli", "bernoulli_", "native_dropout", "rand", "randn", "rand_like", "randn_like", "uniform_"),
        *("normal_", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"),
    }
)
"""Operations that would give other values when done again; theirs are copied from the tape."""

_VIEWS = frozenset({"view", "_unsafe_view"})
"""Operations that fail where values lie otherwise in memory than those that they replace."""


def replay(
    tape: Tape,
    changes: Mapping[int, Callable[[Tensor], Tensor]] | None = None,
    *,
    outside: Callable[[Tensor], Tensor] | None = None,
    until: int | None = None,
) -> tuple[Event, ...]:
    """The events of a tape as they would be with other values."""
    player = _Player(tape, changes or {}, outside)
    last = len(tape.events) - 1 if until is None else until
    with torch.no_grad():
        return tuple(player.play(event) for event in tape.events[: last + 1])


@final
class _Player:
    """Hold what has been done again so far."""

    def __init__(
        self,
        tape: Tape,
        changes: Mapping[int, Callable[[Tensor], Tensor]],
        outside: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self.changes = changes
        self.outside = outside
        self.written = {event.step.storage for event in tape.events if event.step.writes}
        self.alive = {event.index for event in tape.events if event.step.storage in self.written}
        self.made: dict[Origin, Tensor] = {}
        self.from_outside: dict[int, Tensor] = {}
        self.changed: set[int] = set()

    def play(self, event: Event) -> Event:
        """Do one event again, or copy it where nothing it was made from has changed."""
        inputs = [self._input(event, number) for number in range(len(event.inputs))]
        follows = self._follows(event, inputs) or event.index in self.changes
        inputs = self._not_the_tapes_own(event, inputs)
        if not follows:
            return self._keep(event, inputs)
        self.changed.add(event.index)
        values = tuple(
            self._as_it_is(tensor, origin) for tensor, origin in zip(inputs, event.step.origins, strict=True)
        )
        outputs = self._done_again(event, inputs)
        number = event.step.output
        if event.index in self.changes:
            outputs[number] = self._interfere(event, outputs[number])
        self._remember(event, outputs)
        output = outputs[number].clone() if event.index in self.alive else outputs[number]
        return event.with_values(values, output)

    def _not_the_tapes_own(self, event: Event, inputs: list[Tensor]) -> list[Tensor]:
        """Inputs that may be written into, now or through a view: copies of what the tape itself holds."""
        if event.index not in self.alive:
            return inputs
        pairs = zip(inputs, event.step.origins, strict=True)
        return [tensor if origin in self.made else tensor.clone() for tensor, origin in pairs]

    def _as_it_is(self, tensor: Tensor, origin: Origin | None) -> Tensor:
        """A tensor's values at this moment; those that are written into later are copied."""
        return tensor.clone() if origin is not None and origin[0] in self.alive else tensor

    def _follows(self, event: Event, inputs: list[Tensor]) -> bool:
        """Whether an input follows from a change."""
        if any(parent in self.changed for parent in event.parents):
            return True
        pairs = zip(inputs, event.inputs, event.parents, strict=True)
        return any(parent is None and now is not then for now, then, parent in pairs) and self.outside is not None

    def _input(self, event: Event, number: int) -> Tensor:
        """One input as it is now."""
        origin, recorded = event.step.origins[number], event.inputs[number]
        if _counts(event, number):
            return recorded
        if origin in self.made:
            return self.made[origin]
        if origin is not None or event.parents[number] is not None:
            return recorded
        if self.outside is None or event.parameters[number] is not None:
            return recorded
        if id(recorded) not in self.from_outside:
            self.from_outside[id(recorded)] = self.outside(recorded)
        return self.from_outside[id(recorded)]

    def _done_again(self, event: Event, inputs: list[Tensor]) -> list[Tensor]:
        """The outputs of an event on other inputs, with the random numbers of the tape."""
        if event.call not in _RANDOM:
            try:
                return event.step.again(inputs)
            except RuntimeError:  # values that replace others may lie otherwise in memory, of which no view can be made
                if event.call not in _VIEWS or event.index in self.alive:
                    raise
                return [inputs[0].reshape(event.output.shape)]
        output = event.output
        if event.call == "native_dropout":
            kept = 1.0 - float(event.arguments[0])
            output = torch.where(output == 0, output, inputs[0] / max(kept, torch.finfo(output.dtype).tiny))
        if event.step.writes:
            return [inputs[event.step.writes[0]].copy_(output)]
        return [output.clone()] * (event.step.output + 1)

    def _keep(self, event: Event, inputs: list[Tensor]) -> Event:
        """An event as it was; where its storage is written into, views must still be views of it."""
        if event.index not in self.alive:
            self.made[event.index, event.step.output] = event.output
        elif any(event.step.origins[place] not in self.made for place in event.step.writes):
            pass  # what came from outside is not written into again
        else:
            self._remember(event, self._done_again(event, inputs))
        return event

    def _remember(self, event: Event, outputs: list[Tensor]) -> None:
        """Note what an event made."""
        if event.step.writes:
            return
        for number, output in enumerate(outputs):
            self.made[event.index, number] = output

    def _interfere(self, event: Event, output: Tensor) -> Tensor:
        """An event's output changed as asked for; where it wrote in place, the change is written too."""
        changed = self.changes[event.index](output.clone())
        if event.step.writes:
            output.copy_(changed)
            return output
        return changed


def _counts(event: Event, number: int) -> bool:
    """Whether an input says how many things an operation takes or makes, so that another would give another shape."""
    by_values = torch.Tag.dynamic_output_shape in event.step.operation.tags or "index_put" in event.call
    return by_values and (len(event.inputs) == 1 or (number > 0 and event.inputs[number].dtype == torch.bool))
