"""The one training loop, for every model and every task.

`train` trains one model. `run_all` takes any number of runs through their steps, side by side. What varies (recipe,
model, task) is data to it. What one run does in a step is in ``trainer.py``, how gradients are computed and
applied in ``gradients.py``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnlab.core.contracts import Judge, Task
from attnlab.core.errors import Interrupted
from attnlab.core.generators import Generators
from attnlab.training.keeping.keeping import AbstractKeeper, FolderKeeper, MemoryKeeper
from attnlab.training.keeping.result import Result
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.events import OnEvent, ignore_event
from attnlab.training.run.gradients import AbstractGradients, OneByOne
from attnlab.training.run.stopping import StopRequest
from attnlab.training.run.trainer import Trainer
from attnlab.training.speed.allocation import kept_memory


def train(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: Path | str | None = None,
    spec: Mapping[str, Any] | None = None,
    flops_per_token: float | None = None,
    judge: Judge | None = None,
    on_event: OnEvent = ignore_event,
    device: str = "cpu",
) -> Result:
    """Train a model on a task; go on where a run in the same folder stopped.

    Parameters
    ----------
    model : nn.Module
        Any module called as ``model(*batch.inputs)``, initialized by the caller. Afterwards it is on `device` and
        holds the weights at the end of training.
    task : Task
        Data, loss and metrics.
    recipe : Recipe
        How to train.
    seed : int
        Seeds the data order and, through torch's global generator, dropout. The generator stays where the run
        leaves it.
    folder : Path or str, optional
        Run folder. None keeps nothing on disk, and leaves Ctrl-C alone.
    spec : mapping, optional
        What identifies the run, in JSON types; saved before the first step and compared when the run goes on.
        By default recipe, seed, class and number of parameters of the model.
    flops_per_token : float, optional
        FLOPs of forward and backward per position; needed for a budget in FLOPs.
    judge : callable, optional
        Measures the trained model as a whole; its metrics join those of the task. The time counts as evaluation.
    on_event : callable
        Told what happens; see ``events.py``.
    device : str
        ``cpu``, ``cuda`` or ``cuda:1``.

    Returns
    -------
    Result
        The final numbers; read from the folder if the run was done before.

    Raises
    ------
    SpecError
        If the budget buys no step, the device or a compiler is not there, or the model does not compile.
    TrainingError
        If a loss, gradient or metric is not finite, or memory runs out.
    ModuleError
        If the model raises, or returns what the task's loss cannot take.
    RunError
        If the folder is another run's, written by another process, damaged, or the disk is full.
    Interrupted
        If a person stopped the run; it goes on when it is started again.

    Notes
    -----
    A run that was killed and started again ends in the same numbers, to the bit, on the same CPU with the same
    number of threads and any budget but seconds; compiled steps also need the same compiler.
    """
    trainer = Trainer(
        model,
        task,
        recipe,
        keeper=keeper_for(folder, spec),
        seed=seed,
        flops_per_token=flops_per_token,
        judge=judge,
        on_event=on_event,
        device=torch.device(device),
        generators=Generators(),
    )
    (outcome,) = run_all([trainer], OneByOne())
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def keeper_for(folder: Path | str | None, spec: Mapping[str, Any] | None) -> AbstractKeeper:
    """What keeps a run in a folder, or in memory where there is none."""
    return MemoryKeeper() if folder is None else FolderKeeper(Path(folder), spec)


def run_all(trainers: Sequence[Trainer], gradients: AbstractGradients) -> list[Result | Exception]:
    """Take runs to the end of their budgets, side by side; each from where it stands."""
    kept = [trainer.keeper for trainer in trainers if trainer.keeper.on_disk]
    with contextlib.ExitStack() as held:
        held.enter_context(kept_memory(trainers[0].caller.device))
        for trainer in trainers:
            held.callback(trainer.keeper.close)
            with trainer.own_failure():
                trainer.open()
        stop = held.enter_context(StopRequest()) if kept else StopRequest()
        try:
            _drive(trainers, gradients, stop)
        except KeyboardInterrupt:
            if not kept:
                raise
            raise Interrupted(f"stopped at once, after the last checkpoint; {kept[0].how_to_go_on()}") from None
    return [trainer.outcome for trainer in trainers if trainer.outcome is not None]


def _drive(trainers: Sequence[Trainer], gradients: AbstractGradients, stop: StopRequest) -> None:
    """Take runs through their steps; those that are behind go alone until they have caught up."""
    for trainer in _going(trainers):
        with trainer.own_failure():
            trainer.restore()
    gradients.start(_going(trainers))
    while going := _going(trainers):
        first = min(trainer.state.step for trainer in going)
        _step([trainer for trainer in going if trainer.state.step == first], gradients)
        if stop.asked and _going(trainers):
            _stop_early(_going(trainers))


def _going(trainers: Sequence[Trainer]) -> list[Trainer]:
    return [trainer for trainer in trainers if trainer.outcome is None]


def _step(trainers: Sequence[Trainer], gradients: AbstractGradients) -> None:
    """Make one step of runs that stand at the same one; each is told its share of the time."""
    began = time.perf_counter()
    for trainer in trainers:
        with trainer.own_failure():
            trainer.begin()
    gradients.compute(_going(trainers))
    gradients.apply(_going(trainers))
    seconds = time.perf_counter() - began
    for trainer in _going(trainers):
        with trainer.own_failure():
            trainer.end(seconds / len(trainers))


def _stop_early(trainers: Sequence[Trainer]) -> None:
    """Save where the runs stand and end them, since a person asked for it."""
    where = [trainer.stop_early() for trainer in trainers]
    raise Interrupted(f"stopped after {where[0]}; {trainers[0].keeper.how_to_go_on()}")
