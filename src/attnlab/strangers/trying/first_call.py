"""Find a first way to call a module that runs and returns one vector per position, or one per sequence."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from torch import nn

from attnlab.core.constructors import UnsetError
from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.roles import Parameter, input_of, roles_of
from attnlab.strangers.calling.widths import LENGTH, lengths_to_try, size_named
from attnlab.strangers.containment import asked_for
from attnlab.strangers.patient import LAYOUTS_DECLARED, Patient
from attnlab.strangers.said.layout import layout_said, sizes_said
from attnlab.strangers.said.source import Said
from attnlab.strangers.trying.adapting import adapted, with_another
from attnlab.strangers.trying.attempts import attempts_at
from attnlab.strangers.trying.failures import Failures
from attnlab.strangers.trying.guided import led_by_failures
from attnlab.strangers.trying.outputs import in_any_batch, with_another_output, with_output
from attnlab.strangers.trying.trial import NOTHING, Trial

_PATIENCE_S = 4.0  # of computing, after which a module that fails late and slowly is given up
_MOST_CALLS = 4000  # that fail one after the other; a failing call takes some 0.1 ms
_MOST_HIDING = 4  # calls with NaN, or whose output is the same for every input; more shapes would give it too


@final
@dataclass(frozen=True)
class Found:
    """Hold a call that ran, and what was said about it."""

    convention: Convention  # the call; everything that is learned later is at its default
    parameters: tuple[Parameter, ...]  # of ``forward``
    layout: Said | None  # what the class says about its layout


def first_call(trial: Trial, patient: Patient) -> Found:
    """The most plausible call that runs."""
    parameters = roles_of(trial.module)
    name = input_of(parameters, patient)
    sizes = sizes_said(trial.module, name, patient.text)
    said = _declared(patient) or layout_said(trial.module, name, patient.text) or _said_by_sizes(trial.module, sizes)
    if said is None or said.what == "batch-first":
        with contextlib.suppress(ModuleError):
            led = led_by_failures(trial, parameters, name, lambda one: with_output(trial, one))
            if led is not None:
                return Found(in_any_batch(trial, led), parameters, said)
    return first_of(attempts_at(trial, patient, parameters, said, sizes), trial, patient, parameters, said)


def first_of(
    attempts: Iterable[Convention],
    trial: Trial,
    patient: Patient,
    parameters: tuple[Parameter, ...],
    said: Said | None = None,
) -> Found:
    """The first of several calls that runs; where none does, the most telling of the failures is raised."""
    tried = Failures(type(trial.module), input_of(parameters, patient))
    hiding_all: list[Convention] = []  # calls that ran with a mask under which nothing may be left to see
    plain = itertools.islice(_with_fitting(attempts, tried), _MOST_CALLS)
    for attempt in itertools.chain(plain, adapted(tried, parameters, patient)):
        if len(hiding_all) > _MOST_HIDING:
            break
        if tried.unlike is not None and (attempt.length != LENGTH or attempt.layout in ("sequence-first", "unbatched")):
            continue  # where a wrong output may happen to look right
        try:
            found = in_any_batch(trial, with_output(trial, attempt))
            if _leaves_something(trial, found):
                return Found(_as_said(trial, tried.unlike, found, said, patient), parameters, said)
            hiding_all.append(found)
        except ModuleError as error:
            if asked_for(error):  # whatever else fails: all is called anew with what is lent
                raise
            tried.note(attempt, error)
            if isinstance(error.__cause__, UnsetError):  # which no other call would give a value
                break
    other = _with_masks_changed(trial, hiding_all[0], parameters, patient) if hiding_all else None
    if other is None and tried.unlike is not None:
        other = with_another_output(trial, tried.unlike)
    if other is not None:
        return Found(other, parameters, said)
    raise most_telling(tried.telling, parameters, patient)


def _as_said(
    trial: Trial, unlike: Convention | None, found: Convention, said: Said | None, patient: Patient
) -> Convention:
    """A call in the layout that is said, if one ran and returned something else than one vector per position.

    In another layout, or at another length than it is built for, a broadcast may run by chance.
    """
    if unlike is None or said is None or said.by == "a shape comment" or not unlike.layout == said.what != found.layout:
        return found
    tried = (with_another_output(trial, replace(unlike, length=length)) for length in lengths_to_try(patient))
    return next((one for one in tried if one is not None), found)


def _leaves_something(trial: Trial, convention: Convention) -> bool:
    """Whether masks leave something to see: the output is no NaN, and not the same for every input."""
    return not convention.masks or bool(trial.reaction(convention, slice(None)).nan_to_num(0.0).max() > NOTHING)


def _with_masks_changed(
    trial: Trial, hiding: Convention, parameters: tuple[Parameter, ...], patient: Patient
) -> Convention:
    """A call with one mask given in another way, or all turned round, that leaves something; or the call as it is."""
    beside = [one for one in parameters if one.name != input_of(parameters, patient)]
    others = with_another(hiding, beside, size_named("d_head", patient), size_named("vocab_size", patient))
    turned = replace(hiding, masks=tuple(mask.turned_round for mask in hiding.masks))
    for attempt in (turned, *others):
        with contextlib.suppress(ModuleError):
            found = with_output(trial, attempt)
            if attempt.masks and _leaves_something(trial, found):
                return found
    return hiding


def _with_fitting(attempts: Iterable[Convention], tried: Failures) -> Iterator[Convention]:
    """Yield the attempts that may run, each followed by those with another sequence as wide as it turned out to be."""
    end_s = time.process_time() + _PATIENCE_S
    for attempt in itertools.takewhile(lambda _: time.process_time() < end_s, attempts):
        waiting = [attempt]
        while waiting:
            one = waiting.pop(0)
            if tried.leaves_open(one):
                tried.fitting = []
                yield one
                waiting += tried.fitting


def _declared(patient: Patient) -> Said | None:
    layout, flag = patient.declared.layout, patient.arguments.get("batch_first")
    if layout is not None:
        return Said(LAYOUTS_DECLARED[layout], "--layout")
    by = f"its argument batch_first={flag}"
    return Said("batch-first" if flag else "sequence-first", by) if isinstance(flag, bool) else None


def _said_by_sizes(module: nn.Module, sizes: tuple[int, int] | None) -> Said | None:
    """The layout that the sizes of both axes after the batch tell: a convolution knows its channels."""
    if sizes is None:
        return None
    first = next((part for part in module.modules() if isinstance(part, nn.Conv1d)), None)
    channels = first is not None and first.in_channels == sizes[0]
    return Said("channels-first" if channels else "batch-first", "the sizes in a shape comment")


def most_telling(failures: Sequence[ModuleError], parameters: Sequence[Parameter], patient: Patient) -> ModuleError:
    """The failure that says most to the person: a wrong output, an argument nobody can guess, the first."""
    wrong = next((each for each in failures if each.__cause__ is None), None)
    unknown = [one.name for one in parameters if one.required and one.role in ("open", "rotary", "cos", "sin")]
    if wrong is None and unknown:
        return ModuleError(
            f"{patient.name}: forward requires {', '.join(map(repr, unknown))}, and what is to be given there cannot be"
            f" guessed; give {unknown[0]!r} a default. {_inner(failures[0])}"
        )
    best = wrong or failures[0]
    error = ModuleError(f"{patient.name}: cannot be called: {_inner(best)}")
    error.__cause__ = best.__cause__
    return error


def _inner(error: ModuleError) -> str:
    """The text of an error without the name of the class in front."""
    head, colon, rest = str(error).partition(": forward(")
    return f"forward({rest}" if colon else head
