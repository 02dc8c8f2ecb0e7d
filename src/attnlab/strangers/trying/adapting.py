"""Change the call that came furthest in one thing at a time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.layouts import SPLIT, STILLS
from attnlab.strangers.calling.roles import Parameter, anything_for, input_of
from attnlab.strangers.calling.sources import Argument
from attnlab.strangers.calling.widths import BY_CHANCE, lengths_to_try, size_named, widths_to_try
from attnlab.strangers.patient import Patient
from attnlab.strangers.trying.failures import MOST_WIDE, NUMBER, Failures, refitted
from attnlab.strangers.trying.trial import BATCH

_TELLING = ("batch-first", "channels-first", *SPLIT, *STILLS)
"""Layouts in which nothing runs that was not made for them."""
_MOST_NUMBERS = 8  # of what an error says that are tried as sizes
_MOST_LONG = 512
_MOST_OF_PAIRS = 1 << 24  # numbers; they take some tenths of a second
_ADAPTING_S = 3.0  # of computing, in which the call that came furthest is changed piece by piece


def adapted(tried: Failures, parameters: tuple[Parameter, ...], patient: Patient) -> Iterator[Convention]:
    """Yield calls that differ in one thing from the call that came furthest, until one runs or time is over.

    What is given to one parameter, or one size that the error names, is changed at a time.
    """
    end_s = time.process_time() + _ADAPTING_S
    d_head, vocab_size = size_named("d_head", patient), size_named("vocab_size", patient)
    widths, lengths = widths_to_try(patient.module, patient), lengths_to_try(patient)
    while tried.unlike is None and (furthest := tried.next_to_change()) is not None:
        attempt, raised = furthest
        sequence = input_of(parameters, patient)
        others = with_another(attempt, [one for one in parameters if one.name != sequence], d_head, vocab_size)
        sizes = _resized(attempt, sequence, raised)
        for each in itertools.chain(sizes, others, _elsewise(attempt, widths, lengths, raised)):
            if time.process_time() > end_s:
                return
            if not tried.knows(each) and not _takes_long(each):
                yield each


def _takes_long(attempt: Convention) -> bool:
    """Whether a call is given vectors of so many pairs that making them takes longer than all other calls."""
    widths = [one.value or attempt.d_in for one in attempt.arguments if one.source == "vectors of pairs"]
    return attempt.length**2 * sum(widths) > _MOST_OF_PAIRS


def with_another(
    attempt: Convention, parameters: Sequence[Parameter], d_head: int | None, vocab_size: int | None
) -> Iterator[Convention]:
    """Yield a call with something else for each of some parameters in turn."""
    given = {one.parameter: one for one in attempt.arguments}
    for one in parameters:
        if one.role == "flag" or (one.name in given and not given[one.name].by_name):
            continue
        rest = tuple(each for each in attempt.arguments if each.parameter != one.name)
        masks = tuple(each for each in attempt.masks if each.parameter != one.name)
        for other in anything_for(one, d_head, vocab_size):
            if isinstance(other, Argument):
                yield replace(attempt, arguments=(*rest, other), masks=masks)
                continue
            yield replace(attempt, arguments=rest, masks=(*masks, other))


def _resized(attempt: Convention, sequence: str, raised: str) -> Iterator[Convention]:
    """Yield a call in which one size is another number of an error; what got it may have got a part of it."""
    numbers = list(dict.fromkeys(int(each) for each in NUMBER.findall(raised.replace("x", " "))))[:_MOST_NUMBERS]
    misfits = [pair for pair in itertools.permutations(numbers, 2) if min(pair) > 0]
    yield from refitted(attempt, sequence, misfits)
    for got, wanted in misfits:
        all_positions = got % attempt.length == 0 and attempt.length * wanted % got == 0  # laid end to end
        long = attempt.length * wanted // got if all_positions else attempt.length // got * wanted
        if got == attempt.d_in and wanted <= MOST_WIDE:
            yield replace(attempt, d_in=wanted)
        fits = attempt.length % got == 0 or all_positions
        if got > 1 and fits and (BY_CHANCE if attempt.d_in else BATCH) < long <= _MOST_LONG:
            yield replace(attempt, length=long)


def _elsewise(attempt: Convention, widths: Sequence[int], lengths: Sequence[int], raised: str) -> Iterator[Convention]:
    """Yield a call with its input in another layout, of another length, or of fewer tokens."""
    for layout, width in itertools.product(_TELLING if attempt.d_in else (), [one for one in widths if one > 1]):
        yield replace(attempt, layout=layout, d_in=width)
    yield from (replace(attempt, length=length) for length in lengths)
    for part in (2, 4, 8, 16) if attempt.vocab_size and "out of range" in raised else ():
        yield replace(attempt, vocab_size=max(2, (attempt.vocab_size or 2) // part))
