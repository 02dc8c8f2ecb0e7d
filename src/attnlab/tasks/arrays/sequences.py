"""The `sequences` task: from each sequence of numbers to numbers or classes, at every position or once."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.contracts import Batch, Floor, Metric, Predict
from attnlab.core.errors import DataError, ModuleError, SpecError
from attnlab.core.sizes import require_known, require_positive
from attnlab.tasks.arrays.items import DropCopies, OwnItems, Split, batch_of
from attnlab.tasks.arrays.reading import read_array, read_groups
from attnlab.tasks.codecs import NumbersCodec
from attnlab.tasks.held_out import PREFIXES, Held, held_parts, shares_of
from attnlab.tasks.next_tokens import NextTokens, Tally
from attnlab.tasks.scale import Scale, featured, in_units, of_uneven_size

EXAMPLES = 4  # sequences shown in a report
DIGITS = 4  # of a value in a report
LOOKED_AT, FARTHEST = 64, 8  # items, and positions, of which it is seen whether inputs show targets
UNIT, OWN_UNIT = "normalized squared error", "squared error in units of the data"
Normalize = bool | Literal["internally"]


@final
class Sequences:
    """Map each sequence of numbers to its target.

    Parameters
    ----------
    inputs : str
        An ``.npy`` file of numbers (items, length) or (items, length, features), or a CSV file, a row an item.
    targets : str
        The same of numbers, (items, length), (items, length, outputs) or (items, outputs), for regression by mean
        squared error; or of whole numbers (items, length), for classification by position. An array that is as long as
        the inputs has a target at every position.
    batch : int
        Items of one training step; every item comes once in an epoch.
    validation, test : float or list of str, optional
        What is held out: a share of the items, or a list of two files.
    normalize : bool or "internally"
        Whether inputs and targets of a regression have mean 0 and standard deviation 1, for each feature those of the
        training part; errors are then in these units, "internally" in those of the data.
    data_seed : int
        Seed of which items are held out.
    drop_copies : bool or "near"
        Whether the training part is left without items whose input is held out too; "near" also without their near
        copies, to which something was added: the nearest items, if all others are at least twice as far.
    split : {"random", "contiguous"}
        Whether what is held out is drawn, or stands last, as it must where items are windows of one series.
    groups : str, optional
        Which items are of one source, such as a person, and go into one part: an ``.npy`` file (items,).

    Raises
    ------
    SpecError
        If a size is below 1, what is held out is no share, or groups are to stand last.
    DataError
        If a file cannot be read, shapes do not fit, a number is not finite, or nothing is left to train on.

    Notes
    -----
    A model answers (batch, length, outputs). Where an item has one target, its answers are averaged over the positions,
    or it answers (batch, outputs).
    """

    name = "sequences"
    causal = False
    judged = ()

    def __init__(
        self,
        inputs: str,
        targets: str,
        *,
        batch: int = 64,
        validation: Held = 0.1,
        test: Held | None = None,
        normalize: Normalize = True,
        data_seed: int = 0,
        drop_copies: DropCopies = False,
        split: Split = "random",
        groups: str | None = None,
    ) -> None:
        require_positive("batch", batch)
        self.batch, self.drop_copies = batch, drop_copies
        self._files = {"inputs": inputs, "targets": targets} | ({} if groups is None else {"groups": groups})
        held = held_parts(validation, test)
        given = {part: _pair(part, some) for part, some in held.items() if not isinstance(some, int | float)}
        first = _read(inputs, targets)
        shares = {**shares_of(held), **given}
        sources = None if groups is None else read_groups(groups, inputs, len(first[0]))
        how = {"drop_copies": drop_copies, "split": split, "groups": sources}
        self._items = OwnItems(*first, shares, seed=data_seed, **how)
        train = self._items.parts["train"]
        self.length, shape = first[0].shape[1], first[1].shape
        self.each = len(shape) == 3 or shape[1] == self.length
        self._of_classes = first[1].dtype.kind in "biu"
        self._d_in = featured(first[0]).shape[2]
        self._d_out = self._classes() if self._of_classes else shape[-1] if len(shape) == 3 or not self.each else 1
        scaled = normalize and not self._of_classes
        self._scales = (
            Scale.of(featured(first[0]), train.chosen) if normalize else None,
            Scale.of(self._shaped(first[1]), train.chosen) if scaled else None,
        )
        self._told_in = self._scales[1].std if self._scales[1] and normalize == "internally" else np.ones(1)
        self._unit = UNIT if self._scales[1] and normalize != "internally" else OWN_UNIT
        classes = tuple(map(str, range(self._d_out))) if self._of_classes else ()
        flat = self.each and len(shape) == 2 and not self._of_classes
        self.codec = NumbersCodec(self.length, self._d_in, self.each, classes, *self._scales, flat=flat)
        self._judge = NextTokens(self._d_out)
        self.tokens_per_step = batch * (self.length if self.each else 1)
        self.steps_per_epoch = len(train) / batch
        self.parts = tuple(held)
        self.metrics = tuple(metric for part in self.parts for metric in self._measured(PREFIXES[part]))

    def _classes(self) -> int:
        arrays = [items.targets for items in self._items.parts.values()]
        if not self.each or any(int(one.min()) < 0 for one in arrays):
            raise DataError(
                f"whole numbers as targets are classes, from 0 on, one at each of the {self.length} positions; got "
                f"shape {arrays[0].shape}, smallest {min(int(one.min()) for one in arrays)}; for numbers save them as "
                "floats, for one class an item take the task 'classify'"
            )
        return int(max(one.max() for one in arrays)) + 1

    def _measured(self, prefix: str) -> tuple[Metric, ...]:
        if not self._of_classes:
            return (Metric(f"{prefix}_mse", self._unit, "lower", "mean squared error"),)
        return (
            Metric(f"{prefix}_loss", "nats/position", "lower", "cross-entropy"),
            Metric(f"{prefix}_accuracy", "fraction", "higher", "positions classified right"),
        )

    def _shaped(self, targets: np.ndarray) -> np.ndarray:
        """Targets of a regression as the model answers: (items, length, outputs) or (items, outputs)."""
        return targets[..., None] if self.each and targets.ndim == 2 else targets

    def _batch(self, inputs: np.ndarray, targets: np.ndarray) -> Batch:
        scale_in, scale_out = self._scales
        inputs = in_units(featured(inputs), scale_in)
        if self._of_classes:
            return batch_of(inputs, targets.astype(np.int64))
        return batch_of(inputs, in_units(self._shaped(targets), scale_out))

    def train_batch(self, step: int, seed: int) -> Batch:
        """The items of one training step."""
        return self._batch(*self._items.drawn(step, seed, self.batch))

    def _answers(self, outputs: Tensor, batch: Batch) -> Tensor:
        """What is compared with the targets."""
        wanted = (*batch.targets.shape, self._d_out) if self._of_classes else tuple(batch.targets.shape)
        if not self.each and outputs.ndim == 3:
            outputs = outputs.mean(dim=1)
        if tuple(outputs.shape) != wanted:
            said = "(batch, length, outputs)" if self.each else "(batch, outputs), or with a length between them"
            raise ModuleError(f"the model's outputs must have shape {wanted} {said}; got {tuple(outputs.shape)}")
        return outputs

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The mean squared error, or the mean cross-entropy in nats per position."""
        answers = self._answers(outputs, batch)
        if self._of_classes:
            return self._judge.mean_loss(answers, batch.targets, label_smoothing)
        if label_smoothing:
            raise SpecError(f"label smoothing needs classes; these targets are numbers; got {label_smoothing}")
        return nn.functional.mse_loss(answers.float(), batch.targets)

    def _tally(self, predict: Predict, batches: Iterable[Batch]) -> Tally:
        return self._judge.tally(lambda batch: self._answers(predict(batch), batch), batches)

    def accuracy(self, predict: Predict, batches: Iterable[Batch]) -> float | None:
        """The share of positions classified right in batches of the training part; None where targets are numbers."""
        return self._tally(predict, batches).accuracy if self._of_classes else None

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The metrics over a whole held-out part."""
        require_known("part", part, self.parts)
        prefix = PREFIXES[part]
        batches = (self._batch(*some) for some in self._items.parts[part].in_turn())
        if self._of_classes:
            tally = self._tally(predict, batches)
            return {f"{prefix}_loss": tally.mean_loss, f"{prefix}_accuracy": tally.accuracy}
        total, count = 0.0, 0
        for batch in batches:
            answers = self._answers(predict(batch), batch).double().cpu()
            off = (answers - batch.targets.double()) * torch.from_numpy(self._told_in)
            total += off.square().sum().item()
            count += answers.numel()
        return {f"{prefix}_mse": total / count}

    def model_arguments(self) -> Mapping[str, Any]:
        """What a model must know of the task, by constructor name."""
        return {"d_in": self._d_in, "d_out": self._d_out, "max_length": self.length, "length": self.length}

    def floors(self) -> tuple[Floor, ...]:
        """What needs no network: a constant, and where inputs and targets are alike the input itself."""
        return tuple(
            floor
            for part in self.parts
            for floor in (self._class_floors(part) if self._of_classes else self._number_floors(part))
        )

    def _number_floors(self, part: str) -> list[Floor]:
        metric, train = f"{PREFIXES[part]}_mse", self._items.parts["train"]
        mean = sum(self._shaped(some).sum(0, dtype=np.float64) for _, some in train.in_turn()) / len(train)
        scale = self._scales[1] or Scale(np.zeros(1), np.ones(1))
        known = {"constant predictor": [0.0, 0], "last value": [0.0, 0]}
        for inputs, targets in self._items.parts[part].in_turn():
            wanted, last = self._shaped(targets), featured(inputs) if self.each else featured(inputs)[:, -1]
            for name, guess in (("constant predictor", mean), ("last value", last)):
                if name == "constant predictor" or last.shape == wanted.shape:
                    known[name][0] += float((((wanted - guess) * self._told_in / scale.std) ** 2).sum())
                    known[name][1] += wanted.size
        kinds = {"constant predictor": "chance", "last value": "simple"}
        sources = {
            "constant predictor": "mean target of the training part, at each position by itself",
            "last value": "the input at the same position, or the last one, taken for the target",
        }
        return [
            Floor(name, total / count, self._unit, metric, kinds[name], source=sources[name])  # pyrefly: ignore
            for name, (total, count) in known.items()
            if count
        ]

    @functools.cached_property
    def shown_later(self) -> int:
        """How many positions later the inputs show the targets, as in a forecast at every position; 0 if not."""
        if not self.each or self._of_classes:
            return 0
        inputs, targets = self._items.parts["train"].pair(slice(LOOKED_AT))
        given, wanted = featured(inputs)[..., None, :], self._shaped(targets)[..., None]  # axes: outputs, then features
        for later in range(1, min(FARTHEST, self.length - 1) + 1):
            same = np.isclose(wanted[:, :-later], given[:, later:]).all(axis=(0, 1))
            if same.any() and wanted.std() > 0:
                return later
        return 0

    @property
    def deviation(self) -> float | None:
        """What a normalized error of one is in units of the data; None where errors are told in these, or have many."""
        scale = self._scales[1]
        return float(scale.std.item()) if scale and self._unit == UNIT and scale.std.size == 1 else None

    @functools.cached_property
    def _frequencies(self) -> dict[str, np.ndarray]:
        counts = {
            part: np.sum([np.bincount(some.ravel(), minlength=self._d_out) for _, some in items.in_turn()], axis=0)
            for part, items in self._items.parts.items()
        }
        return {part: count / count.sum() for part, count in counts.items()}

    def _class_floors(self, part: str) -> list[Floor]:
        loss, accuracy = self._measured(PREFIXES[part])
        most, source = int(self._frequencies["train"].argmax()), f"uniform over {self._d_out} classes"
        return [
            Floor("chance", math.log(self._d_out), loss.unit, loss.name, "chance", source=source),
            Floor("chance", 1 / self._d_out, accuracy.unit, accuracy.name, "chance", source=source),
            Floor(
                "majority class", float(self._frequencies[part][most]), accuracy.unit, accuracy.name, "simple",
                source=f"always class {most}, the most frequent of the training part",
            ),
        ]  # fmt: skip

    @property
    def answers(self) -> Mapping[str, int]:
        """By held-out part, how many answers an accuracy is the share of."""
        return {part: self.length * len(self._items.parts[part]) for part in self.parts if self._of_classes}

    @property
    def overlaps(self) -> Mapping[str, float]:
        """By held-out part, the fraction of its inputs that are among the training inputs."""
        return self._items.copied

    @property
    def near_overlaps(self) -> Mapping[str, float]:
        """By held-out part, the fraction of its inputs of which near copies are among the training inputs."""
        return self._items.near_copied

    @property
    def alike_beside(self) -> float:
        """How often rows that stand beside each other are more alike than others; 0 where no part was drawn."""
        return self._items.alike_beside

    @property
    def overlapping(self) -> Mapping[str, float]:
        """By held-out part, the fraction of its inputs most of which stands in a training input, at another place."""
        return self._items.overlapping

    def alarms(self) -> tuple[str, ...]:
        """What is suspicious about the parts."""
        train = self._items.parts["train"]
        found = [] if self._scales[0] else of_uneven_size(featured(train.inputs), train.chosen)
        if self.shown_later:
            found.append(
                f"targets are the inputs of positions {self.shown_later} later: a model that sees what comes after a "
                "position can copy them"
            )
        return tuple(found + self._items.alarms())

    def describe(self) -> dict[str, Any]:
        """What identifies the data."""
        scales = [scale and scale.to_json() for scale in self._scales]
        return {
            "task": self.name,
            **self._files,
            "length": self.length,
            "features": self._d_in,
            "classes" if self._of_classes else "outputs": self._d_out,
            "normalized": dict(zip(("inputs", "targets"), scales, strict=True)),
            **self._items.describe(),
        }

    def examples(self, predict: Predict) -> dict[str, Any]:
        """The first held-out sequences with the model's predictions; drawn where both are one number a position."""
        batch = self._batch(*self._items.parts[self.parts[0]].pair(slice(EXAMPLES)))
        answers = self._answers(predict(batch), batch).detach().float().cpu()
        answers = answers.argmax(-1) if self._of_classes else answers
        one_number = self.each and not self._of_classes and self._d_in == self._d_out == 1
        columns = [_lists(one.numpy(), flat=one_number) for one in (batch.inputs[0], batch.targets, answers)]
        keys = ("input", "target", "prediction")
        items = [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
        return {"kind": "series" if one_number else "arrays", "items": items}


def _lists(array: np.ndarray, *, flat: bool) -> list[Any]:
    """Arrays as lists of short numbers."""
    return np.round(array[..., 0] if flat else array, DIGITS).astype(np.float64).tolist()


def _pair(part: str, held: str | list[str]) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(held, str) or len(held) != 2:
        raise SpecError(f"{part} must be a share, or two files, of inputs and of targets; got {held}")
    return _read(*held)


def _read(inputs: str, targets: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of some items."""
    read, wanted = read_array(inputs), read_array(targets)
    if read.ndim not in (2, 3):
        raise DataError(f"{inputs} must be (items, length) or (items, length, features); got {read.shape}")
    wanted = wanted[:, None] if wanted.ndim == 1 else wanted
    if wanted.ndim not in (2, 3) or (wanted.ndim == 3 and wanted.shape[1] != read.shape[1]):
        raise DataError(
            f"{targets} must be (items, length), (items, length, outputs) or (items, outputs), with the length "
            f"{read.shape[1]} of {inputs}; got {wanted.shape}"
        )
    if len(read) != len(wanted):
        raise DataError(
            f"inputs and targets must be as many; got {len(read)} in {inputs} and {len(wanted)} in {targets}"
        )
    return read, wanted
