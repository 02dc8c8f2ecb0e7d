"""Choose the way of computing training steps that finishes a run here the earliest.

Which way is fastest differs from model to model and from machine to machine, so "auto" measures: every precision
first as it is, then compiled where the steps that are left can pay for compiling.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from attnlab.core.contracts import Batch
from attnlab.core.errors import AttnlabError, SpecError
from attnlab.training.speed.compilation import missing_compiler, require_compiler
from attnlab.training.speed.settings import Choice, Remaining, Setting, wait_for

PRECISIONS = ("float32", "bf16")
AUTO = "auto"
ASKED_FOR = "asked for by the recipe"

WARM_UPS = 2
"""First runs of a setting that are not timed: on two batches, so that a second shape is compiled for as well."""

SHAPES_LOOKED_AT = 8
"""Batches whose shapes are counted before a compiler is tried. One of translation, where nearly every batch has a shape
of its own, compiled an encoder-decoder of 4 + 4 layers for 31 to 49 s at each of its first five batches (two cores)."""

TIMED_ROUNDS = 5
"""Steps timed per setting; the median of five shrugs off two disturbed ones."""

CLEAR_ROUNDS, CLEAR_FACTOR = 2, 1.5
"""After so many rounds timing ends if the slowest step of one setting is so much faster than any of the other."""

MEASURING_SHARE = 0.1
"""Measuring precisions may take at most this fraction of the steps left, so that it costs a run 10 % at worst."""

WORTH_IT = 0.95
"""Another setting is chosen if it takes at most this fraction of the time: its rounding must buy something."""

COMPILE_SECONDS_A_LAYER = 0.6
"""What compiling is expected to take before it was tried, per module with parameters of its own: 14 to 16 s for
decoders of 4 layers (27 such modules) on two cores, 26 s for 6 layers (39)."""

COMPILED_FRACTION = 0.75
"""The fraction of its time that a step may hope to take once compiled; the same decoders reached 0.71 and 0.95."""


RunStep = Callable[[Setting, int], None]
"""Run forward, loss and backward in a setting, on the training batch of a number from 0, to the end."""


def choose_setting(
    run_step: RunStep,
    remaining: Remaining,
    *,
    precision: str,
    compiled: bool | str,
    compile_seconds: float,
    against_compiling: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """Settle what a recipe leaves open by measuring, and compile where that is the choice.

    Notes
    -----
    Settings are timed in turn, so that a disturbance of the machine meets all. A precision is compiled if the steps
    left could save more than compiling takes: ``steps * (best - 0.75 * eager) > seconds to compile``, where the
    seconds are a guess at first, and afterwards those of all attempts, so that attempts in vain cost a quarter of the
    time left at most. What is compiled is kept if it is faster.
    """
    names = PRECISIONS if precision == AUTO else (precision,)
    best = Setting(names[0])
    if precision != AUTO and compiled is False:
        return Choice(best, ASKED_FOR)
    search = _Search(run_step, remaining, compile_seconds, clock)
    if AUTO in (precision, compiled):
        best = search.best_of([Setting(name) for name in names])
    if compiled is True:
        best = search.force_compiled(best)
    if against_compiling and compiled == AUTO:
        search.notes.append(f"compiling not tried: {against_compiling}")
    elif compiled == AUTO or (compiled is True and precision == AUTO):
        best = search.best_compiled(best)
    return Choice(best, search.reason(), search.spent())


class _Search:
    """Time settings of one model and remember what was found.

    Parameters
    ----------
    run_step, remaining, expected_compile_seconds, clock
        As in `choose_setting`.
    """

    def __init__(
        self, run_step: RunStep, remaining: Remaining, expected_compile_seconds: float, clock: Callable[[], float]
    ) -> None:
        self.run_step, self.remaining, self.clock = run_step, remaining, clock
        self.expected_compile_seconds = expected_compile_seconds
        self.began = clock()
        self.seconds: dict[Setting, float] = {}  # of one step; the median
        self.compile_seconds: dict[Setting, float] = {}
        self.notes: list[str] = []

    def spent(self) -> float:
        """The seconds since the search began."""
        return self.clock() - self.began

    # ---- as it is ----

    def best_of(self, settings: Sequence[Setting]) -> Setting:
        """The fastest of some settings that are not compiled; the first of them where measuring cannot pay."""
        first, *others = settings
        if self.rounds(len(settings), step_seconds=0.0) < 1:
            return first
        rounds = self.rounds(len(settings), step_seconds=self.warm_up(first) / WARM_UPS)
        if rounds < 1:
            return first
        running = [first, *(setting for setting in others if self.runs(setting))]
        self.time_in_turn(running, rounds)
        return self.faster(first, running[-1])

    def rounds(self, settings: int, *, step_seconds: float) -> int:
        """How often some settings can be timed in their share of the steps left; note where it is never."""
        steps = self.remaining.steps_at(step_seconds, self.spent())
        rounds = int(min(TIMED_ROUNDS, MEASURING_SHARE * steps / settings - WARM_UPS))
        if rounds < 1:
            self.notes.append(f"not measured: {int(steps)} steps are too few to pay for it")
        return rounds

    def runs(self, setting: Setting) -> bool:
        """Whether a setting is possible; note why not."""
        try:
            self.warm_up(setting)
        except (AttnlabError, RuntimeError) as error:
            self.notes.append(f"{setting} does not run here: {_first_line(error)}")
            return False
        return True

    # ---- compiled ----

    def force_compiled(self, setting: Setting) -> Setting:
        """Compile a setting; an error says whether the model or its compiling is at fault."""
        try:
            self.compile(setting)
        except Exception as error:  # a compiler may raise anything
            self.warm_up(setting)  # a model that does not run at all tells its own error
            raise SpecError(
                f"compile: true, but the model does not compile ({_first_line(error)}); set compile: false or auto"
            ) from error
        if self.seconds:
            self.time_in_turn([setting.compiled()], TIMED_ROUNDS)
        return setting.compiled()

    def best_compiled(self, best: Setting) -> Setting:
        """The fastest setting, where precisions are compiled as long as that can pay."""
        eager = sorted((setting for setting in self.seconds if not setting.compile), key=self.seconds.__getitem__)
        for setting in eager:
            if setting.compiled() in self.compile_seconds:
                continue
            if not self.can_pay(setting, best):
                break
            try:
                self.compile(setting)
            except Exception as error:  # a compiler may raise anything
                self.notes.append(f"{setting} does not compile: {_first_line(error)}")
                break
            self.time_in_turn([best, setting.compiled()], TIMED_ROUNDS)
            best = min(best, setting.compiled(), key=self.seconds.__getitem__)  # compiling is paid for by now
        return best

    def can_pay(self, setting: Setting, best: Setting) -> bool:
        """Whether compiling a setting could save more time than all attempts take; note why not."""
        tried = self.compile_seconds.values()
        expected = sum(tried) + max(tried, default=self.expected_compile_seconds)
        saved = self.seconds[best] - COMPILED_FRACTION * self.seconds[setting]
        gain = max(0.0, saved * self.remaining.steps_at(self.seconds[best], self.spent()))
        if gain <= expected:
            why = f"could save {gain:.1f} s and takes about {expected:.0f}" if gain else "is not expected to be faster"
            self.notes.append(f"compiling {setting.precision} not tried: it {why}")
        return gain > expected

    def compile(self, setting: Setting) -> None:
        """Compile a setting and note how long that took, its first steps included."""
        self.compile_seconds[setting.compiled()] = self.warm_up(setting.compiled())

    # ---- timing ----

    def warm_up(self, setting: Setting) -> float:
        """Run a setting for the first times and return their seconds."""
        began = self.clock()
        for number in range(WARM_UPS):
            self.run_step(setting, number)
        return self.clock() - began

    def time_in_turn(self, settings: Sequence[Setting], rounds: int) -> None:
        """Time some settings on the same batches and remember the medians."""
        times: dict[Setting, list[float]] = {setting: [] for setting in settings}
        for number in range(rounds):
            for setting in settings:
                began = self.clock()
                self.run_step(setting, number)
                times[setting].append(self.clock() - began)
            if number + 1 >= CLEAR_ROUNDS and _is_clear(list(times.values())):
                break
        self.seconds |= {setting: statistics.median(seconds) for setting, seconds in times.items()}

    def faster(self, simple: Setting, other: Setting) -> Setting:
        """The other setting if it is worth it."""
        return other if self.seconds[other] <= WORTH_IT * self.seconds[simple] else simple

    # ---- telling ----

    def reason(self) -> str:
        """Everything that was found, in words."""
        timed = [f"{setting} {seconds * 1e3:.1f} ms" for setting, seconds in self.seconds.items()]
        found = [f"measured: {'; '.join(timed)} a forward-backward"] if timed else []
        found = found or ([] if self.notes else [ASKED_FOR])
        found += [f"{seconds:.1f} s to compile {s.precision}" for s, seconds in self.compile_seconds.items()]
        return "; ".join([*found, *self.notes])


def _is_clear(times: Sequence[Sequence[float]]) -> bool:
    """Whether it is beyond doubt which of two settings is faster."""
    fast, slow = min(times, key=max), max(times, key=min)
    return CLEAR_FACTOR * max(fast) < min(slow)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def choose_for_model(
    model: nn.Module,
    run_step: RunStep,
    remaining: Remaining,
    *,
    precision: str,
    compiled: bool | str,
    compile_seconds: float,
    first_batches: Callable[[int], Batch],
    device: torch.device,
) -> Choice:
    """Settle what a recipe leaves open for a module, which is afterwards what it was."""
    if compiled is True:
        require_compiler(device)

    def run_whole_step(setting: Setting, number: int) -> None:
        run_step(setting, number)
        model.zero_grad(set_to_none=True)
        wait_for(device)

    with untouched(model, device):
        return choose_setting(
            run_whole_step,
            remaining,
            precision=precision,
            compiled=compiled,
            compile_seconds=compile_seconds,
            against_compiling=_against_compiling(first_batches, device) if compiled == AUTO else "",
        )


def _against_compiling(first_batches: Callable[[int], Batch], device: torch.device) -> str:
    """Say why trying to compile is in vain; empty if it may pay."""
    missing = missing_compiler(device)
    if missing:
        return f"it needs {missing}"
    shapes = {tuple(tensor.shape for tensor in first_batches(number).inputs) for number in range(SHAPES_LOOKED_AT)}
    if len(shapes) > WARM_UPS:
        return f"the first {SHAPES_LOOKED_AT} batches have {len(shapes)} shapes, and each would be compiled anew"
    return ""


def expected_compile_seconds(model: nn.Module) -> float:
    """Guess what compiling a model takes, from the number of its layers."""
    layers = sum(1 for module in model.modules() if any(True for _ in module.parameters(recurse=False)))
    return COMPILE_SECONDS_A_LAYER * layers


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
