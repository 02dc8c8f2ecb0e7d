"""Let a call go on with other values in the place of some operands and outputs of its operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.core.errors import ModuleError
from attnlab.inspection.tape.contractions import Operand
from attnlab.inspection.tape.tape import Inside, Step, at_slot, events_of, slots_of, unfused, with_outputs


@contextmanager
def replacing(
    inputs: Mapping[Operand, Inside], outputs: Mapping[int, Inside], calls: Mapping[int, str]
) -> Iterator[None]:
    """Replace values by the numbers that a tape of the same call gave to its operations.

    Parameters
    ----------
    inputs : mapping of (int, int) to callable
        By event and input what the operation is given instead; others that use the tensor still get it as it is.
    outputs : mapping of int to callable
        By event what stands in the place of its output.
    calls : mapping of int to str
        The operations that these events were, by their full names.

    Raises
    ------
    ModuleError
        If the call consists of other operations than the tape.
    """
    with unfused(), _Replacing(inputs, outputs, calls) as mode:
        yield
    if mode.left:
        raise ModuleError(MOVED)


MOVED = "the model computes by other operations than in its first call with such inputs, so that none can be changed"


@final
class _Replacing(TorchDispatchMode):
    """Count operations as a tape does, and interfere where that is asked for."""

    def __init__(
        self, inputs: Mapping[Operand, Inside], outputs: Mapping[int, Inside], calls: Mapping[int, str]
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs
        self.left = dict(calls)
        self.next = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        named = kwargs or {}
        of_inputs = [(number, change) for (event, number), change in self.inputs.items() if event == self.next]
        if of_inputs:
            args, named = _with_inputs(func, args, named, of_inputs)
        result = func(*args, **named)
        first, self.next = self.next, self.next + len(events_of(result))
        for event in range(first, self.next):
            if self.left.pop(event, func._schema.name) != func._schema.name:
                raise ModuleError(MOVED)
        if any(event in self.outputs for event in range(first, self.next)):
            return with_outputs(result, self.outputs, first=first, in_place=func._schema.is_mutable)
        return result


def _with_inputs(
    func: Any, positional: tuple[Any, ...], named: dict[str, Any], changes: Sequence[tuple[int, Inside]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    slots = tuple(slots_of(positional, named))
    tensors = [at_slot(slot, positional, named) for slot in slots]
    for number, change in changes:
        tensors[number] = change(tensors[number].detach().clone())
    step = Step(func, positional, named, slots, (), ())
    return step.filled(tensors)
