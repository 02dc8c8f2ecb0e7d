"""Training steps of one decoder, by attnlab and by what people would pick instead.

First the same model in float32 everywhere. Then each at its best: attnlab as its recipe's "auto" chooses, the others
in the fastest of float32 and bf16, compiled and not, which is found by trying.
"""

from __future__ import annotations

import importlib.metadata
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, final

import torch

from attnlab.benchmarks.contenders.apart import Apart
from attnlab.benchmarks.contenders.peers import OURS, PEERS, PLAIN, SIZES, Peer, PeerSizes
from attnlab.benchmarks.contenders.steps import AbstractStepper, bare_loop, lab_run, tokens
from attnlab.benchmarks.measuring.matrix import TYPES, matrix_rate
from attnlab.benchmarks.measuring.turns import PairedTimes, measure_in_turn
from attnlab.core.errors import SpecError, nearest
from attnlab.inspection.cost import cost
from attnlab.training.speed.settings import Setting

ROUNDS = {"a": 7, "b": 5, "c": 3}
"""How often everything is measured at each size; a round of (c) takes half a minute on two cores."""
ROUND_MS = {"cpu": 2000.0, "cuda": 300.0}
"""What one thing's part of a round takes: long beside a tick of the clock, short beside a disturbance."""
MOST_STEPS = 100  # in a round, also where a step takes no time
RUN_STEPS = 5000  # of nanoGPT's character recipe: the run that attnlab's choice of a setting plans with
ALIKE = 0.8  # a precision is compiled too unless the other takes less than this fraction of its time
PLAINEST = Setting()

Place = Callable[..., AbstractStepper]
"""As `Apart`: from what makes a stepper, and whether the command line started it, to a stepper."""


def bench_training(size: str = "a", *, device: str = "cpu", rounds: int | None = None) -> Iterator[PairedTimes]:
    """Compare training steps of the lab's decoder with those of its peers."""
    if size not in SIZES:
        raise SpecError(f"unknown sizes '{size}'; {nearest(size, SIZES)}")
    yield from compare_training(SIZES[size], torch.device(device), rounds=rounds or ROUNDS[size])


def compare_training(
    sizes: PeerSizes, device: torch.device, *, rounds: int, place: Place = Apart
) -> Iterator[PairedTimes]:
    """Compare training steps of decoders of any size."""
    field = _Field(sizes, device, rounds, place)
    try:
        plain = {peer: field.settled(peer) for peer in PEERS.values() if peer.is_installed}
        yield field.compare("the same model in float32", {peer.name: one for peer, one in plain.items()}, PLAIN.name)
        plain[OURS].close()  # what waits keeps its memory
        best = [(OURS, field.lab_at_its_best())]
        best += [(peer, field.best(peer, plain[peer])) for peer in plain if peer is not OURS]
        reference = f"{PLAIN.name}, {PLAINEST}"
        entrants = {f"{peer.name}, {one.setting}": one for peer, one in best} | {reference: plain[PLAIN]}
        yield field.compare("each at its best", entrants, reference)
    finally:
        field.close()


@final
class _Field:
    """Make all that takes part at one size on one device, and compare.

    Parameters
    ----------
    sizes : PeerSizes
        Of model and batch.
    device : torch.device
        Where.
    rounds : int
        How often everything is measured.
    place : callable
        Where what takes part runs.
    """

    def __init__(self, sizes: PeerSizes, device: torch.device, rounds: int, place: Place) -> None:
        self.sizes, self.device, self.rounds, self.place = sizes, device, rounds, place
        self.task = tokens(sizes)
        self.step_flops = self._step_flops()
        self.rates = {precision: matrix_rate(precision, device) for precision in TYPES}
        self.notes = _differences()
        self._all: list[AbstractStepper] = []

    # ---- who takes part ----

    def settled(self, peer: Peer) -> AbstractStepper:
        """A peer in plain float32, warmed up."""
        stepper = self._lab("float32", False) if peer is OURS else self._bare(peer, PLAINEST)
        stepper.settle()
        return stepper

    def lab_at_its_best(self) -> AbstractStepper:
        """The lab's run with the setting that it chooses, warmed up."""
        run = self._lab("auto", "auto")
        run.settle()
        self.notes.append(f"attnlab chose {run.setting} for a run of {RUN_STEPS} steps: {run.reason}")
        return run

    def best(self, peer: Peer, plain: AbstractStepper) -> AbstractStepper:
        """A peer in its fastest setting, warmed up.

        Notes
        -----
        Both precisions are tried as they are, then compiled; of two that differ much, the faster one alone.
        What compiling takes is not counted.
        """
        eager = [plain, *self._tried(peer, Setting("bf16"))]
        fastest = min(one.ms for one in eager)
        worth_compiling = [one.setting.compiled() for one in eager if ALIKE * one.ms <= fastest]
        compiled = [one for setting in worth_compiling for one in self._tried(peer, setting)]
        found = min([*eager, *compiled], key=lambda one: one.ms)
        for one in {*eager, *compiled} - ({found, plain} if peer is PLAIN else {found}):
            one.close()
        return found

    def _tried(self, peer: Peer, setting: Setting) -> list[AbstractStepper]:
        """A peer in a setting, or nothing where it does not run so."""
        try:
            loop = self._bare(peer, setting)
            loop.settle()
        except (RuntimeError, SpecError) as error:  # no compiler, or an operation that cannot be compiled
            self.notes.append(f"{peer.name}, {setting}: does not run here ({str(error).partition(chr(10))[0]})")
            return []
        return [loop]

    def _bare(self, peer: Peer, setting: Setting) -> AbstractStepper:
        return self._placed(partial(bare_loop, peer, self.sizes, setting, self.device))

    def _lab(self, precision: str, compiled: bool | str) -> AbstractStepper:
        steps = max(RUN_STEPS, MOST_STEPS * (1 + self.rounds))
        return self._placed(partial(lab_run, self.sizes, self.device, steps, precision, compiled), by_command_line=True)

    def _placed(self, make: Callable[[], AbstractStepper], **how: bool) -> AbstractStepper:
        stepper = self.place(make, **how)
        self._all.append(stepper)
        return stepper

    def close(self) -> None:
        """End all that took part."""
        for stepper in self._all:
            stepper.close()

    # ---- measuring ----

    def compare(self, title: str, entrants: Mapping[str, AbstractStepper], reference: str) -> PairedTimes:
        """Measure all in turn, with as many steps in a round as fit its time."""
        steps = {name: self._steps_a_round(stepper) for name, stepper in entrants.items()}
        measured = measure_in_turn(
            f"{self.sizes}: {title}",
            {name: partial(stepper.step_ms, steps[name]) for name, stepper in entrants.items()},
            reference=reference,
            unit="ms/step",
            rounds=self.rounds,
            notes=self.notes,
            warm_up=False,  # all are settled
            device=self.device,
        )
        details = {
            name: {
                **self._details(entrants[name], statistics.median(times)),
                "steps_a_round": steps[name],
            }
            for name, times in measured.rows.items()
        }
        return replace(measured, details=details)

    def _steps_a_round(self, stepper: AbstractStepper) -> int:
        return max(1, min(MOST_STEPS, int(ROUND_MS[self.device.type] / stepper.ms)))

    def _details(self, stepper: AbstractStepper, ms: float) -> dict[str, Any]:
        """What is known of one that took part, beside its times."""
        return {
            "parameters": stepper.parameters,
            "precision": stepper.setting.precision,
            "compiled": stepper.setting.compile,
            "tokens_per_second": self.task.tokens_per_step / ms * 1e3,
            "utilization": self.step_flops / ms * 1e3 / self.rates[stepper.setting.precision],
        }

    def _step_flops(self) -> float:
        """The FLOPs of one step of the model, however it is computed."""
        inputs = self.task.train_batch(0, 0).inputs
        return cost(PLAIN.build(self.sizes), inputs).flops_per_token * self.task.tokens_per_step


def _differences() -> list[str]:
    """Who is missing, of which version the others are, and what could not be made equal."""
    notes = [
        f"{peer.name}: skipped, {peer.package} is not installed" for peer in PEERS.values() if not peer.is_installed
    ]
    for peer in PEERS.values():
        if peer.is_installed and peer.package:
            notes.append(f"{peer.name}: version {importlib.metadata.version(peer.package)}; {peer.differs}")
    return notes
