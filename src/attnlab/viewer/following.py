"""A study that is followed: its words, the state and pace of its runs, their curves, as changes since the last look.

A change is a mapping of JSON types: ``study`` (its state, progress and words, where they changed), ``runs`` (by folder,
where they changed: variant, title, state, progress, pace, and new ``points`` of ``loss`` and ``metric``).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, final

from attnlab.core.contracts import Metric
from attnlab.core.errors import RunError
from attnlab.studies.report import numbers
from attnlab.training.keeping.runs import METRICS, lost_curve
from attnlab.viewer.curves import Curve, RecordsTail
from attnlab.viewer.known import KnownStudy, PlannedRun, known
from attnlab.viewer.pages import filled
from attnlab.viewer.states import State, state_of_run, state_of_study

REPORT = "report.html"
LOSS, METRIC = "loss", "metric"
POINTS = 12_000
"""Of all curves of a study that a page begins with: below 300 KB."""
FEWEST, MOST = 16, 800
"""Columns of one curve."""
RECENT = 20
"""Records over which a pace is measured."""
ENOUGH = 0.02
"""Progress from which on the time of a run can be told."""
WORDS_EVERY = 4
"""Looks after which the study's own files are looked at; at once where the state of a run has changed."""

MOST_FOLLOWED = 600
"""Runs of a study that are listed, with their curves: those that go on or failed, then the first seeds."""
SLOW_S, REST = 1.0, 10
"""Seconds from which on reading the words of a study is slow, and how many times as long is waited afterwards."""

PARTS = ("progress", "known", "verdicts")
"""Templates of what a page says in words."""

Change = dict[str, Any]


@final
class FollowedRun:
    """Follow one run of a study.

    Parameters
    ----------
    folder : Path
        The run's folder, which may come into being later.
    planned : PlannedRun
        What it is.
    """

    def __init__(self, folder: Path, planned: PlannedRun) -> None:
        self.planned = planned
        self.state: State = "waiting"
        self._folder = folder
        self._tail = RecordsTail(folder / METRICS)
        self._forget()

    def _forget(self) -> None:
        self.curves: dict[str, Curve] = {}
        self._recent: list[Mapping[str, Any]] = []

    def look(self) -> Change | None:
        """What is new, without points; None if nothing is."""
        before, (records, anew) = self.state, self._tail.read()
        self.state = state_of_run(self._folder)
        if anew:
            self._forget()
        for record in records:
            for name in record.keys() - {"step", "tokens", "seconds", "lr"}:
                self.curves.setdefault(name, Curve()).append(int(record["step"]), record[name])
        self._recent = [*self._recent, *records][-RECENT:]
        changed = records or anew or self.state != before
        return self.said() | ({"anew": True} if anew else {}) if changed else None

    def said(self) -> Change:
        """What a page says of the run beside its curves."""
        last = self._recent[-1] if self._recent else {}
        return {
            "variant": self.planned.variant,
            "title": self.planned.title,
            "tuning": self.planned.tuning,
            "state": self.state,
            "step": last.get("step"),
            "progress": self.progress,
            "rate": self._rate(),
            "left": numbers.duration(self.left) if self.state == "running" and self.left is not None else None,
            "damaged": self._tail.damaged,
            "lost": lost_curve(self._tail.path.parent),
        }

    @property
    def progress(self) -> float:
        """How much of its budget is used, in [0, 1]."""
        if self.state == "finished" or not self._recent:
            return float(self.state == "finished")
        kind, amount = self.planned.budget
        last = dict(self._recent[-1])
        last |= {"steps": last["step"], "flops": last.get("tokens", 0) * self.planned.flops_per_token}
        return min(1.0, last.get(kind, 0) / amount)

    @property
    def whole(self) -> float | None:
        """Seconds of the whole run, by the part that is done; None where that says too little."""
        seconds = self._recent[-1].get("seconds") if self._recent else None
        return seconds / self.progress if seconds and self.progress > ENOUGH else None

    @property
    def left(self) -> float | None:
        """Seconds until it ends; None where that cannot be told yet."""
        return None if self.whole is None else self.whole * (1 - self.progress)

    def _rate(self) -> float | None:
        """Tokens a second over the last records."""
        if len(self._recent) < 2:
            return None
        first, last = self._recent[0], self._recent[-1]
        seconds = last.get("seconds", 0) - first.get("seconds", 0)
        return (last.get("tokens", 0) - first.get("tokens", 0)) / seconds if seconds > 0 else None


@final
class FollowedStudy:
    """Follow a study, for any number of viewers.

    Parameters
    ----------
    folder : Path
        Its folder.

    Raises
    ------
    RunError
        If it holds no study that can be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = known(folder)
        self._runs: dict[str, FollowedRun] = {}
        self._states: dict[str, State] = {}
        self._rests_until = 0.0
        self._metric: Metric | None = None
        self._said: Change = {}
        self._told: Any = None
        self._trouble = ""
        self._looks = itertools.cycle(range(WORDS_EVERY))
        self.look()

    def look(self) -> Change | None:
        """What has changed since the last look; None if nothing has."""
        lengths = {name: self._lengths(run) for name, run in self._runs.items()}
        looks = {name: run.look() for name, run in self._runs.items()}
        changed = self._see_states()
        if next(self._looks) == 0 or changed:
            self._read_again()
            looks |= {name: run.look() for name, run in self._added()}
        self._metric = self._metric or self._measured()
        runs = {
            name: said | {"points": self._points(self._runs[name], {} if "anew" in said else lengths.get(name, {}))}
            for name, said in looks.items()
            if said is not None
        }
        before = self._said
        change = {"study": said} if (said := self._words()) is not before else {}
        return change | ({"runs": runs} if runs else {}) or None

    def everything(self) -> Change:
        """All that is known, as the change that a new viewer begins with."""
        runs = {name: run.said() | {"anew": True, "points": self._points(run, {})} for name, run in self._runs.items()}
        return {"study": self._said, "runs": runs}

    def _read_again(self) -> None:
        """Read words and results; what cannot be read now, between two files that belong together, stays as it was."""
        if (begun := time.monotonic()) < self._rests_until:
            return
        before = self._known
        try:
            self._known, self._trouble = known(self._folder), ""
        except RunError as error:
            self._trouble = str(error)
        took = time.monotonic() - begun
        self._rests_until = begun + took * (1 + REST) if took > SLOW_S else 0.0
        if self._known is not before:
            self._states = {}
        self._see_states()

    def _see_states(self) -> bool:
        """See how all runs stand, and say whether one has changed; what has finished is asked again with the words."""
        before = self._states
        self._states = {run.folder: self._state(run.folder) for run in self._known.runs}
        return self._states != before

    def _state(self, folder: str) -> State:
        """How a run stands: as it was last seen where it is followed."""
        if folder in self._runs:
            return self._runs[folder].state
        return "finished" if self._states.get(folder) == "finished" else state_of_run(self._folder / folder)

    def _added(self) -> Iterator[tuple[str, FollowedRun]]:
        """Begin to follow the runs that are planned by now: of very many those that go on or failed, and the first."""
        rank = {"running": 0, "failed": 1, "stopped": 2}
        runs = self._known.runs
        if len(runs) > MOST_FOLLOWED:
            runs = sorted(runs, key=lambda run: rank.get(self._states[run.folder], 3))
        for planned in runs:
            room = MOST_FOLLOWED * (1 + (self._states[planned.folder] == "running"))
            if planned.folder not in self._runs and len(self._runs) < room:
                self._runs[planned.folder] = FollowedRun(self._folder / planned.folder, planned)
                yield planned.folder, self._runs[planned.folder]

    def _measured(self) -> Metric | None:
        """The first metric of the study that a run has measured during training."""
        measured = {name for run in self._runs.values() for name in run.curves}
        return next((metric for metric in self._known.metrics if metric.name in measured), None)

    def _names(self) -> dict[str, str]:
        """What the curves that are drawn are called in records."""
        return {LOSS: "train_loss"} | ({METRIC: self._metric.name} if self._metric else {})

    def _lengths(self, run: FollowedRun) -> dict[str, int]:
        return {name: len(curve) for name, curve in run.curves.items()}

    def _points(self, run: FollowedRun, since: Mapping[str, int]) -> Change:
        """The points of a run's curves after those of before."""
        columns = max(FEWEST, min(MOST, POINTS // (4 * max(1, len(self._runs)))))
        return {
            kind: run.curves[name].points(columns, since.get(name, 0))
            for kind, name in self._names().items()
            if name in run.curves
        }

    def _words(self) -> Change:
        """What a page says of the study; the same object where nothing has changed."""
        said, states = self._known, [*self._states.values()]
        state = state_of_study(self._folder, states)
        left = self._left() if state == "running" else None
        values = told(said, state, states) | {
            "left": "" if left is None else numbers.duration(left),
            "trouble": self._trouble,
            "listed": len(self._runs),
            "has_report": has_report(self._folder),
        }
        if (values, self._metric) != self._told:
            self._told = values, self._metric
            self._said = {
                "state": state,
                "variants": said.variants,
                "effects": said.effects,
                "smallest_effect": said.smallest_effect,
                "unit": said.metric.unit,
                "better": said.metric.better,
                "metric": asdict(self._metric) if self._metric else None,
                "has_report": values["has_report"],
                "parts": {name: filled(f"{name}.html.j2", values) for name in PARTS},
            }
        return self._said

    def _left(self) -> float | None:
        """Seconds until the runs that are planned so far have ended."""
        wholes: dict[str, list[float]] = {}
        for run in self._runs.values():
            if run.whole is not None:
                wholes.setdefault(run.planned.variant, []).append(run.whole)
        if not wholes:
            return None
        usual = fmean(one for some in wholes.values() for one in some)
        means = {variant: fmean(of) for variant, of in wholes.items()}
        followed = {name: run.left for name, run in self._runs.items()}
        lefts = [
            means.get(run.variant, usual) if (left := followed.get(run.folder)) is None else left
            for run in self._known.runs
            if self._states[run.folder] in ("waiting", "stopped", "running")
        ]
        return sum(lefts) / max(1, min(self._known.workers, len(lefts)))


def has_report(folder: Path) -> bool:
    """Whether a report was written into a study's folder."""
    return (folder / REPORT).is_file()


def told(said: KnownStudy, state: State, states: Sequence[State]) -> dict[str, Any]:
    """What the templates of a study's words name, for runs with these states."""
    done = sum(one in ("finished", "failed") for one in states)
    return {"known": said, "state": state, "done": done, "left": "", "trouble": "", "listed": len(states)}
