"""A case: what a person ran, what they saw, and what they expected instead."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

from attnlab.core.contracts import Metric, StudyTask
from attnlab.core.errors import SpecError, nearest
from attnlab.explain.metrics import (
    IN_TRAINING,
    WrittenNumber,
    as_written,
    check_value,
    converted,
    limits_of,
    metric_of,
    metrics_of,
    without_a_number,
)
from attnlab.studies.define.assemble import build_task
from attnlab.studies.define.reading import find, library, line_of, plain_types, read
from attnlab.studies.define.study import Study, at_scale, parse_study, with_model
from attnlab.tasks.held_out import part_of
from attnlab.training.recipe.recipe import steps_of_epochs, steps_per_epoch

KEYS = ("question", "task", "model", "variants", "training", "saw", "expected", "runs", "reported", "scales")
"""What a case may say."""
NEEDED = ("question", "task", "model", "variants", "training", "saw", "expected")
REPORTED = ("last", "best")
"""Whether numbers are those at the end of training, or the best of all evaluations."""
FORMS = (
    "'A is better than B', 'A is worse than B', 'A is as good as B' (each perhaps with 'by 0.1'), "
    "'A reaches METRIC 1.5', or a mapping {variant: {metric: value}}"
)
"""How an expectation may be written."""
_COMPARED = re.compile(r"(.+?) is (better than|worse than|as good as) (.+?)(?: by ([\d.eE+-]+))?", re.DOTALL)
_REACHED = re.compile(r"(.+?) reaches (\w+) (?:of )?([\d.eE+-]+)", re.DOTALL)
_WORDINGS = (
    (re.compile(r"\b(should|must|would) be\b"), "is"),
    (re.compile(r"\b((should|must|would) )?(beats?|outperforms?)\b"), "is better than"),
    (re.compile(r"\bis (not worse than|no worse than|at least as good as)\b"), "is better than"),
    (re.compile(r"\b(should|must|would) reach\b"), "reaches"),
)
"""How the same is said otherwise; what is as good as another is no worse than it, so that it need not be better."""

Numbers = Mapping[str, Mapping[str, float]]
"""By variant and metric."""


@final
@dataclass(frozen=True)
class Quantity:
    """Hold the one number that is explained: a metric of a variant, or its difference from another's."""

    metric: Metric  # what was measured
    variant: str  # of which variant
    beside: str | None  # the variant that is subtracted; None for the metric itself
    seen: float  # what the person saw
    expected: float  # the value nearest to it that would not have surprised
    one_sided: bool = False  # whether any number beyond that would not have surprised either

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants it is about."""
        return (self.variant,) if self.beside is None else (self.variant, self.beside)

    @property
    def words(self) -> str:
        """What it is called."""
        of = f"{self.metric.name} of '{self.variant}'"
        return of if self.beside is None else f"{of} minus that of '{self.beside}'"

    @property
    def distance(self) -> float:
        """What is to be explained: seen minus expected."""
        return self.seen - self.expected

    @property
    def limits(self) -> tuple[float, float]:
        """Between which numbers it lies, whatever runs give."""
        low, high = limits_of(self.metric)
        return (low, high) if self.beside is None else (low - high, high - low)

    @property
    def worse_than_thought(self) -> str:
        """The variant that did worse than was expected; of a comparison the one that did too well is the other."""
        behind = self.metric.improves(self.expected, self.seen)
        return self.variant if behind or self.beside is None else self.beside

    def surprises(self, number: float, part: float) -> bool:
        """Whether a number lies off what was expected by more than a part of what was seen, on its side."""
        return (number - self.expected) * math.copysign(1.0, self.distance) > part * abs(self.distance)

    def value(self, by_variant: Mapping[str, float]) -> float:
        """The quantity, from its metric by variant."""
        own = by_variant[self.variant]
        return own if self.beside is None else own - by_variant[self.beside]


@final
@dataclass(frozen=True)
class Case:
    """Hold a number that surprised somebody.

    Parameters
    ----------
    study : Study
        What they ran: task, models, recipe and budget; its baseline is the first variant.
    saw : mapping
        The numbers they saw, by variant and metric.
    quantity : Quantity
        The one that is explained, with what was expected.
    runs : int
        How many runs each number is the mean of.
    reported : {"last", "best"}
        Whether they are the numbers at the end, or the best of all evaluations.
    notes : tuple of str
        How the case was read where it left a choice.
    scale : str, optional
        The scale that was merged in: then runs are of another size, and what was seen is not held against them.
    """

    study: Study
    saw: Numbers
    quantity: Quantity
    runs: int = 1
    reported: Literal["last", "best"] = "last"
    notes: tuple[str, ...] = ()
    scale: str | None = None

    def to_json(self) -> dict[str, Any]:
        """What identifies the case, as plain data."""
        asked = {key: getattr(self.quantity, key) for key in ("variant", "beside", "seen", "expected")}
        asked |= {"metric": self.quantity.metric.name}
        return {
            "study": self.study.to_json(),
            "files": self.study.files(),
            "saw": {name: dict(row) for name, row in self.saw.items()},
            "quantity": asked,
            "runs": self.runs,
            "reported": self.reported,
            "scale": self.scale,
        }


def cases() -> dict[str, Path]:
    """The cases that come with the lab, by name."""
    return library("attnlab.explain")


def load_case(source: str | Path, *, scale: str | None = None) -> Case:
    """Read a case from a file or from the library.

    Parameters
    ----------
    source : str or Path
        Path of a YAML file, or the name of a case of the library.
    scale : str, optional
        Name of one of the file's ``scales``, merged over the rest.

    Returns
    -------
    Case
        The checked case.

    Raises
    ------
    SpecError
        If there is no such case, or with file and line of what is wrong with it.
    DataError
        If its data are missing.
    """
    path = find(source, cases(), "case")
    return parse_case(read(path), path=path, scale=scale)


def load_asked(source: str | Path, *, scale: str | None = None) -> Study:
    """Read a study, or as one that judges nothing what was run in a case; else as `load_case`."""
    path = find(source, {**cases(), **library()}, "study")
    raw = read(path)
    if isinstance(raw, Mapping) and "saw" in raw:
        return parse_case(raw, path=path, scale=scale).study
    return parse_study(raw, name=path.stem, scale=scale, path=path)


def parse_case(raw: Mapping[str, Any], *, path: Path | None = None, scale: str | None = None) -> Case:
    """Check a case given as a mapping.

    Parameters
    ----------
    raw : mapping
        The case, as a file would say it.
    path : Path, optional
        Where it was read; relative paths start at its folder, else at the current one.
    scale : str, optional
        Name of one of its ``scales``, merged over the rest.

    Returns
    -------
    Case
        The checked case.

    Raises
    ------
    SpecError
        With the key that is wrong, and its line in the file.
    """
    if not isinstance(raw, Mapping):
        raise SpecError(f"{path or 'case'}: a case must be a mapping; got {type(raw).__name__}")
    plain = plain_types(raw) | ({"saw": as_written(raw["saw"])} if "saw" in raw else {})
    said = at_scale(plain, scale, str(path or "case"))
    return _Reader(said, raw if scale is None else said, path).case(scale)


@final
class _Reader:
    """Read one case, and know where each of its keys stands."""

    def __init__(self, said: dict[str, Any], raw: Mapping[str, Any], path: Path | None) -> None:
        self._said, self._raw, self._path = with_model(said), raw, path

    def case(self, scale: str | None) -> Case:
        self._check_keys()
        study, steps_notes = self._study()
        task = self._task(study)
        saw, notes = self._saw(study, task)
        quantity = self._quantity(study, task, saw)
        return Case(study, saw, quantity, self._runs(), self._reported(), (*steps_notes, *notes), scale)

    def _check_keys(self) -> None:
        for key in self._said:
            if key not in KEYS:
                raise self._wrong(key, f"unknown key '{key}'; {nearest(key, KEYS)}")
        for key in NEEDED:
            if not self._said.get(key):
                raise self._wrong(key, f"'{key}' is missing; a case says {', '.join(NEEDED)}")
        if not isinstance(self._said["training"], dict) or not isinstance(self._said["variants"], dict):
            raise self._wrong("training", "training and variants must be mappings")

    def _study(self) -> tuple[Study, tuple[str, ...]]:
        """What was run, as a study of one seed that judges nothing."""
        budget = self._said["training"].get("budget")
        budget = {k: v for k, v in budget.items() if v is not None} if isinstance(budget, dict) else budget
        if not isinstance(budget, dict) or len(budget) != 1 or not {*budget} <= {"steps", "epochs", "tokens"}:
            raise self._wrong("training", f"training.budget must be one of steps, epochs, tokens; got {budget!r}")
        if "epochs" not in budget:
            return self._with_budget(budget), ()
        steps, note = self._in_steps(budget["epochs"], self._task(self._with_budget({"steps": 1})))
        return self._with_budget({"steps": steps}), (note,)

    def _with_budget(self, budget: Mapping[str, Any]) -> Study:
        """What was run, with a budget that studies know."""
        said = {key: self._said[key] for key in ("question", "task", "model", "variants")}
        training = {key: value for key, value in self._said["training"].items() if key != "budget"}
        said |= {"baseline": next(iter(self._said["variants"])), "training": training}
        said |= {"rules": {"budget": budget, "seeds": 1, "smallest_effect": 0.0}}
        name = self._path.stem if self._path else "case"
        return parse_study(self._placed(said), name=name, path=self._path)

    def _placed(self, said: dict[str, Any]) -> Mapping[str, Any]:
        """What a study is made of, with the lines of the case's file where there is one."""
        copy = getattr(self._raw, "copy", None)
        if copy is None or not hasattr(self._raw, "lc"):
            return said
        placed = copy()
        for key in [key for key in placed if key not in said]:
            del placed[key]
        for key in [key for key in said if key not in placed or key in ("baseline", "training", "rules")]:
            placed[key] = said[key]
        return placed

    def _in_steps(self, epochs: Any, task: StudyTask) -> tuple[int, str]:
        """A budget in epochs as steps of a task, and in words."""
        if not isinstance(epochs, int | float) or isinstance(epochs, bool) or not 0 < epochs < math.inf:
            raise self._wrong("training", f"training.budget.epochs must be a positive number; got {epochs!r}")
        try:
            per_epoch = steps_per_epoch(task)
        except SpecError as error:
            raise self._wrong("training", f"training.budget: {error}") from None
        steps = steps_of_epochs(epochs, per_epoch)
        return steps, f"{epochs:g} epochs are {steps} steps of this task ({per_epoch:.5g} an epoch)"

    def _saw(self, study: Study, task: Any) -> tuple[Numbers, tuple[str, ...]]:
        said, read, notes = self._said["saw"], {}, []
        if not isinstance(said, dict):
            raise self._wrong("saw", f"saw must be a mapping {{variant: {{metric: value}}}}; got {said!r}")
        for variant, row in _by_variant(said, study).items():
            if variant not in study.variants:
                raise self._wrong("saw", f"saw: '{variant}' is no variant; {nearest(variant, study.variants)}")
            if not isinstance(row, dict):
                raise self._wrong("saw", f"saw: {variant}: a number without a metric: write {{metric: {row!r}}}")
            read[variant], told = self._row(f"saw.{variant}", row, task)
            notes += told
        return read, tuple(dict.fromkeys(notes))

    def _row(self, where: str, row: Mapping[str, Any], task: Any) -> tuple[dict[str, float], list[str]]:
        """The numbers of one variant by the task's names of metrics."""
        found, notes = {}, []
        for said, value in row.items():
            metric, read, how = metric_of(said, task), value, ""
            if metric is None and (other := converted(said, value, task)):
                metric, read, how = other
            if metric is None:
                known = ", ".join(metrics_of(task))
                raise self._wrong("saw", f"{where}: task '{task.name}' has no metric '{said}'; it has {known}")
            if (lost := without_a_number(value, metric, task)) is not None:
                read, how = lost.value, f"which {lost.name} gives: what does not end in a number has learned nothing"
            try:
                check_value(where, metric, read)
            except SpecError as error:
                raise self._wrong(where.partition(".")[0], str(error)) from None
            found[metric.name] = read if isinstance(read, WrittenNumber) else float(read)
            if how:
                told = value if lost else format(value, "g")
                notes.append(f"'{said}' {told} is read as {metric.name} {read:g}, {how}")
            elif metric.name != said:
                notes.append(f"'{said}' is read as {metric.name}, {metric.title}")
        return found, notes

    def _quantity(self, study: Study, task: Any, saw: Numbers) -> Quantity:
        said = self._said["expected"]
        if isinstance(said, Mapping):
            return self._of_mapping(said, study, task, saw)
        if isinstance(said, str):
            text = " ".join(said.split()).rstrip(".")
            if not (_COMPARED.fullmatch(text) or _REACHED.fullmatch(text)):
                for wording, words in _WORDINGS:
                    text = wording.sub(words, text)
            compared, reached = _COMPARED.fullmatch(text), _REACHED.fullmatch(text)
            if compared:
                return self._of_comparison(*compared.groups(), study=study, saw=saw, task=task)
            if reached:
                variant, metric, value = reached.groups()
                row = {metric: self._number(value)}
                found = self._of_mapping({self._variant(variant, study): row}, study, task, saw)
                already = found.metric.improves(found.seen, found.expected)
                return replace(found, expected=found.seen) if already else found
        raise self._wrong("expected", f"expected cannot be read: {said!r}; it may be {FORMS}")

    def _of_mapping(self, said: Mapping[str, Any], study: Study, task: Any, saw: Numbers) -> Quantity:
        """The first number of a mapping that was seen too, and seen otherwise where there is such a one."""
        metrics, found = metrics_of(task), list[Quantity]()
        for variant, row in _by_variant(said, study).items():
            if not isinstance(row, Mapping):
                raise self._wrong("expected", f"expected: {variant}: a number without a metric; it may be {FORMS}")
            name = self._variant(variant, study)
            numbers, _ = self._row(f"expected.{name}", row, task)
            seen = saw.get(name, {})
            found += [Quantity(metrics[one], name, None, seen[one], numbers[one]) for one in numbers if one in seen]
        if not found:
            words = "expected names no number that saw has: one variant and metric must be in both"
            raise self._wrong("expected", words)
        return next((one for one in found if one.distance), found[0])

    def _of_comparison(
        self, one: str, relation: str, other: str, by: str | None, *, study: Study, saw: Numbers, task: Any
    ) -> Quantity:
        """The difference of two variants on the first metric seen of both."""
        variant, beside = self._variant(one, study), self._variant(other, study)
        if variant == beside:
            raise self._wrong("expected", f"expected compares '{variant}' with itself")
        shared = [metric for metric in saw.get(variant, {}) if metric in saw.get(beside, {})]
        if not shared:
            words = f"saw has no metric of both '{variant}' and '{beside}'"
            raise self._wrong("expected", f"{words}{_of_different_data(saw, variant, beside)}")
        metric = metrics_of(task)[shared[0]]
        size = 0.0 if by is None else self._number(by)
        if size < 0:
            raise self._wrong("expected", f"expected: 'by {by}' is no difference: it must be 0 or more")
        numbers = [saw[name][metric.name] for name in (variant, beside)]
        digits = [one.digits for one in numbers if isinstance(one, WrittenNumber)]
        seen = numbers[0] - numbers[1]
        if len(digits) == len(numbers):
            seen = WrittenNumber(seen, min(digits))  # as coarse as the coarser one
        better = {"better than": 1, "worse than": -1, "as good as": 0}[relation]
        sign = -better if metric.better == "lower" else better
        nearest_to_seen = sign * max(size, sign * seen) if better else max(-size, min(size, seen))
        expected = nearest_to_seen + 0.0  # what is as expected needs no explanation; no minus before a 0
        return Quantity(metric, variant, beside, seen, expected, one_sided=bool(better))

    def _number(self, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise self._wrong("expected", f"expected: '{text}' is no number") from None

    def _variant(self, said: str, study: Study) -> str:
        name = said.strip().strip("'\"")
        if name not in study.variants:
            known = nearest(name, study.variants)
            raise self._wrong("expected", f"expected: '{name}' is no variant; {known}; it may be {FORMS}")
        return name

    def _runs(self) -> int:
        runs = self._said.get("runs", 1)
        if not isinstance(runs, int) or isinstance(runs, bool) or runs < 1:
            raise self._wrong("runs", f"runs must be the number of runs behind each number, 1 or more; got {runs!r}")
        return runs

    def _reported(self) -> Any:
        reported = self._said.get("reported", "last")
        if reported not in REPORTED:
            raise self._wrong("reported", f"reported must be one of {', '.join(REPORTED)}; got {reported!r}")
        return reported

    def _task(self, study: Study) -> StudyTask:
        """The task, of which a wrong argument is an error of the case's file."""
        try:
            return build_task(study.task_spec())
        except SpecError as error:
            raise self._wrong("task", str(error)) from None

    def _wrong(self, key: str, text: str) -> SpecError:
        """An error with file and line."""
        if self._path is None:
            return SpecError(text)
        line = line_of(self._raw, [key])
        return SpecError(f"{self._path}{f' line {line}' if line else ''}: {text}")


def _by_variant(said: Mapping[str, Any], study: Study) -> Mapping[str, Any]:
    """Numbers by variant and metric; of a case of one variant they may stand without its name."""
    named = any(isinstance(row, Mapping) or name in study.variants for name, row in said.items())
    alone = len(study.variants) == 1 and not named
    return {next(iter(study.variants)): said} if alone else said


def _of_different_data(saw: Numbers, one: str, other: str) -> str:
    """What is wrong with numbers of two variants of which one are of training, say, and the others of held-out data."""
    kinds = [{"training" if name in IN_TRAINING else part_of(name) for name in saw.get(v, {})} for v in (one, other)]
    if not all(kinds) or "" in kinds[0] | kinds[1] or kinds[0] & kinds[1]:
        return ""
    seen = " and ".join(f"{', '.join(saw[variant])} of '{variant}'" for variant in (one, other))
    return f": {seen} are of different data, and do not compare; give both of the same"
