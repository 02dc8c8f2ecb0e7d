"""The norms of a module: what each was given, and which have no effect because nobody uses what they return."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.doctor.examination import Examination
from attnlab.doctor.influence.differences import relative_change
from attnlab.doctor.measures.participation import influence, results
from attnlab.inspection.tape.outcome import is_thrown_away
from attnlab.strangers.loading.mentions import SWITCHED, only_copied, use_of

IS_NORM = re.compile(r"norm", re.IGNORECASE)
"""How the name of a norm is recognized."""
_SEED = 7  # of what a norm's result is replaced by; any


@final
@dataclass
class Norm:
    """Hold one norm of the patient, and what it was given."""

    name: str  # dotted path
    module: nn.Module  # the norm itself
    calls: int = 0  # how many times it ran in a usual call
    given: list[Tensor] = field(default_factory=list)  # its input at each call that gave and returned a tensor


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a single norm, by the name of its class."""
    name = type(module).__name__
    return bool(IS_NORM.search(name)) and not list(module.children()) and not re.search(r"block|attention", name, re.I)


def norms_of(exam: Examination) -> list[Norm]:
    """The norms with what they did in a usual call."""
    found = {part: Norm(name, part) for name, part in exam.eval_module.named_modules() if name and is_norm(part)}

    def note(part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        found[part].calls += 1
        if inputs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            found[part].given.append(inputs[0].detach().clone())

    handles = [part.register_forward_hook(note) for part in found]
    try:
        exam.run(exam.inputs())
    finally:
        for handle in handles:
            handle.remove()
    return list(found.values())


def unused_norms(exam: Examination, norms: Sequence[Norm]) -> list[Norm]:
    """The norms that are never called, or whose result nobody reads."""
    if not norms or not exam.run(exam.inputs()).isfinite().all():
        return []
    dead = [norm for norm in norms if len(norm.given) == norm.calls and _change_by(exam, norm) <= exam.tolerance]
    dead = [norm for norm in dead if not norm.calls or is_thrown_away(exam.usual_tape, norm.name)]
    copied = only_copied(exam.eval_module, [norm.name for norm in dead])
    dead = [norm for norm in dead if norm.name not in copied]
    return [norm for norm in dead if use_of(exam.eval_module, norm.name) not in SWITCHED]


def _change_by(exam: Examination, norm: Norm) -> float:
    """How much any result changes, relative to its size, when a norm returns something else.

    One that is not called may be used through its weight: then that is changed.
    """
    if not norm.calls:
        return influence(exam, [f"{norm.name}.{name}" for name, _ in norm.module.named_parameters()])
    before = results(exam, exam.eval_module, exam.inputs())
    generator = torch.Generator().manual_seed(_SEED)

    def replaced(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        noise = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        return output + noise.to(output.dtype)

    handle = norm.module.register_forward_hook(replaced)
    try:
        after = results(exam, exam.eval_module, exam.inputs())
    finally:
        handle.remove()
    pairs = zip(before, after, strict=True)
    return max((relative_change(one.detach(), other.detach()) for one, other in pairs), default=0.0)
