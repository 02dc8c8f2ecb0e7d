"""The rules of a study: what is measured, at what budget, how often, and what counts as an effect.

They are fixed, hashed and written to disk before the first step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self, final

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from attnlab.studies.define.looks import Seeds, checked_seeds, levels_of, looks_of

TUNING_SEED = 1_000_003
"""First seed of tuning runs: far from the seeds 0, 1, 2 ... that are judged, so that tuning never sees them."""

LENGTH = "length"
"""What tuning calls the share of its budget that a variant runs, in a study with a target."""

NO_SECONDS = "with a target the budget must be in steps, tokens or flops: seconds are what is measured"
"""What is wrong with a budget in seconds."""

CLAIM_ERROR = 0.01
"""Share of variants which miss a target in the mean, that are said to reach it all the same."""


@final
class Split(BaseModel):
    """State that every run draws data of its own.

    Parameters
    ----------
    seed : {"per run"}
        The seed of a run is also that of its data; all variants share it within a seed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seed: Literal["per run"]


@final
class Rules(BaseModel):
    """State how the variants of a study are compared.

    Parameters
    ----------
    metric : str, optional
        Name of the metric the verdict is about; the task's first by default, or with a target the time to it.
    budget : dict
        Exactly one of ``steps``, ``tokens``, ``flops``, ``seconds``, the same for every variant.
    target : dict, optional
        One validation metric and the value that its mean must reach at the end of a variant's runs. What is compared is
        then the time of these runs, which have the machine to themselves; a variant may have a budget of its own.
    seeds : int or Seeds
        Number of runs of every variant, which share data order within a seed; or how many at least and at most: then a
        study goes on until each variant is decided.
    split : Split, optional
        Whether seeds draw data as well, the ``data_seed`` of the task; by default all runs have the same data.
    tune : dict
        For each training setting the values tried, the same for every variant. `tune_seeds` tuning runs per
        combination at the full budget, with seeds that no judged run has; the best on `tune_by` is used. With a target
        `LENGTH`, alone: shares of a variant's budget, of which the least that reaches the target is used.
    tune_seeds : int
        Number of tuning runs of every combination; with several their mean is what tuning looks at.
    tune_again : int
        How many of a variant's best combinations get one more tuning run each, before the best of them is used; 0 for
        none.
    tune_by : str, optional
        Metric that tuning looks at; by default the task's first, or that of the target. Never one of a test part.
    match : {"none", "parameters", "flops"}
        Quantity made equal to the baseline's by solving for each variant's width.
    smallest_effect : float
        Smallest difference that matters, in the metric's unit; differences surely smaller are "equivalent".
    confidence : float
        Coverage of the intervals.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    metric: str | None = None
    budget: dict[str, int | float]
    target: dict[str, int | float] | None = None
    seeds: int | Seeds = 5
    split: Split | None = None
    tune: dict[str, list[int | float]] = Field(default_factory=dict, json_schema_extra={"type": ["object", "null"]})
    tune_seeds: int = Field(default=1, ge=1)
    tune_again: int = Field(default=2, ge=0)
    tune_by: str | None = None
    match: Literal["none", "parameters", "flops"] = "none"
    smallest_effect: float = Field(ge=0)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)

    @field_validator("seeds", mode="before")
    @classmethod
    def _check_seeds(cls, seeds: object) -> object:
        """Say in one sentence what is wrong with a number of seeds, or with how many at least and at most."""
        if isinstance(seeds, Mapping):
            return checked_seeds(seeds)
        if not isinstance(seeds, int | Seeds) or isinstance(seeds, bool):
            raise ValueError(  # noqa: TRY004 which pydantic names with its place in the file
                f"must be a whole number, or {{at_least: 3, at_most: 20}}; got {seeds!r}"
            )
        if isinstance(seeds, int) and seeds < 1:
            raise ValueError(f"must be at least 1; got {seeds}")
        return seeds

    @field_validator("split", mode="before")
    @classmethod
    def _check_split(cls, split: object) -> object:
        """Say in one sentence what a split may be."""
        if split not in (None, {"seed": "per run"}) and not isinstance(split, Split):
            raise ValueError(f"must be {{seed: per run}}; got {split!r}")
        return split

    @field_validator("budget", mode="before")
    @classmethod
    def _drop_what_a_scale_takes_back(cls, budget: object) -> object:
        """Leave out units that are null: a scale names another one."""
        return {k: v for k, v in budget.items() if v is not None} if isinstance(budget, dict) else budget

    @field_validator("budget")
    @classmethod
    def _check_budget(cls, budget: dict[str, int | float]) -> dict[str, int | float]:
        kinds = ("steps", "epochs", "tokens", "flops", "seconds")
        if len(budget) != 1 or next(iter(budget)) not in kinds:
            raise ValueError(f"must be exactly one of {', '.join(kinds)}; got {dict(budget)!r}")
        kind, amount = next(iter(budget.items()))
        if amount <= 0:
            raise ValueError(f"{kind} must be positive; got {amount!r}")
        return budget

    @field_validator("target")
    @classmethod
    def _check_target(cls, target: dict[str, int | float] | None) -> dict[str, int | float] | None:
        if target is not None and len(target) != 1:
            raise ValueError(f"must be exactly one metric with its value, like {{val_loss: 1.9}}; got {target!r}")
        return target

    @field_validator("tune", mode="before")
    @classmethod
    def _tune_nothing(cls, tune: Any) -> Any:
        """A scale takes away what it is merged over by null."""
        return {} if tune is None else tune

    @field_validator("tune")
    @classmethod
    def _check_tune(cls, tune: dict[str, list[int | float]]) -> dict[str, list[int | float]]:
        for setting, values in tune.items():
            if setting == "budget":
                raise ValueError("the budget cannot be tuned: every variant has that of the rules")
            if not values or len({f"{value:g}" for value in values}) != len(values):
                raise ValueError(f"{setting} needs one or more different values; got {values!r}")
            if len(values) == 2 and min(values) != 0 and setting != LENGTH:
                raise ValueError(
                    f"{setting}: the better of two values always lies at the edge of the grid, so there would be no "
                    "verdict; give one value, or three and more"
                )
        return tune

    @model_validator(mode="after")
    def _check_what_a_target_asks(self) -> Self:
        if self.target and "seconds" in self.budget:
            raise ValueError(NO_SECONDS)
        if LENGTH in self.tune and not self.target:
            raise ValueError(f"tune.{LENGTH} asks for the shortest runs that reach a target; the rules have no target")
        if any(share <= 0 for share in self.tune.get(LENGTH, ())):
            raise ValueError(f"tune.{LENGTH} takes shares of the budget above 0; got {self.tune[LENGTH]}")
        if LENGTH in self.tune and len(self.tune) > 1:
            raise ValueError(
                f"tune.{LENGTH} is tuned alone: runs of one length take the same time whatever else is tried"
            )
        return self

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds at which results are looked at; the last is the end."""
        return looks_of(self.seeds)

    def levels(self, comparisons: int) -> tuple[float, ...]:
        """The level of each look's intervals; see `levels_of`."""
        return levels_of(self.looks, comparisons, round(1 - self.confidence, 12))

    def claim_levels(self) -> tuple[float, ...]:
        """The level of each look's one-sided test that a variant reaches the target in the mean."""
        return tuple(level / 2 for level in levels_of(self.looks, 1, 2 * CLAIM_ERROR))

    def recipe(self, training: Mapping[str, Any], tuned: Mapping[str, int | float]) -> dict[str, Any]:
        """The settings of one run: those of a variant, with the tuned ones and a budget."""
        ((unit, amount),) = training.get("budget", self.budget).items()
        if LENGTH in tuned:
            amount = amount * tuned[LENGTH]
            amount = amount if unit in ("flops", "epochs") else max(1, round(amount))
        settings = {key: value for key, value in tuned.items() if key != LENGTH}
        return {**training, **settings, "budget": {unit: amount}}

    def grid(self) -> Iterator[dict[str, int | float]]:
        """Every combination of the tuned settings, in the order written."""
        for values in itertools.product(*self.tune.values()):
            yield dict(zip(self.tune, values, strict=True))

    @property
    def tried_again(self) -> int:
        """How many settings of each variant get one more tuning run."""
        grid = len(list(self.grid()))
        return min(grid, self.tune_again) if grid > 1 else 0

    @property
    def tuning_runs(self) -> int:
        """How many runs choose the settings of each variant; none where nothing is tuned."""
        grid = len(list(self.grid()))
        return grid * self.tune_seeds + self.tried_again if grid > 1 else 0


def at_edge(rules: Rules, chosen: Mapping[str, int | float]) -> list[dict[str, int | float]]:
    """For every value of a setting that is the smallest or largest of its grid the setting one value further inside.

    A grid of one value is no tuning and has no edge. Zero is none, as nothing lies beyond "none at all", and nor is the
    greatest length, as a longer run takes longer.
    """
    inside = []
    for key, values in rules.tune.items():
        ordered = sorted(values)
        ends = {ordered[0]} if key == LENGTH else {ordered[0], ordered[-1]}
        if len(ordered) > 1 and chosen[key] != 0 and chosen[key] in ends:
            inside.append({**chosen, key: ordered[1 if chosen[key] == ordered[0] else -2]})
    return inside
