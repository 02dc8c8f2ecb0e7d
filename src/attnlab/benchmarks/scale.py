"""One model on several devices: how many tokens a second more of them train, and what exchanging gradients takes of it.

Strong scaling divides one batch among them; weak scaling gives each a batch of its own. Both are measured with the
gradients exchanged and without, in turn within one start of the processes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, final

import torch

from attnlab.benchmarks.contenders.peers import OURS, SIZES, PeerSizes
from attnlab.benchmarks.contenders.tokens import RandomTokens
from attnlab.benchmarks.measuring.turns import PairedTimes
from attnlab.core.contracts import Batch
from attnlab.core.machine import environment, usable_cores
from attnlab.training.devices.launching import on_devices
from attnlab.training.devices.ranks import ranks_here
from attnlab.training.devices.spread import AbstractSpread, Replicated, Undivided
from attnlab.training.run.step import clip_gradients
from attnlab.training.speed.settings import wait_for

ROUNDS = 5
STEPS = 10  # in a round
ON_A_CPU = (1, 2, 4)  # processes
TITLES = {"strong": "one batch of {} x {} divided among devices", "weak": "a batch of {} x {} on each device"}

Times = dict[str, list[tuple[float, float]]]
"""By kind of scaling, round by round: milliseconds of a step, and without exchanging gradients."""


def bench_scale(size: str, *, device: str = "cpu", rounds: int = ROUNDS, steps: int = STEPS) -> Iterator[PairedTimes]:
    """Compare training steps on one and more devices, in strong and in weak scaling."""
    sizes, kind = SIZES[size], torch.device(device).type
    counts = [count for count in _counts(kind) if sizes.batch % count == 0]
    measured = {count: on_devices(count, _measure, size, kind, rounds, steps, device=kind) for count in counts}
    for scaling, title in TITLES.items():
        times: dict[int, list[tuple[float, float]]] = {count: found[scaling] for count, found in measured.items()}
        yield PairedTimes(
            f"{scaling} scaling, size ({size}): {title.format(sizes.batch, sizes.length)}, {steps} steps a round",
            "ms/step",
            _name(counts[0]),
            {_name(count): tuple(ms for ms, _ in found) for count, found in times.items()},
            _notes(kind, counts),
            {_name(count): _details(sizes, scaling, count, found) for count, found in times.items()},
            environment(device),
        )


def _counts(kind: str) -> list[int]:
    if kind == "cpu":
        return list(ON_A_CPU)
    there = torch.cuda.device_count()
    return [count for count in (2**power for power in range(there.bit_length())) if count <= there]


def _name(count: int) -> str:
    return f"{count} device" + ("s" if count > 1 else "")


def _notes(kind: str, counts: list[int]) -> tuple[str, ...]:
    if kind != "cpu":
        return ()
    cores = usable_cores()
    crowded = f"; more than {cores} share the {cores} cores" if counts[-1] > cores else ""
    return (f"a device is a process with one thread{crowded}: what gloo costs, nothing about networks or GPUs",)


def _details(sizes: PeerSizes, scaling: str, count: int, times: list[tuple[float, float]]) -> dict[str, Any]:
    batches = count if scaling == "weak" else 1
    ms = statistics.median(ms for ms, _ in times)
    share = max(0.0, statistics.median(1 - without / ms for ms, without in times))
    speed = {"tokens_per_second": batches * sizes.batch * sizes.length / ms * 1e3}
    return speed if count == 1 else {**speed, "communication": share}


def _measure(size: str, kind: str, rounds: int, steps: int) -> Times:
    """What steps take on this rank, where every rank measures the same."""
    sizes, device, ranks = SIZES[size], torch.device(kind), ranks_here()
    if kind == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    model = OURS.build(sizes).to(device)
    spread = Undivided(model) if ranks.count == 1 else Replicated(model, some_unused=False)
    task = RandomTokens(sizes.batch, sizes.length, sizes.vocab_size)
    whole = task.train_batch(0, 0).to(device)
    each = sizes.batch // ranks.count
    batches = {"strong": whole.rows(each * ranks.number, each * (ranks.number + 1)), "weak": whole}
    step = _Step(spread, task, device)
    for batch in batches.values():
        step.ms(batch, steps=2, exchanged=True)
    return {
        scaling: [
            (step.ms(batch, steps=steps, exchanged=True), step.ms(batch, steps=steps, exchanged=False))
            for _ in range(rounds)
        ]
        for scaling, batch in batches.items()
    }


@final
class _Step:
    """Make training steps by hand."""

    def __init__(self, spread: AbstractSpread, task: RandomTokens, device: torch.device) -> None:
        self._spread, self._task, self._device = spread, task, device
        self._parameters = list(spread.owner.parameters())
        self._optimizer = torch.optim.AdamW(self._parameters, fused=True)

    def ms(self, batch: Batch, *, steps: int, exchanged: bool) -> float:
        """The milliseconds of a step."""
        wait_for(self._device)
        start = time.perf_counter()
        for _ in range(steps):
            with self._spread.exchanging(last=exchanged):
                self._task.loss(self._spread.called(*batch.inputs), batch).backward()
            clip_gradients(self._parameters, 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad()
        wait_for(self._device)
        return (time.perf_counter() - start) / steps * 1e3
