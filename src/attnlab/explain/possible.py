"""Can it be? Every number that was seen, held against what its task allows and its variant's reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from attnlab.core.contracts import Floor, Metric, StudyTask
from attnlab.explain.case import Case, Quantity
from attnlab.explain.causes.own_code import model_parameters
from attnlab.explain.causes.signatures import Measured
from attnlab.explain.metrics import metrics_of
from attnlab.explain.trials.setups import Setup
from attnlab.tasks.arrays.classify import SUREST
from attnlab.tasks.held_out import PREFIXES, SUSPICIOUS_OVERLAP, part_of

LEAKS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "char-lm": ({"split": "windows"}, {"split": "inside"}),
    "shapes": ({"split": "inside"},),
}
"""By task the wrong splits that it can make: held-out windows that overlap others, and what is held out trained on."""

Z = 1.96
"""Standard errors of what 95 of 100 draws lie within."""
MOST_NATS = 100.0
"""Loss from which on a perplexity is as good as infinite."""
FLAT, BY_HEART, MOST_WRONG = 0.5, 0.25, 0.4
"""Where labels are wrong by chance: the surest answers are wrong at least this part as often as all (0.3 where classes
overlap, 0.65 and more where labels are wrong), answers to what was trained on are right more often by no more than this
part of all that are wrong, and no more of the surest are wrong than this."""
LABELS = "Read the labels of held-out items that a run is sure of and that have another one."
ARRAYS: Mapping[str, str] = {"classify": "labels", "sequences": "targets"}
"""Tasks of a person's own files, which are held out as well, and what names the file beside that of the inputs."""


@final
@dataclass(frozen=True)
class Impossible:
    """Hold a number that nothing honest reaches, or that is no better than knowing nothing."""

    variant: str  # name in the case
    metric: str  # name of the metric
    value: float  # what was seen
    floor: str  # what it is held against
    limit: float  # its value
    kind: str  # "impossible" below a limit, "unknown" beyond the best known result, "unlearned" at chance or worse
    sees: int | None = None  # input positions that the variant's outputs depend on, where that sets the limit

    @property
    def words(self) -> str:
        """What is wrong with it, in a sentence."""
        got = f"{self.metric} {self.value:.4g} of '{self.variant}'"
        if self.kind == "unlearned":
            limit = f"that of '{self.floor}' ({self.limit:.4g})"
            return f"{got} is no better than {limit}: nothing that was learned holds for what was held out"
        if self.kind == "unknown":
            return f"{got} is better than the {self.floor} result ({self.limit:.4g})"
        positions = "one input position" if self.sees == 1 else f"{self.sees} input positions"
        seen = "" if self.sees is None else f", and its outputs depend on {positions}"
        return f"{got} lies beyond {self.floor} ({self.limit:.4g}){seen}"


def impossible(case: Case, task: StudyTask, measured: Mapping[str, Measured]) -> list[Impossible]:
    """The numbers of a case that cannot be what they seem, of each variant the first, as measured before training.

    However a task splits, its floors are those of a clean split.
    """
    metrics = metrics_of(task)
    found: dict[str, Impossible] = {}
    for variant, row in case.saw.items():
        for name, value in row.items():
            for one in _held_against(variant, metrics[name], value, task, measured.get(variant, {})):
                found.setdefault(variant, one)
    return list(found.values())


def _held_against(
    variant: str, metric: Metric, value: float, task: StudyTask, measured: Measured
) -> Iterator[Impossible]:
    """The strictest limit that a value breaks, else that it is no better than chance."""
    floors = [floor for floor in task.floors() if floor.metric == metric.name]
    broken = [
        floor for floor in floors if floor.kind == "floor" and _holds(floor, measured) and _beats(metric, value, floor)
    ]
    if broken:
        floor = max(broken, key=lambda one: one.value if metric.better == "lower" else -one.value)
        sees = int(measured["reach"]) if floor.reach is not None else None
        yield Impossible(variant, metric.name, value, f"the limit '{floor.name}'", floor.value, "impossible", sees)
        return
    for floor in floors:
        if floor.kind == "best" and _beats(metric, value, floor):
            yield Impossible(variant, metric.name, value, floor.name, floor.value, "unknown")
        if floor.kind == "chance" and not metric.improves(value, floor.value):
            yield Impossible(variant, metric.name, value, floor.name, floor.value, "unlearned")


def _holds(floor: Floor, measured: Measured) -> bool:
    if floor.reach is None:
        return True
    sees_more = measured.get("ahead", 0.0) or measured.get("mixes", 0.0)
    return not sees_more and measured.get("reach", floor.reach + 1) <= floor.reach


def _beats(metric: Metric, value: float, floor: Floor) -> bool:
    limit = floor.value - floor.tolerance if metric.better == "lower" else floor.value + floor.tolerance
    return metric.improves(value, limit)


def coarse(case: Case, task: StudyTask) -> list[str]:
    """Of an accuracy that is explained, how coarse it is, where few held-out answers hide the whole distance."""
    quantity = case.quantity
    error = another_draw(quantity.metric, case.saw[quantity.variant][quantity.metric.name], task)
    if not error or error < abs(quantity.distance):
        return []
    count = _answers(quantity.metric, task)
    return [
        f"{quantity.metric.name} is the share of {count} held-out answers that are right: one of them is "
        f"{1 / count:.2g}, and another draw of {count} would move it by up to about {error:.2g}"
    ]


def another_draw(metric: Metric, share: float, task: StudyTask) -> float:
    """How far another draw of held-out answers would move an accuracy, in 95 of 100; 0 where nothing says."""
    count = _answers(metric, task)
    return Z * math.sqrt(share * (1 - share) / count) if count else 0.0


def _answers(metric: Metric, task: StudyTask) -> int:
    """How many held-out answers an accuracy is the share of; 0 where nothing says."""
    part = part_of(metric.name)
    is_accuracy = bool(part) and metric.name == f"{PREFIXES[part]}_accuracy"
    return getattr(task, "answers", {}).get(part, 0) if is_accuracy else 0


@final
@dataclass(frozen=True)
class Allowed:
    """Hold what a case's data allow, where what was expected is worse than that, or better."""

    value: float  # of the metric that is explained
    words: str  # how that is known, in a sentence
    what_next: str  # what to do about it


def allowed(case: Case, task: StudyTask) -> Allowed | None:
    """What these data allow without any network, where a number is too good and no part of them is memory."""
    quantity = case.quantity
    metric, expected = quantity.metric, quantity.expected
    if quantity.beside is not None or not metric.improves(quantity.seen, expected):
        return None
    copied = getattr(task, "overlaps", {}).get(part_of(metric.name))
    reached = [
        one
        for one in task.floors()
        if one.metric == metric.name
        and (one.kind == "simple" or (one.kind == "floor" and one.reach is not None))
        and metric.improves(one.value, expected)
    ]
    if not reached or (copied or 0.0) >= SUSPICIOUS_OVERLAP:
        return None
    best = (min if metric.better == "lower" else max)(reached, key=lambda one: one.value)
    beside = "" if copied is None else f", of which {copied:.1%} stands in the training part"
    words = f"Without any network '{best.name}' reaches {best.value:.4g} of what is held out{beside}"
    return Allowed(best.value, words, f"Compare with numbers of these data: {expected:.4g} is no measure for them.")


def labels_allow(quantity: Quantity, right: float, surest: float, trained: float, task: StudyTask) -> Allowed | None:
    """The most that labels allow, where runs are wrong about as often where they are sure as where they are not.

    What is hard is where a model is not sure. A label that is wrong by chance is so wherever it stands. So is the
    answer of a model that learned items by heart, which is right of these, or of one that learned a part of the rule
    alone, which is wrong more often than labels are.

    Parameters
    ----------
    quantity : Quantity
        An accuracy that lies behind what was expected.
    right, surest : float
        That of runs without all that was found to carry something, of all that is held out and of the part of it they
        are surest of.
    trained : float
        Their accuracy of what they trained on.
    task : StudyTask
        The task of the case.

    Returns
    -------
    Allowed or None
        None where that is not so, or what was expected is no better.
    """
    wrong, of_all, count = 1 - surest, 1 - right, SUREST * _answers(quantity.metric, task)
    by_chance = count and wrong > Z * math.sqrt(wrong * (1 - wrong) / count)
    learned = trained - right <= BY_HEART * of_all
    if not by_chance or not learned or not FLAT * of_all <= wrong <= MOST_WRONG or quantity.expected <= surest:
        return None
    words = (
        f"Even of the {SUREST:.0%} of held-out items that runs are surest of, {wrong:.0%} have another label (of all "
        f"{of_all:.0%}), as where labels are wrong by chance, or depend on what no model was given: then about "
        f"{surest:.0%} is the most that can be named right. A rule of which they learned a part may look like this"
    )
    return Allowed(surest, words, LABELS)


def ways(setup: Setup, one: Impossible) -> list[Setup]:
    """Other set-ups that may give a number which this one cannot: it with every wrong split that its task can make.

    Where its outputs see too little, and a model of the lab reads them off position by position, also it with one
    answer that is read off all positions.
    """
    found = leaks(setup)
    if one.sees is not None and setup.task["name"] == "char-lm" and "readout" in model_parameters(setup.model):
        read_off = setup.changed({"task": {"predict": "last"}, "model": {"readout": "window", "tied": False}})
        found.append(replace(read_off, name=f"{setup.name}, one answer read off all positions"))
    return found


def leaks(setup: Setup) -> list[Setup]:
    """A set-up with every wrong split that its task can make."""
    task, name = setup.task, str(setup.task["name"])
    splits = [one for one in LEAKS.get(name, ()) if task.get("split") != one["split"]]
    if name in ARRAYS and "inputs" in task:
        paired = str(task["inputs"]).endswith(".npy")
        splits = [{"validation": [task["inputs"], task[ARRAYS[name]]] if paired else task["inputs"]}]
    return [
        replace(setup.changed({"task": one}), name=f"{setup.name}, {one.get('split', 'inside')} split")
        for one in splits
    ]


def readings(metric: Metric, task: StudyTask) -> Iterator[tuple[str, Callable[[float], float]]]:
    """Yield what a metric is mistaken for, by name, and how that is computed from the metric."""
    if metric.unit.startswith("nats"):
        yield "bits for nats", lambda value: value / math.log(2)
        yield "perplexity for loss", lambda value: math.exp(min(value, MOST_NATS))
        if isinstance(length := task.model_arguments().get("max_length"), int):
            yield "a sum over positions for their mean", lambda value: value * length
    if "mse" in metric.name:
        yield "the root of the squared error", math.sqrt
        if (deviation := getattr(task, "deviation", None)) is not None:
            yield "an error in units of the data for one in normalized ones", lambda value: value * deviation**2
    if metric.unit == "fraction":
        yield "wrong answers for right ones", lambda value: 1 - value
