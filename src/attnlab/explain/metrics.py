"""The metrics of a run, by what people call them, and the values that they can have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, Self, final

from ruamel.yaml.scalarfloat import ScalarFloat

from attnlab.core.contracts import Floor, Metric, ReportedTask
from attnlab.core.errors import SpecError
from attnlab.studies.define.reading import plain_types
from attnlab.training.run.evaluation import TRAIN_ACCURACY

HELD_OUT = ("val", "test")
"""How names of metrics of held-out parts begin."""
TRAIN_LOSS = "train_loss"
"""The metric that every run has of its training part."""
IN_TRAINING = (TRAIN_LOSS, TRAIN_ACCURACY)
"""What is measured of the training part."""
SYNONYMS: Mapping[str, str] = {
    "training": "train", "valid": "val", "validation": "val", "dev": "val",
    "acc": "accuracy", "ppl": "perplexity", "bpc": "bits_per_character", "bpb": "bits_per_byte",
    "nll": "loss", "ce": "loss", "cross_entropy": "loss", "error_rate": "error",
}  # fmt: skip
"""What people call parts and metrics, in the task's words."""
CONVERTED: Mapping[str, tuple[str, Callable[[float], float], str]] = {
    "perplexity": ("loss", math.log, "its logarithm"),
    "rmse": ("mse", lambda value: value**2, "its square"),
    "error": ("accuracy", lambda value: 1 - value, "1 minus it"),
}
"""By kinds of metrics that no task has the kind they are read as, how, and how that is called."""


@final
class WrittenNumber(float):
    """A number with the digits that a person wrote behind its point, zeros at the end among them.

    Parameters
    ----------
    value : float
        The number.
    digits : int
        How many there are.
    """

    digits: int

    def __new__(cls, value: float, digits: int) -> Self:
        """Make one."""
        made = super().__new__(cls, value)
        made.digits = digits
        return made

    def __reduce__(self) -> tuple[type[Self], tuple[float, int]]:
        """What a copy is made of."""
        return type(self), (float(self), self.digits)


def as_written(read: Any) -> Any:
    """What was read of a file, with its numbers as they were written there."""
    if isinstance(read, Mapping):
        return {str(key): as_written(value) for key, value in read.items()}
    if isinstance(read, ScalarFloat):
        text: Any = read  # which has no types: its width, the place of its point, and a letter before an exponent
        return float(read) if text._exp else WrittenNumber(read, text._width - text._prec - 1)
    return plain_types(read)


def rounding_of(seen: float) -> float:
    """Half of the last digit of a number as it was written, which was a tenth or less."""
    digits = seen.digits if isinstance(seen, WrittenNumber) else -int(Decimal(f"{seen:.10g}").as_tuple().exponent)
    return 0.5 * 10.0 ** -max(digits, 1)


def metrics_of(task: ReportedTask) -> dict[str, Metric]:
    """What a run of a task has: metrics of held-out parts, and in training the loss and perhaps the accuracy."""
    held_out = {metric.name: metric for metric in (*task.metrics, *task.judged)}
    unit = next((one.unit for name, one in held_out.items() if name.endswith(("_loss", "_mse"))), "as the task has it")
    trained = [Metric(TRAIN_LOSS, unit, "lower", "loss in training, as it is minimized")]
    right = next((one for name, one in held_out.items() if name.endswith("_accuracy")), None)
    if right is not None and hasattr(task, "accuracy"):
        trained.append(replace(right, name=TRAIN_ACCURACY, title=f"{right.title} in batches trained on"))
    return {**held_out, **{one.name: one for one in trained}}


def metric_of(said: str, task: ReportedTask) -> Metric | None:
    """The metric of a task that a person means: by its name, by the part that is held out, or by its last word."""
    by_name, said = metrics_of(task), _in_words_of_tasks(said)
    if said == "train_mse":
        return by_name[TRAIN_LOSS]
    part, _, kind = said.partition("_")
    named = [said, *(f"{other}_{kind}" for other in HELD_OUT if part in HELD_OUT and kind)]
    named += [f"{other}_{said}" for other in HELD_OUT]
    return next((by_name[name] for name in named if name in by_name), None)


def _in_words_of_tasks(said: str) -> str:
    """A metric's name with synonyms of its part and of its kind replaced."""
    part, _, kind = said.lower().replace("-", "_").replace(" ", "_").partition("_")
    part, kind = SYNONYMS.get(part, part), SYNONYMS.get(kind, kind)
    whole = f"{part}_{kind}" if kind else part
    return SYNONYMS.get(whole, whole)


def converted(said: str, value: Any, task: ReportedTask) -> tuple[Metric, float, str] | None:
    """The metric that follows from one which a task has not, its value, and how; to as many digits as that was said."""
    name = _in_words_of_tasks(said)
    kind = next((one for one in CONVERTED if name == one or name.endswith(f"_{one}")), "")
    if not kind or not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        return None
    other, convert, how = CONVERTED[kind]
    metric = metric_of(f"{name.removesuffix(kind)}{other}", task)
    if metric is None or (kind == "perplexity" and not metric.unit.startswith("nats")):
        return None
    last_digit = 10.0 ** int(Decimal(f"{value:.10g}").as_tuple().exponent)
    differs = abs(convert(value + last_digit) - convert(value))
    return metric, round(convert(value), max(0, -math.floor(math.log10(differs)))), how


def without_a_number(value: Any, metric: Metric, task: ReportedTask) -> Floor | None:
    """What a run that ended in NaN or an infinity may be held for: one that knows nothing; None for a number."""
    if str(value).lower().lstrip("+-.") not in ("nan", "inf", "infinity"):
        return None
    floors = [one for one in task.floors() if metric.name in (one.metric, one.metric.replace("val_", "train_"))]
    return next((one for kind in ("chance", "simple") for one in floors if one.kind == kind), None)


def limits_of(metric: Metric) -> tuple[float, float]:
    """Between which numbers every value of a metric lies."""
    least = 0.0 if metric.unit == "fraction" or metric.better == "lower" else -math.inf
    return least, 1.0 if metric.unit == "fraction" else math.inf


def check_value(where: str, metric: Metric, value: Any) -> None:
    """Raise unless a value is one that the metric can have."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        hint = " (53.1 % is 0.531)" if "%" in str(value) else ""
        raise SpecError(f"{where}: {metric.name} must be a number ({metric.unit}); got {value!r}{hint}")
    if metric.unit == "fraction" and not 0 <= value <= 1:
        raise SpecError(f"{where}: {metric.name} is a fraction of 1; got {value:g} (53.1 % is 0.531)")
    if metric.better == "lower" and value < 0:
        raise SpecError(f"{where}: {metric.name} cannot be below 0; got {value:g}")
