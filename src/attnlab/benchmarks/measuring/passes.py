"""One forward and backward pass of a layer: how long it takes, how much memory it needs, and what is too much."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from attnlab.benchmarks.measuring.turns import PairedTimes, measure_in_turn
from attnlab.training.speed.settings import Setting, wait_for

MIB, GIB = 2**20, 2**30
USUAL_MEMORY = 8 * GIB  # taken for granted where the system does not tell
WARM_UP_SIZE = 128
SHORTEST_MEASUREMENT_S = 0.05  # a pass that is shorter is repeated: clocks and queues blur less than a millisecond


@final
@dataclass(frozen=True)
class Footprint:
    """State roughly what one pass takes."""

    length: int  # positions of the sequence
    seconds: float  # wall time
    peak_bytes: int  # the most memory that is held at once, weights and input left out


@final
@dataclass(frozen=True)
class Limits:
    """State what one forward and backward pass may cost; what would cost more is left out and named."""

    seconds: float = 15.0  # longest time
    gibibytes: float = 4.0  # most memory

    @classmethod
    def of(cls, device: torch.device | str) -> Limits:
        """The usual time, and half the memory of a device."""
        return cls(gibibytes=memory_of(device) / 2 / GIB)

    def excess(self, length: int, shorter: Footprint) -> str:
        """Why a length is too long after what a shorter one took, in words; empty if it is not.

        Notes
        -----
        Time and memory are taken to grow with the square of the length, which no layer exceeds by more than a
        logarithm.
        """
        factor = (length / shorter.length) ** 2
        seconds, gibibytes = factor * shorter.seconds, factor * shorter.peak_bytes / GIB
        if seconds > self.seconds:
            return f"would take up to {seconds:.2g} s a pass, judged by {shorter.seconds:.2g} s at {shorter.length}"
        if gibibytes > self.gibibytes:
            return f"would take up to {gibibytes:.2g} GiB, judged by its need at {shorter.length}"
        return ""


def memory_of(device: torch.device | str) -> int:
    """The bytes of memory that a device has."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return USUAL_MEMORY


@final
class Passes:
    """Run one layer forward and backward on random numbers, again and again.

    Parameters
    ----------
    layer : nn.Module
        Called as ``layer(x)``, answers a tensor of the shape of `x`. It is moved to the device.
    length : int
        Positions of the one sequence.
    d_model : int
        Features of a position.
    device : torch.device or str
        Where it runs.
    precision : {"float32", "bf16"}
        What matrix products are computed in, as in training.

    Notes
    -----
    Gradients are taken of the input and of all weights, as in the middle of a model that trains.
    """

    def __init__(
        self,
        layer: nn.Module,
        length: int,
        d_model: int,
        *,
        device: torch.device | str = "cpu",
        precision: str = "float32",
    ) -> None:
        self.device = torch.device(device)
        self.layer = layer.to(self.device).train()
        generator = torch.Generator().manual_seed(0)
        x, direction = torch.randn(2, 1, length, d_model, generator=generator).to(self.device)
        self.x, self.direction = x.requires_grad_(), direction
        self.setting = Setting(precision)
        self._leaves = [self.x, *self.layer.parameters()]  # found once: a search through modules would be timed too

    def run(self) -> None:
        """Compute the output and all gradients anew."""
        self._forget_gradients()
        with self.setting.autocast(self.device):
            output = self.layer(self.x)
        output.backward(self.direction.to(output.dtype))

    def seconds(self, calls: int = 1) -> float:
        """The wall time of one pass, the mean over a number of calls."""
        wait_for(self.device)
        start = time.perf_counter()
        for _ in range(calls):
            self.run()
        wait_for(self.device)
        return (time.perf_counter() - start) / calls

    def footprint(self) -> Footprint:
        """What one pass takes; its time includes that of writing down every allocation."""
        start = time.perf_counter()
        peak_bytes = self.peak_bytes()
        return Footprint(self.x.shape[1], time.perf_counter() - start, peak_bytes)

    def peak_bytes(self) -> int:
        """The most memory that a pass holds at once, weights and input left out, buffers included.

        Notes
        -----
        On a GPU the high-water mark of torch's allocator. On the CPU the same quantity, from the profiler's record
        of every allocation and release, those inside kernels included. It is exact and repeatable, where the
        size of the process also counts what the C library keeps for later; scratch memory that libraries of
        matrix products get by themselves is not seen.
        """
        held = sum(buffer.numel() * buffer.element_size() for buffer in self.layer.buffers())
        self._forget_gradients()
        return held + (self._peak_on_gpu() if self.device.type == "cuda" else peak_on_cpu(self.run))

    def _forget_gradients(self) -> None:
        for leaf in self._leaves:
            leaf.grad = None

    def _peak_on_gpu(self) -> int:
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.run()
        return torch.cuda.max_memory_allocated(self.device) - before


def peak_on_cpu(run: Callable[[], object]) -> int:
    """The most memory that a computation on the CPU holds at once, on top of what is held before it."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes lines of its own to the terminal
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    steps = [event for event in events if event["name"] == "[memory]"]
    first = min(steps, key=lambda step: step["ts"])["args"]
    before = first["Total Allocated"] - first["Bytes"]
    return max(step["args"]["Total Allocated"] for step in steps) - before


def warm_up(device: torch.device | str = "cpu") -> None:
    """Make a first pass, that of a linear layer: whatever comes first in a process is up to a third slower."""
    Passes(nn.Linear(WARM_UP_SIZE, WARM_UP_SIZE), WARM_UP_SIZE, WARM_UP_SIZE, device=device).footprint()


def compare_passes(title: str, passes: Mapping[str, Passes], *, reference: str, rounds: int) -> PairedTimes:
    """Measure passes of several layers in turn."""
    footprints = {name: layer.footprint() for name, layer in passes.items()}
    things = {name: partial(_milliseconds, layer, _calls(layer, footprints[name])) for name, layer in passes.items()}
    memory = ", ".join(f"{name} {footprint.peak_bytes / MIB:,.1f} MiB" for name, footprint in footprints.items())
    return measure_in_turn(
        title,
        things,
        reference=reference,
        unit="ms",
        rounds=rounds,
        notes=[f"peak memory, weights and input left out: {memory}"],
        details={name: {"peak_bytes": footprint.peak_bytes} for name, footprint in footprints.items()},
        warm_up=False,
        device=next(iter(passes.values())).device,
    )


def _calls(passes: Passes, footprint: Footprint) -> int:
    """How many passes make one measurement that is long enough."""
    if footprint.seconds > SHORTEST_MEASUREMENT_S:
        return 1
    return math.ceil(SHORTEST_MEASUREMENT_S / passes.seconds())


def _milliseconds(passes: Passes, calls: int) -> float:
    return passes.seconds(calls) * 1e3
