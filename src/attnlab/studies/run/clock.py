"""What a step of each variant takes, measured in turns: where a machine is slow for a while, it is so for all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch

from attnlab.core.files import fingerprint, sealed, write_json
from attnlab.core.generators import Generators
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.run.folder import CLOCK, recorded_setting
from attnlab.training.keeping.keeping import MemoryKeeper
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.events import ignore_event
from attnlab.training.run.loop import OneByOne, make_step
from attnlab.training.run.trainer import Trainer
from attnlab.training.speed.allocation import kept_memory

ROUNDS = 15
"""Times that each run has its turn, in an order drawn for each round."""
TURN_S = 0.25
"""Seconds of steps that make a turn; one step where it takes longer."""
MOST_STEPS = 20
"""Steps of a turn at most."""
WARM_UP = 3
"""Steps before the first turn, which is not counted either: kernels are chosen and memory is taken then."""
ENDLESS = 10**9  # steps, of which none is the last or due for an evaluation


def time_in_turns(
    folders: Sequence[Path], specs: Sequence[Mapping[str, Any]], *, threads: int, device: str = "cpu"
) -> None:
    """Write into the folder of each run what one of its steps takes, in seconds, as it was computed."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # as in the runs
    generators = Generators()
    with kept_memory(torch.device(device)):
        runs = [_Run(folder, spec, device, generators) for folder, spec in zip(folders, specs, strict=True)]
        taken: list[list[float]] = [[] for _ in runs]
        for number in range(1 + ROUNDS):
            order = torch.randperm(len(runs), generator=torch.Generator().manual_seed(number)).tolist()
            for one in order:
                seconds = runs[one].turn()
                if number:
                    taken[one].append(seconds)
    for folder, spec, seconds in zip(folders, specs, taken, strict=True):
        found = {"seconds_per_step": statistics.median(seconds), "turns": seconds, "of": fingerprint(spec)}
        write_json(folder / CLOCK, sealed(found))


@final
class _Run:
    """Make steps of a run as it made them, and keep nothing."""

    def __init__(self, folder: Path, spec: Mapping[str, Any], device: str, generators: Generators) -> None:
        recipe = {**spec["recipe"], **recorded_setting(folder), "budget": {"steps": ENDLESS}}
        recipe |= {"evaluate_every": ENDLESS, "checkpoint_every": ENDLESS, "stop_at": None, "early_stop": None}
        task = build_task(spec["task"])
        self._gradients = OneByOne()
        self._trainer = Trainer(
            build_model(spec["model"], task),
            task,
            Recipe.parse(recipe, "training"),
            keeper=MemoryKeeper(),
            seed=spec["seed"],
            flops_per_token=None,
            judge=None,
            on_event=ignore_event,
            device=torch.device(device),
            generators=generators,
        )
        self._trainer.restore()
        self._gradients.start([self._trainer])
        for _ in range(WARM_UP - 1):
            self._step()
        began = time.perf_counter()
        self._step()
        self._steps = max(1, min(MOST_STEPS, int(TURN_S / max(time.perf_counter() - began, 1e-9))))

    def turn(self) -> float:
        """Seconds a step, over the steps of one turn."""
        before = self._trainer.state.seconds
        for _ in range(self._steps):
            self._step()
        return (self._trainer.state.seconds - before) / self._steps

    def _step(self) -> None:
        make_step([self._trainer], self._gradients)
        if isinstance(self._trainer.outcome, Exception):
            raise self._trainer.outcome
