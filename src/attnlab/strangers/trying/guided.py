"""Find a call with several sequences, each of a width of its own, led by what failures say of one after the other."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.roles import Parameter
from attnlab.strangers.calling.sources import AS_LONG, Argument
from attnlab.strangers.calling.widths import LENGTH, MISFITS
from attnlab.strangers.loading.sizes import D_MODEL
from attnlab.strangers.trying.trial import Trial

WANTS_WHOLE_NUMBERS = "'indices' to have one of the following scalar types"
"""What torch says of numbers with a fraction that are given to an embedding."""
FOREIGN = re.compile(r"site-packages|[\\/]attnlab[\\/]")
"""Files of which no line says how far a person's module came."""
_PLACES, _ALL_OF_A_KIND = "positions of each", "segments"
_OTHERWISE = (AS_LONG, _PLACES, "vector", "one number each", "numbers")
"""What may be given to a parameter of which nothing is known, in turn."""
_WIDE = (AS_LONG, "vector")
_MOST_CHANGES = 30
_NOT_GUIDED = ("mask", "key mask", "memory mask", "flag", "lengths")
"""Roles of parameters that are learned otherwise."""


def led_by_failures(
    trial: Trial, parameters: Sequence[Parameter], sequence: str, finish: Callable[[Convention], Convention]
) -> Convention | None:
    """The call that failures lead to; None where there are not several unknown sequences, or where they lead nowhere.

    Every failure names a statement, and that one of the parameters, of which only what it is given changes: its width
    where that does not fit, whole numbers where an embedding is asked, else the next thing that may be given.

    Parameters
    ----------
    trial : Trial
        Makes the calls.
    parameters : sequence of Parameter
        Of ``forward``.
    sequence : str
        Which of them is taken for the input; in the end it is the widest.
    finish : callable
        Calls a convention, and completes it by what comes back.
    """
    asked = [one for one in parameters if one.required]
    unknown = [one for one in asked if one.role == "open" and one.name != sequence]
    if len(unknown) < 2 or any(one.role in _NOT_GUIDED for one in asked):
        return None
    given = {
        one.name: Argument(one.name, _PLACES if one.role == "positions" else AS_LONG, value=D_MODEL) for one in asked
    }
    given[sequence] = Argument(sequence, AS_LONG, value=D_MODEL)
    for _ in range(_MOST_CHANGES):
        try:
            finish(_called(given, sequence))
        except ModuleError as error:
            other = None if error.__cause__ is None else _otherwise(given, error.__cause__, trial.module)
            if other is None or (other.parameter == sequence and other.source != AS_LONG):
                return None
            given[other.parameter] = other
        else:
            return _of_the_widest(given, sequence, finish)
    return None


def _called(given: Mapping[str, Argument], sequence: str) -> Convention:
    """A call with one of the sequences as its input."""
    arguments = tuple(Argument(name, "x") if name == sequence else one for name, one in given.items())
    return Convention("layer", "embeddings", given[sequence].value, 0, length=LENGTH, arguments=arguments)


def _of_the_widest(
    given: Mapping[str, Argument], sequence: str, finish: Callable[[Convention], Convention]
) -> Convention:
    widest = max((one for one in given.values() if one.source == AS_LONG), key=lambda one: one.value)
    try:
        return finish(_called(given, widest.parameter))
    except ModuleError:
        return finish(_called(given, sequence))


def _otherwise(given: Mapping[str, Argument], cause: BaseException, module: nn.Module) -> Argument | None:
    """What is given otherwise to the parameter that a failure names; None where it names none, or all was tried."""
    named, text = _named(cause, given, module), str(cause)
    found = next((match for match in (each.search(text) for each in MISFITS) if match), None)
    wide = [given[name] for name in named if found and given[name].source in _WIDE]
    if found and len(wide) == 1:  # others may stand beside it in what does not fit
        width = (wide[0].value or D_MODEL) + int(found["wanted"]) - int(found["got"])
        if 0 < width != wide[0].value:
            return replace(wide[0], value=width)
    if len(named) != 1:
        return None
    (name,) = named
    one = given[name]
    if WANTS_WHOLE_NUMBERS in text and one.source != _PLACES:
        return Argument(name, _PLACES, value=0)
    if "out of range" in text and (one.source == _PLACES or one.value):
        return Argument(name, _ALL_OF_A_KIND, value=int(one.source == _PLACES))  # 0 may be padding
    after = _OTHERWISE[_OTHERWISE.index(one.source) + 1 :] if one.source in _OTHERWISE else ()
    return Argument(name, after[0], value=0 if after[0] == _PLACES else None) if after else None


def _named(cause: BaseException, given: Mapping[str, Argument], module: nn.Module) -> set[str]:
    """The parameters in the statement that raised, by themselves or as handed on: just one, if any frame has one."""
    raised = zip(traceback.walk_tb(cause.__traceback__), traceback.extract_tb(cause.__traceback__), strict=True)
    frames = [(frame, _words(part)) for (frame, _), part in raised if not FOREIGN.search(part.filename)]
    code = getattr(type(module).forward, "__code__", None)
    forward = next((frame for frame, _ in frames if frame.f_code is code), None)
    if forward is None:
        return set()
    tensors = {id(value): name for name in given if isinstance(value := forward.f_locals.get(name), Tensor)}
    found = []
    for frame, words in reversed(frames):
        there = {tensors[id(frame.f_locals[word])] for word in words if id(frame.f_locals.get(word)) in tensors}
        found.append(there | (words & {*given} if frame is forward else set()))
    return min(filter(None, found), key=len, default=set())


def _words(raised: traceback.FrameSummary) -> set[str]:
    """The names in what a frame was computing."""
    line, start, end = raised.line or "", raised.colno, raised.end_colno
    if start is not None and end is not None and raised.lineno == raised.end_lineno:
        line = linecache.getline(raised.filename, raised.lineno or 0)[start:end]
    return set(re.findall(r"\w+", line))
