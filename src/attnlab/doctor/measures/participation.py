"""What takes part: where gradients arrive, and what changes the results when it is changed.

Both are asked over several inputs, lengths, and modes, because a unit may be silent by chance. Every output counts:
a pooled vector or a loss beside the main one makes a parameter alive; returned attention weights and caches do not.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.influence.differences import relative_change
from attnlab.strangers.calling.layouts import LAYOUTS
from attnlab.strangers.calling.sources import AS_LONG, OTHER_MEMORIES, Argument

SHORTER = 7  # a second length: what is silent at one length only belongs to positions, not to heads
MEMORIES = 2  # inputs on which a memory must not matter
_STEP = 0.1  # length of what is moved before the next call
_TURNS = 6  # other numbers in the parameters, with which a unit may speak
_KEPT_BESIDE = ("past", "cache", "present", "attn", "attention", "weight", "state", "mem")
"""Words in the keys of returned things that hold by-products, not results."""
_WIDEST_RESULT = 3  # (batch, length, features), in most layouts; attention weights and caches have four axes
_SUM = 1e-4  # how far weights may be from summing to one, in float32
_ROUNDING = 1e-13  # of a parameter's largest gradient: what is left of sums that cancel, as through one softmaxed key

Rows = tuple[int, Tensor]
"""An axis of a parameter and indices along it."""


# Gradients of parameters


@final
@dataclass
class Survey:
    """Hold what gradients said about every parameter."""

    largest: dict[str, float] = field(default_factory=dict)
    """Largest absolute gradient by parameter name, over all calls; parameters no graph led to are absent."""
    alive: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    """By name and length of the input, where a gradient was not zero in any call, in the parameter's shape."""
    calls: int = 0  # how many calls went into it
    broken: str = ""  # what a call with gradients or its backward pass raised; nothing where they ran

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
            own = self.alive.setdefault(name, {})
            own[length] = own.get(length, torch.zeros_like(moved)) | moved


def survey(exam: Examination) -> Survey:
    """Find which parameters gradients reach, over inputs, lengths, scales, padding, both modes and other numbers.

    What a rectifier closes by chance is open under other numbers in the parameters.
    """
    found = Survey()
    usual = ((exam.fresh(train=train), x, how) for train, x, how in _situations(exam))  # some keep state between calls
    every = [name for name, parameter in exam.eval_module.named_parameters() if parameter.requires_grad]
    shorter = min(SHORTER, exam.convention.longest or SHORTER) if exam.convention.any_length else None
    others = (
        (_disturbed(exam, every, None, seed), exam.inputs(seed=seed, length=shorter if seed % 2 else None), {})
        for seed in range(_TURNS)
    )
    for module, inputs, how in itertools.chain(usual, others):
        try:
            loss = _projection(results(exam, module, inputs, how), inputs.shape[1])
        except ModuleError as error:
            if found.calls:
                continue
            if _raises(exam, module, inputs, grad=False) or not _raises(exam, module, inputs, grad=True):
                raise
            found.broken = str(error)
            break
        if loss.requires_grad:
            try:
                loss.backward()
            except RuntimeError as error:  # mostly a value that was changed in place though it was still needed
                found.broken = str(error).splitlines()[0]
                break
        found.add(module, inputs.shape[1])
    return found


def held_at_zero(exam: Examination) -> list[str]:
    """The matrices that start at zero and get no gradient, though all that gets one is moved some times over.

    What starts at zero alone holds back for one step what stands before it, and is moved itself. Of two in a row each
    is what the other's gradient is multiplied by. What has no gradient in such a call with small numbers in it either,
    as what only training reads, is none of them.
    """
    module = exam.copy()
    named = {name: each for name, each in module.named_parameters() if each.requires_grad and each.numel()}
    held = {name for name, each in named.items() if each.dim() > 1 and not each.any()}
    held &= _reached(exam, exam.fresh(), 0) if held else set()
    known, seeds = set[str](), itertools.count()
    while held and not (reached := _reached(exam, module, next(seeds))) <= known:
        known |= reached
        held -= reached
        for each in (named[name] for name in reached):
            if each.grad is not None:
                each.data -= _STEP * each.grad / each.grad.norm().clamp(min=1e-30)
    return [name for name in named if name in held]


def _reached(exam: Examination, module: nn.Module, seed: int, x: Tensor | None = None) -> set[str]:
    """The parameters that have a gradient in one call, of inputs of its own where none are given."""
    module.zero_grad(set_to_none=True)
    loss = _projection(results(exam, module, exam.inputs(seed=20 + seed) if x is None else x), seed)
    if loss.requires_grad:
        loss.backward()
    return {name for name, each in module.named_parameters() if each.grad is not None and bool(each.grad.any())}


def reached_behind_others(exam: Examination) -> set[str]:
    """The parameters that have a gradient where the input has one: what is made to save memory may rely on it."""
    x = exam.inputs(seed=20)
    return _reached(exam, exam.fresh(train=True), 0, x.requires_grad_() * 1.0) if x.is_floating_point() else set()


def _raises(exam: Examination, module: nn.Module, inputs: Tensor, *, grad: bool) -> bool:
    try:
        exam.run(inputs, module=module, grad=grad)
    except ModuleError:
        return True
    return False


def _situations(exam: Examination) -> Iterator[tuple[bool, Tensor, dict[str, Any]]]:
    """Yield modes, inputs and ways to call."""
    yield False, exam.inputs(seed=10), {}
    if exam.convention.any_length:
        yield False, exam.inputs(seed=12, length=min(SHORTER, exam.convention.longest or SHORTER)), {}
    yield True, exam.inputs(seed=13), {}
    if exam.convention.takes == "embeddings":
        yield False, exam.inputs(seed=16) * (torch.arange(exam.convention.length) % 2)[:, None], {}  # as if missing
    if exam.convention.causal_means in {"mask", "flag"}:
        yield False, exam.inputs(seed=14), {"causal": not exam.convention.causal}
    if exam.convention.key_mask is not None:
        padding = torch.ones(BATCH, exam.convention.length, dtype=torch.bool)
        padding[1, -2:] = False
        yield False, exam.inputs(seed=15), {"padding": padding}


# What a call returns as a result


def results(exam: Examination, module: nn.Module, inputs: Tensor, how: Mapping[str, Any] | None = None) -> list[Tensor]:
    """Everything one call returns as a result; attention weights and caches are none."""
    torch.default_generator.manual_seed(0)
    with torch.enable_grad():
        returned = exam.convention.returned(module, inputs, **(how or {}))
    widest = max(_WIDEST_RESULT, LAYOUTS[exam.convention.layout].dims)
    square = (inputs.shape[1],) * 2
    as_wide = exam.convention.d_out == inputs.shape[1]
    return [
        one
        for one in _tensors(returned)
        if (one.dim() <= widest if one.shape[-2:] != square else _is_result(one, module, as_wide=as_wide))
    ]


def _is_result(square: Tensor, module: nn.Module, *, as_wide: bool) -> bool:
    """Whether a square is neither weights of all pairs, which sum to one, nor scores, but an output as wide as long."""
    sums = square.detach().sum(-1)
    negative = bool((square < 0).any())
    if as_wide:
        return negative and square.dim() == 3
    return not (module.training or negative or torch.allclose(sums, sums.round().clamp(0, 1), atol=_SUM))


def _tensors(returned: Any) -> Iterator[Tensor]:
    """The floating tensors among what was returned beside caches."""
    if isinstance(returned, Tensor):
        if returned.is_floating_point():
            yield returned
    elif isinstance(returned, Mapping):
        for key, value in returned.items():
            if not any(word in str(key).lower() for word in _KEPT_BESIDE) or "last_hidden" in str(key):
                yield from _tensors(value)
    elif isinstance(returned, list | tuple):
        for value in returned:
            yield from _tensors(value)
    elif dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        yield from _tensors({one.name: getattr(returned, one.name) for one in dataclasses.fields(returned)})


def _projection(results: list[Tensor], seed: int) -> Tensor:
    """One number that depends on every entry of the results."""
    if not results:
        raise ModuleError("it returns no floating tensor")
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=results[0].dtype)
    for result in results:
        total = total + (result * _noise(result.shape, result.dtype, generator)).sum()
    return total


def _noise(shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Standard normal numbers, the same in every dtype."""
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _change(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """How much results change, relative to their size; another number of them is a change by all of it."""
    if len(before) != len(after):
        return 1.0
    return max(
        (relative_change(one.detach(), other.detach()) for one, other in zip(before, after, strict=True)), default=0.0
    )


# Something else in the place of parameters, or of a memory


def influence(exam: Examination, names: Sequence[str], rows: Rows | None = None) -> float:
    """How much the results change when parameters, or rows of them, are replaced, relative to the results."""
    inputs = [exam.inputs(seed=seed) for seed in (20, 21)] if names else []
    pairs = ((results(exam, exam.fresh(), x), results(exam, _disturbed(exam, names, rows), x)) for x in inputs)
    return max((_change(before, after) for before, after in pairs), default=0.0)


def _disturbed(exam: Examination, names: Sequence[str], rows: Rows | None, seed: int = 1) -> nn.Module:
    """A copy with parameters, or some of their rows, turned round, which opens rectifiers, and noise of their size."""
    module = exam.fresh()
    own = dict(module.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in names:
            parameter = own[name]
            spread = max(0.1, float(parameter.std(correction=0)))
            change = _noise(parameter.shape, parameter.dtype, generator) * spread - 2 * parameter
            if rows is None:
                parameter.add_(change)
            else:
                parameter.index_add_(*rows, change.index_select(*rows))
    return module


def influence_beside(exam: Examination, arguments: Sequence[Argument]) -> float:
    """How much the results change in either mode when some arguments alone are other sequences, relative to them."""
    of_x = AS_LONG if exam.convention.takes == "embeddings" else "positions of each"  # tokens 0, 1, 2, ...
    others = {one: replace(one, source=OTHER_MEMORIES.get(one.source, of_x)) for one in arguments}
    arguments = tuple(others.get(one, one) for one in exam.convention.arguments)
    other = exam.relying_on(replace(exam.convention, arguments=arguments))
    changes = []
    for seed, train in itertools.product(range(MEMORIES), (False, True)):
        x = exam.inputs(seed=30 + seed)
        try:
            before, after = (results(each, exam.fresh(train=train), x) for each in (exam, other))
        except ModuleError:  # that it raises is an influence
            return 1.0
        changes.append(_change(before, after) if before else 1.0)
    return max(changes)


# The gradient with respect to the input

_FINE = (1e-6, 1e-5)  # steps in float64: rounding stays far below the change, and few units switch
_COARSE = (1e-3, 1e-2)  # steps where anything is computed in float32
_DIRECTIONS = 3  # one may be at a right angle to what is cut
_FAR = {_FINE: 1e-3, _COARSE: 0.03}  # relative; a right derivative agrees to 1e-6, in float32 and with kinks to 1 %


def wrong_slopes(exam: Examination) -> list[tuple[float, float]]:
    """Slopes of the output in random directions, by its gradient and by finite differences, where all of them differ.

    None of them where the gradient is right, where it cannot be told, and for tokens.
    """
    x = exam.inputs(seed=30)
    if exam.convention.takes == "tokens" or relative_change(exam.run(x), exam.run(x)) > exam.tolerance:
        return []  # what keeps state or draws numbers has nothing to compare
    output, leaf = exam.run_from_embeddings(x)
    weights = _noise(output.shape, x.dtype, torch.Generator().manual_seed(3))
    gradient = torch.zeros_like(x)
    if output.requires_grad:
        (found,) = torch.autograd.grad((output * weights).sum(), leaf, allow_unused=True)
        gradient = gradient if found is None else found
    for steps in (_FINE, _COARSE) if exam.dtype == torch.float64 else (_COARSE,):
        pairs = []
        for number in range(_DIRECTIONS):
            direction = _noise(x.shape, x.dtype, torch.Generator().manual_seed(number))
            fine, coarse = (_slope(exam, x, weights, direction, step) for step in steps)
            if not _is_far(coarse, fine, _FAR[steps]):  # else computed in fewer digits, or with jumps
                pairs.append((float((gradient * direction).sum()), fine))
        if len(pairs) == _DIRECTIONS:
            return pairs if all(_is_far(*pair, _FAR[steps]) for pair in pairs) else []
    return []


def _slope(exam: Examination, x: Tensor, weights: Tensor, direction: Tensor, step: float) -> float:
    """A finite difference of the projected output."""
    ahead, behind = exam.run(x + step * direction), exam.run(x - step * direction)
    return float(((ahead - behind) * weights).sum()) / (2 * step)


def _is_far(claimed: float, true: float, far: float) -> bool:
    return abs(claimed - true) > far * max(abs(claimed), abs(true), 1e-6)
