"""Explain a case: can it be, is it a bug, does it come again, what carries it. Each step lies in the folder at once."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import fingerprint, read_json, write_json
from attnlab.core.machine import usable_cores
from attnlab.explain.answer import Answer
from attnlab.explain.case import Case, load_case, parse_case
from attnlab.explain.causes.cause import LEAKING, OWN, Cause, Change
from attnlab.explain.causes.known import Known, setups_of
from attnlab.explain.metrics import IN_TRAINING
from attnlab.explain.possible import Allowed, allowed
from attnlab.explain.stages import repeating, suspecting
from attnlab.explain.stages.knowing import KnownBefore, Tell, know_after, know_before
from attnlab.explain.stages.pacing import SEEDS, Pacing
from attnlab.explain.stages.removing import Removing
from attnlab.explain.stages.repeating import Held
from attnlab.explain.trials.measuring import Measuring
from attnlab.explain.trials.setups import Runs, as_run
from attnlab.studies.plan.plan import Plan, plan_study
from attnlab.studies.run.executor import Executor, LocalProcesses
from attnlab.studies.run.layout import WORKERS_LOG, bounded
from attnlab.studies.run.mirrored import holding

CASE, ANSWER, FOUND = "case.json", "answer.json", "found.json"
"""Files of a case's folder: what is explained, the answer, and what was found before anything was trained."""
OTHERWISE, BEGIN_S = 1.1, 3.0
"""What runs take beside the steps that were timed: evaluation, and to begin with building and the processes' start."""


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
        If what was seen is as expected, a variant cannot be built, or the minutes do not suffice for the shortest plan.
    RunError
        If the folder belongs to another case or another process.
    """
    if not (math.isfinite(minutes) and minutes > 0):
        raise SpecError(f"minutes must be a positive number; got {minutes!r}")
    if seeds is not None and seeds < 2:
        raise SpecError(f"seeds must be 2 or more, as one run says nothing about noise; got {seeds}")
    begun, tell = time.monotonic(), tell or (lambda _: None)
    if not isinstance(case, Case):
        case = parse_case(case) if isinstance(case, Mapping) else load_case(case)
    if not case.quantity.distance:
        words = f"{case.quantity.seen:.4g} was seen, and that is as expected: {case.quantity.words}"
        wanted = "say in 'expected' what you thought it would be"
        wanted += ", of too large a difference as 'A is as good as B by 0.1'" if case.quantity.one_sided else ""
        raise SpecError(f"{words}. There is nothing to explain; {wanted}")
    out = out or folder_of(case)
    plan = plan_study(case.study, calibrate=True)
    with contextlib.ExitStack() as held:
        out, _ = held.enter_context(holding(out, say=tell))
        _keep(case, out)
        workers = 1  # as far as is known of an executor that is given
        if executor is None:
            workers, fewer = bounded(jobs or usable_cores(), plan)
            if fewer:
                tell(fewer)
            executor = held.enter_context(LocalProcesses(workers, 1, out / WORKERS_LOG))
        on_run = partial(_on_run, case.quantity.metric.name, tell)
        runs = Runs(out / "runs", executor, on_run, workers=workers)
        measuring = Measuring(case, runs, range(seeds or SEEDS), 1.0, begun + 60 * minutes)
        takes = {one.name: (one.seconds_per_seed or 0.0) * OTHERWISE + BEGIN_S for one in plan.variants}
        pacing = Pacing(out / FOUND, minutes, seeds, takes, tell)
        answer = replace(_answer(measuring, plan, pacing), seconds=_seconds(out, begun), minutes=minutes)
        write_json(out / ANSWER, answer.to_json())
    return answer


def folder_of(case: Case) -> Path:
    """Where a case lies unless told otherwise: ``runs/explain-NAME``, or ``runs/explain-NAME-SCALE``."""
    return Path("runs") / "-".join(filter(None, ("explain", case.study.name, case.scale)))


def _keep(case: Case, out: Path) -> None:
    """Write down what is explained, or check that it is what the folder was begun with."""
    said = case.to_json()
    if not (out / CASE).exists():
        if any(not path.name.startswith(".") for path in out.iterdir()):
            raise RunError(f"{out} is no case's folder and holds files; choose another with --out")
        write_json(out / CASE, said)
    elif fingerprint(read_json(out / CASE)) != fingerprint(said):
        raise RunError(f"{out} was begun with another case, or its files have changed; choose another with --out")


def _seconds(out: Path, begun: float) -> float:
    """How long it took, with earlier commands."""
    before = read_json(out / ANSWER).get("seconds", 0.0) if (out / ANSWER).exists() else 0.0
    return round(before + time.monotonic() - begun, 1)


def _on_run(metric: str, tell: Tell, name: str, seed: int, message: Mapping[str, Any]) -> None:
    """Tell what a run ended with."""
    value = message.get("metrics", {}).get(metric)
    told = "done" if value is None else f"{metric} {value:.4g}"
    tell(f"  {name}, seed {seed}: {message.get('error') or told}")


def _answer(measuring: Measuring, plan: Plan, pacing: Pacing) -> Answer:
    """The answer, stage by stage."""
    case, quantity, tell = measuring.case, measuring.case.quantity, pacing.tell
    tell(f"seen {quantity.seen:.4g}, expected {quantity.expected:.4g}: {quantity.words}")
    before = know_before(case, as_run(case, plan), pacing.kept, tell)
    known, entire, equal = before.known, Held(), suspecting.equal_parameters(case, plan)
    # with all steps, where there is time for it
    if pacing.leaves_time(measuring, known):
        known = repeating.as_called(measuring, known, tell)
        tell("does it come again?")
        entire = repeating.held(measuring, known)
    # in runs that fit the time
    suspected = suspecting.suspects(quantity, known, equal)
    measuring = pacing.chosen(measuring, known, suspected, entire)
    measuring = pacing.lengthened(measuring, known)
    if not measuring.comparable and entire.found is None:
        entire = repeating.held_as_made(measuring, known)
    carrying = _Carrying(before, plan, equal, tell)
    answer = carrying.answer(measuring, known, entire)
    # and with all steps after all, where what these told leaves time for it
    worth = worth_all_steps(answer, suspected)
    afforded = None if answer.start is None else pacing.affords_after(measuring, known, worth)
    if afforded is None or (answer.shares and not afforded):
        return answer
    tell(f"time is left: the case is run with all steps{', and what seems to matter is removed' if afforded else ''}")
    # where nothing seems to carry anything all are tried, what speaks for itself before others
    some = worth[:afforded] if answer.shares or afforded < len(worth) else suspected
    only = {*suspecting.OF_LENGTH, *(one.name for one in some)}
    again = carrying.answer(replace(measuring, fraction=1.0), known, entire, only)
    if again.shares or not answer.shares or afforded == len(worth):
        return again.after(answer, only)
    held = {"noise": again.noise, "draw": again.draw, "again": again.again, "otherwise": again.otherwise}
    return replace(answer, entire=again.start, **held)


def worth_all_steps(answer: Answer, suspected: Sequence[Cause]) -> list[Cause]:
    """Bugs that were found, and causes that seemed to carry something in shortened runs, which may not show a bug.

    Beside them a leak, which only long runs know by heart, and before own code as a whole also effects measured in it.
    """
    own = answer.largest is not None and answer.largest[1] == OWN
    bugs = [one for one in suspected if one.evidence and one.nature == "bug"]
    measured = [one.name for one in suspected if own and one.evidence and one.nature == "known effect"]
    worth = (*answer.worth_all_steps, *measured)
    named = (*worth, LEAKING) if worth or bugs else ()
    return bugs + [one for one in suspected if one.name in named and one not in bugs]


@final
@dataclass(frozen=True)
class _Carrying:
    """Find what carries a number, in runs of any length."""

    before: KnownBefore  # what is known before anything is trained
    plan: Plan  # of the study that the case is
    equal: Mapping[str, Change] | None  # what makes compared variants' parameters equal
    tell: Tell  # told of each thing as it is found

    def answer(
        self, measuring: Measuring, known: Mapping[str, Known], entire: Held, only: Container[str] | None = None
    ) -> Answer:
        """The answer that runs give, of all causes or of those that are named."""
        case, quantity, tell = measuring.case, measuring.case.quantity, self.tell
        asked = known
        known = {name: replace(one, setup=measuring.shortened(one.setup)) for name, one in known.items()}
        known = repeating.as_called(measuring, known, tell)
        if entire.found is None or not measuring.comparable or only is not None:
            tell("does it come again?" if measuring.comparable else "does it come again in these runs?")
        again, error = repeating.seen_again(measuring, known)
        known, brought = know_after(measuring, known, tell)
        causes, of_length = suspecting.that_length_spares(measuring, suspecting.suspects(quantity, known, self.equal))
        causes = [one for one in causes if only is None or one.name in only]
        start, unreached, cured = measuring.mean(setups_of(known, quantity.variants)), list[str](), []
        impossibles = () if entire.noise else self.before.impossible  # what comes again was made by the case alone
        waits = any(one.nature == "bug" for one in causes)  # an error of the doctor may be all that made them
        made, no_time = repeating.made_otherwise(measuring, known, () if waits else impossibles, tell)
        tuned_by = quantity.metric if quantity.metric.name in IN_TRAINING else self.plan.task.metrics[0]
        removing = Removing(measuring, setups_of(known, quantity.variants), tuned_by, tell)
        tell("what carries it?")
        if start:
            causes, unreached = suspecting.that_work(quantity, causes, known, tell)
            removing.carry(causes)
        else:
            cured = removing.cures(causes)
        if waits and not removing.bugs_carry_all:
            made, no_time = repeating.made_otherwise(measuring, known, impossibles, tell)
        left, unshown = suspecting.errors_left(measuring, known, causes, removing.shares)
        if measuring.comparable:
            measuring = repeating.with_all_seeds(measuring, known, list(removing.ended.values()))
            entire = repeating.held(measuring, known)
            start, entire = entire.found, replace(entire, found=None)
        before = _before_runs(case, self.before)
        allowed = _labels_allow(measuring, asked, removing) if start and before.behind else before.allowed
        return replace(
            before, allowed=allowed, fraction=measuring.fraction, seeds=len(measuring.seeds),
            again=entire.again or again, start=start, entire=entire.found, noise=entire.noise, draw=entire.draw,
            otherwise=entire.otherwise, shares=tuple(removing.shares),
            end=measuring.mean(removing.ended),
            without_effect=tuple(dict.fromkeys(removing.without_effect)),
            worse=removing.worse, alone=removing.alone, undecided=removing.undecided, nearest=removing.nearest,
            not_tried=tuple(dict.fromkeys([*of_length, *no_time, *unreached, *removing.not_tried])),
            alarms=(*self.before.alarms, *repeating.ended_early(measuring, known)), made=made,
            unmeasured=left, unshown=unshown, brought=brought, error=error,
            gone=suspecting.gone(self.before.effects, removing.shares, removing.ended, tell),
            cured=tuple((one.name, one.nature) for one in cured), raised=start is None and removing.raised,
        )  # fmt: skip


def _labels_allow(measuring: Measuring, known: Mapping[str, Known], removing: Removing) -> Allowed | None:
    """What labels allow, as runs with all steps tell: short ones are wrong where they have not learned enough."""
    learned, ended = measuring, removing.ended
    if not measuring.comparable:
        learned = None if removing.shares else repeating.as_made(measuring, known)
        ended = setups_of(known, measuring.case.quantity.variants)
    return repeating.of_labels(learned, known, ended) if learned else None


def _before_runs(case: Case, before: KnownBefore) -> Answer:
    """The answer as far as it is known before anything is trained."""
    quantity = case.quantity
    examined = (one for each in before.known.values() for one in each.examined)
    tokens = case.study.rules.budget.get("tokens")
    steps = before.known[quantity.variant].setup.steps
    notes = (*case.notes, *([f"{tokens:,} tokens are {steps} steps of this task"] if tokens else []))
    return Answer(
        case.study.name, case.study.question, quantity.words, quantity.metric.unit,
        quantity.seen, quantity.expected, 1.0, 0, behind=quantity.metric.improves(quantity.expected, quantity.seen),
        one_sided=quantity.one_sided, impossible=before.impossible,
        allowed=allowed(case, before.known[quantity.variant].task),
        alarms=before.alarms, memories=before.memories, effects=before.effects,
        examined=tuple({(one.name, str(one.errors)): one for one in examined}.values()),
        notes=notes, scale=case.scale, variants=quantity.variants,
    )  # fmt: skip
