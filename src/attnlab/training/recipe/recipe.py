"""How a model is trained, as data: budget, optimizer, schedule, precision, when to look.

A recipe is checked before anything runs, and saved with the run. What it means for a task (steps) is worked
out by `Recipe.total_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, final

import pydantic
from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt

from attnlab.core.build import Spec, build
from attnlab.core.contracts import Task
from attnlab.core.errors import AttnlabError, SpecError, nearest
from attnlab.training.recipe.objectives import OBJECTIVES, AbstractObjective
from attnlab.training.recipe.optim import OPTIMIZERS, AbstractOptimizer
from attnlab.training.recipe.schedule import SCHEDULES, AbstractSchedule

STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


@final
class Budget(pydantic.BaseModel):
    """Say when training ends: exactly one of the fields is set.

    Parameters
    ----------
    steps : int, optional
        Updates of the parameters.
    epochs : int or float, optional
        Times that all of the training part is seen, of a task that says how many steps that takes.
    tokens : int or float, optional
        Training positions with a loss.
    flops : int or float, optional
        Floating point operations of forward and backward; a multiply-add counts 2.
    seconds : int or float, optional
        Time spent on training steps and on choosing how to compute them, evaluation and saving apart. Not
        reproducible between machines.
    """

    model_config = STRICT

    steps: PositiveInt | None = None
    epochs: PositiveFloat | None = None
    tokens: PositiveFloat | None = None
    flops: PositiveFloat | None = None
    seconds: PositiveFloat | None = None

    @pydantic.model_validator(mode="after")
    def _exactly_one(self) -> Budget:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"must be exactly one of {', '.join(type(self).model_fields)}; got {given or 'none'}")
        return self


@final
class EarlyStop(pydantic.BaseModel):
    """Stop when the first validation metric has not improved for a while.

    Parameters
    ----------
    patience : int
        Evaluations in a row without an improvement after which training stops.
    """

    model_config = STRICT

    patience: PositiveInt


@final
class Average(pydantic.BaseModel):
    """Average the weights of the last part of training.

    Parameters
    ----------
    last : float
        The part of the budget that is averaged over, in (0, 1].
    points : int
        At how many points of it, evenly spread, the end included; steps that are fewer are all taken.

    Notes
    -----
    Vaswani et al., 2017 (arXiv:1706.03762), section 6.1, average the last 5 checkpoints, or 20, of ten minutes each;
    Izmailov et al., 2018 (arXiv:1803.05407) say why it helps.
    """

    model_config = STRICT

    last: float = Field(default=0.2, gt=0.0, le=1.0)
    points: PositiveInt = 10


SAME_ROWS = ("tensor", "context")
"""Ways to divide a model whose devices all compute every row of a batch."""


@final
class Recipe(pydantic.BaseModel):
    """Describe one training run.

    Parameters
    ----------
    budget : Budget
        When training ends: one of steps, epochs, tokens, flops, seconds.
    lr : float
        Peak learning rate.
    optimizer : str or mapping
        A name of `OPTIMIZERS`, or a mapping with ``name`` and its arguments.
    weight_decay : float
        Decoupled decay per unit of learning rate, on parameters with two axes or more; never on norms and biases.
    schedule : str or mapping
        A name of `SCHEDULES`, or a mapping with ``name`` and its arguments.
    warmup : int or float
        Steps (an integer), or a fraction of the budget (a float below 1), over which the rate rises to `lr`.
        With a budget in seconds only a fraction has a meaning.
    clip : float or None
        Longest gradient, as Euclidean norm over all parameters; longer ones are scaled down. None: no limit.
    objective : str or mapping
        What is minimized: a name of `OBJECTIVES`, or a mapping with ``name`` and its arguments. All but "likelihood",
        which is the task's own loss, learn from what the model writes by itself.
    label_smoothing : float
        Probability taken from the target and spread over all classes, where the task has classes.
    precision : {"float32", "bf16", "auto"}
        What matrix products are computed in. "auto": bf16 where the processor multiplies it and the run is
        long enough to gain, by a rule that knows no clock; the choice is recorded.
    evaluate_every : int or None
        Steps between evaluations on the first held-out part. None: ten times, evenly over the budget.
    checkpoint_every : int or None
        Steps between checkpoints. None: at evaluations, at least ten seconds apart. The end is always saved.
    early_stop : EarlyStop or None
        When to stop before the budget is used. None: never.
    average : Average or None
        Over which part of training the weights at the end are averaged. None: they are the last ones. A run that ends
        before its budget is used has its last ones, too.
    stop_at : mapping of str to float, optional
        One metric of the first held-out part and its target: training ends at the first evaluation that reaches it,
        and the result has the metric ``seconds_to_target``. None: the whole budget is used.
    compile : bool or "auto"
        True compiles training steps with ``torch.compile``. "auto" does where the steps left save more time than
        compiling takes, by a rule that knows no clock; the choice is recorded.
    watch : list of {"attention", "gradients"}
        What is looked at inside the model now and then, and recorded with the run; no number of the run changes by it.
        "attention": entropy and scores of every head. "gradients": their norm and the size of updates by layer, and
        the dead features of rectifiers.
    devices : int
        How many devices train the model together, each on its rows of a batch. No number of the run changes by it but
        for rounding.
    sharding : {"none", "full", "auto", "tensor", "context"}
        Whether every device holds the whole model, or a part of its weights, gradients and optimizer. "auto": a part
        where the whole does not fit; the choice is recorded. "tensor": each device computes some heads and hidden
        features for all rows. "context": each computes some positions of all rows.
    accumulate : int
        In how many pieces each device computes its rows, one after another, in less memory.

    Raises
    ------
    SpecError
        With all that is wrong.
    """

    model_config = STRICT

    budget: Budget
    lr: PositiveFloat = 1e-3
    optimizer: Spec = "adamw"
    weight_decay: float = Field(default=0.1, ge=0.0)
    schedule: Spec = "cosine"
    warmup: int | float = 0.05
    clip: PositiveFloat | None = 1.0
    objective: Spec = "likelihood"
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    precision: Literal["float32", "bf16", "auto"] = "float32"
    evaluate_every: PositiveInt | None = None
    checkpoint_every: PositiveInt | None = None
    early_stop: EarlyStop | None = None
    average: Average | None = None
    stop_at: dict[str, float] | None = None
    compile: Literal[True, False, "auto"] = False
    watch: list[Literal["attention", "gradients"]] = []
    devices: PositiveInt = 1
    sharding: Literal["none", "full", "auto", "tensor", "context"] = "auto"
    accumulate: PositiveInt = 1

    if not TYPE_CHECKING:  # checkers read the fields

        def __init__(self, **settings: Any) -> None:
            try:
                super().__init__(**settings)
            except pydantic.ValidationError as error:
                raise SpecError("; ".join(_in_words(one) for one in error.errors())) from None

    @pydantic.field_validator("optimizer")
    @classmethod
    def _known_optimizer(cls, spec: Spec) -> Spec:
        _check(spec, OPTIMIZERS, "optimizer")
        return spec

    @pydantic.field_validator("objective")
    @classmethod
    def _known_objective(cls, spec: Spec) -> Spec:
        _check(spec, OBJECTIVES, "objective")
        return spec

    @pydantic.field_validator("schedule")
    @classmethod
    def _known_schedule(cls, spec: Spec) -> Spec:
        _check(spec, SCHEDULES, "schedule")
        return spec

    @pydantic.field_validator("stop_at")
    @classmethod
    def _one_target(cls, target: dict[str, float] | None) -> dict[str, float] | None:
        if target is not None and len(target) != 1:
            raise ValueError(f"must be exactly one metric with its target, like {{val_loss: 1.9}}; got {target!r}")
        return target

    @pydantic.field_validator("warmup")
    @classmethod
    def _steps_or_fraction(cls, warmup: int | float) -> int | float:
        if warmup < 0 or (isinstance(warmup, float) and warmup >= 1.0):
            raise ValueError(f"must be a number of steps (an integer) or a fraction below 1; got {warmup!r}")
        return warmup

    @pydantic.model_validator(mode="after")
    def _warmup_fits_budget(self) -> Recipe:
        if self.budget.seconds is not None and isinstance(self.warmup, int) and self.warmup > 0:
            raise ValueError(
                f"'warmup' in steps ({self.warmup}) has no meaning with a budget in seconds; give a fraction, say 0.05"
            )
        return self

    @classmethod
    def parse(cls, mapping: Mapping[str, Any], where: str = "recipe") -> Recipe:
        """Check a mapping from a study file or from Python; all that is wrong with it is named at once.

        Examples
        --------
        >>> Recipe.parse({"budget": {"steps": 100}, "lr": 3e-4}).lr
        0.0003
        """
        try:
            return cls(**{str(key): value for key, value in mapping.items()})
        except SpecError as error:
            raise SpecError(f"{where}: {error}") from None

    def build_optimizer(self) -> AbstractOptimizer:
        """The optimizer that the recipe names."""
        return build(self.optimizer, OPTIMIZERS, axis="optimizer")

    def build_objective(self) -> AbstractObjective:
        """What the recipe minimizes."""
        return build(self.objective, OBJECTIVES, axis="objective")

    def build_schedule(self) -> AbstractSchedule:
        """The schedule that the recipe names."""
        return build(self.schedule, SCHEDULES, axis="schedule")

    def total_steps(self, task: Task, flops_per_token: float | None = None) -> int | None:
        """How many steps of a task the budget buys; None where it is in seconds.

        Epochs are rounded to the nearest step, and at least one; tokens and FLOPs are rounded down. A budget in FLOPs
        needs what forward and backward cost per position with a loss.
        """
        budget = self.budget
        if budget.seconds is not None:
            return None
        if budget.steps is not None:
            return budget.steps
        if budget.epochs is not None:
            return steps_of_epochs(budget.epochs, steps_per_epoch(task))
        if budget.tokens is not None:
            return _whole_steps(budget.tokens, task.tokens_per_step, "tokens")
        if flops_per_token is None or flops_per_token <= 0:
            raise SpecError("a budget in flops needs flops_per_token, the cost of forward and backward per token")
        return _whole_steps(budget.flops or 0.0, flops_per_token * task.tokens_per_step, "FLOPs")

    def warmup_fraction(self, total_steps: int | None) -> float:
        """The warm-up as a fraction of the budget, at most 1."""
        if isinstance(self.warmup, float) or total_steps is None:
            return float(self.warmup)
        return min(1.0, self.warmup / total_steps)


def steps_of_epochs(epochs: float, per_epoch: float) -> int:
    """The steps of so many epochs: to the nearest, and at least one."""
    return max(1, round(epochs * per_epoch))


def steps_per_epoch(task: Task) -> float:
    """The steps in which a task's training part is seen once.

    Raises
    ------
    SpecError
        If the task does not say: its data are made anew for every step, or it is a person's own without the number.
    """
    steps = getattr(task, "steps_per_epoch", None)
    if not isinstance(steps, int | float) or not 0 < steps < math.inf:
        name = getattr(task, "name", type(task).__name__)
        raise SpecError(f"a budget in epochs needs to know how long one is, and task '{name}' says no steps_per_epoch")
    return steps


def _whole_steps(amount: float, per_step: float, unit: str) -> int:
    steps = int(amount // per_step)
    if steps == 0:
        raise SpecError(f"the budget of {amount:g} {unit} buys no step: one step costs {per_step:g} {unit}")
    return steps


def _check(spec: Spec, table: Mapping[str, Any], axis: str) -> None:
    """Build a part for its errors, in the form in which pydantic collects them."""
    try:
        build(spec, table, axis=axis)
    except AttnlabError as error:
        raise ValueError(str(error)) from error


def _in_words(error: Any) -> str:
    """One of pydantic's errors as a sentence with the place, the rule and the value."""
    place = ".".join(str(word) for word in error["loc"] if word not in ("int", "float"))
    if error["type"] == "extra_forbidden":
        parent = {"budget": Budget, "early_stop": EarlyStop, "average": Average}.get(str(error["loc"][0]), Recipe)
        return f"unknown key '{place}'; {nearest(str(error['loc'][-1]), parent.model_fields)}"
    if error["type"] == "missing":
        return f"missing '{place}'"
    if error["type"] == "value_error":
        return f"{place}: {error['ctx']['error']}" if place else str(error["ctx"]["error"])
    return f"'{place}': {error['msg'].removeprefix('Input ').lower()}; got {error['input']!r}"
