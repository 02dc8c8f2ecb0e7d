"""What of a study comes next: every variant goes its own way from tuning to the last look that needs it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from attnlab.studies.judge.collect import Looking
from attnlab.studies.judge.results import StudyResults
from attnlab.studies.judge.tuning import cells_again, record_tuning
from attnlab.studies.plan.plan import CellPlan, Plan


@final
@dataclass(frozen=True)
class Stage:
    """Hold runs that may begin together."""

    title: str  # what they are, in words
    names: tuple[str, ...]  # variants; one without runs here has nothing to wait for
    cells: tuple[CellPlan, ...]  # their runs, done or not


@final
class Stages:
    """Say which runs come after those that have ended.

    A variant's best settings are tried again once its tuning runs have ended, its judged runs begin once these have,
    and the seeds of the next look wait for the runs of the comparison that leaves them open. What others do meanwhile
    changes nothing.

    Parameters
    ----------
    plan : Plan
        The study.
    out : Path
        Its folder, with the rules in it.
    """

    def __init__(self, plan: Plan, out: Path) -> None:
        self._plan, self._out = plan, out
        self._chosen: dict[str, dict[str, int | float]] = {}
        self._looking = Looking(plan, out, self._chosen)
        self._steps = (self._tune, self._tune_again, self._judge, self._look)
        first = self._steps.index(self._tune if plan.tuning_cells() else self._judge)
        self._place = {variant.name: first for variant in plan.variants}  # of the step that comes next

    @property
    def names(self) -> tuple[str, ...]:
        """All variants."""
        return tuple(self._place)

    def after(self, names: Collection[str]) -> list[Stage]:
        """What comes once all runs so far of some variants have ended; at first they have none.

        Among it are stages of others whose looks have waited for them.
        """
        ready = [(step, [name for name in names if self._place[name] == at]) for at, step in enumerate(self._steps)]
        found = []
        for step, those in ready:
            self._place |= {name: min(self._place[name] + 1, len(self._steps) - 1) for name in those}
            found += step(those) if those else []
        return found

    def results(self) -> StudyResults:
        """What was found so far."""
        return self._looking.results()

    def _tune(self, names: Sequence[str]) -> list[Stage]:
        return [Stage("tuning runs", tuple(names), tuple(self._plan.tuning_cells(names)))]

    def _tune_again(self, names: Sequence[str]) -> list[Stage]:
        again = cells_again(self._plan, self._out, names)
        return [Stage("tuning runs of the best settings, again", tuple(names), tuple(again))]

    def _judge(self, names: Sequence[str]) -> list[Stage]:
        """Choose the settings of variants for good, and let their first judged runs begin."""
        self._chosen |= record_tuning(self._plan, self._out, names)
        return self._judged(names)

    def _look(self, names: Sequence[str]) -> list[Stage]:
        """Take the looks that waited for some variants."""
        grown = [other for name in names for other in self._looking.asked.had(name)]
        return self._judged(list(dict.fromkeys(grown)))

    def _judged(self, names: Sequence[str]) -> list[Stage]:
        """The judged runs of some variants, by their number of seeds."""
        looks, counts = self._plan.study.rules.looks, self._looking.asked.counts
        by_seeds: dict[int, list[str]] = {}
        for name in names:
            by_seeds.setdefault(counts[name], []).append(name)
        of_looks = ", up to {} of at most " + f"{looks[-1]} seeds" if len(looks) > 1 else ""
        return [
            Stage(f"judged runs{of_looks.format(seeds)}", tuple(those), tuple(self._looking.judged(*those)))
            for seeds, those in by_seeds.items()
        ]
