"""Runs of one architecture trained together, as one batched program, equal to training them one by one.

`train_together` is `train` for several models: seeds of one variant, or learning rates of its tuning grid. Steps
are computed in ``batched.py``; what belongs to a run (batches, rate, clipping, optimizer, evaluation, early stop,
records, checkpoints) stays that run's own, since the loop and its `Trainer` are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnlab.core.contracts import Judge, Task
from attnlab.core.errors import SpecError
from attnlab.core.generators import Generators
from attnlab.training.keeping.result import Result
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.loop import keeper_for, run_all
from attnlab.training.run.trainer import Trainer
from attnlab.training.together.batched import Batched

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
        target (runs that share their time have none of their own), or as in `train`.
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
    keepers = [
        keeper_for(folder, spec)
        for folder, spec in zip(folders or [None] * count, specs or [None] * count, strict=True)
    ]
    _check_numbers(models, recipes=recipes, seeds=seeds, keepers=keepers)
    _check_budgets(recipes)
    generators = Generators()
    trainers = [
        Trainer(
            model,
            task,
            recipe,
            keeper=keeper,
            seed=seed,
            flops_per_token=flops_per_token,
            judge=judge,
            on_event=_told(on_event, number),
            device=torch.device(device),
            generators=generators,
        )
        for number, (model, recipe, seed, keeper) in enumerate(zip(models, recipes, seeds, keepers, strict=True))
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
        if recipe.budget.seconds is not None or recipe.stop_at is not None:
            limit = "a budget in seconds" if recipe.stop_at is None else "stop_at"
            raise SpecError(f"{limit} needs a run that has the machine to itself: train it alone")


def _told(on_event: OnMemberEvent | None, number: int) -> Callable[[Mapping[str, Any]], None]:
    return lambda event: on_event(number, event) if on_event else None
