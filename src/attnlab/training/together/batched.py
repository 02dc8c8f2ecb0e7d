"""How the gradients of several runs are computed as one program, and what happens where they cannot be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch import nn

from attnlab.core.errors import AttnlabError, TrainingError
from attnlab.core.generators import Generators
from attnlab.training.run.gradients import AbstractGradients, OneByOne
from attnlab.training.run.trainer import Trainer
from attnlab.training.speed.choosing import choose_setting, untouched
from attnlab.training.speed.settings import Choice, Setting
from attnlab.training.together.agreement import StepTaken, no_attribute_changed, single_step
from attnlab.training.together.cohort import Cohort

NO_MEMORY = "allocate memory"
"""Part of torch's error text where a CPU has no more memory; accelerators have an error class for it."""


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
            try:
                self._check(group)
                choice = self._choose(group)
            except (AttnlabError, MemoryError) as error:
                self._give_way(error, group)
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
            trainer.state.note_company(1, self._note())
        for cohort in self._computed:
            for trainer in cohort.trainers:
                trainer.state.note_company(len(cohort.trainers), self._note())

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

    def _give_way(self, error: Exception, trainers: Sequence[Trainer]) -> None:
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
            self._give_way(error, trainers)
            self._compute(trainers)
        else:
            self._computed.append(cohort)

    # ---- before the first step ----

    def _check(self, trainers: Sequence[Trainer]) -> None:
        """Raise a `ModuleError` unless a batched step gives what single steps give."""
        cohort, bookmark = self._cohort(trainers), self.generators.bookmark()
        batches = [trainer.task.train_batch(trainer.state.step, trainer.seed).to(self.device) for trainer in trainers]
        try:
            with untouched(_all_models(trainers), self.device), no_attribute_changed(cohort.stack.frame):
                losses = cohort.backward(batches, Setting())
                found = [StepTaken.of(trainer.model, loss) for trainer, loss in zip(trainers, losses, strict=True)]
            self.generators.go_back(bookmark)
            for trainer, batch, step in zip(trainers, batches, found, strict=True):
                self.generators.give_to(trainer)
                step.check_equal(single_step(trainer, batch))
        finally:
            self.generators.go_back(bookmark)

    def _choose(self, trainers: Sequence[Trainer]) -> Choice:
        """Settle what the recipes leave open, for batched steps; every run bears its share of the time."""
        cohort, bookmark = self._cohort(trainers), self.generators.bookmark()

        def run_step(setting: Setting, number: int) -> None:
            cohort.backward([t.task.train_batch(number, t.seed).to(self.device) for t in trainers], setting)
            models.zero_grad(set_to_none=True)

        first, models = trainers[0], _all_models(trainers)
        precision, compiled = first.wanted_setting()
        left = first.course.remaining(first.state)
        try:
            choice = choose_setting(
                models,
                run_step,
                left,
                precision=precision,
                compiled=compiled,
                copies=len(trainers),
                first_batches=lambda number: first.task.train_batch(number, first.seed),
                device=self.device,
            )
        finally:
            self.generators.go_back(bookmark)
        return Choice(choice.setting, choice.reason, choice.seconds / len(trainers))


def _reason(error: Exception) -> str:
    """Why a batched step failed, in one line: what the model raised, where it did."""
    raised = error.__cause__
    text = str(error) if raised is None else f"{type(raised).__name__}: {raised}"
    return text.splitlines()[0]


def _all_models(trainers: Sequence[Trainer]) -> nn.Module:
    return nn.ModuleList(trainer.model for trainer in trainers)
