"""How far seeds lay apart in earlier studies of the same task: what tells a plan which differences it will see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, final

from attnlab.core.errors import AttnlabError
from attnlab.studies.judge.collect import load_plan, read_results
from attnlab.studies.judge.results import StudyResults
from attnlab.studies.judge.statistics import detectable_effect, seeds_needed
from attnlab.studies.plan.plan import Plan
from attnlab.studies.run.folder import STUDY

LEAST_SEEDS = 3
"""Of a comparison of which the spread is used."""


@final
@dataclass(frozen=True)
class Spread:
    """Hold how far apart seeds were."""

    folders: tuple[str, ...]  # where the studies lie
    deviations: tuple[float, ...]
    """Of each comparison the standard deviation of its differences over seeds, in the metric's unit, in order."""

    @property
    def typical(self) -> float:
        """The median of the standard deviations."""
        return median(self.deviations)

    def detectable(self, plan: Plan) -> float:
        """The smallest difference that a study would tell from none with the usual power, were its spread typical."""
        rules = plan.study.rules
        return self.typical * detectable_effect(rules.looks[-1], alpha=_last_level(plan))

    def seeds_for_smallest_effect(self, plan: Plan) -> int | None:
        """How many seeds would tell the smallest effect of interest from none; None where that is too many to name."""
        return seeds_needed(self.typical, plan.study.rules.smallest_effect, present=1, alpha=_last_level(plan))

    def to_json(self, plan: Plan) -> dict[str, Any]:
        """The spread and what follows of it for a study."""
        return {
            "folders": list(self.folders),
            "standard_deviations": list(self.deviations),
            "detectable": self.detectable(plan),
            "seeds_for_smallest_effect": self.seeds_for_smallest_effect(plan),
        }


def earlier_spread(plan: Plan, beside: Path) -> Spread | None:
    """How far seeds lay apart in the studies below a folder that have this one's data, metric and budget.

    Where this very study is among them it counts alone. A folder that cannot be read is left out.
    """
    found = list(_earlier(plan, beside))
    same = [one for one in found if one[1].rules["hash"] == plan.rules_record()["hash"]]
    measured = [(out, _deviations(results)) for out, results in same or found]
    deviations = sorted(value for _, values in measured for value in values)
    return Spread(tuple(str(out) for out, values in measured if values), tuple(deviations)) if deviations else None


def _earlier(plan: Plan, beside: Path) -> Iterator[tuple[Path, StudyResults]]:
    for path in sorted(beside.glob(f"*/{STUDY}")):
        try:
            if _asked(plan) == _asked(load_plan(path.parent)):
                yield path.parent, read_results(path.parent)
        except (AttnlabError, OSError, LookupError, ValueError, TypeError):
            continue


def _asked(plan: Plan) -> tuple[Any, ...]:
    """What two studies have alike that measure the same on the same data after the same budget."""
    rules = plan.study.rules
    return plan.task.name, plan.task.describe(), plan.metric, rules.budget, rules.target, rules.split


def _deviations(results: StudyResults) -> list[float]:
    """The standard deviations of the differences of all comparisons with enough seeds."""
    compared = [one.comparison for one in results.verdicts]
    return [one.sd for one in compared if one.pairs >= LEAST_SEEDS and one.sd]


def _last_level(plan: Plan) -> float:
    return plan.study.rules.levels(len(plan.study.contrasts))[-1]
