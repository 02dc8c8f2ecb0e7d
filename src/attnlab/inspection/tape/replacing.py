"""Let a call go on with other values in the place of some operands and outputs of its operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from attnlab.core.errors import ModuleError
from attnlab.inspection.tape.contractions import Operand
from attnlab.inspection.tape.tape import (
    Inside,
    Step,
    at_slot,
    events_of,
    identity_of,
    slots_of,
    tensors_in,
    unfused,
    with_outputs,
)


@contextmanager
def replacing(
    inputs: Mapping[Operand, Inside], outputs: Mapping[int, Inside], calls: Mapping[int, str]
) -> Iterator[Replacing]:
    """Replace values by the numbers that a tape of the same call gave to its operations.

    Parameters
    ----------
    inputs : mapping of (int, int) to callable
        By event and input what the operation is given instead; others that use the tensor still get it as it is.
    outputs : mapping of int to callable
        By event what stands in the place of its output.
    calls : mapping of int to str
        The operations that these events were, by their full names.

    Yields
    ------
    Replacing
        What has been done, with which gradients can be had.

    Raises
    ------
    ModuleError
        If the call consists of other operations than the tape.
    """
    with unfused(), Replacing(inputs, outputs, calls) as mode:
        yield mode
    if mode.left:
        raise ModuleError(MOVED)


MOVED = "the model computes by other operations than in its first call with such inputs, so that none can be changed"


@final
@dataclass(frozen=True)
class _Made:
    """Stand for a tensor that an operation made; to hold the tensor itself would change what autograd does."""

    identity: Any
    requires_grad: bool


@final
@dataclass(frozen=True)
class _Done:
    """Hold one operation that was done."""

    operation: Any  # one overload of an operation of torch
    positional: tuple[Any, ...]
    named: dict[str, Any]
    made: tuple[Any, ...]  # identities of its results
    with_gradients: bool  # whether its place in the code lets gradients through

    def unwritten(self, outside: Tensor) -> Tensor:
        """A tensor from outside, or a copy of one that has been written into once, such as running means."""
        return outside if outside.requires_grad and not self.operation._schema.is_mutable else outside.clone()


@final
class Replacing(TorchDispatchMode):
    """Count operations as a tape does, and interfere where that is asked for.

    Parameters
    ----------
    inputs, outputs, calls : mapping
        As `replacing` takes them.
    """

    def __init__(
        self, inputs: Mapping[Operand, Inside], outputs: Mapping[int, Inside], calls: Mapping[int, str]
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs
        self.left = dict(calls)
        self.next = 0
        self.keeps = torch.is_grad_enabled()
        self.done: list[_Done] = []
        self.outside: dict[Any, Tensor] = {}  # by identity what was given
        self.alive: dict[Any, Tensor] = {}  # by identity what was made: a storage that is freed could come back

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        result = self._do(func, args, kwargs or {})
        if self.keeps:
            self._keep(func, (args, kwargs or {}), tensors_in(result))
        return result

    def _keep(self, func: Any, given: tuple[Any, dict[str, Any]], results: Sequence[Tensor]) -> None:
        """Note an operation that was done."""

        def noted(tensor: Tensor) -> Tensor | _Made:
            identity = identity_of(tensor)
            if identity in self.alive:
                return _Made(identity, tensor.requires_grad)
            self.outside[identity] = tensor
            return tensor

        positional, named = tree_map_only(Tensor, noted, given)
        made = tuple(identity_of(tensor) for tensor in results)
        self.done.append(_Done(func, positional, named, made, torch.is_grad_enabled()))
        self.alive |= {identity: tensor.detach() for identity, tensor in zip(made, results, strict=True)}

    def _do(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The result of an operation, with the changes that concern it."""
        if self.left.get(self.next, func._schema.name) != func._schema.name:
            raise ModuleError(MOVED)
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

    def with_gradients(self, returned: Any) -> Any:
        """What a call returned, of the same operations done once more where autograd sees them and their changes.

        Below it, where they were done first, a change leaves no trace in the graph.
        """
        made: dict[Any, Tensor] = {}
        detached: dict[Any, Tensor] = {}  # which lie where what they were made from lies

        def now(one: _Made) -> Any:
            cut = one.identity in detached and not one.requires_grad
            return detached[one.identity] if cut else made.get(one.identity, self.outside.get(one.identity))

        def answer(tensor: Tensor) -> Tensor:
            identity = identity_of(tensor)
            return now(_Made(identity, tensor.requires_grad)) if identity in self.alive else tensor

        self.next = 0
        for one in self.done:
            with torch.set_grad_enabled(one.with_gradients):
                given = tree_map_only(Tensor, one.unwritten, (one.positional, one.named))
                positional, named = tree_map_only(_Made, now, given)
                result = self._do(one.operation, positional, named)
            held = detached if one.operation._schema.name == "aten::detach" else made
            held |= dict(zip(one.made, tensors_in(result), strict=True))
        return tree_map_only(Tensor, answer, returned)


def _with_inputs(
    func: Any, positional: tuple[Any, ...], named: dict[str, Any], changes: Sequence[tuple[int, Inside]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    slots = tuple(slots_of(positional, named))
    tensors = [at_slot(slot, positional, named) for slot in slots]
    for number, change in changes:
        tensors[number] = change(tensors[number].clone())
    step = Step(func, positional, named, slots, (), ())
    return step.filled(tensors)
