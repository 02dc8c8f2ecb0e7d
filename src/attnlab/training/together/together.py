"""Runs of one architecture trained together, as one batched program, equal to training them one by one.

`train_together` is `train` for several models: seeds of one variant, or learning rates of its tuning grid. `Batched`
decides who is computed together, and what happens where that fails; ``cohort.py`` computes. What belongs to a run
(batches, rate, clipping, optimizer, evaluation, early stop, records, checkpoints) stays that run's own, since the loop
and its `Trainer` are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from attnlab.core.contracts import Judge, Task
from attnlab.core.errors import AttnlabError, SpecError, TrainingError
from attnlab.core.generators import Generators
from attnlab.training.keeping.result import Result
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.loop import AbstractGradients, OneByOne, choose_for, default_spec, keeper_for, run_all
from attnlab.training.run.trainer import Trainer
from attnlab.training.speed.settings import Choice, Setting
from attnlab.training.together.agreement import check_agreement
from attnlab.training.together.cohort import Cohort

NO_MEMORY = "allocate memory"
"""Part of torch's error text where a CPU has no more memory; accelerators have an error class for it."""

OnMemberEvent = Callable[[int, Mapping[str, Any]], None]
"""What a caller gives to be told: the number of a run, and an event about it."""


def train_together(
    models: Sequence[nn.Module],
    task: Task,
    recipes: Sequence[Recipe],
    *,
    seeds: Sequence[int],
    folders: Sequence[Path | str] | None = None,
    specs: Sequence[Mapping[str, Any]] | None = None,
    flops_per_token: float | None = None,
    judge: Judge | None = None,
    on_event: OnMemberEvent | None = None,
    device: str = "cpu",
) -> list[Result | Exception]:
    """Train models of one architecture side by side; each goes on where a run in its folder stopped.

    Parameters
    ----------
    models : sequence of nn.Module
        One per run, initialized by the caller. Afterwards they hold the weights at the end of training.
    task : Task
        Data, loss and metrics of all runs.
    recipes : sequence of Recipe
        One per run. They may differ in anything but precision and compiling without leaving the program early.
    seeds : sequence of int
        One per run: data order and dropout.
    folders : sequence of Path or str, optional
        One run folder per run, as `train` writes it. None keeps nothing on disk.
    specs : sequence of mapping, optional
        What identifies each run; see `train`.
    flops_per_token : float, optional
        FLOPs of forward and backward per position; needed for a budget in FLOPs.
    judge : callable, optional
        Measures each trained model as a whole; see `train`.
    on_event : callable, optional
        Told what happens: the number of a run, and an event about it.
    device : str
        ``cpu``, ``cuda`` or ``cuda:1``.

    Returns
    -------
    list of Result or Exception
        In the order of the models. A run that fails has its error here, and the others go on.

    Raises
    ------
    SpecError
        If the numbers of models, recipes, seeds, folders and specs differ, a budget is in seconds or ends at a
        target (runs that share their time have none of their own), a recipe has several devices or pieces, or as in
        `train`.
    Interrupted
        If a person stopped the runs; they go on when they are started again.

    Notes
    -----
    One call of all models, one backward pass; everything else is each run's own. The numbers are those of `train`
    up to rounding (sums run in another order), dropout included; compiled, each run's dropout masks are its own, but
    others than alone. Before the first step one batched step is compared with single ones. Models that cannot be
    batched (a recurrent kernel, a branch on numbers, state kept between calls, batches of unequal shapes) are then
    trained one by one; where memory does not suffice for all, by halves. The result says so. Runs that were killed
    at different steps go on: those that are behind first, without the others. ``Result.seconds`` is a run's share.

    References
    ----------
    .. [1] PyTorch, "Model ensembling", torch.func tutorials.
    """
    count = len(models)
    places, named = folders or [None] * count, specs or [None] * count
    _check_numbers(models, recipes=recipes, seeds=seeds, folders=places, specs=named)
    _check_budgets(recipes)
    generators = Generators()
    trainers = [
        Trainer(
            model,
            task,
            recipe,
            keeper=keeper_for(place, default_spec(model, recipe, seed) if spec is None else spec),
            seed=seed,
            flops_per_token=flops_per_token,
            judge=judge,
            on_event=_told(on_event, number),
            device=torch.device(device),
            generators=generators,
        )
        for number, (model, recipe, seed, place, spec) in enumerate(
            zip(models, recipes, seeds, places, named, strict=True)
        )
    ]
    gradients = Batched(generators, torch.device(device))
    try:
        return run_all(trainers, gradients)
    finally:
        gradients.release()


def _check_numbers(models: Sequence[nn.Module], **others: Sequence[Any]) -> None:
    for name, values in others.items():
        if len(values) != len(models):
            raise SpecError(f"there are {len(models)} models and {len(values)} {name}; each run needs one of each")


def _check_budgets(recipes: Sequence[Recipe]) -> None:
    for recipe in recipes:
        if recipe.devices * recipe.accumulate > 1:
            raise SpecError("runs that train together share one device; give them devices: 1 and accumulate: 1")
        if recipe.build_objective().samples:
            raise SpecError(f"objective {recipe.objective!r} learns from what one model writes: train it alone")
        if recipe.budget.seconds is not None or recipe.stop_at is not None:
            limit = "a budget in seconds" if recipe.stop_at is None else "stop_at"
            raise SpecError(f"{limit} needs a run that has the machine to itself: train it alone")


def _told(on_event: OnMemberEvent | None, number: int) -> Callable[[Mapping[str, Any]], None]:
    return lambda event: on_event(number, event) if on_event else None


@final
class Batched(AbstractGradients):
    """Compute and apply the gradients of several runs as one program, as far as that is possible.

    Parameters
    ----------
    generators : Generators
        Torch's random number generators, shared by the runs.
    device : torch.device
        Where the models are.

    Attributes
    ----------
    obstacle : str
        Why the runs are computed one by one; empty while they are not.
    most : int or None
        How many runs fit into memory together; None where all do.
    """

    def __init__(self, generators: Generators, device: torch.device) -> None:
        self.generators = generators
        self.device = device
        self.obstacle = ""
        self.most: int | None = None
        self._alone = OneByOne()
        self._cohorts: dict[tuple[Trainer, ...], Cohort] = {}
        self._computed: list[Cohort] = []
        self._computed_alone: list[Trainer] = []

    def start(self, trainers: Sequence[Trainer]) -> None:
        """Compare a batched step with single ones, then choose one setting for runs that want the same."""
        for group in self._groups(trainers, Trainer.wanted_setting):
            if self._is_single(group):
                self._alone.start(group)
                continue
            group[0].say("preparing", {"doing": f"compares a step of {len(group)} runs together with single ones"})
            try:
                check_agreement(self._cohort(group), self.device)
                choice = self._choose(group)
            except (AttnlabError, MemoryError) as error:
                self._fall_back(error, group)
                self.start(group)
                continue
            for trainer in group:
                with trainer.own_failure():
                    trainer.start(choice)

    def compute(self, trainers: Sequence[Trainer]) -> None:
        """Give every run its loss and gradients, from one batched step where that is possible."""
        self._computed, self._computed_alone = [], []
        self._compute(trainers)
        for trainer in self._computed_alone:
            trainer.state.note_together(1, self._note())
        for cohort in self._computed:
            for trainer in cohort.trainers:
                trainer.state.note_together(len(cohort.trainers), self._note())

    def apply(self, trainers: Sequence[Trainer]) -> None:
        """Clip and update; the runs of a batched step together."""
        self._alone.apply([trainer for trainer in self._computed_alone if trainer in trainers])
        for cohort in self._computed:
            cohort.apply()

    def release(self) -> None:
        """Give every model tensors of its own again."""
        for cohort in self._cohorts.values():
            cohort.release()
        self._cohorts = {}

    # ---- who runs together ----

    def _groups(self, trainers: Sequence[Trainer], kind: Callable[[Trainer], Any]) -> Iterator[list[Trainer]]:
        """The runs that are computed together: of one kind, and as many as memory allows."""
        ordered = sorted(trainers, key=lambda trainer: str(kind(trainer)))
        for _, alike in itertools.groupby(ordered, key=kind):
            group = list(alike)
            size = self.most or len(group)
            yield from (group[first : first + size] for first in range(0, len(group), size))

    def _is_single(self, group: Sequence[Trainer]) -> bool:
        return len(group) == 1 or bool(self.obstacle)

    def _cohort(self, trainers: Sequence[Trainer]) -> Cohort:
        """The cohort of exactly these runs; others that hold one of them are given up."""
        key = tuple(trainers)
        if key not in self._cohorts:
            for other in [other for other in self._cohorts if set(other) & set(key)]:
                self._cohorts.pop(other).release()
            self._cohorts[key] = Cohort(trainers, self.device, self.generators)
        return self._cohorts[key]

    def _fall_back(self, error: Exception, trainers: Sequence[Trainer]) -> None:
        """Go on with half as many runs at a time where memory ran out, else one by one."""
        self.release()
        if isinstance(error, TrainingError | MemoryError) or NO_MEMORY in str(error):
            self.most = (len(trainers) + 1) // 2
        else:
            self.obstacle = _reason(error)

    def _note(self) -> str:
        """Why not all runs are computed together; empty where they are."""
        if self.obstacle:
            return f"one by one: {self.obstacle}"
        return f"at most {self.most} at a time: memory does not suffice for more" if self.most else ""

    # ---- steps ----

    def _compute(self, trainers: Sequence[Trainer]) -> None:
        for group in self._groups(trainers, lambda trainer: trainer.state.setting):
            if self._is_single(group):
                self._alone.compute(group)
                self._computed_alone += group
            else:
                self._compute_together(group)

    def _compute_together(self, trainers: Sequence[Trainer]) -> None:
        """Make one batched step; where it fails, undo what it changed and make it in another way."""
        bookmark = self.generators.bookmark()
        before = [(buffer, buffer.clone()) for trainer in trainers for buffer in trainer.model.buffers()]
        try:
            cohort = self._cohort(trainers)
            cohort.compute()
        except (AttnlabError, MemoryError) as error:
            for buffer, value in before:
                buffer.copy_(value)
            self.generators.go_back(bookmark)
            self._fall_back(error, trainers)
            self._compute(trainers)
        else:
            self._computed.append(cohort)

    # ---- before the first step ----

    def _choose(self, trainers: Sequence[Trainer]) -> Choice:
        """Settle what the recipes leave open, for batched steps; every run bears its share of the time."""
        cohort, bookmark = self._cohort(trainers), self.generators.bookmark()

        def run_step(setting: Setting, number: int) -> None:
            trainers[0].say("preparing", {"doing": f"tries steps of {len(trainers)} runs in {setting}"})
            cohort.backward([t.task.train_batch(number, t.seed).to(self.device) for t in trainers], setting)

        try:
            choice = choose_for(trainers, nn.ModuleList(trainer.model for trainer in trainers), run_step)
        finally:
            self.generators.go_back(bookmark)
        return replace(choice, seconds=choice.seconds / len(trainers))


def _reason(error: Exception) -> str:
    """Why a batched step failed, in one line: what the model raised, where it did."""
    raised = error.__cause__
    text = str(error) if raised is None else f"{type(raised).__name__}: {raised}"
    return text.splitlines()[0]
