"""What n seeds of one model cost: one after another, together as one program, in processes side by side, and both."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any

import torch
from torch import nn

from attnlab.benchmarks.contenders.peers import SIZES
from attnlab.benchmarks.contenders.tokens import RandomTokens
from attnlab.benchmarks.measuring.passes import GIB, memory_of, peak_on_cpu
from attnlab.benchmarks.measuring.turns import PairedTimes, measure_in_turn
from attnlab.core.contracts import Task
from attnlab.core.errors import SpecError, nearest
from attnlab.core.machine import usable_cores
from attnlab.models import ConvStack, Decoder
from attnlab.tasks import Shapes
from attnlab.tasks.shapes.sequences import LENGTH
from attnlab.training.keeping.result import Result
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.loop import train
from attnlab.training.speed.compilation import missing_compiler
from attnlab.training.speed.settings import Setting
from attnlab.training.together.together import train_together

COUNTS = (1, 2, 4, 8, 16)
ROUNDS = {"b": 2}
"""Rounds of the larger models, whose steps take seconds for many seeds."""
USUAL_ROUNDS = 3
WARM_UP_STEPS = 3
STEPS = {"shapes-cnn": 12, "shapes-attention": 12, "a": 8, "b": 2}
"""Steps that are timed, after those that warm up: about a second for one seed on two cores."""
SETTINGS = {"cpu": Setting("float32"), "cuda": Setting("bf16")}
"""How models are computed, for all ways alike: the default of a recipe, and what a GPU is made for."""
ALL_SETTINGS = (Setting("float32"), Setting("bf16"), Setting("bf16", compile=True))
COUNT_AT_BEST = 4
"""Seeds with which the ways are also compared each in its best setting."""
SHARE_OF_MEMORY = 0.4
"""Of a computer's memory that the activations of seeds together may take, which need as much again to be batched."""

MIXER = {
    "name": "attention",
    "n_heads": 1,
    "heads": {"name": "split", "d_head": 96, "d_v": 64, "bias": False},
    "scores": "dot",
    "combiners": "concatenate",
}
"""Attention of the study ``shapes``."""

REFERENCE = "one after another"


def _shapes() -> Task:
    return Shapes("shape", 500, n_test=50, batch=50)


def _convolutions(**changes: Any) -> nn.Module:
    return ConvStack(1, 1, LENGTH, channels=64, kernel_size=5, n_layers=5, **changes)


def _tokens(name: str) -> Task:
    size = SIZES[name]
    return RandomTokens(batch=size.batch, length=size.length, vocab_size=size.vocab_size)


def _decoder(name: str) -> nn.Module:
    size = SIZES[name]
    mixer = {"name": "attention", "n_heads": size.n_heads}
    return Decoder(size.vocab_size, size.length, d_model=size.d_model, n_layers=size.n_layers, mixer=mixer)


MODELS: dict[str, tuple[Callable[[], Task], Callable[[], nn.Module]]] = {
    "shapes-cnn": (_shapes, _convolutions),
    "shapes-attention": (_shapes, functools.partial(_convolutions, mixer=MIXER, mixer_at=2)),
    "a": (functools.partial(_tokens, "a"), functools.partial(_decoder, "a")),
    "b": (functools.partial(_tokens, "b"), functools.partial(_decoder, "b")),
}
"""Task and model by name: two of the study ``shapes``, and the decoders of ``bench train``."""


def bench_seeds(
    model: str,
    *,
    device: str = "cpu",
    rounds: int | None = None,
    counts: Sequence[int] = COUNTS,
) -> Iterator[PairedTimes]:
    """Compare the ways to train several seeds of a model; one comparison per number of seeds."""
    if model not in MODELS:
        raise SpecError(f"no model '{model}' to train seeds of; {nearest(model, MODELS)}")
    rounds = rounds or ROUNDS.get(model, USUAL_ROUNDS)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_process()) for _ in range(usable_cores() if device == "cpu" else 0)]
        need = seed_bytes(model) if device == "cpu" else 0
        for count in counts:
            yield _compare(model, count, processes, device=device, rounds=rounds, need=count * need)
        if COUNT_AT_BEST in counts:
            need *= COUNT_AT_BEST
            yield _compare_settings(model, COUNT_AT_BEST, processes, device=device, rounds=rounds, need=need)


def _process() -> ProcessPoolExecutor:
    """A process with one thread; several of them work side by side."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin_process)


def _begin_process() -> None:
    """Take one thread, and end with the process that started this one, however that ends."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def seed_bytes(model: str) -> int:
    """The memory that one seed's step takes on the CPU in float32, weights and optimizer left out."""
    make_task, make_model = MODELS[model]
    task, network = make_task(), make_model()
    batch = task.train_batch(0, 0)
    return peak_on_cpu(lambda: task.loss(network(*batch.inputs), batch).backward())


def _too_much(need: int) -> str:
    """Why a CPU cannot hold so many bytes, in words; empty if it can."""
    if need <= SHARE_OF_MEMORY * memory_of("cpu"):
        return ""
    return f"together, not run: would take about {need / GIB:.2g} GiB, judged by one seed's need"


def _compare(
    model: str, count: int, processes: Sequence[ProcessPoolExecutor], *, device: str, rounds: int, need: int
) -> PairedTimes:
    setting = SETTINGS[torch.device(device).type]
    here = functools.partial(step_milliseconds, model, range(count), setting, device=device)
    ways: dict[str, Callable[[], float]] = {REFERENCE: functools.partial(here, together=False)}
    too_much = _too_much(need) if count > 1 else ""
    if count > 1 and not too_much:
        ways["together"] = functools.partial(here, together=True)
    for together in (False,) if too_much else (False, True):
        shares = _shares(count, len(processes))
        if shares and (not together or len(shares[0]) > 1):
            name = f"{len(shares)} process{'' if len(shares) == 1 else 'es'} of 1 thread"
            name += ", together in each" if together else ""
            ways[name] = functools.partial(_side_by_side, model, shares, processes, together, setting)
    return measure_in_turn(
        f"{count} seed{'' if count == 1 else 's'} of {model}, {setting}",
        ways,
        reference=REFERENCE,
        unit="ms a step of all",
        rounds=rounds,
        notes=[too_much] if too_much else [],
        details={name: {"seeds": count} for name in ways},
        warm_up=False,  # every measurement begins with steps that are not timed
        device=device,
    )


def _compare_settings(
    model: str, count: int, processes: Sequence[ProcessPoolExecutor], *, device: str, rounds: int, need: int
) -> PairedTimes:
    """Compare the ways in every setting that the device has; one after another is one seed's time, that often."""
    missing = missing_compiler(torch.device(device))
    settings = [setting for setting in ALL_SETTINGS if not (missing and setting.compile)]
    too_much = _too_much(need)
    shares = _shares(count, len(processes))
    ways: dict[str, Callable[[], float]] = {}
    for setting in settings:
        here = functools.partial(step_milliseconds, model, device=device, setting=setting)
        ways[f"{REFERENCE}, {setting}"] = functools.partial(
            _times, count, functools.partial(here, range(1), together=False)
        )
        if not too_much:
            ways[f"together, {setting}"] = functools.partial(here, range(count), together=True)
        if shares:
            ones = [share[:1] for share in shares]
            aside = functools.partial(_side_by_side, model, ones, processes, False, setting)
            ways[f"{len(shares)} processes of 1 thread, {setting}"] = functools.partial(_times, len(shares[0]), aside)
    return measure_in_turn(
        f"{count} seeds of {model}, in every setting",
        ways,
        reference=f"{REFERENCE}, {settings[0]}",
        unit="ms a step of all",
        rounds=rounds,
        notes=[note for note in (missing and f"compiling not measured: it needs {missing}", too_much) if note],
        details={name: {"seeds": count} for name in ways},
        warm_up=False,
        device=device,
    )


def _times(count: int, measure: Callable[[], float]) -> float:
    """What so many take one after another, from what one takes."""
    return count * measure()


def _shares(count: int, processes: int) -> list[range]:
    """The seeds of each process, as evenly as can be."""
    return [range(first, count, processes) for first in range(min(count, processes))]


def _side_by_side(
    model: str,
    shares: Sequence[range],
    processes: Sequence[ProcessPoolExecutor],
    together: bool,
    setting: Setting,
) -> float:
    """The milliseconds of the process that takes longest."""
    futures = [
        process.submit(step_milliseconds, model, seeds, setting, device="cpu", together=together)
        for process, seeds in zip(processes, shares, strict=False)
    ]
    return max(future.result() for future in futures)


def step_milliseconds(model: str, seeds: Sequence[int], setting: Setting, *, device: str, together: bool) -> float:
    """The milliseconds of one step of some seeds in this process."""
    make_task, make_model = MODELS[model]
    task, steps = make_task(), WARM_UP_STEPS + STEPS[model]
    recipe = Recipe.parse(
        {
            "budget": {"steps": steps},
            "precision": setting.precision,
            "compile": setting.compile,
            "evaluate_every": steps,
        }
    )
    models = []
    for seed in seeds:
        torch.manual_seed(seed)
        models.append(make_model())
    if together and len(models) > 1:
        results = train_together(models, task, [recipe] * len(models), seeds=seeds, device=device)
    else:
        results = [train(one, task, recipe, seed=seed, device=device) for one, seed in zip(models, seeds, strict=True)]
    return 1e3 * sum(_step_seconds(result) for result in results)


def _step_seconds(result: Result | Exception) -> float:
    """The seconds of a step after the warm-up; the run's share where several ran together."""
    if isinstance(result, Exception):
        raise result
    first, last = result.curve[WARM_UP_STEPS - 1], result.curve[-1]
    return (last["seconds"] - first["seconds"]) / (last["step"] - first["step"])
