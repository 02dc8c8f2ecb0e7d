"""Which parameters a gradient reaches, and which change the output when they are changed.

Both are asked over several inputs, lengths, and modes, because a unit may be silent by chance. Every output counts:
a pooled vector or a loss beside the main one makes a parameter alive; returned attention weights and caches do not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.influence.differences import relative_change

SHORTER = 7  # a second length: what is silent at one length only belongs to positions, not to heads
_KEPT_BESIDE = ("past", "cache", "present", "attn", "attention", "weight", "state", "mem")
"""Words in the keys of returned things that hold by-products, not results."""
_WIDEST_RESULT = 3  # (batch, length, features); attention weights and caches have four axes
_ROUNDING = 1e-13  # of a parameter's largest gradient: what is left of sums that cancel, as through one softmaxed key

_LARGE = 3.0  # inputs this many times as large drive other units of a rectifier


@final
@dataclass
class Survey:
    """Hold what gradients said about every parameter.

    Parameters
    ----------
    largest : dict of str to float
        Largest absolute gradient by parameter name, over all calls; parameters no graph led to are absent.
    alive : dict of str to Tensor
        Where a gradient was not zero in any call, in the parameter's shape.
    per_length : dict of str to dict of int to Tensor
        The same for each length by itself.
    calls : int
        How many calls went into it.
    broken : str
        What the backward pass raised; nothing where it ran.
    """

    largest: dict[str, float] = field(default_factory=dict)
    alive: dict[str, Tensor] = field(default_factory=dict)
    per_length: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    calls: int = 0
    broken: str = ""

    def add(self, module: nn.Module, length: int) -> None:
        """Take in the gradients that one call left at a module's parameters."""
        self.calls += 1
        for name, parameter in module.named_parameters():
            if parameter.grad is None:
                continue
            largest = float(parameter.grad.abs().nan_to_num(nan=math.inf).max()) if parameter.numel() else 0.0
            floor = _ROUNDING * largest if math.isfinite(largest) and parameter.dtype == torch.float64 else 0.0
            moved = ~(parameter.grad.detach().abs() <= floor)  # NaN counts as moved
            self.largest[name] = max(self.largest.get(name, 0.0), largest)
            self.alive[name] = self.alive.get(name, torch.zeros_like(moved)) | moved
            own = self.per_length.setdefault(name, {})
            own[length] = own.get(length, torch.zeros_like(moved)) | moved


def survey(exam: Examination) -> Survey:
    """Which parameters gradients reach, over inputs, lengths, scales, padding, and both modes."""
    found = Survey()
    for train, inputs, how in _situations(exam):
        module = exam.fresh(train=train)  # a fresh one each time: some keep state between calls
        try:
            loss = _projection(results(exam, module, inputs, how), inputs.shape[1])
        except ModuleError:
            if not found.calls:
                raise
            continue
        if loss.requires_grad:
            try:
                loss.backward()
            except RuntimeError as error:  # mostly a value that was changed in place though it was still needed
                found.broken = str(error).splitlines()[0]
                break
        found.add(module, inputs.shape[1])
    return found


def _situations(exam: Examination) -> Iterator[tuple[bool, Tensor, dict[str, Any]]]:
    """Yield modes, inputs and ways to call."""
    yield False, exam.inputs(seed=10), {}
    yield False, exam.inputs(seed=11, scale=_LARGE), {}
    if exam.convention.any_length:
        yield False, exam.inputs(seed=12, length=min(SHORTER, exam.convention.longest or SHORTER)), {}
    yield True, exam.inputs(seed=13), {}
    if exam.convention.causal_means in {"mask", "flag"}:
        yield False, exam.inputs(seed=14), {"causal": not exam.convention.causal}
    if exam.convention.key_mask is not None:
        padding = torch.ones(BATCH, exam.convention.length, dtype=torch.bool)
        padding[1, -2:] = False
        yield False, exam.inputs(seed=15), {"padding": padding}


def results(exam: Examination, module: nn.Module, inputs: Tensor, how: Mapping[str, Any]) -> list[Tensor]:
    """Everything one call returns as a result; attention weights and caches are none."""
    torch.default_generator.manual_seed(0)
    with torch.enable_grad():
        returned = exam.convention.returned(module, inputs, **how)
    return list(_tensors(returned, inputs.shape[1]))


def _tensors(returned: Any, length: int) -> Iterator[Tensor]:
    """The floating tensors among what was returned that are results."""
    if isinstance(returned, Tensor):
        square = returned.dim() >= 2 and returned.shape[-2:] == (length, length)  # attention weights
        if returned.is_floating_point() and returned.dim() <= _WIDEST_RESULT and not square:
            yield returned
    elif isinstance(returned, Mapping):
        for key, value in returned.items():
            if not any(word in str(key).lower() for word in _KEPT_BESIDE) or "last_hidden" in str(key):
                yield from _tensors(value, length)
    elif isinstance(returned, list | tuple):
        for value in returned:
            yield from _tensors(value, length)
    elif dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        yield from _tensors({one.name: getattr(returned, one.name) for one in dataclasses.fields(returned)}, length)


def _projection(results: list[Tensor], seed: int) -> Tensor:
    """One number that depends on every entry of the results."""
    if not results:
        raise ModuleError("it returns no floating tensor")
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=results[0].dtype)
    for result in results:
        weights = torch.randn(result.shape, generator=generator, dtype=torch.float64)
        total = total + (result * weights.to(result.dtype)).sum()
    return total


def influence(exam: Examination, names: Sequence[str], *, rows: tuple[int, Tensor] | None = None) -> float:
    """How much the results change when parameters are replaced, relative to the results."""
    if not names:
        return 0.0
    return max(_difference(exam, names, rows, seed) for seed in (20, 21))


def _difference(exam: Examination, names: Sequence[str], rows: tuple[int, Tensor] | None, seed: int) -> float:
    """How much the results for one input differ from those with changed parameters."""
    before, after = exam.fresh(), exam.fresh()
    _disturb(after, names, rows)
    inputs = exam.inputs(seed=seed)
    with torch.no_grad():
        pairs = zip(results(exam, before, inputs, {}), results(exam, after, inputs, {}), strict=False)
        pairs = [(a.detach(), b.detach()) for a, b in pairs]
    return max((relative_change(a, b) for a, b in pairs), default=0.0)


def revives(exam: Examination, names: Sequence[str], *, rows: tuple[int, Tensor] | None = None) -> bool:
    """Whether a gradient reaches parameters once they are replaced: a rectifier was closed by chance."""
    module = exam.fresh()
    _disturb(module, names, rows)
    inputs = exam.inputs(seed=20)
    loss = _projection(results(exam, module, inputs, {}), inputs.shape[1])
    if loss.requires_grad:
        loss.backward()
    own = dict(module.named_parameters())
    gradients = [own[name].grad for name in names]
    if rows is not None:
        gradients = [None if grad is None else grad.index_select(*rows) for grad in gradients]
    return any(grad is not None and bool(grad.any()) for grad in gradients)


def _disturb(module: nn.Module, names: Sequence[str], rows: tuple[int, Tensor] | None) -> None:
    """Add noise of the size of a parameter to it, or to some of its rows."""
    own = dict(module.named_parameters())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name in names:
            parameter = own[name]
            spread = max(0.1, float(parameter.std(correction=0)))
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype) * spread
            if rows is None:
                parameter.add_(noise)
            else:
                axis, indices = rows
                parameter.index_add_(axis, indices, noise.index_select(axis, indices))
