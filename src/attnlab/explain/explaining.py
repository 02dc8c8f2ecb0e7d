"""Explain a case: can it be, is it a bug, does it come again, what carries it. Each step lies in the folder at once."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import AttnlabError, RunError, SpecError
from attnlab.core.files import fingerprint, read_json, write_json
from attnlab.core.machine import usable_cores
from attnlab.explain.answer import HALF, Again, Answer, Share
from attnlab.explain.case import IN_TRAINING, Case, load_case, metrics_of, parse_case
from attnlab.explain.causes.candidates import ELSEWHERE, candidates, replaced, swapped, unequal
from attnlab.explain.causes.cause import GAINS, OVERFITTING, OWN, TITLES, TOO_FEW_STEPS, Cause, Change
from attnlab.explain.causes.known import Known
from attnlab.explain.causes.own_code import Exchangeable, examine, exchangeable
from attnlab.explain.causes.removals import STILL
from attnlab.explain.causes.signatures import SIGNATURES, Measured, give_the_same, measure
from attnlab.explain.overfit import Memory, overfit
from attnlab.explain.possible import Impossible, impossible, leaks, readings, ways
from attnlab.explain.removing import FOLLOWED, MATTERS, Removing
from attnlab.explain.trials.effects import ERROR, Estimate, mean_of, within_noise
from attnlab.explain.trials.measuring import Measuring
from attnlab.explain.trials.setups import Runs, Setup
from attnlab.studies.define.assemble import build_task
from attnlab.studies.define.study import merge, restore_study
from attnlab.studies.plan.plan import Plan, plan_study
from attnlab.studies.run.executor import Executor, LocalProcesses
from attnlab.studies.run.layout import WORKERS_LOG, bounded
from attnlab.studies.run.mirrored import holding

CASE, ANSWER, FOUND = "case.json", "answer.json", "found.json"
"""Files of a case's folder: what is explained, the answer, and what was found before anything was trained."""
BY_HAND = {"weight_decay": 0.0, "schedule": "constant", "warmup": 0.0, "clip": None}
"""What a case's training has where it says nothing: what a plain loop around Adam does."""
ENDS_EARLIER = frozenset({"early_stop", "stop_at"})
"""Settings by which evaluations may end a run."""
AT_THE_END = 10**9
"""Steps between evaluations of runs whose end alone counts: more than any has."""
MOST_SEEDS, SEEDS = 5, 3
"""Runs of every set-up: five where there is time, three else."""
OF_LENGTH = (TOO_FEW_STEPS, OVERFITTING, "small batch", "small model", "constant rate", "no warm-up")
"""Causes that a shortened run has of itself."""
FEWEST_STEPS = 30
"""Of a shortened run; fewer say nothing."""
NEARLY = 0.8
"""Part of the plan that fits the time, from which runs are not shortened: what is over is left out at the end."""
OTHERWISE = 1.5
"""What runs take beside the steps that were timed: building, evaluation, the processes' start."""
NEAR = 0.15
"""Part of what a number lies off the runs of its case that it may lie off them in another unit."""
AT_FIRST = 1 / 3
"""Part of the time that runs of the case as it is may take before others are shortened."""
ANOTHER = -1
"""A seed of which no run is made."""
HEART_S = 10.0
"""How long a variant may take to learn a few items by heart."""

Tell = Callable[[str], None]
"""Told of each thing that is found, in a line."""


def explain(
    case: Case | Mapping[str, Any] | str | Path,
    out: Path | None = None,
    *,
    minutes: float = 15.0,
    jobs: int | None = None,
    seeds: int | None = None,
    tell: Tell | None = None,
    executor: Executor | None = None,
) -> Answer:
    """Explain a number that surprised somebody.

    Parameters
    ----------
    case : Case, mapping, str or Path
        What they ran, saw, and expected; a mapping or a file that says it, or the name of a case of the library.
    out : Path, optional
        Folder of the case; one that was begun is gone on with. By default ``runs/explain-NAME``.
    minutes : float
        How long it may take. Runs are shortened until the plan fits, which is then said.
    jobs : int, optional
        Worker processes; by default one a core.
    seeds : int, optional
        Runs of every set-up; by default as many as there is time for, three to five.
    tell : callable, optional
        Told of each thing as it is found.
    executor : Executor, optional
        Computes the runs; by default processes of this machine.

    Returns
    -------
    Answer
        What carries how much of the distance between seen and expected.

    Raises
    ------
    SpecError
        If a variant cannot be built, or the minutes do not suffice for the shortest plan.
    RunError
        If the folder belongs to another case or another process.
    """
    if not (math.isfinite(minutes) and minutes > 0):
        raise SpecError(f"minutes must be a positive number; got {minutes!r}")
    if seeds is not None and seeds < 2:
        raise SpecError(f"seeds must be 2 or more, as one run says nothing about noise; got {seeds}")
    begun = time.monotonic()
    if not isinstance(case, Case):
        case = parse_case(case) if isinstance(case, Mapping) else load_case(case)
    out = out or folder_of(case)
    plan = plan_study(case.study, calibrate=True)
    with contextlib.ExitStack() as held:
        out, _ = held.enter_context(holding(out, say=tell or _silent))
        _keep(case, out)
        workers, fewer = bounded(jobs or usable_cores(), plan)
        if tell and fewer:
            tell(fewer)
        if executor is None:
            executor = held.enter_context(LocalProcesses(workers, 1, out / WORKERS_LOG))
        explaining = _Explaining(case, plan, out, tell or _silent, executor, minutes)
        answer = explaining.answer(begun, begun + 60 * minutes, workers, seeds)
        write_json(out / ANSWER, answer.to_json())
    return answer


def folder_of(case: Case) -> Path:
    """Where a case lies unless told otherwise: ``runs/explain-NAME``, or ``runs/explain-NAME-SCALE``."""
    return Path("runs") / "-".join(filter(None, ("explain", case.study.name, case.scale)))


def _silent(_: str) -> None:
    """Tell nobody."""


def _keep(case: Case, out: Path) -> None:
    """Write down what is explained, or check that it is what the folder was begun with."""
    said = case.to_json()
    if not (out / CASE).exists():
        if any(not path.name.startswith(".") for path in out.iterdir()):
            raise RunError(f"{out} is no case's folder and holds files; choose another with --out")
        write_json(out / CASE, said)
    elif fingerprint(read_json(out / CASE)) != fingerprint(said):
        raise RunError(f"{out} was begun with another case, or its files have changed; choose another with --out")


@final
@dataclass
class _Explaining:
    """Hold what is known while one case is explained."""

    case: Case
    plan: Plan
    out: Path
    tell: Tell
    executor: Executor
    minutes: float
    not_tried: list[str] = field(default_factory=list)

    def answer(self, begun: float, deadline: float, workers: int, seeds: int | None) -> Answer:
        """The answer, step by step."""
        quantity = self.case.quantity
        self.tell(f"seen {quantity.seen:.4g}, expected {quantity.expected:.4g}: {quantity.words}")
        whole = {variant.name: self._setup(variant.name) for variant in self.plan.variants}
        found = self._before_training(whole)
        equal = self._equal_parameters(whole)
        runs = Runs(self.out / "runs", self.executor, self._on_run)
        self.measuring = Measuring(self.case, runs, range(seeds or SEEDS), 1.0, deadline)
        whole, entire = self._entire(found, whole, workers)
        self._pace(self._causes(found, whole, equal), whole, entire, workers, seeds)
        self._lengthen(whole)
        setups = self._as_called(found, {name: self._shortened(setup) for name, setup in whole.items()})
        if entire.found is None or not self.measuring.comparable:
            self.tell("does it come again?" if self.measuring.comparable else "does it come again in these runs?")
        again, error = self._again(setups)
        self._after_training(found, setups)
        causes = self._that_length_spares(self._causes(found, setups, equal))
        base = {name: setups[name] for name in quantity.variants}
        start = self.measuring.quantity(base)
        made = self._made(found.impossible, setups)
        trained = quantity.metric.name in IN_TRAINING
        tuned_by = quantity.metric if trained else self.plan.task.metrics[0]
        removing = Removing(self.measuring, base, tuned_by, self.tell)
        self.tell("what carries it?")
        causes = self._that_work(causes, found, base) if mean_of(start) else causes
        if mean_of(start):
            removing.carry(causes)
        cured = [] if mean_of(start) else removing.cures(causes)
        end = mean_of(removing.end())
        if self.measuring.comparable:
            again = self._again_with_all_seeds(setups, again)
            start = self.measuring.quantity(base)
            entire = replace(self._held(base, again), found=None)
        return Answer(
            self.case.study.name, self.case.study.question, quantity.words, quantity.metric.unit,
            quantity.seen, quantity.expected, self.measuring.fraction, len(self.measuring.seeds),
            again=entire.again or tuple(again), start=mean_of(start), entire=entire.found, noise=entire.noise,
            shares=tuple(removing.shares),
            end=end,
            without_effect=tuple(dict.fromkeys(removing.without_effect)),
            undecided=removing.undecided, nearest=removing.nearest,
            not_tried=tuple(dict.fromkeys([*self.not_tried, *removing.not_tried])),
            impossible=tuple(found.impossible), alarms=found.alarms, made=tuple(made), otherwise=entire.otherwise,
            unmeasured=self._unmeasured(found, causes),
            unshown=self._unshown(found, causes, removing.shares),
            examined=tuple({(one.name, str(one.errors)): one for each in found.situations.values()
                            for one in each.examined}.values()),
            memories=tuple(found.memories), effects=found.effects, brought=found.brought, error=error,
            notes=self.case.notes,
            scale=self.case.scale, variants=quantity.variants, cured=tuple((one.name, one.nature) for one in cured),
            seconds=self._seconds(time.monotonic() - begun), minutes=self.minutes,
        )  # fmt: skip

    def _causes(self, found: _Found, setups: Mapping[str, Setup], equal: Mapping[str, Change] | None) -> list[Cause]:
        """Every cause that could be removed from the variants that are explained."""
        names = self.case.quantity.variants
        situations = {name: replace(found.situations[name], setup=setups[name]) for name in names}
        quantity = self.case.quantity
        too_good = quantity.beside is None and quantity.metric.improves(quantity.seen, quantity.expected)
        spared = too_good or quantity.beside is not None
        causes = [
            one
            for one in candidates(situations, comparison=equal)
            if not (spared and one.name in (*GAINS, OVERFITTING))
        ]
        if quantity.beside is None:
            return [one for one in causes if not (too_good and one.grows)]
        # what is compared must stay what it is, and what one variant alone lacks is not why it does better than thought
        behind = quantity.worse_than_thought
        causes = [*unequal(situations, behind), *causes]
        return [one for one in causes if one.nature != OWN and (one.nature != "known effect" or behind in one.changes)]

    def _that_length_spares(self, causes: Sequence[Cause]) -> list[Cause]:
        """Causes, but those that a run has of being shortened."""
        if self.measuring.fraction == 1:
            return list(causes)
        self.not_tried += [f"'{cause.name}' (runs are shortened)" for cause in causes if cause.name in OF_LENGTH]
        return [cause for cause in causes if cause.name not in OF_LENGTH]

    def _that_work(self, causes: Sequence[Cause], found: _Found, base: Mapping[str, Setup]) -> list[Cause]:
        """Causes, but modules as a whole where mending a bug does not reach it."""
        checked = []
        for cause in causes:
            if self._reaches(cause, base):
                checked.append(cause)
                continue
            self.not_tried.append(f"mending '{cause.name}' (its own code is not reached)")
            if cause.name in TITLES.values():  # of attention, and not of what stands around it
                situations = {name: replace(found.situations[name], setup=base[name]) for name in cause.changes}
                whole = replaced(cause, situations)
                checked += [whole] if whole.changes and self._reaches(whole, base) else []
        return checked

    def _reaches(self, cause: Cause, base: Mapping[str, Setup]) -> bool:
        """Whether nothing is left of a cause, as far as it is measured, where what removes it is changed."""
        fixed = {name: base[name].changed(**change) for name, change in cause.changes.items()}
        if cause.name in STILL:
            return not any(STILL[cause.name](self._measured(one)) for one in fixed.values())
        scale = cause.name == TITLES["scale"]  # of which nothing else tells
        return not (scale and any(give_the_same(base[name], one) for name, one in fixed.items()))

    def _unmeasured(self, found: _Found, causes: Sequence[Cause]) -> tuple[str, ...]:
        """The errors of the doctor in what is explained that are removed with no cause."""
        bugs = [cause for cause in causes if cause.nature == "bug"]
        reached = any(cause.whole for cause in bugs)  # a module as a whole has none of its errors left
        told = () if reached else self._errors(found)
        return tuple(one for one in told if not any(one in cause.evidence for cause in bugs))

    def _unshown(self, found: _Found, causes: Sequence[Cause], shares: Sequence[Share]) -> tuple[str, ...]:
        """The errors of the doctor that were removed, where runs are too short to say that this changes nothing."""
        bugs = [cause for cause in causes if cause.nature == "bug"]
        if self.measuring.comparable or {cause.name for cause in bugs} & {share.name for share in shares}:
            return ()
        return tuple(one for one in self._errors(found) if any(one in cause.evidence for cause in bugs))

    def _errors(self, found: _Found) -> list[str]:
        """The errors of the doctor in what is explained."""
        errors = (finding for name in self.case.quantity.variants
                  for one in found.situations[name].examined for finding in one.errors)  # fmt: skip
        return [finding["message"].rstrip(".") for finding in errors if finding["check"] not in ELSEWHERE]

    def _measured(self, setup: Setup, trained: Path | None = None) -> Measured:
        """What the table of signatures reads of a set-up; nothing where it cannot be measured, which is told."""
        return _or_nothing(lambda: measure(setup, trained), {}, self.tell, f"'{setup.name}' could not be measured")

    def _at_work(self, name: str, measured: Measured) -> dict[str, str]:
        """The known effects that are at work, with their evidence, which is told."""
        found = {sign.name: evidence for sign in SIGNATURES if (evidence := sign.of(measured))}
        for effect, evidence in found.items():
            self.tell(f"'{name}': {effect}: {evidence}")
        return found

    def _after_training(self, found: _Found, setups: Mapping[str, Setup]) -> None:
        """Measure the known effects once more, in one trained model of every variant that is explained."""
        self.tell("known effects after training:")
        runs, seed = self.measuring.runs, self.measuring.seeds[0]
        for name in self.case.quantity.variants:
            if runs.of([setups[name]], [seed])[name][seed].error:
                continue
            trained = self._measured(setups[name], runs.folder_of(setups[name], seed))
            found.situations[name] = replace(found.situations[name], trained=trained)
            found.brought[name] = self._at_work(name, trained)

    def _noise(self, base: Mapping[str, Setup]) -> bool | None:
        """Whether what was seen lies within the noise of runs."""
        found = self.measuring.values(base, self.case.quantity.metric)
        return within_noise(list(found.values()), self.case.quantity.seen, self.case.runs)

    def _otherwise(self, base: Mapping[str, Setup]) -> Again | None:
        """What a number outside the noise of runs is within: the first of what they give read otherwise, or leaking."""
        quantity, name = self.case.quantity, self.case.quantity.variant
        found = self.measuring.values(base, quantity.metric)[name]
        others = [(title, {seed: read(value) for seed, value in found.items()})
                  for title, read in readings(quantity.metric, build_task(self.case.study.task_spec()))]  # fmt: skip
        for trained in (one for one in metrics_of(self.plan.task).values() if one.name in IN_TRAINING):
            if quantity.metric.unit == trained.unit and quantity.metric.name not in IN_TRAINING:
                kind = trained.name.removeprefix("train_")
                reached = self.measuring.values(base, trained)[name]
                others.append((f"the {kind} in training for that of held-out data", reached))
        if all(quantity.metric.improves(quantity.seen, value) for value in found.values()):
            leaking = leaks(base[name])
            made = {} if self.measuring.late(leaking) else {one.name: one for one in leaking}
            others += self.measuring.values(made, quantity.metric).items() if made else ()
        for title, values in () if quantity.beside else others:
            estimate, usual = mean_of(values), mean_of(found)
            if not (estimate and usual and within_noise([values], quantity.seen, self.case.runs)):
                continue
            if abs(quantity.seen - estimate.mean) <= NEAR * abs(quantity.seen - usual.mean):
                return Again(title, quantity.metric.name, quantity.seen, estimate, True)
        return None

    def _as_called(self, found: _Found, setups: Mapping[str, Setup]) -> dict[str, Setup]:
        """Set-ups as the person called them, where nobody says in which layout: in the one that comes nearer.

        A module that reads the batch as time, but for the layout in which it does not, may have been called in either.
        """
        called = dict(setups)
        for name, situation in found.situations.items():
            open_still = situation.as_meant is None and any(one.layout_in_question for one in situation.examined)
            # shortened runs do not tell which layout it was given
            if not open_still or name not in self.case.saw or not self.measuring.comparable:
                continue
            literal = setups[name].changed(model=swapped(situation))
            literal = replace(literal, name=f"{name}, given (batch, length, d_model)")
            metric, seen = next(iter(self.case.saw[name].items()))
            runs = self.measuring.runs.of([setups[name], literal], self.measuring.seeds[:1])
            meant, said = (runs[one.name][0].metrics.get(metric, math.inf) for one in (setups[name], literal))
            self.tell(
                f"'{name}': {metric} {said:.4g} given (batch, length, d_model), {meant:.4g} given the other layout"
            )
            if abs(said - seen) < abs(meant - seen):
                called[name] = replace(literal, name=name)
                found.situations[name] = replace(situation, as_meant={"mixer": setups[name].model["mixer"]})
        return called

    def _seconds(self, now: float) -> float:
        """How long it took, with earlier commands."""
        before = read_json(self.out / ANSWER).get("seconds", 0.0) if (self.out / ANSWER).exists() else 0.0
        return round(before + now, 1)

    def _setup(self, name: str) -> Setup:
        """A variant as the person ran it, evaluated at the end alone where that is what they report."""
        variant = self.plan.variant(name)
        task = self.case.study.task_spec(name)
        if variant.steps is None:
            raise SpecError("training.budget must be in steps, epochs or tokens")
        training = BY_HAND | variant.training | {"budget": {"steps": variant.steps}}
        if self.case.reported == "last" and ENDS_EARLIER.isdisjoint(training):
            training["evaluate_every"] = AT_THE_END
        said = {metric for row in self.case.saw.values() for metric in row}
        judged = not said.isdisjoint(metric.name for metric in self.plan.task.judged)
        return Setup(name, task if isinstance(task, Mapping) else {"name": task}, variant.model, training, judged)

    # Before training

    def _before_training(self, setups: Mapping[str, Setup]) -> _Found:
        """What is known of every variant before anything is trained."""
        task = build_task(self.case.study.task_spec())
        found = _Found()
        for name, setup in setups.items():
            measured, examined = self._measured(setup), examine(setup)
            words = f"the parts of '{name}' are not found"
            parts = _or_nothing(partial(exchangeable, setup), Exchangeable(), self.tell, words)
            found.situations[name] = Known(setup, task, examined, measured, exchangeable=parts)
            for one in examined:
                self.tell(f"doctor, {one.name.rpartition(':')[2]}: {one.verdict or one.error}")
                for finding in one.errors or one.warnings[:1]:
                    self.tell(f"  {finding['message']} {finding['evidence']}")
            found.effects[name] = self._at_work(name, measured)
        measured = {name: one.measured for name, one in found.situations.items()}
        found.impossible = impossible(self.case, task, measured)
        found.alarms = task.alarms()
        for words in (*(one.words for one in found.impossible), *found.alarms):
            self.tell(f"can it be? {words}")
        found.memories = self._by_heart()
        return found

    def _by_heart(self) -> list[Memory]:
        """Whether the variants that are explained can learn a few items by heart."""
        kept = self.out / FOUND
        if kept.exists():
            return [Memory(**one | {"curve": tuple(map(tuple, one["curve"]))}) for one in read_json(kept)["memories"]]
        names = self.case.quantity.variants
        learned = _or_nothing(
            lambda: list(overfit(self.case.study, variants=names, seconds=HEART_S)),
            [],
            self.tell,
            "nothing was learned",
        )
        for one in learned:
            self.tell(f"'{one.variant}', {one.items} items by heart: {one.verdict}")
        write_json(
            kept, {"memories": [{**vars(one), "curve": [list(point) for point in one.curve]} for one in learned]}
        )
        return learned

    def _equal_parameters(self, setups: Mapping[str, Setup]) -> Mapping[str, Change] | None:
        """What makes the compared variants' parameters equal; None where they are, or it cannot be."""
        quantity = self.case.quantity
        if quantity.beside is None:
            return None
        own, other = (self.plan.variant(name).parameters for name in quantity.variants)
        if abs(own / other - 1) <= 0.05:
            return None
        kept = self.case.study.to_json()
        matching = {"rules": {"match": "parameters"}, "baseline": quantity.beside}
        with contextlib.suppress(AttnlabError):
            study = restore_study({**kept, "content": merge(kept["content"], matching)})
            matched, before = plan_study(study).variant(quantity.variant).model, setups[quantity.variant].model
            changed = {key: value for key, value in matched.items() if before.get(key) != value}
            return {quantity.variant: {"model": changed}} if changed else None
        return None

    def _pace(
        self, causes: Sequence[Cause], setups: Mapping[str, Setup], entire: _Held, workers: int, seeds: int | None
    ) -> None:
        """Choose the seeds, and which part of the steps is made, so that the plan fits the time."""
        kept, asked = read_json(self.out / FOUND), [self.minutes, seeds]
        if kept.get("plan", {}).get("asked") == asked:  # a command that goes on has the same runs
            seeds, fraction = kept["plan"]["seeds"], kept["plan"]["fraction"]
            self.measuring = replace(self.measuring, seeds=range(seeds), fraction=fraction)
            return
        takes = {name: self._takes(setup, workers) for name, setup in setups.items()}
        explained = sum(takes[name] for name in self.case.quantity.variants)
        beside = sum(takes[name] for name in self.case.saw if name not in self.case.quantity.variants)
        seconds = self.measuring.deadline - time.monotonic()

        def cost(runs: int, causes: Sequence[Cause], beside: float = beside) -> float:
            return runs * (explained + beside) + explained * (FOLLOWED * runs + sum(one.costs for one in causes))

        runs = seeds or (MOST_SEEDS if cost(MOST_SEEDS, causes) <= seconds else SEEDS)
        spared = [cause for cause in causes if cause.name not in OF_LENGTH]
        shorten = seconds < NEARLY * cost(runs, spared) and not self._wants_all_steps(entire, causes, setups)
        needed = cost(runs, spared, beside=0.0)  # shortened runs are not held against what was seen of others
        fraction = min(NEARLY, seconds / needed) if shorten and needed else 1.0
        shortest = min(setup.steps for setup in setups.values())
        if fraction < 1 and shortest * fraction < FEWEST_STEPS:
            shortened = needed * min(1.0, FEWEST_STEPS / shortest) / 60
            raise SpecError(
                f"{self.minutes:g} minutes are too few: with {FEWEST_STEPS} steps a run the plan takes "
                f"about {math.ceil(shortened)} min, with all {shortest} about {math.ceil(cost(runs, causes) / 60)} min"
            )
        write_json(self.out / FOUND, kept | {"plan": {"asked": asked, "seeds": runs, "fraction": fraction}})
        self.measuring = replace(self.measuring, seeds=range(runs), fraction=fraction)
        part = "" if fraction == 1 else f", shortened to {fraction:.2g} of their steps"
        most = min(cost(runs, causes) if fraction == 1 else needed * fraction, seconds) / 60
        self.tell(f"plan: {runs} runs of every set-up{part}; about {most:.1f} minutes at most")

    def _lengthen(self, setups: Mapping[str, Setup]) -> None:
        """Make all steps after all, where a run with them has the surprise and a shorter one has none."""
        base, first = {name: setups[name] for name in self.case.quantity.variants}, self.measuring.seeds[:1]
        if self.measuring.fraction == 1 or not self.measuring.runs.are_made(list(base.values()), first):
            return
        shorter = {name: self._shortened(setup) for name, setup in base.items()}
        whole, part = (mean_of(self.measuring.quantity(some, first)) for some in (base, shorter))
        if whole and part and self._surprises(whole.mean, HALF) and not self._surprises(part.mean, MATTERS):
            self.tell("shortened runs do not show what was seen: runs have all steps, as far as there is time")
            kept = read_json(self.out / FOUND)
            write_json(self.out / FOUND, kept | {"plan": {**kept["plan"], "fraction": 1.0}})
            self.measuring = replace(self.measuring, fraction=1.0)

    def _surprises(self, number: float, part: float) -> bool:
        """Whether a number lies off what was expected by more than a part of what was seen, on its side."""
        distance = self.case.quantity.distance
        return (number - self.case.quantity.expected) * math.copysign(1.0, distance) > part * abs(distance)

    def _takes(self, setup: Setup, workers: int) -> float:
        """Seconds that one run of a variant takes: as runs before took, or as a few of its steps did."""
        planned = (self.plan.variant(setup.name).seconds_per_seed or 0.0) * OTHERWISE / max(1, workers)
        return self.measuring.runs.seconds_of([setup], [ANOTHER]) or planned

    def _entire(self, found: _Found, setups: dict[str, Setup], workers: int) -> tuple[dict[str, Setup], _Held]:
        """Set-ups as the person called them, and what was seen held against runs of them, where these leave time."""
        seen = {name: setups[name] for name in self.case.saw}
        for seeds in (self.measuring.seeds[:1], self.measuring.seeds):  # one run tells better how long others take
            needed = len(seeds) * sum(self._takes(setup, workers) for setup in seen.values())
            if not self.measuring.comparable or needed > AT_FIRST * (self.measuring.deadline - time.monotonic()):
                return setups, _Held()
            self.measuring.runs.of(list(seen.values()), self.measuring.seeds[:1])
        called = self._as_called(found, setups)
        self.tell("does it come again?")
        again, _ = self._again(called)
        return called, self._held({name: called[name] for name in self.case.quantity.variants}, again)

    def _held(self, base: Mapping[str, Setup], again: Sequence[Again]) -> _Held:
        """What was seen, held against runs of its size and steps."""
        noise = self._noise(base) if self.measuring.comparable else None
        otherwise = self._otherwise(base) if noise is False else None
        return _Held(mean_of(self.measuring.quantity(base)), noise, otherwise, tuple(again))

    def _wants_all_steps(self, entire: _Held, causes: Sequence[Cause], setups: Mapping[str, Setup]) -> bool:
        """Whether runs with all steps tell most already, or a quarter of them comes nearer to what was expected."""
        if entire.found is None:
            return False
        if entire.otherwise or not self._surprises(entire.found.mean, MATTERS):
            return True
        toward, matters = math.copysign(1.0, self.case.quantity.distance), MATTERS * abs(self.case.quantity.distance)
        for cause in (one for one in causes if one.name == OVERFITTING):
            sooner = {
                name: replace(setups[name].changed(**change), name=f"{name}, {cause.name} removed")
                for name, change in cause.changes.items()
            }
            once = mean_of(self.measuring.quantity(sooner, self.measuring.seeds[:1]))
            return once is not None and (entire.found.mean - once.mean) * toward > matters
        return False

    def _shortened(self, setup: Setup) -> Setup:
        fraction = self.measuring.fraction
        if fraction == 1:
            return setup
        steps = max(1, round(setup.steps * fraction))
        shorter: dict[str, Any] = {"budget": {"steps": steps}}
        every = setup.training.get("evaluate_every")
        if every and self.case.reported == "best":
            shorter["evaluate_every"] = max(1, round(every * fraction))
        return setup.changed(training=shorter)

    # With runs

    def _on_run(self, name: str, seed: int, message: Mapping[str, Any]) -> None:
        metric = self.case.quantity.metric.name
        value = message.get("metrics", {}).get(metric)
        told = "done" if value is None else f"{metric} {value:.4g}"
        self.tell(f"  {name}, seed {seed}: {message.get('error') or told}")

    def _again(self, setups: Mapping[str, Setup]) -> tuple[list[Again], str]:
        """Every number that was seen, in runs of the set-up as it was; and why runs did not finish.

        Shortened runs are not held against what was seen, and only those of the explained variants are made.
        """
        names = self.case.saw if self.measuring.fraction == 1 else self.case.quantity.variants
        seen = {name: setups[name] for name in self.case.saw if name in names}
        runs = self.measuring.runs.of(list(seen.values()), self.measuring.seeds)
        metrics = metrics_of(self.plan.task)
        found, errors = [], []
        for name in seen:
            errors += [run.error for run in runs[name].values() if run.error]
            for metric, value in self.case.saw[name].items():
                values = self.measuring.values({name: seen[name]}, metrics[metric])[name]
                estimate = mean_of(values)
                if estimate:
                    error = ERROR / sum(map(len, self.case.saw.values()))
                    comparable = self.measuring.comparable
                    within = within_noise([values], value, self.case.runs, error=error) if comparable else None
                    found.append(Again(name, metric, value, estimate, within))
        return found, errors[0] if errors else ""

    def _again_with_all_seeds(self, setups: Mapping[str, Setup], again: list[Again]) -> list[Again]:
        """Every number that was seen, also in the runs that were made since to decide what a cause carries."""
        twice = range(2 * len(self.measuring.seeds))
        if not self.measuring.runs.are_made([setups[name] for name in self.case.saw], twice):
            return again
        self.measuring = replace(self.measuring, seeds=twice)
        return self._again(setups)[0]

    def _made(self, impossibles: Sequence[Impossible], setups: Mapping[str, Setup]) -> list[Again]:
        """What other set-ups give for the numbers that cannot be: one run each."""
        found = []
        metrics = metrics_of(self.plan.task)
        for one in (one for one in impossibles if one.kind != "unlearned"):
            others = ways(setups[one.variant], one)
            if not others or self.measuring.late(others, self.measuring.seeds[:1]):
                self.not_tried += [f"{setup.name} (no time)" for setup in others]
                continue
            values = self.measuring.values(
                {setup.name: setup for setup in others}, metrics[one.metric], self.measuring.seeds[:1]
            )
            for setup in others:
                value = values[setup.name][0]
                if math.isfinite(value):
                    estimate = Estimate(value, -math.inf, math.inf, 1)
                    found.append(Again(setup.name, one.metric, one.value, estimate, None))
                    self.tell(f"made: {setup.name}: {one.metric} {value:.4g} (seen {one.value:.4g})")
        return found


@final
@dataclass(frozen=True)
class _Held:
    """Hold what runs of a case with all of its steps say of what was seen."""

    found: Estimate | None = None
    noise: bool | None = None
    otherwise: Again | None = None
    again: tuple[Again, ...] = ()


@final
@dataclass
class _Found:
    """Hold what is known before training."""

    situations: dict[str, Known] = field(default_factory=dict)
    effects: dict[str, dict[str, str]] = field(default_factory=dict)
    brought: dict[str, dict[str, str]] = field(default_factory=dict)
    impossible: list[Impossible] = field(default_factory=list)
    alarms: tuple[str, ...] = ()
    memories: list[Memory] = field(default_factory=list)


def _or_nothing(step: Callable[[], Any], nothing: Any, tell: Tell, words: str) -> Any:
    """What a step gives, or nothing where it raises on purpose, which is told."""
    try:
        return step()
    except AttnlabError as error:
        tell(f"{words}: {error}")
        return nothing
