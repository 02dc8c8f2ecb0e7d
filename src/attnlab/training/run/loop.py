"""The one training loop, for every model and every task.

`train` is the case of one run of `run_all`, which takes any number through their steps, side by side. What varies
(recipe, model, task) is data to it. A step is `make_step`: batches, gradients, updates, and what is due after it. From
there the pieces are in ``step.py``; what belongs to one run is in ``trainer.py``.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Attempt, Batch, Judge, Task
from attnlab.core.errors import Interrupted, SpecError
from attnlab.core.generators import Generators
from attnlab.training.devices.keeper import RanksKeeper
from attnlab.training.devices.pieces import drawn_alike
from attnlab.training.devices.ranks import ranks_here
from attnlab.training.keeping.keeping import AbstractKeeper, FolderKeeper, MemoryKeeper
from attnlab.training.keeping.result import Result
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.events import OnEvent, ignore_event
from attnlab.training.run.step import Caller, clip_gradients
from attnlab.training.run.trainer import Trainer
from attnlab.training.speed.allocation import kept_memory
from attnlab.training.speed.choosing import RunStep, choose_setting
from attnlab.training.speed.settings import Choice, Setting

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what schedulers and `kill` send first."""


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
    attempt: Attempt | None = None,
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
    attempt : callable, optional
        How the model writes by itself for a batch, and how good that is; objectives other than the likelihood need it.
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
        If the budget buys no step, the device or a compiler is not there, the model does not compile, the recipe's
        devices are not as many as the processes that call this (see ``on_devices``), or its objective learns from
        attempts and there is no `attempt`, or a batch is cut in pieces.
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
    ranks = ranks_here()
    if recipe.devices != ranks.count:
        raise SpecError(
            f"a recipe of {recipe.devices} devices needs as many processes, and there are {ranks.count}; start them "
            "with attnlab.training.on_devices, or attnlab run"
        )
    trainer = Trainer(
        model,
        task,
        recipe,
        keeper=keeper_for(folder, default_spec(model, recipe, seed) if spec is None else spec),
        seed=seed,
        flops_per_token=flops_per_token,
        judge=judge,
        attempt=attempt,
        on_event=on_event,
        device=torch.device(device),
        generators=Generators(),
        ranks=ranks,
    )
    (outcome,) = run_all([trainer], OneByOne())
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def keeper_for(folder: Path | str | None, spec: Mapping[str, Any]) -> AbstractKeeper:
    """What keeps a run in a folder, or in memory where there is none."""
    if folder is None:
        return MemoryKeeper()
    keeper, ranks = FolderKeeper(Path(folder), spec), ranks_here()
    return keeper if ranks.count == 1 else RanksKeeper(keeper, ranks)


def default_spec(model: nn.Module, recipe: Recipe, seed: int) -> dict[str, Any]:
    """What identifies a run where the caller does not say."""
    unsaid: dict[str, Any] = dict.fromkeys(("devices", "sharding", "accumulate"), True)
    if recipe.budget.epochs is None:  # as folders of earlier versions have it
        unsaid["budget"] = {"epochs"}
    return {
        "recipe": recipe.model_dump(mode="json", exclude=unsaid),
        "seed": seed,
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


class AbstractGradients(ABC):
    """Compute the losses and gradients of one step of one run or of several, and update the parameters."""

    @abstractmethod
    def start(self, trainers: Sequence[Trainer]) -> None:
        """Choose how the runs' steps are computed, and begin them."""

    @abstractmethod
    def compute(self, trainers: Sequence[Trainer]) -> None:
        """Give every run that has taken its batch its loss and gradients; a failure is that run's outcome."""

    @abstractmethod
    def apply(self, trainers: Sequence[Trainer]) -> None:
        """Clip the gradients and update the parameters of every run; a failure is that run's outcome."""


def run_all(trainers: Sequence[Trainer], gradients: AbstractGradients) -> list[Result | Exception]:
    """Take runs to the end of their budgets, side by side; each from where it stands."""
    advice = trainers[0].keeper.how_to_go_on  # runs side by side are all kept, or none is
    with contextlib.ExitStack() as held:
        held.enter_context(kept_memory(trainers[0].caller.device))
        for trainer in trainers:
            held.callback(trainer.keeper.close)
            with trainer.own_failure():
                trainer.outcome = trainer.keeper.open(trainer.model)
        stop = held.enter_context(stop_noted()) if advice else threading.Event()
        try:
            for trainer in _going(trainers):
                with trainer.own_failure():
                    trainer.restore()
            gradients.start(_going(trainers))
            while going := _going(trainers):
                first = min(trainer.state.step for trainer in going)  # who is behind goes alone until it caught up
                make_step([trainer for trainer in going if trainer.state.step == first], gradients)
                if trainers[0].ranks.most(stop.is_set()) and _going(trainers):
                    _stop_early(_going(trainers))
        except KeyboardInterrupt:
            if not advice:
                raise
            raise Interrupted(f"stopped at once, after the last checkpoint; {advice}") from None
    return [trainer.outcome for trainer in trainers if trainer.outcome is not None]


def make_step(trainers: Sequence[Trainer], gradients: AbstractGradients) -> None:
    """Make one step of runs that stand at the same one; each is told its share of the time."""
    began = time.perf_counter()
    for trainer in trainers:
        with trainer.own_failure():
            trainer.begin()
    gradients.compute(_going(trainers))
    for trainer in _going(trainers):
        trainer.before_update()
    gradients.apply(_going(trainers))
    seconds = trainers[0].ranks.most(time.perf_counter() - began)
    for trainer in _going(trainers):
        with trainer.own_failure():
            trainer.end(seconds / len(trainers))


@final
class OneByOne(AbstractGradients):
    """Call every model on its own batch."""

    def start(self, trainers: Sequence[Trainer]) -> None:
        """Let every run choose its setting."""
        for trainer in trainers:
            with trainer.own_failure():
                self._start(trainer)

    def compute(self, trainers: Sequence[Trainer]) -> None:
        """Call one model after the other."""
        for trainer in trainers:
            with trainer.own_failure():
                trainer.generators.give_to(trainer)
                trainer.loss = forward_and_backward(trainer, trainer.batch, trainer.state.setting)

    def apply(self, trainers: Sequence[Trainer]) -> None:
        """Update one model after the other."""
        for trainer in trainers:
            with trainer.own_failure():
                with trainer.division.spread.updating():
                    trainer.inspect(clip_gradients(trainer.parameters, trainer.recipe.clip))
                    trainer.optimizer.step()
                trainer.count_step()

    @staticmethod
    def _start(trainer: Trainer) -> None:
        def run_step(setting: Setting, number: int) -> None:
            trainer.say("preparing", {"doing": f"tries steps in {setting}"})
            batch = trainer.task.train_batch(number, trainer.seed).to(trainer.caller.device)
            forward_and_backward(trainer, batch, setting)

        trainer.generators.give_to(trainer)
        trainer.start(choose_for([trainer], trainer.division.spread.owner, run_step))


def choose_for(trainers: Sequence[Trainer], model: nn.Module, run_step: RunStep) -> Choice:
    """Settle what the recipes of runs that are alike leave open; `model` holds the models of all."""
    first = trainers[0]
    precision, compiled = first.wanted_setting()
    return choose_setting(
        model,
        run_step,
        first.course.remaining(first.state),
        precision=precision,
        compiled=compiled,
        copies=len(trainers),
        first_batches=lambda number: first.task.train_batch(number, first.seed),
        device=first.caller.device,
    )


def forward_and_backward(trainer: Trainer, batch: Batch, setting: Setting) -> Tensor:
    """Compute a run's loss of a batch and its gradients, in pieces if need be; return the loss without a graph."""
    division, step = trainer.division, trainer.state.step + 1
    if division.is_plain:
        loss = trainer.loss_from(trainer.caller.outputs(batch, setting, step=step), batch)
        trainer.caller.backward(loss, batch, step=step)
        return loss.detach()
    caller = Caller(trainer.model, division.spread.called, trainer.caller.device)
    losses, pieces = [], division.pieces(trainer.task, batch)
    for piece in drawn_alike(pieces):
        with piece.drawing(), division.spread.exchanging(last=piece is pieces[-1]):
            outputs = caller.outputs(piece.batch, setting, step=step)
            loss = trainer.weighted_loss(outputs, piece.batch, piece.weight)
            caller.backward(loss * division.ranks.count, piece.batch, step=step)  # ranks take the mean of gradients
        losses.append(loss.detach())
    return division.ranks.total(torch.stack(losses).sum())


def _going(trainers: Sequence[Trainer]) -> list[Trainer]:
    return [trainer for trainer in trainers if trainer.outcome is None]


def _stop_early(trainers: Sequence[Trainer]) -> None:
    """Save where the runs stand and end them, since a person asked for it."""
    where = [trainer.stop_early() for trainer in trainers]
    raise Interrupted(f"stopped after {where[0]}; {trainers[0].keeper.how_to_go_on}")


@contextlib.contextmanager
def stop_noted() -> Iterator[threading.Event]:
    """Note a first Ctrl-C instead of breaking off in the middle of an update; a second one breaks off.

    Outside the main thread, where no signals arrive, it notes nothing.
    """
    asked, before = threading.Event(), {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def note(number: int, frame: FrameType | None) -> None:
        del number, frame
        asked.set()
        restore()

    if threading.current_thread() is threading.main_thread():
        before.update({number: signal.signal(number, note) for number in STOP_SIGNALS})
    try:
        yield asked
    finally:
        restore()
