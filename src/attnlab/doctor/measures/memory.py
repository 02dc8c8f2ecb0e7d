"""Whether a module remembers: a call gives something else after other calls than on a fresh copy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.influence.differences import deviation
from attnlab.doctor.influence.padded import lengths_of, real_positions, telling
from attnlab.strangers.calling.convention import way_to_forget

_ID = "determinism"
_SOURCE = (
    "PyTorch documentation, nn.Module.register_buffer: state belongs into buffers, and forward must not depend on it"
)
_USUAL = "the usual input"
_CALLS = 4  # a list that has grown by as many entries grows with every call


@final
@dataclass(frozen=True)
class _Call:
    """Hold one call of the patient."""

    words: str
    x: Tensor
    how: dict[str, Any] = field(default_factory=dict)


def remembered(exam: Examination) -> Iterator[Finding]:
    """Call fresh copies in different ways one after another, and compare with what each call gives alone."""
    usual, *others = [(call, output) for call in _calls(exam) if (output := _alone(exam, call)) is not None]
    orders: list[tuple[tuple[_Call, Tensor], ...]] = []
    for other in others:
        orders.extend([(usual, other, usual), (other, usual)])
    orders.extend(itertools.pairwise(others))  # such as two paddings
    found = next(filter(None, (_one_after_another(exam, order) for order in orders)), None)
    if found is not None:
        yield found
        return
    yield from _grows(exam, usual[0])


def _calls(exam: Examination) -> Iterator[_Call]:
    """The usual call, and calls that differ from it in one point."""
    x = exam.inputs()
    yield _Call(_USUAL, x)
    yield _Call("other content", exam.inputs(seed=1))
    yield _Call("another batch size", exam.inputs(batch=BATCH - 1))
    if exam.convention.any_length:
        yield _Call("a shorter input", x[:, : max(1, x.size(1) // 2)].contiguous())
        if exam.convention.longest is None or exam.convention.longest > x.size(1):
            yield _Call("a longer input", exam.inputs(length=x.size(1) + 2))
    if exam.convention.causal_means in ("mask", "flag"):
        yield _Call("another causal mask", x, {"causal": not exam.convention.causal})
    if exam.convention.pair_mask is not None:
        allowed = torch.ones(x.size(0), x.size(1), x.size(1), dtype=torch.bool).tril()
        yield _Call("a mask", x, {"allowed": allowed})
        yield _Call("another mask", x, {"allowed": allowed & (allowed.triu(-1) | allowed.tril(-3))})
    if exam.convention.key_mask is not None:
        real = real_positions(lengths_of(x.size(1), BATCH), x.size(1))
        yield _Call("padding", x, {**telling(exam, real)})
        yield _Call("another padding", x, {**telling(exam, real.flip(0))})


def _alone(exam: Examination, call: _Call) -> Tensor | None:
    """What a fresh copy gives; None for a call that it does not take."""
    try:
        return exam.run(call.x, module=exam.fresh(), **call.how)
    except ModuleError:
        if not call.how and call.words == _USUAL:
            raise
        return None


def _one_after_another(exam: Examination, order: Sequence[tuple[_Call, Tensor]]) -> Finding | None:
    """The first call that gives something else than alone."""
    module = _never_reset(exam)
    before = order[0][0]
    for call, alone in order:
        try:
            after = exam.run(call.x, module=module, **call.how)
        except ModuleError as error:
            return _finding(exam, before, call, f"it raises: {error}")
        apart = deviation(alone, after)
        if apart:
            return _finding(exam, before, call, f"outputs differ by {apart:.2g} of the largest output")
        before = call
    return None


def _never_reset(exam: Examination) -> nn.Module:
    """A fresh copy that no call resets."""
    module = exam.fresh()
    forget = way_to_forget(module)
    if forget is not None:
        setattr(module, forget.__name__, functools.partial(forget))  # which is no method any more
    return module


def _finding(exam: Examination, first: _Call, second: _Call, evidence: str) -> Finding:
    """An error; a warning where the module has a way to forget."""
    forget = way_to_forget(exam.patient.module)
    until = "" if forget is None else f" until {forget.__name__}() is called"
    kept = "compute masks, positions and states anew from the input of each call; a mask kept for speed must be kept by"
    return Finding(
        _ID,
        "warning" if forget else "error",
        f"it remembers an earlier call{until}: on {second.words} it gives something else"
        f" after a call on {first.words}.",
        f"{evidence} (against a fresh copy, evaluation mode)",
        f"call {forget.__name__}() before every batch that does not go on with the one before, also in evaluation"
        if forget
        else f"{kept} length, device and content, and a state must be an argument",
        _SOURCE,
    )


# What grows


def _grows(exam: Examination, call: _Call) -> Iterator[Finding]:
    """A warning for lists and tensors of the module that grow with every call."""
    module = exam.fresh()
    exam.run(call.x, module=module, **call.how)
    before = _sizes(module)
    for _ in range(_CALLS):
        exam.run(call.x, module=module, **call.how)
    growing = [f"`{name}`" for name, size in _sizes(module).items() if size >= before.get(name, size) + _CALLS]
    if growing:
        yield Finding(
            _ID,
            "warning",
            f"{', '.join(growing)} grows with every call, though outputs do not change.",
            f"at least {_CALLS} more entries after {_CALLS} equal calls",
            "keep the last one alone, or clear it: it holds memory, and in training the graphs of all calls",
            _SOURCE,
            nature="set-up",
        )


def _sizes(module: nn.Module) -> dict[str, int]:
    """The number of entries of every collection and tensor that hangs on a module."""
    sizes: dict[str, int] = {}
    for path, part in module.named_modules():
        for name, value in {**vars(part), **part._buffers}.items():
            if isinstance(value, list | dict | set) and not name.startswith("_"):
                sizes[f"{path}.{name}".strip(".")] = len(value)
            elif isinstance(value, torch.Tensor):
                sizes[f"{path}.{name}".strip(".")] = value.numel()
    return sizes
