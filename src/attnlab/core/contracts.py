"""What crosses layers: the few types that models, tasks, training and studies agree on.

A model is any ``torch.nn.Module`` called as ``model(*batch.inputs)``. A task is anything that keeps
`Task`; `StudyTask` adds what a study needs to plan and to judge. Nothing here knows a concrete one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, final

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@final
@dataclass(frozen=True)
class Batch:
    """Hold what a model is called with and what it should answer."""

    inputs: tuple[Tensor, ...]  # positional arguments of the model; batch axis first in each
    targets: Tensor  # what the task's loss compares the outputs with; batch axis first

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(
            tuple(tensor.to(device, non_blocking=True) for tensor in self.inputs),
            self.targets.to(device, non_blocking=True),
        )

    def rows(self, first: int, end: int) -> Batch:
        """Some of its samples."""
        return Batch(tuple(tensor[first:end] for tensor in self.inputs), self.targets[first:end])


Predict = Callable[[Batch], "Tensor"]
"""A model in evaluation mode without gradients: from a batch to the model's outputs."""

Write = Callable[["Sequence[str]"], "list[str]"]
"""A trained model at work: from sentences to what it writes for each."""


@final
class Judgement(NamedTuple):
    """Hold what is measured once of a trained model as a whole, such as BLEU of its translations.

    Parameters
    ----------
    metrics : mapping
        By name.
    written : int
        Sentences that the model wrote for it.
    """

    metrics: Mapping[str, float]
    written: int = 0


Judge = Callable[["nn.Module"], Judgement]
"""Measures a trained model, in evaluation mode and without gradients, as a whole."""


@final
@dataclass(frozen=True)
class Attempts:
    """Hold what a model wrote by itself for a batch, and how good it is."""

    batch: Batch  # all right sequences, then all first attempts at them, then all second ones, ...
    rewards: Tensor  # (batch, 1 + attempts): of the right sequence and of each attempt, in [0, 1]


Attempt = Callable[["nn.Module", Batch, int, "torch.Generator"], "Attempts | None"]
"""How a model in evaluation mode attempts the targets of a batch, so many times, with random numbers of a generator;
None of a batch that is trained by the task's own loss all the same."""


@final
@dataclass(frozen=True)
class Metric:
    """Name a measured quantity with its unit and direction."""

    name: str  # key in results and study files, such as ``val_loss``
    unit: str  # unit of the values
    better: Literal["lower", "higher"]  # direction
    title: str = ""  # name in sentences and on axes

    def improves(self, new: float, old: float) -> bool:
        """Whether `new` is strictly better than `old`."""
        return new < old if self.better == "lower" else new > old


@final
@dataclass(frozen=True)
class Floor:
    """State a reference value of a metric, and for whom it is a limit."""

    name: str  # what it is, in words: ``chance``, ``bigram (sees 1 character)``, ``noise``
    value: float  # the value of the metric
    unit: str  # unit of the value
    metric: str  # name of the metric it refers to
    kind: Literal["chance", "simple", "floor", "best", "reference"]
    """What knowing nothing gives; what needs no network; a limit; the best known result; a value to compare with."""
    reach: int | None = None
    """For a floor: it limits models whose output depends on at most this many input positions (itself included); None
    limits every model."""
    tolerance: float = 0.0
    """How far below a floor a result may lie before it is called impossible, in the metric's unit."""
    source: str = ""  # where the value comes from


class Task(Protocol):
    """What the training loop needs of a task."""

    metrics: tuple[Metric, ...]
    """Everything `evaluate` returns, over all parts; the first decides which checkpoint is best."""
    parts: tuple[str, ...]
    """Held-out parts in the order they are evaluated: "validation" first, perhaps "test"."""
    tokens_per_step: int
    """Positions with a loss in one training batch."""

    def train_batch(self, step: int, seed: int) -> Batch:
        """The batch of one training step: a pure function of step and seed."""
        ...

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The mean training loss of a batch; outputs are float32 unless the task `reads_bfloat16`."""
        ...

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The metrics of one whole held-out part."""
        ...


def reads_bfloat16(task: Task) -> bool:
    """Whether a task's loss takes outputs in bfloat16 and loses nothing by it.

    It says so by an attribute ``reads_bfloat16 = True``; without one its outputs are made float32 first, which for many
    outputs takes longer than the loss.
    """
    return getattr(task, "reads_bfloat16", False)


def counts_targets(task: Task) -> bool:
    """Whether a task says how many targets a batch has, as rows may have more or fewer."""
    return getattr(task, "targets_of", None) is not None


def targets_of(task: Task, batch: Batch) -> float:
    """How many targets the mean loss of a batch is taken over, by which the losses of its parts are weighted.

    A task whose rows do not all have as many says it by a method ``targets_of(batch)``; for others it is the rows.
    """
    return task.targets_of(batch) if counts_targets(task) else len(batch.targets)  # type: ignore[attr-defined]


def accuracy_of(task: Task, predict: Predict, batches: Iterable[Batch]) -> float | None:
    """The share of targets that are predicted right in batches of a task's training part; None where none can be.

    A task whose targets are right or wrong measures it by a method ``accuracy(predict, batches)``.
    """
    measure = getattr(task, "accuracy", None)
    return None if measure is None else measure(predict, batches)


def typical_batches(task: Task) -> Sequence[tuple[float, Batch]]:
    """Training batches by which costs are reckoned, each with the fraction of the steps that are like it.

    One, unless a task whose steps are of several kinds says them by a method ``typical_batches()``.
    """
    several = getattr(task, "typical_batches", None)
    return [(1.0, task.train_batch(0, 0))] if several is None else several()


class ReportedTask(Protocol):
    """What the report of a study needs of its task; no data."""

    name: str
    causal: bool
    """Whether an output may depend on inputs up to its own position only."""

    metrics: tuple[Metric, ...]
    """As in `Task`."""

    judged: tuple[Metric, ...]
    """What studies measure of a trained model as a whole, beyond `metrics`; empty if nothing."""

    def floors(self) -> tuple[Floor, ...]:
        """Chance, limits and best known results."""
        ...

    def alarms(self) -> tuple[str, ...]:
        """What is suspicious about the data itself, in words; empty if nothing is."""
        ...

    def describe(self) -> dict[str, Any]:
        """What identifies the data: sizes, hashes, source. JSON types only."""
        ...


class StudyTask(Task, ReportedTask, Protocol):
    """What a study needs of a task beyond training on it."""

    def model_arguments(self) -> Mapping[str, Any]:
        """What a model must know of the task, by constructor name (vocab_size, d_in, ...)."""
        ...

    def examples(self, predict: Predict) -> dict[str, Any]:
        """A few held-out inputs, targets and predictions for the report. JSON types only.

        Calls `predict` at least once; attention is drawn for the first sequence it gets. The ``kind`` says what is
        drawn: "series" with ``items``, each an ``input``, a ``target`` and a ``prediction`` (lists of numbers);
        "text" with ``text``, ``loss``, ``predicted`` (of each of its pieces) and ``labels``; "pairs" with ``pairs``,
        each a ``source``, a ``target`` and what was ``predicted``. Any other kind is kept and not drawn. ``labels``
        are, for each sequence that a model reads, the texts of its positions, written along attention maps.
        """
        ...


class JudgedTask(StudyTask, Protocol):
    """A task of which `judged` is not empty."""

    def judge(self, write: Write) -> dict[str, float]:
        """What is `judged`, of what a trained model writes for every held-out part."""
        ...
