"""One call of a model as the calls of its modules: its layers, and the way from the last of them to the output."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.core.exact import InFloat64
from attnlab.core.modes import evaluating
from attnlab.inspection.capture import capture
from attnlab.inspection.watch import Captured


@final
@dataclass
class Call:
    """Hold one call of one module."""

    name: str  # qualified name of the module; of its second call ``name#2``
    module: nn.Module  # what was called
    arguments: tuple[Any, ...]  # positional ones, then named ones
    words: tuple[str, ...]  # names of the named ones
    start: int  # place among all calls, in the order in which they began
    stop: int = 0  # place of the first call that began after this one was done
    output: Tensor = field(default_factory=lambda: torch.empty(0))  # the first tensor of what it returned

    @property
    def input(self) -> Tensor:
        """The first tensor it was given."""
        return first_tensor(self.arguments)

    @property
    def changes_nothing(self) -> bool:
        """Whether it returned what it was given and has no weights, like dropout in evaluation mode."""
        return same(self.input, self.output) and next(self.module.parameters(), None) is None

    def again(self, x: Tensor) -> Tensor:
        """What the module makes of another first tensor."""
        given = [x if one is self.input else one for one in self.arguments]
        positional = len(given) - len(self.words)
        return answer_of(self.module(*given[:positional], **dict(zip(self.words, given[positional:], strict=True))))

    def exactly(self) -> Callable[[Tensor], Tensor]:
        """`again` in float64."""
        exact = replace(self, module=copy.deepcopy(self.module).double())

        def again(x: Tensor) -> Tensor:
            with InFloat64():
                return exact.again(x)

        return again


@final
@dataclass(frozen=True)
class Record:
    """Hold what happened in one call of a model."""

    model: nn.Module  # what was called
    calls: list[Call]  # in the order in which they began
    trace: Mapping[str, Captured]  # the attentions among them
    answer: Tensor  # what the model returned

    def within(self, call: Call) -> list[Call]:
        """The calls that one call made."""
        return self.calls[call.start + 1 : call.stop]

    def layers(self) -> tuple[list[Call], list[Call]]:
        """The layers that hand on the stream, and the modules that lead from the last of them to the output."""
        runs = [(run, self.after(run[-1])) for run in self._runs()]
        found = [(run, tail) for run, tail in runs if tail and same(tail[-1].output, self.answer)]
        if not found:
            raise ModuleError(
                "the model has no list of layers (nn.ModuleList, nn.Sequential) that hand on one stream with modules "
                "alone between the last of them and the output; attribute to its inputs by integrated_gradients"
            )
        return max(found, key=lambda one: (len(one[0]) > 1, sum(map(_count_weights, one[0]))))

    def after(self, last: Call, *, whole: bool = True) -> list[Call]:
        """The modules through which an output goes on: whole ones, or those without modules inside."""
        chain, x, ready = [], last.output, last.stop
        for call in self.calls[last.stop :]:
            if call.start >= ready and same(call.input, x) and (whole or not any(call.module.children())):
                chain.append(call)
                x, ready = call.output, call.stop
        return chain

    def _runs(self) -> Iterator[list[Call]]:
        """Yield calls of modules of one class in one list, each of which takes what the one before it returns."""
        run: list[Call] = []
        for call in sorted(self.calls, key=_list_of):
            listed = isinstance(self.model.get_submodule(_list_of(call)), nn.ModuleList | nn.Sequential)
            if not listed or not is_like(call.input, call.output):
                continue
            goes_on = run and same(call.input, run[-1].output) and type(call.module) is type(run[-1].module)
            if run and not goes_on:
                yield run
                run = []
            run.append(call)
        if run:
            yield run


def record(model: nn.Module, inputs: Sequence[Any]) -> Record:
    """Call a model in evaluation mode without gradients, and note what every module was given and returned."""
    calls: list[Call] = []
    counts: dict[str, int] = {}
    running: list[Call] = []

    def enter(name: str, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        counts[name] = counts.get(name, 0) + 1
        unique = name if counts[name] == 1 else f"{name}#{counts[name]}"
        arguments = tuple(one.clone() if torch.is_tensor(one) else one for one in (*given, *named.values()))
        running.append(Call(unique, module, arguments, tuple(named), start=len(calls)))
        calls.append(running[-1])

    def leave(output: Any) -> None:
        call = running.pop()
        call.stop, call.output = len(calls), first_tensor((output,)).clone()

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(evaluating(model))
        trace = stack.enter_context(capture(model))
        for name, module in model.named_modules():
            hooks = (
                module.register_forward_pre_hook(
                    lambda one, given, named, name=name or "model": enter(name, one, given, named), with_kwargs=True
                ),
                module.register_forward_hook(lambda _module, _given, output: leave(output)),
            )
            for hook in hooks:
                stack.callback(hook.remove)
        answer = answer_of(model(*inputs))
    return Record(model, calls, trace, answer)


def answer_of(output: Any) -> Tensor:
    """The logits among what a model returned: by that name, or the first tensor."""
    found = first_tensor((getattr(output, "logits", output),))
    if not found.numel():
        raise ModuleError(f"the model must return a tensor, or an object with logits; got {type(output).__name__}")
    return found


def logit_of(answer: Tensor, position: int, token: int, against: int | None) -> Float[Tensor, " batch"]:
    """The logit of a token at a position, less that of another one; one answer for a whole sequence is the last."""
    logits = answer.unsqueeze(1) if answer.ndim == 2 else answer  # (batch, answers, vocab_size)
    for what, index, size in (
        ("position", position, logits.shape[1]),
        ("token", token, logits.shape[-1]),
        ("against", 0 if against is None else against, logits.shape[-1]),
    ):
        if not -size <= index < size:
            raise ModuleError(f"{what} must lie within the {size} of the model's output; got {index}")
    chosen = logits[:, position]
    return chosen[:, token] - (0 if against is None else chosen[:, against])


def first_tensor(values: Sequence[Any]) -> Tensor:
    """The first tensor among values, or within the first of them that holds one; an empty one where none does."""
    for value in values:
        inner = list(value.values()) if isinstance(value, Mapping) else value
        found = first_tensor(inner) if isinstance(inner, tuple | list) else value
        if torch.is_tensor(found) and found.numel():
            return found
    return torch.empty(0)


def is_like(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of floats have as many positions and features."""
    floats = one.is_floating_point() and other.is_floating_point()
    return floats and one.numel() == other.numel() > 0 and one.shape[-1:] == other.shape[-1:]


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers."""
    return one.shape == other.shape and one.numel() > 0 and bool((one == other).all())


def _list_of(call: Call) -> str:
    """The name of what holds a module."""
    return call.name.partition("#")[0].rpartition(".")[0]


def _count_weights(call: Call) -> int:
    return sum(weight.numel() for weight in call.module.parameters())
