"""What a study would cost, and whether it can be run at all, before a second is spent.

Every variant is built on the meta device: what cannot be built is said for all variants at once;
parameters, FLOPs and memory are read off the built module; widths are matched where the rules ask for it.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import torch

from attnlab.core.build import parse
from attnlab.core.contracts import Floor, Metric, ReportedTask, StudyTask, typical_batches
from attnlab.core.errors import AttnlabError, SpecError
from attnlab.core.files import fingerprint
from attnlab.core.machine import require_memory, within_memory
from attnlab.core.processes.apart import call_apart, names_own_code
from attnlab.inspection.cost import Cost, cost, parameters_of
from attnlab.inspection.reach import most_sequences
from attnlab.nn.foreign import ForeignMixer
from attnlab.nn.foreign_model import ForeignModel
from attnlab.studies.define.assemble import BESIDE, build_model, build_task, draws_data, measured_reach
from attnlab.studies.define.metrics import rules_metric, study_metrics
from attnlab.studies.define.own_task import require_kept
from attnlab.studies.define.rules import TUNING_SEED
from attnlab.studies.define.study import Study, restore_study, slug
from attnlab.studies.plan.estimate import (
    evaluation_seconds_on_one_thread,
    flops_per_second_on_one_thread,
    step_seconds_on_one_thread,
)
from attnlab.studies.plan.matching import match_width
from attnlab.tasks.codecs import codec_of
from attnlab.tasks.two_tasks import TwoTasks
from attnlab.training.devices.division import require_shares
from attnlab.training.devices.pieces import require_divided
from attnlab.training.recipe.recipe import SAME_ROWS, Recipe, steps_of_epochs, steps_per_epoch
from attnlab.training.recipe.target import SECONDS_TO_TARGET, check_target
from attnlab.training.run.course import EVALUATIONS

MATCHED = {"parameters": "parameters", "flops": "flops_per_token"}
"""What is counted of a variant for each way of matching."""
OWN_START = "a module of your own keeps the weights it starts with; the model's init draws the lab's layers alone"
ABOUT_PADDING = "padding"
"""How notes about padding begin; they are left out where the task does not pad."""
SEES_AHEAD = "sees the future"
"""How the note on a module of one's own begins whose outputs depend on later positions, heard in its model or not."""
LONGEST_TIMED_STEP_S = 5.0
"""A step that takes longer by its FLOPs alone is not tried: a dozen of them, with their memory, is no longer a plan."""
NOT_TIMED = "a step takes too long to be timed; seconds are those of steps alone, at the pace of large matrix products"
NOT_EVALUATED = "its evaluation could not be tried, and is not in the seconds"
LONGEST_LOOK_AHEAD_S = 60.0
"""Measuring whether a model sees ahead is left to the end of training where it would take longer, by its FLOPs."""
NOT_LOOKED_AHEAD = "too large to measure here whether its outputs see ahead; that is done after training"
NOT_COMPILED = "the time is that of steps that are not compiled; compiling takes some time and may make them faster"

NUMBER_BYTES = 8
"""Of a position of a batch: one number, at the least."""
RUN_BYTES = 10_000
"""Of a run in the list of all, with all that identifies it."""

SEALED = "sealed"
"""What rules say of the records in a folder: each carries a fingerprint of itself."""


@final
@dataclass(frozen=True)
class PlannedVariant:
    """Hold one variant as it will be built and trained, and what that costs."""

    name: str  # name in the study file
    model: dict[str, Any]  # full model specification, with the width that matching chose
    training: dict[str, Any]  # settings of the training recipe, tuned settings left out
    steps: int | None  # training steps of one run; None where the budget is in seconds
    parameters: int  # number of trainable parameters; tied ones count once
    flops_per_token: float  # training FLOPs (forward and backward) per token
    activation_bytes: int  # bytes kept between forward and backward of one batch
    seconds_per_seed: float | None = None
    """Estimated time of one run on one core, evaluation included; None where it was not calibrated."""
    notes: tuple[str, ...] = ()  # what matching chose, what could not be counted
    reach: Mapping[str, Any] | None = None
    """Fields of `Reach` before training, of code of a person's own on a task where no output may see ahead."""
    steps_per_epoch: float | None = None  # of its task, where the budget is in epochs

    def in_steps(self, recipe: dict[str, Any]) -> dict[str, Any]:
        """The settings of a run with its budget in steps, where it is in epochs."""
        if self.steps_per_epoch is None:
            return recipe
        return recipe | {"budget": {"steps": steps_of_epochs(recipe["budget"]["epochs"], self.steps_per_epoch)}}


@final
@dataclass(frozen=True)
class CellPlan:
    """Describe one run: which variant, seed and tuned settings, and where it lives."""

    variant: str  # name of the variant
    seed: int  # seed of initialization and data order
    tuned: dict[str, int | float]  # settings from the grid
    spec: dict[str, Any]  # what the worker is given

    @property
    def tuning_run(self) -> int | None:
        """Which of the tuning runs with its settings it is, from 1; None for a judged run."""
        return None if self.seed < TUNING_SEED else self.seed - TUNING_SEED + 1

    @functools.cached_property
    def fingerprint(self) -> str:
        """The sha256 of what the worker is given."""
        return fingerprint(self.spec)

    @functools.cached_property
    def folder(self) -> str:
        """Its place within the study's folder."""
        setting = "tune-" + "-".join(f"{key}-{value:g}" for key, value in self.tuned.items())
        return "/".join([slug(self.variant), *([] if self.tuning_run is None else [setting]), f"seed-{self.seed}"])


@final
@dataclass(frozen=True)
class Plan:
    """Hold a study that can be run, with its costs.

    Parameters
    ----------
    study : Study
        The study.
    task : ReportedTask
        The built task, without what variants set of it, or what a folder kept of it; where runs draw their data that of
        seed 0.
    metric : Metric
        What the verdict is about.
    tune_metric : Metric
        What tuning looks at.
    variants : tuple of PlannedVariant
        In the order of the file.
    data_seconds : float
        How long making the data ready took here, as it does in each process, or in each run that draws its own.
    """

    study: Study
    task: ReportedTask
    metric: Metric
    tune_metric: Metric
    variants: tuple[PlannedVariant, ...]
    data_seconds: float = 0.0

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Everything that is measured: the task's metrics, and the time to the target where there is one."""
        return study_metrics(self.study, self.task)

    @property
    def judges_time(self) -> bool:
        """Whether the verdict is about wall time, so that every run needs the machine to itself."""
        return self.metric.name == SECONDS_TO_TARGET

    @property
    def floors(self) -> tuple[Floor, ...]:
        """Reference values of the study's metric."""
        return tuple(floor for floor in self.task.floors() if floor.metric == self.metric.name)

    def variant(self, name: str) -> PlannedVariant:
        """The planned variant of a name."""
        return next(variant for variant in self.variants if variant.name == name)

    def rules_record(self) -> dict[str, Any]:
        """The rules with everything that fixes the comparison, and their hash."""
        rules = self.study.rules.model_dump(exclude_none=True)
        rules |= {"metric": self.metric.name, "tune_by": self.tune_metric.name, "baseline": self.study.baseline}
        rules |= {"scale": self.study.scale, "looks": list(self.study.rules.looks)}
        rules |= {"levels": list(self.study.rules.levels(len(self.study.contrasts)))}
        rules |= {"records": SEALED}
        if self.study.rules.target:
            rules |= {"claim_levels": list(self.study.rules.claim_levels())}
        return {**rules, "hash": rules_hash(rules, self.study.hash, self.data())}

    def data(self) -> str | None:
        """The sha256 of the task's text; None where the data is generated from the task's own arguments."""
        return self.task.describe().get("sha256")

    def tuning_cells(self, names: Collection[str] | None = None) -> list[CellPlan]:
        """The runs that choose the settings of some variants, or of all; none where nothing is tuned."""
        grid = list(self.study.rules.grid())
        if len(grid) < 2:
            return []
        seeds = range(TUNING_SEED, TUNING_SEED + self.study.rules.tune_seeds)
        variants = [variant for variant in self.variants if names is None or variant.name in names]
        return [self._cell(v, seed, tuned) for seed in seeds for tuned in grid for v in variants]

    @property
    def tried_again(self) -> int:
        """How many settings of each variant get one more tuning run."""
        return self.study.rules.tried_again

    def tuning_cells_again(self, settings: Mapping[str, Sequence[Mapping[str, int | float]]]) -> list[CellPlan]:
        """One more tuning run of some settings of each variant."""
        seed = TUNING_SEED + self.study.rules.tune_seeds
        return [self._cell(v, seed, dict(tuned)) for v in self.variants for tuned in settings.get(v.name, ())]

    def judged_cells(
        self, chosen: Mapping[str, Mapping[str, int | float]], seeds: Mapping[str, int] | None = None
    ) -> list[CellPlan]:
        """The runs the verdict stands on: of each variant so many seeds, by default those of the first look."""
        counts = dict.fromkeys(chosen, self.study.rules.looks[0]) if seeds is None else seeds
        asked = [variant for variant in self.variants if variant.name in counts]
        return [
            self._cell(variant, seed, dict(chosen[variant.name]))
            for seed in range(max(counts.values()))
            for variant in asked
            if seed < counts[variant.name]
        ]

    def _cell(self, variant: PlannedVariant, seed: int, tuned: dict[str, int | float]) -> CellPlan:
        spec = {
            "task": self.study.task_spec(variant.name, seed),
            "model": variant.model,
            "recipe": variant.in_steps(self.study.rules.recipe(variant.training, tuned)),
            "flops_per_token": variant.flops_per_token,
            "seed": seed,
            "look_inside": seed == 0,
        }
        if seed >= TUNING_SEED and self.tune_metric not in self.task.judged:
            spec["judge"] = False  # tuning does not look at it
        return CellPlan(variant.name, seed, tuned, spec)

    def to_json(self) -> dict[str, Any]:
        """The plan with the documented, stable keys of ``attnlab plan --json``."""
        floors = [{"name": floor.name, "value": floor.value, "unit": floor.unit} for floor in self.floors]
        keys = ("name", "parameters", "flops_per_token", "activation_bytes", "seconds_per_seed", "steps", "notes")
        return {
            "study": self.study.name,
            "task": self.task.name,
            "metric": self.metric.name,
            "floors": floors,
            "rules": self.rules_record(),
            "variants": [{key: getattr(variant, key) for key in keys} for variant in self.variants],
            "published": self.study.published and self.study.published.model_dump(),
        }


def rules_hash(rules: Mapping[str, Any], study: str, data: str | None) -> str:
    """What changes when rules, the study (by its hash) or its data (by theirs) do."""
    return fingerprint({"rules": rules, "study": study, "data": data})


def plan_study(study: Study, *, calibrate: bool = False) -> Plan:
    """Build every variant without training it, and count what it costs.

    Parameters
    ----------
    study : Study
        The study.
    calibrate : bool
        Whether to time a few training steps of every variant on one core of this machine.

    Returns
    -------
    Plan
        The plan.

    Raises
    ------
    SpecError
        If the metric, a training setting, or any variant is wrong; all variants are named at once.
    """
    try:
        if study.rules.split and not draws_data(study.task):
            name, _ = parse(study.task, "task")
            raise SpecError(f"task '{name}' cannot draw its data per run (rules.split): it has no 'data_seed'")
        if names_own_code(study.task):
            call_apart(_task_apart, study.to_json())  # whatever its import does, this process goes on
        began = time.perf_counter()
        with within_memory("the task"):
            task = build_task(study.task_spec())
        data_seconds = time.perf_counter() - began
    except SpecError as error:
        raise SpecError(f"{study.places.get('task', '')}{error}") from error
    runs = len(study.variants) * (study.rules.tuning_runs + study.rules.looks[-1])
    require_memory(f"a list of {runs:,} runs", RUN_BYTES * runs)
    if study.rules.target:
        check_target(study.rules.target, task, "rules.target")
    metric = rules_metric(study, task, "metric")
    tune_metric = rules_metric(study, task, "tune_by")
    if study.rules.tune and tune_metric.name.startswith("test_"):
        raise SpecError(
            f"rules.tune_by: '{tune_metric.name}' is measured on the test part; tune on a validation metric"
        )
    variants = _plan_variants(study, calibrate=calibrate)
    return Plan(study, task, metric, tune_metric, variants, data_seconds)


def restore_plan(study: Study, task: ReportedTask, variants: Sequence[Mapping[str, Any]]) -> Plan:
    """A plan from what was saved of it, building no model and reading no data."""
    planned = tuple(_restore_variant(fields) for fields in variants)
    return Plan(study, task, rules_metric(study, task, "metric"), rules_metric(study, task, "tune_by"), planned)


def _restore_variant(fields: Mapping[str, Any]) -> PlannedVariant:
    kept: dict[str, Any] = dict(fields) | {"notes": tuple(fields["notes"])}
    return PlannedVariant(**kept)


def _plan_variants(study: Study, *, calibrate: bool) -> tuple[PlannedVariant, ...]:
    """Plan every variant, the baseline first, or raise one error that names the problems of all."""
    planned: dict[str, PlannedVariant] = {}
    problems: dict[str, str] = {}
    for name in sorted(study.variants, key=lambda name: name != study.baseline):
        baseline = planned.get(study.baseline)
        quantity = MATCHED.get(study.rules.match)
        target = float(getattr(baseline, quantity)) if baseline and quantity else None
        try:
            planned[name] = _here_or_apart("plan", study, name, target)
            if calibrate:
                planned[name] = _here_or_apart("calibrate", study, name, asdict(planned[name]))
        except AttnlabError as error:
            problems[name] = str(error)
    if problems:
        raise SpecError(_once(study, problems))
    return tuple(planned[name] for name in study.variants)


def _once(study: Study, problems: Mapping[str, str]) -> str:
    """The problems of variants in the order of the file, those that several have alike once."""
    alike: dict[str, list[str]] = {}
    for name in (name for name in study.variants if name in problems):
        alike.setdefault(problems[name], []).append(name)
    return "\n".join(f"{study.place_of(text, names)}{text}" for text, names in alike.items())


def _here_or_apart(step: str, study: Study, name: str, given: Any) -> PlannedVariant:
    """Take a step of planning; in a process of its own where the variant has code of a person's own."""
    if names_own_code([study.model_spec(name), study.training_settings(name)]):
        return _restore_variant(call_apart(_taken_apart, step, study.to_json(), name, given))
    with within_memory():
        return _STEPS[step](study, name, given)


def _taken_apart(step: str, study: Mapping[str, Any], name: str, given: Any) -> dict[str, Any]:
    """Take a step of planning with a study as it was kept."""
    with within_memory():
        return asdict(_STEPS[step](restore_study(study), name, given))


def _task_apart(study: Mapping[str, Any]) -> None:
    """Build the task of a study as it was kept, and raise where it does not keep what a task must."""
    restored = restore_study(study)
    require_kept(
        build_task(restored.task_spec()), parse(restored.task, "task")[0], restored.model_spec(restored.baseline)
    )


def _plan_variant(study: Study, name: str, target: float | None) -> PlannedVariant:
    """Plan a variant, with the width at which the matched quantity is closest to the target, where there is one."""
    planned, task = _with_model(study, name, study.model_spec(name)), build_task(study.task_spec(name))
    planned = planned if target is None else _matched(planned, study, target)
    recipe = _check_recipe(study, planned.training)
    require_devices(planned.model, task, recipe.devices, recipe.sharding, recipe.accumulate)
    if not (task.causal and names_own_code(planned.model)):
        return planned
    batch, length = task.train_batch(0, 0).inputs[-1].shape[:2]
    tokens = most_sequences(batch) * length
    seconds = tokens * planned.flops_per_token / flops_per_second_on_one_thread("float32")
    if seconds > LONGEST_LOOK_AHEAD_S:
        return replace(planned, notes=(*planned.notes, NOT_LOOKED_AHEAD))
    return replace(planned, reach=measured_reach(build_model(copy.deepcopy(planned.model), task), task))


def _matched(planned: PlannedVariant, study: Study, target: float) -> PlannedVariant:
    quantity, task = MATCHED[study.rules.match], build_task(study.task_spec(planned.name))

    def measure(model: Mapping[str, Any]) -> float:
        if quantity == "parameters":
            return float(parameters_of(lambda: build_model(copy.deepcopy(dict(model)), task)))
        return float(getattr(count(model, task), quantity))

    model, note = match_width(planned.model, target, measure, quantity=quantity)
    return _with_model(study, planned.name, model, (note,))


def _with_model(study: Study, name: str, model: dict[str, Any], notes: tuple[str, ...] = ()) -> PlannedVariant:
    task = build_task(study.task_spec(name))
    training = study.training_settings(name)
    recipe = _check_recipe(study, training)
    for rule in ("metric", "tune_by"):
        rules_metric(study, task, rule)  # a variant's own task may lack it
    notes = (*notes, *_notes_beside(task), *_objective_notes(recipe, task))
    counted = count(model, task)
    steps, per_epoch = recipe.total_steps(task, counted.flops_per_token), None
    if recipe.budget.epochs is not None:
        per_epoch = steps_per_epoch(task)
        notes = (*notes, f"{recipe.budget.epochs:g} epochs are {steps:,} steps ({per_epoch:.5g} an epoch)")
    return PlannedVariant(
        name=name,
        model=model,
        training=training,
        steps=steps,
        parameters=counted.parameters,
        flops_per_token=counted.flops_per_token,
        activation_bytes=counted.activation_bytes,
        notes=(*_task_notes(study, name), *notes, *counted.notes, *_foreign_notes(model, task)),
        steps_per_epoch=per_epoch,
    )


def _task_notes(study: Study, name: str) -> list[str]:
    """What a variant sets of the task, and what that means for its numbers."""
    shown = (study.variants[name] or {}).get("task") or {}
    own = [f"{key} {value}" for key, value in shown.items() if key != BESIDE]
    notes = ["its own " + ", ".join(own)] if own else []
    if "context" in shown:
        notes.append("evaluated in windows of its own context: a longer one predicts from more, and gives a lower loss")
    return notes


def _notes_beside(task: StudyTask) -> list[str]:
    """What is to be said of a task that is trained beside another."""
    if not isinstance(task, TwoTasks):
        return []
    return [
        f"{task.share:.0%} of its steps are those of the task {task.second.name}, with a decoder of their own that "
        "counts among the parameters here and is left out after training"
    ]


def _foreign_notes(model: Mapping[str, Any], task: StudyTask) -> list[str]:
    """What was found out about a person's own modules, each note once."""
    with torch.device("meta"):
        modules = build_model(copy.deepcopy(dict(model)), task).modules()
    foreign = [module for module in modules if isinstance(module, ForeignMixer | ForeignModel)]
    notes = [note for module in foreign for note in _notes_on(module)]
    codec = codec_of(task)
    pads = codec is not None and codec.pads
    return [note for note in dict.fromkeys(notes) if pads or not note.startswith(ABOUT_PADDING)]


def _notes_on(module: ForeignMixer | ForeignModel) -> Sequence[str]:
    notes = () if module.convention is None else module.convention.notes
    if isinstance(module, ForeignMixer):
        return (OWN_START, *notes)
    return (f"called as {called}", *notes) if (called := module.extra_repr()) else notes


def _check_recipe(study: Study, training: Mapping[str, Any]) -> Recipe:
    """The longest recipe of the grid, the first if all are as long; every one of the grid must be valid."""
    rules = study.rules
    recipes = [Recipe.parse(rules.recipe(training, setting), "training") for setting in rules.grid()]
    return max(recipes, key=lambda recipe: max(amount or 0 for amount in recipe.budget.model_dump().values()))


def require_devices(
    model: Mapping[str, Any],
    task: StudyTask,
    devices: int,
    sharding: str = "none",
    accumulate: int = 1,
    *,
    builds: bool = True,
) -> None:
    """Raise a `SpecError` where devices cannot divide the rows of a batch, or the model, as a recipe wants it."""
    same_rows = sharding in SAME_ROWS
    if (count := accumulate * (1 if same_rows else devices)) > 1:
        require_divided(task, len(task.train_batch(0, 0).targets), count)
    if same_rows and devices > 1 and builds:
        with torch.device("meta"):
            made = build_model(copy.deepcopy(dict(model)), task)
        require_shares(made, task.train_batch(0, 0), sharding, devices)


def _objective_notes(recipe: Recipe, task: StudyTask) -> list[str]:
    """What is to be said of an objective that learns from what models write; an error where they write nothing."""
    objective = recipe.build_objective()
    if not objective.samples:
        return []
    if getattr(codec_of(task), "kind", "") != "sentences":
        name, _ = parse(recipe.objective, "objective")
        raise SpecError(
            f"training: objective '{name}' learns from sentences that the model writes, as those of the task "
            f"translation do; the task is '{task.name}'"
        )
    return [f"what it writes by itself after {objective.after:.0%} of its budget is not in its FLOPs and its time"]


def count(model: Mapping[str, Any], task: StudyTask) -> Cost:
    """Parameters, FLOPs and memory of a model specification, built on the meta device."""
    require_memory(f"a batch of {task.tokens_per_step:,} positions", NUMBER_BYTES * task.tokens_per_step)
    batches = typical_batches(task)
    costs = [cost(lambda: build_model(copy.deepcopy(dict(model)), task), batch.inputs) for _, batch in batches]
    positions = [fraction * batch.inputs[0].numel() for fraction, batch in batches]
    flops = sum(one.flops_per_token * count for one, count in zip(costs, positions, strict=True)) / sum(positions)
    return replace(costs[0], flops_per_token=flops, activation_bytes=max(one.activation_bytes for one in costs))


def _calibrated(study: Study, name: str, planned: Mapping[str, Any]) -> PlannedVariant:
    """A planned variant with the seconds of one run on one thread, estimated from a few timed steps."""
    variant, task = _restore_variant(planned), build_task(study.task_spec(name))
    precision = variant.training.get("precision", "float32")
    step_seconds = task.tokens_per_step * variant.flops_per_token / flops_per_second_on_one_thread(precision)
    if step_seconds > LONGEST_TIMED_STEP_S:
        evaluations, notes = 0.0, [NOT_TIMED]
    else:
        model = build_model(variant.model, task)
        step_seconds = step_seconds_on_one_thread(model, task, precision) if variant.steps else 0.0
        evaluations, notes = _evaluation_seconds(study, variant, model, task)
        notes += [NOT_COMPILED] if variant.training.get("compile", False) and variant.steps else []
    training = variant.steps * step_seconds if variant.steps else float(study.rules.budget["seconds"])
    return replace(variant, seconds_per_seed=training + evaluations, notes=(*variant.notes, *notes))


def _evaluation_seconds(
    study: Study, variant: PlannedVariant, model: torch.nn.Module, task: StudyTask
) -> tuple[float, list[str]]:
    """How long the evaluations of one run take on one thread, and what is to be said of it."""
    every, steps = _check_recipe(study, variant.training).evaluate_every, variant.steps
    evaluations = min(EVALUATIONS, steps or EVALUATIONS) if every is None or steps is None else math.ceil(steps / every)
    try:
        validation, *others = (evaluation_seconds_on_one_thread(model, task, part) for part in task.parts)
    except Exception:  # of a person's own task, to which zeros may stand for no answer
        return 0.0, [NOT_EVALUATED]
    return evaluations * validation + sum(others), []


_STEPS: Mapping[str, Callable[[Study, str, Any], PlannedVariant]] = {"plan": _plan_variant, "calibrate": _calibrated}
"""The steps of planning a variant: each is given the study, the variant's name, and what stands before it."""
