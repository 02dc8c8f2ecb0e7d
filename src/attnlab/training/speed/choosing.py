"""Choose how training steps are computed: by a rule over processor, model, batches and steps, never by a clock.

A choice changes how numbers are rounded. What a stopwatch finds depends on what else the machine does; this does not,
so that the same run on the same kind of machine is computed in the same way, and ends in the same numbers.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from attnlab.core.contracts import Batch
from attnlab.core.errors import AttnlabError, SpecError
from attnlab.core.machine import multiplies_bf16
from attnlab.training.speed.compilation import missing_compiler, require_compiler
from attnlab.training.speed.settings import Choice, Remaining, Setting

AUTO = "auto"
ASKED_FOR = "asked for by the recipe"

FIRST_STEPS = 2
"""Steps of a setting that are tried before it is taken: two, so that a second shape is compiled for as well."""

SHAPES_LOOKED_AT = 8
"""Batches whose shapes are counted before a compiler is tried. One of translation, where nearly every batch has a shape
of its own, compiled an encoder-decoder of 4 + 4 layers for 31 to 49 s at each of its first five batches (two cores)."""

FLOPS_A_SECOND: dict[str, dict[str, float]] = {
    "cpu": {"float32": 75e9, "bf16": 200e9},  # a thread; bf16 where the processor multiplies it: 200 to 300 measured
    "cuda": {"float32": 20e12, "bf16": 150e12},
}
"""Rates of matrix products to reckon with, from docs/performance.md: what a step takes to within a factor of two."""

SECONDS_A_LAYER = 0.4e-3
"""What a step takes for each module with parameters beside its products: 10 ms for a decoder of 4 layers (27 such)."""

SMALLEST_BF16_FLOPS = 2e8
"""Products of a step below which changing number formats costs what bf16 saves."""

SHORTEST_BF16_SECONDS = 2.0
"""A run that is over sooner has nothing to gain, and stays in float32 on every machine."""

COMPILE_SECONDS_A_LAYER = 0.6
"""What compiling takes, per module with parameters of its own: 14 to 16 s for decoders of 4 layers (27 such modules) on
two cores, 26 s for 6 layers (39)."""

COMPILING_SAVES = {"float32": 0.05, "bf16": 0.25}
"""The fraction of a step's time that compiling may save. Decoders of 4 and 6 layers, two cores of two kinds: 0.06 in
float32; in bf16 0.07 to 0.29."""

RunStep = Callable[[Setting, int], Any]
"""Run forward, loss and backward in a setting, on the training batch of a number from 0, to the end."""


@final
@dataclass(frozen=True)
class Work:
    """Say how much a training step is, as far as the choice of a setting asks."""

    flops: float  # of the matrix products of forward and backward pass
    layers: int  # modules with parameters of their own

    @classmethod
    def of(cls, model: nn.Module, batch: Batch) -> Work:
        """That of a model on a batch: six operations for each weight that is multiplied and each position."""
        multiplied = {
            id(weight): weight.numel()
            for module in model.modules()
            if not isinstance(module, nn.Embedding)  # looked up, not multiplied, unless another module holds it too
            for weight in module.parameters(recurse=False)
            if weight.dim() > 1
        }
        positions = max((math.prod(tensor.shape[:2]) for tensor in batch.inputs), default=1)
        layers = sum(1 for module in model.modules() if any(True for _ in module.parameters(recurse=False)))
        return cls(6.0 * sum(multiplied.values()) * positions, layers)

    def seconds(self, precision: str, device: torch.device) -> float:
        """What a step may take on a device."""
        rates = FLOPS_A_SECOND.get(device.type, FLOPS_A_SECOND["cuda"])
        threads = torch.get_num_threads() if device.type == "cpu" else 1
        return self.flops / (rates[precision] * threads) + SECONDS_A_LAYER * self.layers

    def compile_seconds(self) -> float:
        """What compiling the model may take."""
        return COMPILE_SECONDS_A_LAYER * self.layers


def choose_setting(
    model: nn.Module,
    run_step: RunStep,
    remaining: Remaining,
    *,
    precision: str,
    compiled: bool | str,
    first_batches: Callable[[int], Batch],
    device: torch.device,
    copies: int = 1,
) -> Choice:
    """Settle what a recipe leaves open for a model, which is afterwards what it was.

    Notes
    -----
    bf16 is taken where the processor multiplies it and the run is long enough to gain. A model is compiled where a
    compiler is there, its batches come in few shapes, and ``steps * saved seconds > seconds to compile``. A setting is
    tried before it is taken; one that does not run or compile here is left, and the reason says so.

    A model may be several copies of one, computed as one program: their products add up, their calls do not.
    """
    if compiled is True:
        require_compiler(device)
    if precision != AUTO and compiled is False:
        return Choice(Setting(precision), ASKED_FOR)
    began = time.perf_counter()
    work = Work.of(model, first_batches(0))
    work = Work(work.flops, work.layers // copies)
    search = _Search(model, run_step, work, remaining, device)
    with untouched(model, device):
        setting = Setting(search.precision() if precision == AUTO else precision)
        if compiled is True:
            setting = search.must_compile(setting)
        elif compiled == AUTO:
            setting = search.may_compile(setting, first_batches)
    return Choice(setting, "; ".join(search.notes) or ASKED_FOR, time.perf_counter() - began)


@final
@dataclass
class _Search:
    """Settle precision and compiling, and note why."""

    model: nn.Module
    run_step: RunStep
    work: Work
    remaining: Remaining
    device: torch.device

    def __post_init__(self) -> None:
        self.notes: list[str] = []

    def precision(self) -> str:
        """The number format for matrix products."""
        whole = self.work.seconds("float32", self.device) * self.steps("float32")
        if not multiplies_bf16(self.device):
            self.notes.append("float32: the processor does not multiply bf16")
        elif self.work.flops < SMALLEST_BF16_FLOPS or whole < SHORTEST_BF16_SECONDS:
            self.notes.append("float32: the run is too small to gain from bf16")
        elif problem := self.problem(Setting("bf16")):
            self.notes.append(f"float32: bf16 does not run here: {problem}")
        else:
            self.notes.append("bf16: the processor multiplies it")
            return "bf16"
        return "float32"

    def may_compile(self, setting: Setting, first_batches: Callable[[int], Batch]) -> Setting:
        """The setting compiled where that pays."""
        step = self.work.seconds(setting.precision, self.device)
        saved = COMPILING_SAVES[setting.precision] * step * self.steps(setting.precision)
        expected = self.work.compile_seconds()
        if missing := missing_compiler(self.device):
            self.notes.append(f"not compiled: it needs {missing}")
        elif saved <= expected:
            self.notes.append(f"not compiled: it may save {saved:.1f} s and takes about {expected:.0f}")
        elif (shapes := _count_shapes(first_batches)) > FIRST_STEPS:
            seen = f"the first {SHAPES_LOOKED_AT} batches have {shapes} shapes"
            self.notes.append(f"not compiled: {seen}, and each would be compiled anew")
        elif problem := self.problem(setting.compiled()):
            self.notes.append(f"not compiled: {setting} does not compile: {problem}")
        else:
            self.notes.append(f"compiled: it may save {saved:.0f} s and takes about {expected:.0f}")
            return setting.compiled()
        return setting

    def must_compile(self, setting: Setting) -> Setting:
        """The setting compiled; an error says whether the model or its compiling is at fault."""
        try:
            self.try_out(setting.compiled())
        except Exception as error:  # a compiler may raise anything
            self.try_out(setting)  # a model that does not run at all tells its own error
            raise SpecError(
                f"compile: true, but the model does not compile ({_first_line(error)}); set compile: false or auto"
            ) from error
        return setting.compiled()

    def steps(self, precision: str) -> float:
        """How many steps are left."""
        return self.remaining.steps_at(self.work.seconds(precision, self.device))

    def problem(self, setting: Setting) -> str:
        """Why a setting does not run here; empty if it does. A model that does not run at all tells its own error."""
        try:
            self.try_out(setting)
        except (AttnlabError, RuntimeError) as error:
            self.try_out(Setting())
            return _first_line(error)
        except Exception as error:  # a compiler may raise anything
            if not setting.compile:
                raise
            return _first_line(error)
        return ""

    def try_out(self, setting: Setting) -> None:
        for number in range(FIRST_STEPS):
            self.run_step(setting, number)
            self.model.zero_grad(set_to_none=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _count_shapes(first_batches: Callable[[int], Batch]) -> int:
    return len({tuple(tensor.shape for tensor in first_batches(number).inputs) for number in range(SHAPES_LOOKED_AT)})


@contextlib.contextmanager
def untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put a model's buffers and gradients and the random number generators back to what they were."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    cuda = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        try:
            yield
        finally:
            model.zero_grad(set_to_none=True)
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    if name in buffers:
                        buffer.copy_(buffers[name])
