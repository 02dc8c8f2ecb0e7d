"""The `shapes` task: give each shape the average height of its group.

Which sequences there are is in `shape_sequences.py`; here they are split, normalized, batched and judged.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.contracts import Batch, Floor, Metric, Predict
from attnlab.core.errors import ModuleError, SpecError
from attnlab.core.machine import require_memory
from attnlab.core.sizes import require_known, require_positive
from attnlab.tasks.epochs import in_epochs
from attnlab.tasks.held_out import PREFIXES
from attnlab.tasks.shapes.predictors import constant_error, linear_error
from attnlab.tasks.shapes.sequences import LENGTH, generate

UNIT = "normalized squared error"
SPLITS = {
    "separate": "",
    "inside": " (split 'inside': the held-out sequences are trained on as well)",
}  # what alarms say of each
PART_SEEDS = {"train": 0, "validation": 1, "test": 2}  # each part has a generator of its own
EXAMPLES = 4  # sequences shown in a report, as many as the question showed
DIGITS = 4  # of a value in a report
SEQUENCE_BYTES = 2 * 4 * LENGTH  # inputs and targets in float32
EVALUATION_BATCH = 250  # sequences at a time; bounds memory, changes no number but rounding
SETS_KEPT = 4  # data sets kept in memory at a time; one of full size takes 22 MB
NOISE_SPREAD = 5.0  # standard deviations of the measured noise below which chance is ruled out


@final
@dataclass(frozen=True)
class ShapesData:
    """Hold the normalized parts of a data set and what they were normalized with."""

    inputs: Mapping[str, Float[Tensor, "count length 1"]]
    targets: Mapping[str, Float[Tensor, "count length 1"]]
    """By part, (count, length, 1)."""
    mean: float
    std: float
    """Of the training inputs and targets together, before."""


@functools.lru_cache(maxsize=SETS_KEPT)
def load_shapes(group: str, n_train: int, n_test: int, noise: float, data_seed: int, *, split: str) -> ShapesData:
    """Generate and normalize a data set, once per process and arguments.

    What is held out is the same with every split, to the last bit, and so is what it is normalized with.
    """
    counts = {"train": n_train, "validation": n_test, "test": n_test}
    raw = {
        part: generate(group, count, noise=noise, seed=len(PART_SEEDS) * data_seed + PART_SEEDS[part])
        for part, count in counts.items()
    }
    train = torch.cat(raw["train"])
    mean, std = train.mean(), train.std()
    inputs, targets = (
        {part: ((pair[side] - mean) / std)[..., None] for part, pair in raw.items()}  # (count, length, 1)
        for side in (0, 1)
    )
    if split == "inside":
        inputs, targets = _held_out_inside(inputs), _held_out_inside(targets)
    return ShapesData(inputs, targets, mean.item(), std.item())


def _held_out_inside(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same parts, but that what is held out replaces the last of the training part."""
    held_out = torch.cat([parts[part] for part in PREFIXES])
    return {**parts, "train": torch.cat((parts["train"][: -len(held_out)], held_out))}


@functools.lru_cache(maxsize=SETS_KEPT)
def _baseline_errors(arguments: tuple[str, int, int, float, int]) -> Mapping[str, tuple[float, float]]:
    """Return, per held-out part, the errors of the best constant and of the best linear predictor.

    They are fitted on sequences that are not held out, however the task splits.
    """
    data = load_shapes(*arguments, split="separate")
    train = data.inputs["train"].squeeze(-1), data.targets["train"].squeeze(-1)
    errors = {}
    for part in PREFIXES:
        held_out = data.inputs[part].squeeze(-1), data.targets[part].squeeze(-1)
        errors[part] = (constant_error(train, held_out), linear_error(train, held_out))
    return errors


@final
class Shapes:
    """Replace the height of each shape in a sequence by the average height of its group.

    Parameters
    ----------
    group : {"shape", "place"}
        Whose heights are averaged: those of the two triangles and those of the two boxes, or those
        of the two left-most and of the two right-most shapes, which takes positions to solve.
    n_train : int
        Sequences to train on.
    n_test : int
        Sequences in the test part, and as many more in a validation part of its own.
    batch : int
        Sequences of one training step.
    noise : float
        Total width of the uniform noise on inputs and targets, in units of height.
    data_seed : int
        Seed of the data; runs of different seeds train on the same data in another order.
    split : {"separate", "inside"}
        Whether the held-out sequences are sequences of their own, or, a mistake that is made on purpose to see what it
        does to the numbers, are trained on as well: they replace the last of the training sequences.

    Raises
    ------
    SpecError
        If a size is below 1, the noise negative, the group or the split unknown, or if the held-out sequences do not
        fit into the training part.

    Notes
    -----
    Inputs and targets are (batch, length, 1) with 100 positions, normalized together with the mean and
    standard deviation of the training part. The metric is the mean squared error in these units.

    With the split "inside" held-out sequences, units and floors are those of the split "separate", so that numbers
    compare between the two and a number that the leak made may lie below the floors.

    Differs from the source [1]_: boxes of nearly equal height are rejected like triangles (it tested
    the triangles twice), every sequence is grouped as asked (its recursion dropped the grouping), and
    checkpoints are chosen on a validation part of their own, not on a part of the training sequences.

    References
    ----------
    .. [1] F. Fleuret, 2020, a toy sequence-to-sequence task for attention (attentiontoy1d).
    """

    name = "shapes"
    causal = False
    judged = ()
    parts = tuple(PREFIXES)
    metrics = tuple(
        Metric(f"{prefix}_mse", UNIT, "lower", f"{part} mean squared error") for part, prefix in PREFIXES.items()
    )

    def __init__(
        self,
        group: Literal["shape", "place"] = "shape",
        n_train: int = 25_000,
        *,
        n_test: int = 1_000,
        batch: int = 100,
        noise: float = 0.3,
        data_seed: int = 42,
        split: Literal["separate", "inside"] = "separate",
    ) -> None:
        require_known("group", group, ("shape", "place"))
        require_known("split", split, SPLITS)
        for name, value in (("n_train", n_train), ("n_test", n_test), ("batch", batch)):
            require_positive(name, value)
        if noise < 0:
            raise SpecError(f"'noise' must not be negative; got {noise}")
        if split == "inside" and n_train < 2 * n_test:
            raise SpecError(
                "with the split 'inside' n_train must be at least twice n_test, since both held-out parts are trained "
                f"on; got n_train {n_train}, n_test {n_test}"
            )
        count = n_train + 2 * n_test
        require_memory(f"{count:,} sequences", SEQUENCE_BYTES * count)
        self.batch = batch
        self.tokens_per_step = batch * LENGTH
        self.steps_per_epoch = n_train / batch
        self._arguments = (group, n_train, n_test, noise, data_seed)
        self.split = split
        self.data = load_shapes(*self._arguments, split=split)

    def train_batch(self, step: int, seed: int) -> Batch:
        """The sequences of one training step."""
        chosen = in_epochs(self._arguments[1], self.batch, step, seed)
        return Batch((self.data.inputs["train"][chosen],), self.data.targets["train"][chosen])

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The mean squared error of a batch."""
        if label_smoothing:
            raise SpecError(f"label smoothing needs labels; the task 'shapes' has none; got {label_smoothing}")
        _require_shape(outputs, batch.targets)
        return nn.functional.mse_loss(outputs.float(), batch.targets)

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The mean squared error over a whole held-out part."""
        require_known("part", part, self.parts)
        total = 0.0
        for batch in self._held_out(part):
            outputs = predict(batch)
            _require_shape(outputs, batch.targets)
            total += (outputs.double().cpu() - batch.targets.double()).square().sum().item()
        return {f"{PREFIXES[part]}_mse": total / self.data.targets[part].numel()}

    def _held_out(self, part: str) -> list[Batch]:
        """A part in batches, as copies: a module that works in place cannot spoil the data."""
        pairs = (self.data.inputs[part].split(EVALUATION_BATCH), self.data.targets[part].split(EVALUATION_BATCH))
        return [Batch((inputs.clone(),), targets.clone()) for inputs, targets in zip(*pairs, strict=True)]

    def model_arguments(self) -> Mapping[str, Any]:
        """What a model must know of the task, by constructor name."""
        return {"d_in": 1, "d_out": 1, "max_length": LENGTH, "length": LENGTH}

    def floors(self) -> tuple[Floor, ...]:
        """What a constant, a linear map and a perfect model get, for both held-out parts."""
        errors = _baseline_errors(self._arguments)
        return tuple(floor for part in self.parts for floor in self._floors_of(part, *errors[part]))

    def _floors_of(self, part: str, constant: float, linear: float) -> list[Floor]:
        metric = f"{PREFIXES[part]}_mse"
        _, _, _, noise, _ = self._arguments
        variance = noise**2 / 12 / self.data.std**2
        # The mean square of n uniform values of variance v has standard deviation v * sqrt(0.8 / n).
        spread = variance * (0.8 / self.data.targets[part].numel()) ** 0.5
        return [
            Floor(
                "constant predictor", constant, UNIT, metric, "chance",
                source="mean target at each position of the training part",
            ),
            Floor(
                "best linear predictor", linear, UNIT, metric, "simple",
                source="least squares from all positions to all positions, fitted on the training part",
            ),
            Floor(
                "noise", variance, UNIT, metric, "floor", tolerance=NOISE_SPREAD * spread,
                source="noise^2 / 12 over the train variance: the noise on the targets cannot be predicted; "
                f"tolerance {NOISE_SPREAD:.0f} standard deviations of its mean square over the part",
            ),
        ]  # fmt: skip

    @functools.cached_property
    def _overlaps(self) -> dict[str, float]:
        """The fraction of each held-out part's inputs that are among the training inputs, number for number."""
        known = set(_rows(self.data.inputs["train"]))
        return {part: fmean(row in known for row in _rows(self.data.inputs[part])) for part in self.parts}

    def alarms(self) -> tuple[str, ...]:
        """What is suspicious about the data and its split."""
        return tuple(
            f"{value:.1%} of the {part} part's sequences are among the training sequences: what is measured is partly "
            f"memory{SPLITS[self.split]}"
            for part, value in self._overlaps.items()
            if value
        )

    def describe(self) -> dict[str, Any]:
        """What identifies the data."""
        group, n_train, n_test, noise, data_seed = self._arguments
        return {
            "task": self.name,
            "group": group,
            "parts": {"train": n_train, "validation": n_test, "test": n_test},
            "length": LENGTH,
            "noise": noise,
            "data_seed": data_seed,
            **({} if self.split == "separate" else {"split": self.split, "overlap": dict(self._overlaps)}),
            "mean": self.data.mean,
            "std": self.data.std,
            "source": "generated",
        }

    def examples(self, predict: Predict) -> dict[str, Any]:
        """The first sequences of the test part with the model's predictions."""
        inputs, targets = self.data.inputs["test"][:EXAMPLES], self.data.targets["test"][:EXAMPLES]
        outputs = predict(Batch((inputs.clone(),), targets.clone()))
        columns = [_rounded(tensor) for tensor in (inputs, targets, outputs)]
        keys = ("input", "target", "prediction")
        return {"kind": "series", "items": [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]}


def _rows(sequences: Float[Tensor, "count length 1"]) -> list[bytes]:
    """Each sequence as the bytes of its numbers."""
    return [row.tobytes() for row in sequences.numpy()]


def _rounded(sequences: Float[Tensor, "count length 1"]) -> list[list[float]]:
    """Sequences as lists of short numbers."""
    rows = sequences.detach().squeeze(-1).double().cpu().tolist()
    return [[round(value, DIGITS) for value in row] for row in rows]


def _require_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raise unless outputs can be compared with targets without broadcasting."""
    if outputs.shape != targets.shape:
        wanted, got = tuple(targets.shape), tuple(outputs.shape)
        raise ModuleError(f"the model's outputs must have shape {wanted} (batch, length, 1); got {got}")
