"""The blocks of a patient: itself, or the submodules of a model that are layers with a feed-forward."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.core.exact import MasksAsExact
from attnlab.doctor.examination import Examination
from attnlab.doctor.measures.identity import SAME, follow
from attnlab.inspection.tape.tape import Tape, record
from attnlab.strangers.calling.convention import elements
from attnlab.strangers.loading.repository import trees_with
from attnlab.strangers.said.source import descriptions

_NAMED = re.compile(r"block|layer|encoder|decoder|residual", re.IGNORECASE)
_PARTS = re.compile(
    r"norm|embed|attention$|attn$|mlp|feed_?forward|ffn?$|moe|expert|dropout|output$|head$", re.IGNORECASE
)
_FEEDFORWARD = re.compile(r"(mlp|feed_?forward|ffn?)$", re.IGNORECASE)
_CLAIMED = re.compile(r"residual|skip.?connection|\bskip\b|(?-i:Res(?=[A-Z]|$))", re.IGNORECASE)
_DENIED = re.compile(
    r"\b(no|not|without|outside|caller|non|bare|adds?|added)\W+(\w+ ){0,3}(residual|skip)"
    r"|(residual|skip)\w*( \w+){0,3} (outside|caller|elsewhere|is added|are added|around)",
    re.IGNORECASE,
)

_STEP = 1e-4  # of inputs of size 1
_HANDED_ON = 0.5  # mean derivative of an output by the input in the same place: 1 with a clean skip, 0 without
_ROUNDING = 1e-4  # relative, of two ways to compute the same in float32

BENDS = frozenset((
    "celu", "elu", "gelu", "hardswish", "hardtanh", "leaky_relu", "mish", "relu", "sigmoid", "silu",
    "softplus", "tanh", "threshold",
))  # fmt: skip
"""Pointwise non-linearities."""

RECTIFIERS = BENDS - {"sigmoid", "tanh"}
"""Those that stand behind a layer; the others make gates too."""

MATRICES = frozenset((
    "addmm", "baddbmm", "bmm", "convolution", "mm",
))  # fmt: skip
"""Products with matrices."""

PRODUCTS = frozenset(("baddbmm", "bmm"))
"""Those of two tensors that were computed, where neither is a parameter."""


@final
@dataclass(frozen=True)
class TracedBlock:
    """Hold one block and a call of it."""

    name: str  # dotted path; nothing for the patient itself
    title: str  # how it is called in a sentence
    module: nn.Module  # the block, in evaluation mode
    start: Tensor  # what it is given, in its own layout
    positional: tuple[Any, ...]  # the arguments of the call
    named: Mapping[str, Any]  # those that are given by name
    tape: Tape  # what it computes; the output is the first tensor of the input's shape

    def share(self) -> float:
        """The mean derivative of each output number by the input number in the same place."""
        generator = torch.Generator().manual_seed(5)
        signs = torch.randint(0, 2, self.start.shape, generator=generator).to(self.start.dtype) * 2 - 1
        ahead, behind = (self.output_for(self.start + step * signs) for step in (_STEP, -_STEP))
        return float(((ahead - behind) * signs).mean()) / (2 * _STEP)

    def output_for(self, start: Tensor) -> Tensor:
        """The output for another input of the same shape; raise `ModuleError` if there is none like it."""
        given = (_fresh(start if one is self.start else one) for one in self.positional)
        named = {key: _fresh(start if value is self.start else value) for key, value in self.named.items()}
        with torch.no_grad(), MasksAsExact():
            output = _like(self.module(*given, **named), start)
        if output is None:
            raise ModuleError(f"{self.title} returns nothing of the shape of its input")
        return output


def blocks(exam: Examination) -> Iterator[TracedBlock]:
    """The patient if it is a block, or one block of each kind that a model is made of."""
    convention = exam.convention
    calls = _calls(exam)
    if not convention.pooled and convention.takes == "embeddings":
        found = _recorded("", exam.eval_module, calls.get("", ((), {})), f"this {convention.kind}")
        whole = convention.kind == "model" or exam.patient.declared.whole
        if found is not None and not whole and _is_asked(exam, found):
            yield found
            return
    if convention.kind != "layer":
        yield from _inner(exam, calls)


def _is_asked(exam: Examination, found: TracedBlock) -> bool:
    """Whether a layer or block must have a skip: it has a feed-forward, says so, or tried."""
    if _claims(exam):
        return True
    recurrent = any(isinstance(part, nn.RNNBase) for part in found.module.modules())  # whose state carries on
    mixes = _mixes(found, exam.convention.d_in)
    attends = any("softmax" in event.call for event in found.tape.events)
    named = _FEEDFORWARD.search(type(found.module).__name__) is not None and not attends
    is_part = recurrent or named or not mixes
    if exam.convention.kind == "block" and has_feedforward(found.tape) and not is_part:
        return True
    return _adds_below_a_bend(found)


def _adds_below_a_bend(found: TracedBlock) -> bool:
    """Whether the input is added to something, and the sum then ends in a matrix and a non-linearity."""
    route = follow(found.tape, found.start)
    if route.ends is None or not any(trail.alive and trail.sums for trail in route.trails):
        return False
    behind = [found.tape.events[index].call.rstrip("_") for index in sorted(found.tape.descendants(route.ends))]
    last = next((call for call in reversed(behind) if call not in SAME), "")
    return last in RECTIFIERS and not any("softmax" in call or call == "bmm" for call in behind)


def _claims(exam: Examination) -> bool:
    """Whether a layer says in its name or docstring that it has a skip, and its repository puts none around it.

    What has no weights is a step of a layer: there "residual" says something of scores.
    """
    module, file = exam.patient.module, exam.patient.file
    name, has_weights = type(module).__name__, any(one.dim() > 1 for one in module.parameters())
    if not has_weights or not any(
        _CLAIMED.search(words) and not _DENIED.search(words) for words in (name, *descriptions(module))
    ):
        return False
    put_around = re.compile(rf"(Residual|Skip)\w*\([^()]*\b{name}\(")
    return not any(put_around.search(ast.unparse(tree)) for _, tree in (trees_with(Path(file), name) if file else ()))


def _inner(exam: Examination, calls: Mapping[str, Any]) -> Iterator[TracedBlock]:
    """Yield submodules that are layers, by their names or as they stand in a row, mix positions, and feed forward."""
    classes: set[type] = set()
    following = _following(exam.eval_module)
    if following and _hands_on(exam, calls):
        following = {}
    for name, part in exam.eval_module.named_modules():
        title = type(part).__name__
        is_named = _NAMED.search(title) and not _PARTS.search(title)
        is_layer = is_named or part in following
        if not name or type(part) in classes or name not in calls or not is_layer or list(part.children()) == []:
            continue
        found = _recorded(name, part, calls[name], f"{title} ({name})")
        if found is None or not (is_named or _is_given(calls.get(following[part]), found.tape.output)):
            continue
        if has_feedforward(found.tape) and _mixes(found):
            classes.add(type(part))
            yield found


def _hands_on(exam: Examination, calls: Mapping[str, Any]) -> bool:
    """Whether the patient gives its input as a part of its output, so that none of its parts needs to."""
    whole = _recorded("", exam.eval_module, calls.get("", ((), {})), "")
    return whole is not None and whole.share() > _HANDED_ON


def _following(model: nn.Module) -> dict[nn.Module, str]:
    """By part of a list the name of the next, where both are of one class."""
    names = {part: name for name, part in model.named_modules()}
    lists = [list(part) for part in names if isinstance(part, nn.ModuleList | nn.Sequential)]
    return {one: names[other] for some in lists for one, other in pairwise(some) if type(one) is type(other)}


def _is_given(call: tuple[tuple[Any, ...], dict[str, Any]] | None, output: Tensor) -> bool:
    """Whether a call is given an output first, as it is but for rounding."""
    first = call[0][0] if call and call[0] else None
    return (
        isinstance(first, Tensor)
        and first.shape == output.shape
        and torch.allclose(first, output, rtol=_ROUNDING, atol=_ROUNDING)
    )


def _calls(exam: Examination) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of the first call of every submodule; caches among them as they were then."""
    module = exam.eval_module
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    names = {part: name for name, part in module.named_modules()}

    def note(part: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        name = names.get(part)  # none of a copy that is made in the call
        if name is not None and name not in calls:
            calls[name] = tuple(map(_fresh, positional)), {key: _fresh(value) for key, value in named.items()}

    handles = [part.register_forward_pre_hook(note, with_kwargs=True) for part in names]
    try:
        exam.run(exam.inputs())
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _fresh(value: Any) -> Any:
    """A copy of anything that a call could change, such as a tensor or a cache."""
    if isinstance(value, Tensor):
        return value.clone()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return tuple(map(_fresh, value))
    return copy.deepcopy(value)


def _recorded(name: str, part: nn.Module, call: tuple[Any, Any], title: str) -> TracedBlock | None:
    """A block with a tape of it, None where no output has the shape of its input."""
    positional, named = call
    given = [one for one in (*positional, *named.values()) if isinstance(one, Tensor) and one.dtype != torch.bool]
    if not given or not given[0].is_floating_point() or given[0].dim() < 2:  # what comes after tokens is looked at
        return None
    block = TracedBlock(name, title, part, given[0], positional, named, Tape((), given[0]))
    try:
        return replace(block, tape=record(part, lambda: block.output_for(block.start)))
    except ModuleError:
        return None


def _like(returned: Any, start: Tensor) -> Tensor | None:
    """The first tensor with the shape of the input."""
    same = (one for one in elements(returned).values() if isinstance(one, Tensor) and one.shape == start.shape)
    return next(same, None)


def has_feedforward(tape: Tape) -> bool:
    """Whether a non-linearity stands behind one product with a matrix and before another, and is no gate."""
    bends = (event.index for event in tape.events if event.call.rstrip("_") in BENDS)
    return any(_between_matrices(tape, index) and not _is_gate(tape, index) for index in bends)


def _is_gate(tape: Tape, index: int) -> bool:
    """Whether a non-linearity weighs what was mixed beside it: ``silu(gate(x)) * attention(x)``.

    Both factors of a gated feed-forward come of the same vectors, which were mixed before.
    """
    behind, before = {index, *tape.descendants(index)}, tape.ancestors(index)
    for event in (tape.events[at] for at in behind):
        beside = {parent for parent in event.parents if parent is not None} - behind
        if event.call.rstrip("_") == "mul" and beside:
            own = beside.union(*map(tape.ancestors, beside)) - before
            if any(tape.events[at].call in PRODUCTS and not any(tape.events[at].parameters) for at in own):
                return True
    return False


def _between_matrices(tape: Tape, index: int) -> bool:
    def of_weights(indices: set[int]) -> bool:
        events = (tape.events[at] for at in indices)
        return any(event.call in MATRICES and any(event.parameters) for event in events)

    return of_weights(tape.ancestors(index)) and of_weights(tape.descendants(index))


def _mixes(block: TracedBlock, d_in: int = 0) -> bool:
    """Whether an output depends on more than the input at its own place, of a sequence or an image of that width."""
    if block.start.dim() != 3 and (block.start.dim() != 4 or block.start.shape[-1] != d_in):
        return False
    moved, place = block.start.clone(), (0,) * (block.start.dim() - 1)
    moved[place] += torch.linspace(-1, 1, moved.shape[-1]).to(moved)
    difference = (block.output_for(moved) - block.output_for(block.start)).abs().amax(-1)
    difference[place] = 0.0
    return bool((difference > 0).any())
