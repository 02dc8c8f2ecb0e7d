"""What a call leaves behind: changed inputs, changed parameters, a seeded generator, another mode."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.influence.padded import lengths_of, real_positions, telling
from attnlab.doctor.influence.steady import random_state

_ID = "determinism"
_INPUT_SOURCE = "PyTorch documentation, autograd mechanics: in-place correctness checks"
_STATE_SOURCE = "PyTorch documentation, nn.Module.eval: evaluation mode updates no running statistics"
_SEED_SOURCE = "PyTorch documentation, reproducibility: torch.manual_seed belongs at the start of a program"


def left_behind(exam: Examination) -> Iterator[Finding]:
    """Compare inputs, parameters, modes and random generators before and after a call."""
    yield from _changed_inputs(exam)
    yield from _changed_parameters(exam)
    yield from _changed_mode(exam)
    yield from _seeds(exam)


def _changed_inputs(exam: Examination) -> Iterator[Finding]:
    """An error if a tensor that was given is written to."""
    module = exam.fresh()
    given: list[tuple[str, Tensor, Tensor]] = []

    def keep(_module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        for name, value in [*enumerate(positional), *named.items()]:
            if isinstance(value, Tensor):
                given.append((f"`{name}`" if isinstance(name, str) else f"argument {name + 1}", value, value.clone()))

    module.register_forward_pre_hook(keep, with_kwargs=True)
    _call_with_masks(exam, module)
    changed = dict.fromkeys(name for name, now, before in given if not _same(now, before))
    if changed:
        yield Finding(
            _ID,
            "error",
            f"it writes into its input ({', '.join(changed)}).",
            "the tensor that was given holds other numbers after the call",
            "use `x = x + y` instead of `x += y`, and masked_fill instead of masked_fill_, on what came in: the"
            " caller's skip connection reads the changed numbers",
            _INPUT_SOURCE,
        )


def _call_with_masks(exam: Examination, module: nn.Module) -> None:
    """Call once without a mask that hides anything, and once with each."""
    x = exam.inputs()
    exam.run(x, module=module)
    if exam.convention.key_mask is not None:
        exam.run(x, module=module, **telling(exam, real_positions(lengths_of(x.size(1), BATCH), x.size(1))))
    if exam.convention.pair_mask is not None:
        others = ~torch.eye(x.size(1), dtype=torch.bool)  # hidden is what is most often written: itself, and the future
        for allowed in (others, ~others | others.tril()):
            exam.run(x, module=module, allowed=allowed.expand(x.size(0), -1, -1).clone())


def _changed_parameters(exam: Examination) -> Iterator[Finding]:
    """An error if a call changes parameters; buffers may hold caches, and what they change shows in outputs."""
    module = exam.fresh()
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    exam.run(exam.inputs(), module=module)
    changed = [name for name, value in module.named_parameters() if not _same(value, before.get(name))]
    if changed:
        yield Finding(
            _ID,
            "error",
            f"a call in evaluation mode changes {', '.join(f'`{name}`' for name in changed[:3])}.",
            f"{len(changed)} of {len(before)} parameters hold other numbers after one call",
            "never write to parameters in forward; keep running statistics in buffers, and update them"
            " `if self.training:` alone",
            _STATE_SOURCE,
        )


def _same(now: Tensor, before: Tensor | None) -> bool:
    """Whether a tensor holds what it held; NaN beside NaN is no change."""
    if before is None:
        return True
    return now.shape == before.shape and bool(((now == before) | (now.isnan() & before.isnan())).all())


def _changed_mode(exam: Examination) -> Iterator[Finding]:
    """An error if a call switches between training and evaluation mode."""
    for train in (False, True):
        module = exam.copy(train=train)
        before = {name: part.training for name, part in module.named_modules()}
        try:
            exam.run(exam.inputs(), module=module)
        except ModuleError:
            return
        after = {name: part.training for name, part in module.named_modules()}
        wrong = [name or "itself" for name in before if after.get(name, before[name]) != before[name]]
        if wrong:
            yield Finding(
                _ID,
                "error",
                f"a call switches {', '.join(wrong[:3])} to {'evaluation' if train else 'training'} mode.",
                f"called in {'training' if train else 'evaluation'} mode; {len(wrong)} parts left it",
                "leave `train()` and `eval()` to the program that uses the module",
                _STATE_SOURCE,
            )
            return


def _seeds(exam: Examination) -> Iterator[Finding]:
    """An error if a call sets the state of a global random generator."""
    states = []
    for seed in (1, 2):
        module = exam.fresh()  # one may take no second call
        with random_state(seed):
            exam.convention.call(module, exam.inputs())
            states.append(_random_states())
    seeded = [name for name in states[0] if states[0][name] == states[1][name]]
    if seeded:
        yield Finding(
            _ID,
            "error",
            f"a call seeds {' and '.join(seeded)}.",
            "the generator is in the same state after the call whatever its state before",
            "draw from a `torch.Generator` of its own; a seed inside forward repeats the same dropout at every step and"
            " changes every other part of the program",
            _SEED_SOURCE,
        )


def _random_states() -> dict[str, object]:
    """The states of the three global generators."""
    return {
        "torch's global generator": tuple(torch.default_generator.get_state().tolist()),
        "Python's random": random.getstate(),
        "numpy's random": str(np.random.get_state()),
    }
