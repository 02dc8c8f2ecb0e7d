"""Let a model go on with other values at some places, for as long as a context is open.

What a module returns is changed by a hook; the steps of the lab's attention and of torch's by the layer itself, which
then runs its readable path; those of attention written by hand through a tape of the call (`taped`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, final

from torch import Tensor, nn

from attnlab.core.errors import SpecError, nearest
from attnlab.inspection.capture import without_fast_path
from attnlab.inspection.interventions.places import Changed, Function, Place
from attnlab.inspection.interventions.taped import changing_taped
from attnlab.inspection.torch_attention import StepByStep
from attnlab.nn.attention import Attention
from attnlab.nn.recurrences import LinearAttention


@contextlib.contextmanager
def changing(model: nn.Module, changes: Sequence[Changed]) -> Iterator[None]:
    """Change what a model computes at some places while the context is open.

    Parameters
    ----------
    model : nn.Module
        Any module.
    changes : sequence of (Place, callable)
        Made one after another where they meet. A function is given the value at its place and returns what stands there
        instead.

    Raises
    ------
    SpecError
        If the model has no such module, it has no attention, or the attention no such head or position; the last two
        when the model is called.

    Notes
    -----
    Gradients flow through what is changed. Attention that is written by hand is called once more for each new shape of
    its inputs, to find out where its steps are; and, where gradients are enabled, its operations are done twice in each
    call, as they must be done once where autograd sees the changes. Modules run as in a forward pass: a block or a
    mixer other than attention that goes on from kept keys is not changed.
    """
    modules = {name or "model": module for name, module in model.named_modules()}
    calls: Counter[_Applied] = Counter()  # of each module in this forward pass
    by_hand: list[Changed] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_fast_path())
        stack.callback(model.register_forward_pre_hook(lambda *_: calls.clear()).remove)
        for name in dict.fromkeys(place.module for place, _ in changes):
            base, _, number = name.partition("#")
            if base not in modules:
                raise SpecError(f"the model has no module '{base}'; {nearest(base, modules)}")
            module, wanted = modules[base], [change for change in changes if change[0].module == name]
            applied = _Applied(int(number) if number else None, wanted, calls)
            if isinstance(module, Attention | LinearAttention):
                stack.enter_context(_editing(module, applied))
                continue
            of_output = [change for change in wanted if change[0].step == "output"]
            if of_output:
                hook = _Applied(applied.number, of_output, calls).to_returned
                stack.callback(module.register_forward_hook(hook).remove)
            if len(of_output) == len(wanted):
                continue
            if isinstance(module, nn.MultiheadAttention) and type(module).forward is nn.MultiheadAttention.forward:
                stack.enter_context(_editing(module, applied))
                stack.enter_context(_step_by_step(module))
            else:
                by_hand += [change for change in wanted if change[0].step != "output"]
        if by_hand:
            stack.enter_context(changing_taped(model, by_hand, calls.clear))
        yield


def put(place: Place, value: Tensor, function: Function) -> Tensor:
    """A value with what a function makes of a part of it in that part's place."""
    index = place.index(value)
    changed = value.clone()
    changed[index] = function(value[index]).to(value.dtype)
    return changed


@final
class _Applied:
    """Apply the changes of one module, in all of its calls or in one."""

    def __init__(self, number: int | None, changes: Sequence[Changed], calls: Counter[_Applied]) -> None:
        self.number = number
        self.changes = changes
        self.calls = calls

    def to_returned(self, _module: nn.Module, _inputs: Any, returned: Any) -> Any:
        """What a module returns, the first of several tensors changed."""
        self.calls[self] += 1
        if self.number not in (None, self.calls[self]):
            return returned
        value = returned[0] if isinstance(returned, tuple) else returned
        for place, function in self.changes:
            value = put(place, value, function)
        return (value, *returned[1:]) if isinstance(returned, tuple) else value

    def to_step(self, before: Callable[[Any, Tensor], Tensor] | None, step: str, value: Tensor) -> Tensor:
        """A step of an attention, which begins with its queries."""
        if step == "q":
            self.calls[self] += 1
        value = value if before is None else before(step, value)
        for place, function in self.changes:
            if place.step == step and self.number in (None, self.calls[self]):
                value = put(place, value, function)
        return value


@contextlib.contextmanager
def _editing(module: nn.Module, applied: _Applied) -> Iterator[None]:
    before = vars(module).get("edit")
    vars(module)["edit"] = partial(applied.to_step, before)
    try:
        yield
    finally:
        vars(module)["edit"] = before


@contextlib.contextmanager
def _step_by_step(module: nn.MultiheadAttention) -> Iterator[None]:
    """Let torch's layer compute step by step, if nobody does so already."""
    if "forward" in vars(module):
        yield
        return
    vars(module)["forward"] = StepByStep(module)
    try:
        yield
    finally:
        del module.forward
