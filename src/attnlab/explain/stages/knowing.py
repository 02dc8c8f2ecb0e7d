"""What is known of the variants before anything is trained, and what signatures say once more after training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import AttnlabError
from attnlab.core.files import read_json, write_json
from attnlab.explain.case import Case
from attnlab.explain.causes.known import Known
from attnlab.explain.causes.own_code import Exchangeable, examine, exchangeable
from attnlab.explain.causes.signatures import SIGNATURES, Measured, measure
from attnlab.explain.overfit import Memory, overfit
from attnlab.explain.possible import Impossible, coarse, impossible
from attnlab.explain.trials.measuring import Measuring
from attnlab.explain.trials.setups import Setup
from attnlab.studies.define.assemble import build_task

HEART_S = 10.0
"""How long a variant may take to learn a few items by heart."""

Tell = Callable[[str], None]
"""Told of each thing that is found, in a line."""


@final
@dataclass(frozen=True)
class KnownBefore:
    """Hold what is known before anything is trained."""

    known: Mapping[str, Known]  # by variant
    effects: Mapping[str, Mapping[str, str]]  # by variant the known effects that are at work, with their evidence
    impossible: tuple[Impossible, ...]  # numbers that cannot be what they seem
    alarms: tuple[str, ...]  # what is suspicious about the task's data and their split
    memories: tuple[Memory, ...]  # how the variants that are explained learn a few items by heart


def know_before(case: Case, setups: Mapping[str, Setup], kept: Path, tell: Tell) -> KnownBefore:
    """What is known of every variant before anything is trained; what was learned by heart is kept in a file."""
    task = build_task(case.study.task_spec())
    known, effects = dict[str, Known](), dict[str, dict[str, str]]()
    for name, setup in setups.items():
        measured, examined = measured_of(setup, tell), examine(setup)
        words = f"the parts of '{name}' are not found"
        parts = _or_nothing(partial(exchangeable, setup), Exchangeable(), tell, words)
        known[name] = Known(setup, task, examined, measured, exchangeable=parts)
        for one in examined:
            here = one.verdict if one.errors_here or not one.errors else "no error that matters in these runs"
            tell(f"doctor, {one.class_name}: {here or one.error}")
            for finding in one.errors_here or one.warnings[:1]:
                tell(f"  {finding['message']} {finding['evidence']}")
        effects[name] = _at_work(name, measured, tell)
    cannot_be = tuple(impossible(case, task, {name: one.measured for name, one in known.items()}))
    alarms = (*task.alarms(), *coarse(case, task))
    for words in (*(one.words for one in cannot_be), *alarms):
        tell(f"can it be? {words}")
    return KnownBefore(known, effects, cannot_be, alarms, _by_heart(case, kept, tell))


def know_after(
    measuring: Measuring, known: Mapping[str, Known], tell: Tell
) -> tuple[dict[str, Known], dict[str, dict[str, str]]]:
    """The same with what is measured in one trained model of each explained variant, and the effects at work there."""
    tell("known effects after training:")
    found, brought, seed = dict(known), dict[str, dict[str, str]](), measuring.seeds[0]
    for name in measuring.case.quantity.variants:
        setup = known[name].setup
        if not measuring.runs.of([setup], [seed])[name][seed].error:
            trained = measured_of(setup, tell, measuring.runs.folder_of(setup, seed))
            found[name] = replace(known[name], trained=trained)
            brought[name] = _at_work(name, trained, tell)
    return found, brought


def measured_of(setup: Setup, tell: Tell, trained: Path | None = None) -> Measured:
    """What the table of signatures reads of a set-up; nothing where it cannot be measured, which is told."""
    return _or_nothing(lambda: measure(setup, trained), {}, tell, f"'{setup.name}' could not be measured")


def _at_work(name: str, measured: Measured, tell: Tell) -> dict[str, str]:
    """The known effects that are at work, with their evidence, which is told."""
    found = {sign.name: evidence for sign in SIGNATURES if (evidence := sign.of(measured))}
    for effect, evidence in found.items():
        tell(f"'{name}': {effect}: {evidence}")
    return found


def _by_heart(case: Case, kept: Path, tell: Tell) -> tuple[Memory, ...]:
    """Whether the variants that are explained can learn a few items by heart."""
    if kept.exists():
        memories = read_json(kept)["memories"]
        return tuple(Memory(**one | {"curve": tuple(map(tuple, one["curve"]))}) for one in memories)
    learn = partial(overfit, case.study, variants=case.quantity.variants, seconds=HEART_S)
    learned = _or_nothing(lambda: tuple(learn()), (), tell, "nothing was learned")
    for one in learned:
        tell(f"'{one.variant}', {one.items} items by heart: {one.verdict}")
    write_json(kept, {"memories": [{**vars(one), "curve": [list(point) for point in one.curve]} for one in learned]})
    return learned


def _or_nothing(step: Callable[[], Any], nothing: Any, tell: Tell, words: str) -> Any:
    """What a step gives, or nothing where it raises on purpose, which is told."""
    try:
        return step()
    except AttnlabError as error:
        tell(f"{words}: {error}")
        return nothing
