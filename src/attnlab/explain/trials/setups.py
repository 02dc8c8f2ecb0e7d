"""Set-ups: one way to train one variant, and the runs of it, each made once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from attnlab.core.contracts import Metric
from attnlab.core.errors import SpecError
from attnlab.core.files import fingerprint, read_json
from attnlab.core.processes.apart import names_own_code
from attnlab.explain.case import Case
from attnlab.explain.metrics import TRAIN_LOSS
from attnlab.studies.define.study import merge, slug
from attnlab.studies.plan.plan import Plan
from attnlab.studies.run.executor import Executor, Job
from attnlab.studies.run.folder import is_done
from attnlab.training.keeping.diagnosis import NonFiniteError
from attnlab.training.keeping.result import read_record
from attnlab.training.keeping.runs import FAILED, read_metrics

THE_END = 0.1
"""The last part of the steps, over which the loss in training is averaged."""

BY_HAND = {"weight_decay": 0.0, "schedule": "constant", "warmup": 0.0, "clip": None}
"""What a case's training has where it says nothing: what a plain loop around Adam does."""
ENDS_EARLIER = frozenset({"early_stop", "stop_at"})
"""Settings by which evaluations may end a run."""
AT_THE_END = 10**9
"""Steps between evaluations of runs whose end alone counts: more than any has."""

OnRun = Callable[[str, int, Mapping[str, Any]], None]
"""Told of every run that ended: its set-up's name, its seed, and its metrics or error."""


@final
@dataclass(frozen=True)
class Setup:
    """Hold all that fixes how one variant is trained, but for the seed."""

    name: str  # what it is called, for people and folders
    task: Mapping[str, Any]  # the task's specification
    model: Mapping[str, Any]  # the model's
    training: Mapping[str, Any]  # settings of the recipe, the budget in steps among them
    judged: bool = False  # whether a trained model is judged as a whole, by what it writes

    @property
    def key(self) -> str:
        """What is equal for equal set-ups, whatever they are called."""
        judged = {"judged": True} if self.judged else {}
        return fingerprint({"task": self.task, "model": self.model, "training": self.training, **judged})[:10]

    @property
    def steps(self) -> int:
        """Training steps of a run."""
        return self.training["budget"]["steps"]

    def changed(self, change: Mapping[str, Mapping[str, Any]]) -> Setup:
        """The same with other settings of ``task``, ``model`` and ``training`` merged over."""
        return replace(self, **{where: merge(getattr(self, where), settings) for where, settings in change.items()})

    def spec(self, seed: int) -> dict[str, Any]:
        """What a worker is given for one run."""
        return {
            "task": dict(self.task),
            "model": dict(self.model),
            "recipe": dict(self.training),
            "flops_per_token": 1.0,  # read by budgets in FLOPs alone
            "seed": seed,
            "look_inside": False,
            "judge": self.judged,
        }


def as_run(case: Case, plan: Plan) -> dict[str, Setup]:
    """Variants as the person ran them, evaluated at the end alone where that is what they report."""
    said, found = {metric for row in case.saw.values() for metric in row}, {}
    judged = not said.isdisjoint(metric.name for metric in plan.task.judged)
    for variant in plan.variants:
        name, task = variant.name, case.study.task_spec(variant.name)
        if variant.steps is None:
            raise SpecError("training.budget must be in steps, epochs or tokens")
        training = BY_HAND | variant.training | {"budget": {"steps": variant.steps}}
        if case.reported == "last" and ENDS_EARLIER.isdisjoint(training):
            training["evaluate_every"] = AT_THE_END
        spec = task if isinstance(task, Mapping) else {"name": task}
        found[name] = Setup(name, spec, variant.model, training, judged)
    return found


@final
@dataclass(frozen=True)
class Run:
    """Hold what one run reached."""

    metrics: Mapping[str, float]  # at the end; empty where it failed
    curve: Sequence[Mapping[str, float]] = ()  # one row an evaluation
    seconds: float = 0.0  # of training
    error: str = ""  # why it failed
    raised: bool = False  # whether it was code that failed, and no number that was not finite

    @property
    def steps(self) -> int:
        """After how many steps it ended."""
        return max((int(row["step"]) for row in self.curve), default=0)

    def value(self, metric: Metric, reported: str) -> float:
        """A metric at the end, or the best of all evaluations; not a number where the run failed."""
        values = [row[metric.name] for row in self.curve if metric.name in row] if reported == "best" else []
        values += [self.metrics[metric.name]] if metric.name in self.metrics else []
        return (min if metric.better == "lower" else max)(values, default=math.nan)


@final
@dataclass
class Runs:
    """Make runs of set-ups, and remember what each reached: in this folder, for good."""

    folder: Path  # where runs lie, each in a folder of its own
    executor: Executor  # what computes them
    on_run: OnRun  # told of every run that ends
    device: str = "cpu"  # or "cuda"
    workers: int = 1  # how many runs it computes side by side
    _known: dict[tuple[str, int], Run] = field(default_factory=dict)  # by key of the set-up, and seed
    _made_s: float = 0.0  # how long the runs took that were made here
    _made_steps: int = 0  # how many steps they had in a row

    def of(self, setups: Sequence[Setup], seeds: Sequence[int]) -> dict[str, dict[int, Run]]:
        """The runs of set-ups, by their names and seeds; those that are not there yet are made, seed by seed."""
        wanted = {(setup.key, seed): setup for seed in seeds for setup in setups}
        missing = [(setup, seed) for (key, seed), setup in wanted.items() if (key, seed) not in self._known]
        todo = [(setup, seed) for setup, seed in missing if not is_done(self.folder_of(setup, seed), setup.spec(seed))]
        errors: dict[int, str] = {}

        def tell(number: int, message: Mapping[str, Any]) -> None:
            setup, seed = todo[number]
            if message["kind"] in ("failed", "broken"):
                errors[number] = message["error"]
            if message["kind"] == "finished":  # with what is read off its curve, such as the loss in training
                message = {**message, "metrics": {**message["metrics"], **self._read(setup, seed, "").metrics}}
            if message["kind"] in ("finished", "failed", "broken"):
                self.on_run(setup.name, seed, message)

        if todo:
            begun = time.monotonic()
            self.executor.run([self._job(setup, seed) for setup, seed in todo], tell)
            self._made_s += time.monotonic() - begun
            self._made_steps += self._in_a_row([setup.steps for setup, _ in todo])
        failed = {(todo[number][0].key, todo[number][1]): error for number, error in errors.items()}
        for setup, seed in missing:
            place = (setup.key, seed)
            self._known[place] = self._read(setup, seed, failed.get(place, "it left no result"))
        return {setup.name: {seed: self._known[setup.key, seed] for seed in seeds} for setup in setups}

    def are_made(self, setups: Sequence[Setup], seeds: Sequence[int]) -> bool:
        """Whether these runs are known already."""
        return all((setup.key, seed) in self._known for setup in setups for seed in seeds)

    def seconds_of(self, setups: Sequence[Setup], seeds: Sequence[int]) -> float:
        """How long the runs take that are not made yet, as the runs before took; 0 before the first."""
        missing = [setup.steps for setup in setups for seed in seeds if (setup.key, seed) not in self._known]
        return self._in_a_row(missing) * self._made_s / max(1, self._made_steps)

    def _in_a_row(self, steps: Sequence[int]) -> int:
        """How many steps follow one another where runs of so many steps are made side by side, the longest first."""
        return sum(sorted(steps, reverse=True)[:: self.workers])

    def place(self, setup: Setup) -> Path:
        """The folder of a set-up: by its name where it is new, where it was begun otherwise."""
        begun = sorted(self.folder.glob(f"*-{setup.key}"))
        return begun[0] if begun else self.folder / f"{slug(setup.name)[:60]}-{setup.key}"

    def folder_of(self, setup: Setup, seed: int) -> Path:
        """The folder of one run."""
        return self.place(setup) / f"seed-{seed}"

    def _job(self, setup: Setup, seed: int) -> Job:
        own = names_own_code([setup.model, setup.training, setup.task])
        folder = str(self.folder_of(setup, seed).absolute())
        apart = setup.key if own else ""
        return Job((folder,), (setup.spec(seed),), threads=1, device=self.device, apart=apart)

    def _read(self, setup: Setup, seed: int, otherwise: str) -> Run:
        folder = self.folder_of(setup, seed)
        if is_done(folder, setup.spec(seed)):
            result = read_record(folder, required=True) or {}
            curve = read_metrics(folder)
            return Run({**result["metrics"], TRAIN_LOSS: _at_the_end(curve)}, curve, result["seconds"])
        failure = folder / FAILED
        said = read_json(failure) if failure.exists() else {"error": otherwise}
        return Run({}, error=said["error"], raised=said.get("kind") != NonFiniteError.__name__)


def _at_the_end(curve: Sequence[Mapping[str, float]]) -> float:
    """The mean loss in training over the last steps."""
    begin = (1 - THE_END) * max((row["step"] for row in curve), default=0)
    late = [row[TRAIN_LOSS] for row in curve if row["step"] > begin and TRAIN_LOSS in row]
    return sum(late) / len(late) if late else math.nan
