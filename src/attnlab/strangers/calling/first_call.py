"""Find a first way to call a module that runs and returns one vector per position, or one per sequence."""

from __future__ import annotations

import collections
import contextlib
import itertools
import re
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from torch import Tensor, nn

from attnlab.core.constructors import UnsetError
from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.convention import Convention, elements, wrong_output
from attnlab.strangers.calling.guided import FOREIGN, WANTS_WHOLE_NUMBERS, led_by_failures
from attnlab.strangers.calling.layouts import FRAMES, HEADS, IMAGES, LAYOUTS, SPLIT, STILLS
from attnlab.strangers.calling.roles import (
    Filling,
    Parameter,
    anything_for,
    calls_for,
    of_graph,
    one_step,
    roles_of,
    seems_tokens,
    with_a_vector,
)
from attnlab.strangers.calling.sources import (
    HANDED_ON,
    NUMBERS,
    ONE_MORE,
    OTHER_MEMORIES,
    Argument,
    is_same,
    laid_out,
)
from attnlab.strangers.calling.trial import BATCH, NOTHING, Trial
from attnlab.strangers.calling.widths import (
    BY_CHANCE,
    LENGTH,
    MISFITS,
    grids_to_try,
    lengths_to_try,
    size_named,
    vocabulary_of,
    widths_to_try,
)
from attnlab.strangers.containment import asks_for_cuda
from attnlab.strangers.loading.sizes import D_MODEL
from attnlab.strangers.patient import LAYOUTS_DECLARED, Patient
from attnlab.strangers.said.layout import layout_said, sizes_said
from attnlab.strangers.said.source import Said, source_of, source_of_forward

_USUAL = ("channels-first", "sequence-first", "batch-first")
_TELLING = ("batch-first", "channels-first", *SPLIT, *STILLS)
"""Layouts in which nothing runs that was not made for them."""
_AXIS = r"(?:\w+|\([^()]*\))"
_FIVE_AXES = re.compile(
    r"\w+ *, *(?P<second>\w+)( *, *\w+){3} *= *\w+\.(?:shape|size\(\))"
    rf"|[\"'] *{_AXIS} (?P<axis>\w+)( {_AXIS}){{3}} *->"
)
"""How code takes an input with five axes apart."""
_REARRANGES = re.compile(r"Rearrange\(\s*([\"'].*?[\"'])")
_CHANNELS = re.compile(r"c|ch|chn|(in_?)?chan\w*", re.IGNORECASE)
_PATIENCE_S = 4.0  # of computing, after which a module that fails late and slowly is given up
_MOST_CALLS = 4000  # that fail one after the other; a failing call takes some 0.1 ms
_NUMBER = re.compile(r"(?<![\w.])\d{1,6}(?!\w|\.\d)", re.ASCII)
_OF_ANY_WIDTH = {"x": ("another sequence",), "memory": ("memory", "another sequence")}
_OWN_WIDTH = ("vector", "position vectors", "another sequence", "points", "vectors of pairs")
_MOST_NUMBERLESS = 60
_MOST_FITTED = 60  # calls that are made anew with such a width
_MOST_NUMBERS = 8  # of what an error says that are tried as sizes
_MOST_WIDE, _MOST_LONG = 1024, 512
_MOST_OF_PAIRS = 1 << 24  # numbers; they take some tenths of a second
_ADAPTING_S = 3.0  # of computing, in which the call that came furthest is changed piece by piece
_MOST_HIDING = 4  # calls with NaN, or whose output is the same for every input; more shapes would give it too
_SAME_FAILURES = 3  # of a type, at several sizes; a fourth size would fail alike
_RETURNED_IN = ("batch-first", "channels-first", *SPLIT, "sequence-first")
_BATCHES = (BATCH, BATCH + 2)  # the axis that follows the batch is the batch
_LONGER = (0, -1, 2)  # lengths at which there must be as many vectors, relative to the first


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
                return Found(_in_any_batch(trial, led), parameters, said)
    return first_of(_attempts(trial, patient, parameters, said, sizes), trial, patient, parameters, said)


def first_of(
    attempts: Iterable[Convention],
    trial: Trial,
    patient: Patient,
    parameters: tuple[Parameter, ...],
    said: Said | None = None,
) -> Found:
    """The first of several calls that runs; where none does, the most telling of the failures is raised."""
    tried = _Failures(type(trial.module), input_of(parameters, patient))
    hiding_all: list[Convention] = []  # calls that ran with a mask under which nothing may be left to see
    plain = itertools.islice(_with_fitting(attempts, tried), _MOST_CALLS)
    for attempt in itertools.chain(plain, _adapted(tried, parameters, patient)):
        if len(hiding_all) > _MOST_HIDING:
            break
        if tried.unlike is not None and (attempt.length != LENGTH or attempt.layout in ("sequence-first", "unbatched")):
            continue  # where a wrong output may happen to look right
        try:
            found = _in_any_batch(trial, with_output(trial, attempt))
            if _leaves_something(trial, found):
                return Found(found, parameters, said)
            hiding_all.append(found)
        except ModuleError as error:
            if asks_for_cuda(error):  # whatever else fails: all is called anew as if the CPU had been named
                raise
            tried.note(attempt, error)
            if isinstance(error.__cause__, UnsetError):  # which no other call would give a value
                break
    other = _with_masks_changed(trial, hiding_all[0], parameters, patient) if hiding_all else None
    if other is None and tried.unlike is not None:
        ways = (_with_one_more, _with_other_axes, _with_one, _with_slots, _with_slots_batch_first)
        other = next((found for way in ways if (found := way(trial, tried.unlike)) is not None), None)
    if other is not None:
        return Found(other, parameters, said)
    raise most_telling(tried.telling, parameters, patient)


def _leaves_something(trial: Trial, convention: Convention) -> bool:
    """Whether masks leave something to see: the output is no NaN, and not the same for every input."""
    return not convention.masks or bool(trial.reaction(convention, slice(None)).nan_to_num(0.0).max() > NOTHING)


def _with_masks_changed(
    trial: Trial, hiding: Convention, parameters: tuple[Parameter, ...], patient: Patient
) -> Convention:
    """A call with one mask given in another way, or all turned round, that leaves something; or the call as it is."""
    beside = [one for one in parameters if one.name != input_of(parameters, patient)]
    others = _with_another(hiding, beside, size_named("d_head", patient), size_named("vocab_size", patient))
    turned = replace(hiding, masks=tuple(mask.turned_round for mask in hiding.masks))
    for attempt in (turned, *others):
        with contextlib.suppress(ModuleError):
            found = with_output(trial, attempt)
            if attempt.masks and _leaves_something(trial, found):
                return found
    return hiding


def _with_fitting(attempts: Iterable[Convention], tried: _Failures) -> Iterator[Convention]:
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


def _adapted(tried: _Failures, parameters: tuple[Parameter, ...], patient: Patient) -> Iterator[Convention]:
    """Yield calls that differ in one thing from the call that came furthest, until one runs or time is over.

    What is given to one parameter, or one size that the error names, is changed at a time.
    """
    end_s = time.process_time() + _ADAPTING_S
    d_head, vocab_size = size_named("d_head", patient), size_named("vocab_size", patient)
    widths, lengths = widths_to_try(patient.module, patient), lengths_to_try(patient)
    while tried.unlike is None and (furthest := tried.next_to_change()) is not None:
        attempt, raised = furthest
        sequence = input_of(parameters, patient)
        others = _with_another(attempt, [one for one in parameters if one.name != sequence], d_head, vocab_size)
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


def _with_another(
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
            looked_at = {each.parameter for each in rest if each.source in OTHER_MEMORIES}
            if one.role == "memory mask" and looked_at:  # as long as the input, so over nothing else
                same = (Argument(each.parameter, "x") if each.parameter in looked_at else each for each in rest)
                yield replace(attempt, arguments=tuple(same), masks=(*masks, other))


@final
class _Failures:
    """Remember how calls failed, so that none is made that would fail alike.

    Parameters
    ----------
    kind : type
        The class that is called.
    sequence : str
        The name of its input.
    """

    def __init__(self, kind: type, sequence: str) -> None:
        self.fitting: list[Convention] = []  # the call that failed last, with another width for one of its sequences
        self.unlike: Convention | None = None  # the first call that ran, if it returned something else than it must
        self._calls: dict[Any, tuple[tuple[int, ...], Convention, str]] = {}  # how far each came, and what it raised
        self._changed: set[Any] = set()
        self._input = sequence
        self._furthest = 0
        self._forward: Any = getattr(kind.forward, "__code__", None)
        self._of_type: collections.Counter[Any] = collections.Counter()  # by what was given, whatever its size
        self._reached: dict[Any, int] = {}  # lines of ``forward`` by sizes, in calls without masks
        self._said: dict[Any, str] = {}  # what was raised by sizes, in calls without masks
        self._alike: collections.Counter[Any] = collections.Counter()  # calls with masks that raised that all the same
        self._ranked: list[tuple[int, ModuleError]] = []
        self._fitted: set[Any] = set()
        self._no_numbers = 0  # calls in a row that failed as tokens must be whole numbers

    @property
    def telling(self) -> list[ModuleError]:
        """The failures, those that came furthest first."""
        return [error for _, error in sorted(self._ranked, key=lambda each: -each[0])]

    def note(self, attempt: Convention, error: ModuleError) -> None:
        """Remember one failure."""
        cause = error.__cause__
        self.unlike = attempt if self.unlike is None and cause is None else self.unlike
        self._of_type[self._given(attempt)] += isinstance(cause, TypeError | AttributeError)
        frames = [] if cause is None else traceback.walk_tb(cause.__traceback__)
        reached = [
            (line, frame.f_code is self._forward)
            for frame, line in frames
            if not FOREIGN.search(frame.f_code.co_filename)
        ]
        line = max((line for line, own in reached if own), default=0)
        self._calls[self._key(attempt)] = tuple(line for line, _ in reached), attempt, str(cause)
        self._ranked.append((line, error))
        if not attempt.masks:
            self._reached[self._sizes(attempt)] = max(self._reached.get(self._sizes(attempt), 0), line)
            self._furthest = max(self._furthest, line)
            self._said[self._sizes(attempt)] = str(cause)
        elif self._said.get(self._sizes(attempt)) == str(cause):
            self._alike[self._sizes(attempt)] += 1
        if attempt.takes == "embeddings":
            self._no_numbers = self._no_numbers + 1 if WANTS_WHOLE_NUMBERS in str(cause) else 0
        found = (match for match in (each.search(str(cause)) for each in MISFITS) if match)
        misfits = [(int(match["got"]), int(match["wanted"])) for match in found]
        fitting = {self._key(each): each for each in _refitted(attempt, self._input, misfits)}
        fitting = {key: each for key, each in fitting.items() if key not in self._fitted}
        self.fitting = list(fitting.values()) if len(self._fitted) < _MOST_FITTED else []
        self._fitted |= set(fitting)

    def knows(self, attempt: Convention) -> bool:
        """Whether a call was made."""
        return self._key(attempt) in self._calls

    def next_to_change(self) -> tuple[Convention, str] | None:
        """The call that came furthest and what it raised, but for those that failed like one that was changed."""
        failed = [
            (reached, (_NUMBER.sub("", raised), attempt.takes, attempt.layout), attempt, raised)
            for reached, attempt, raised in self._calls.values()
        ]
        best = max((one for one in failed if one[:2] not in self._changed), key=lambda one: one[0], default=None)
        if best is None:
            return None
        self._changed.add(best[:2])
        return best[2:]

    def leaves_open(self, attempt: Convention) -> bool:
        """Whether a call may run: nothing in it is of a wrong type, and no other size came further without masks."""
        too_short = attempt.masks and self._reached.get(self._sizes(attempt), self._furthest) < self._furthest
        too_short = too_short or (attempt.masks and self._alike[self._sizes(attempt)] >= _SAME_FAILURES)
        numberless = attempt.takes == "embeddings" and self._no_numbers >= _MOST_NUMBERLESS
        return not (too_short or numberless) and self._of_type[self._given(attempt)] < _SAME_FAILURES

    def _key(self, attempt: Convention) -> Any:
        return self._given(attempt), self._sizes(attempt)

    def _given(self, attempt: Convention) -> Any:
        return attempt.takes, attempt.arguments, attempt.masks

    def _sizes(self, attempt: Convention) -> Any:
        return attempt.takes, attempt.layout, attempt.d_in, attempt.vocab_size, attempt.length


def _refitted(attempt: Convention, sequence: str, misfits: Sequence[tuple[int, int]]) -> Iterator[Convention]:
    """Yield a call with a sequence as wide as is wanted, for each beside the input that is as wide as it got."""
    before = attempt.d_in or attempt.length  # of what is made from the input, if it has no width of its own
    for got, wanted in misfits:
        part = 1 < got < attempt.d_in and attempt.d_in % got == 0 and attempt.layout not in SPLIT
        if part and attempt.d_in // got * wanted <= _MOST_WIDE:
            yield replace(attempt, d_in=attempt.d_in // got * wanted)
    for (index, one), (got, wanted) in itertools.product(enumerate(attempt.arguments), misfits):
        if one.parameter == sequence or (one.value or before) != got:
            continue
        for source in _OF_ANY_WIDTH.get(one.source, (one.source,) if one.source in _OWN_WIDTH else ()):
            other = replace(one, source=source, value=min(wanted, _MOST_WIDE))
            yield replace(attempt, arguments=(*attempt.arguments[:index], other, *attempt.arguments[index + 1 :]))


def _resized(attempt: Convention, sequence: str, raised: str) -> Iterator[Convention]:
    """Yield a call in which one size is another number of an error; what got it may have got a part of it."""
    numbers = list(dict.fromkeys(int(each) for each in _NUMBER.findall(raised.replace("x", " "))))[:_MOST_NUMBERS]
    misfits = [pair for pair in itertools.permutations(numbers, 2) if min(pair) > 0]
    yield from _refitted(attempt, sequence, misfits)
    for got, wanted in misfits:
        all_positions = got % attempt.length == 0 and attempt.length * wanted % got == 0  # laid end to end
        long = attempt.length * wanted // got if all_positions else attempt.length // got * wanted
        if got == attempt.d_in and wanted <= _MOST_WIDE:
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


def _declared(patient: Patient) -> Said | None:
    layout, flag = patient.declared.layout, patient.arguments.get("batch_first")
    if layout is not None:
        return Said(LAYOUTS_DECLARED[layout], "--layout")
    by = f"its argument batch_first={flag}"
    return Said("batch-first" if flag else "sequence-first", by) if isinstance(flag, bool) else None


def input_of(parameters: Sequence[Parameter], patient: Patient) -> str:
    """The name of the input."""
    for role in ("input", "query", "key or value", "open"):
        found = next((one.name for one in parameters if one.role == role), None)
        if found is not None:
            return found
    raise ModuleError(
        f"{patient.name}: forward takes no input; it must take a sequence such as (batch, length, d_model)"
    )


def _said_by_sizes(module: nn.Module, sizes: tuple[int, int] | None) -> Said | None:
    """The layout that the sizes of both axes after the batch tell: a convolution knows its channels."""
    if sizes is None:
        return None
    first = next((part for part in module.modules() if isinstance(part, nn.Conv1d)), None)
    channels = first is not None and first.in_channels == sizes[0]
    return Said("channels-first" if channels else "batch-first", "the sizes in a shape comment")


# What to try


def _attempts(
    trial: Trial,
    patient: Patient,
    parameters: tuple[Parameter, ...],
    said: Said | None,
    sizes: tuple[int, int] | None,
) -> Iterator[Convention]:
    """Yield ways to call the module, the most plausible first; the rarest layouts and plain numbers come last."""
    d_head = size_named("d_head", patient)
    calls = calls_for(parameters, d_head, size_named("vocab_size", patient))
    inputs = list(_inputs(trial.module, patient, input_of(parameters, patient)))
    scalars = [each for each in inputs[1:] if each == ("embeddings", 1)]  # of what has several heads they run by chance
    widths = [size for takes, size in inputs if takes == "embeddings"]
    wider = [width for width in widths if ("embeddings", width) not in scalars]
    images = _images(patient, calls, widths, sorted(STILLS, key=lambda layout: said is None or layout != said.what))
    beside = dict.fromkeys([*widths, *(total - one for total in widths for one in widths if total > one)])
    usual, *others = lengths = lengths_to_try(patient)
    steps = list(itertools.product(lengths, _USUAL[:0:-1], widths, beside))
    yield from _steps(parameters, steps, alone=False)
    two_dimensional = any(isinstance(part, nn.Conv2d) for part in trial.module.modules())
    if two_dimensional or (said is not None and said.what in IMAGES):
        yield from images
    yield from _films(trial.module, patient, calls, widths)
    split = sorted(SPLIT, key=lambda layout: said is None or layout != said.what)
    in_heads = dict.fromkeys([*([HEADS * d_head] if d_head else []), D_MODEL, *widths])
    plain, masked = ([call for call in calls if bool(call.masks) is given] for given in (False, True))
    yield from _graphs(parameters, masked, wider[:1], usual)
    for some, at_usual in ((plain, False), (masked, True), (masked, False)):  # masks multiply the ways to call
        for layout, lengths in _places(patient, said, sizes):
            chosen = [length for length in lengths if length == usual] if at_usual else lengths
            for (takes, size), call, length in itertools.product(inputs, some, chosen):
                if (takes == "embeddings" or layout != "channels-first") and (takes, size) not in scalars:
                    yield _opening(call, takes, size, length, layout)
        yield from _asked_once(parameters, steps, plain, wider) if some is plain else ()
        yield from (_of_numbers(call, usual) for call in some)
        for layout, width, call in itertools.product(split, in_heads, some):
            yield _opening(call, "embeddings", width, usual, layout)
        for layout, call, (takes, size) in itertools.product(_USUAL[::-1], some, scalars):
            yield _opening(call, takes, size, usual, layout)
    yield from images
    for length, width, call in itertools.product(lengths, [width for width in widths if width > 1], calls):
        yield _opening(call, "embeddings", width, length, "unbatched")
    yield from (_of_numbers(call, length) for call, length in itertools.product(calls, others))
    for layout, width, of_vector, call in itertools.product(_USUAL[::-1], beside, widths, calls):
        yield from (_opening(each, "embeddings", width, usual, layout) for each in with_a_vector(call, of_vector))


def _graphs(
    parameters: Sequence[Parameter], masked: Sequence[Filling], widths: Sequence[int], length: int
) -> Iterator[Convention]:
    """Yield calls with the edges of a graph beside its nodes; mostly there is one graph at a time."""
    asked = any(one.required and of_graph(one.name) for one in parameters)
    for layout, width, call in itertools.product(("batch-first", "unbatched"), widths, masked if asked else ()):
        yield _opening(call, "embeddings", width, length, layout)


def _steps(
    parameters: Sequence[Parameter], sizes: Iterable[tuple[int, str, int, int]], *, alone: bool
) -> Iterator[Convention]:
    """Yield calls of one step of a decoder, what it looks at being the input."""
    for length, layout, of_state, width in sizes:
        calls = one_step(parameters, of_state, alone=alone)
        yield from (_opening(call, "embeddings", width, length, layout) for call in calls)


def _asked_once(
    parameters: Sequence[Parameter],
    steps: Iterable[tuple[int, str, int, int]],
    calls: Sequence[Filling],
    widths: Sequence[int],
) -> Iterator[Convention]:
    """Yield calls in which a state asks, or one of several sequences is a vector as wide as the others.

    Where a mask is wanted, it may as well be what is missing.
    """
    yield from _steps(parameters, steps, alone=True)
    if not any(one.required and "mask" in one.role for one in parameters):
        for layout, width, call in itertools.product(_USUAL[::-1], widths, calls):
            yield from (_opening(each, "embeddings", width, LENGTH, layout) for each in with_a_vector(call, width))


def _of_numbers(call: Filling, length: int) -> Convention:
    """A call with the input as one number per position."""
    arguments = tuple(replace(one, source=NUMBERS) if one.source == "x" else one for one in call.arguments)
    return replace(_opening(call, "embeddings", 1, length, "batch-first"), arguments=arguments)


def _images(patient: Patient, calls: list[Filling], widths: list[int], layouts: Sequence[str]) -> Iterator[Convention]:
    """Yield calls with images, in some layouts."""
    grids = grids_to_try(patient)
    for layout in layouts:
        for width in dict.fromkeys([*grids.channels, *widths]):
            lengths = sorted(grids.lengths, key=lambda length: length == width)  # alike, they would be mistaken
            for length, call in itertools.product(lengths, calls):
                yield _opening(call, "embeddings", width, length, layout)


def _films(module: nn.Module, patient: Patient, calls: list[Filling], widths: list[int]) -> Iterator[Convention]:
    """Yield calls with films: of as many frames as something of the patient is, then of usual ones."""
    parts = _REARRANGES.findall(source_of(type(module)))
    apart = _FIVE_AXES.search("\n".join([source_of_forward(module), *parts]))
    second = "" if apart is None else (apart["second"] or apart["axis"]).strip("_")
    convolves = any(isinstance(part, nn.Conv3d) for part in module.modules())
    if apart is None and not convolves:
        return
    first = bool(_CHANNELS.fullmatch(second)) if second else convolves
    grids = grids_to_try(patient)
    sizes = {size for one in module.parameters() for size in one.shape}
    for frames in sorted(FRAMES, key=lambda one: one not in sizes):
        layout = f"film of {frames} frames{', channels first' if first else ''}"
        for width, area, call in itertools.product(dict.fromkeys([*grids.channels, *widths]), grids.lengths, calls):
            yield _opening(call, "embeddings", width, frames * area, layout)


def _opening(call: Filling, takes: Any, size: int, length: int, layout: str) -> Convention:
    """A convention of which nothing is known but what is given."""
    d_in, vocab_size = (size, None) if takes == "embeddings" else (0, size)
    start = Convention("layer", takes, d_in, 0, vocab_size=vocab_size, length=length, layout=layout)
    return replace(start, arguments=call.arguments, masks=call.masks, flag=call.flag)


def _places(patient: Patient, said: Said | None, sizes: tuple[int, int] | None) -> Iterator[tuple[str, list[int]]]:
    """Yield layouts with lengths to try: what is said, or batch first, at all lengths before any other layout.

    Channels first comes before other lengths where nothing is said: it runs only in what has channels first. A
    recurrence that keeps a state for one sample takes the batch for time, and runs at length 1 alone.
    """
    usual, *fixed = lengths_to_try(patient)
    first = said.what if said is not None and said.what in _USUAL else "batch-first"
    if sizes is not None:
        fixed = [sizes[1] if first == "channels-first" else sizes[0], *fixed]
    elif any(isinstance(part, nn.RNNBase) for part in patient.module.modules()):
        fixed = [*fixed, 1]
    yield first, [usual]
    if said is None:
        yield "channels-first", [usual]
    elif said.by == "a shape comment":  # which may be about something else
        yield from ((layout, [usual]) for layout in ("batch-first", "channels-first") if layout != first)
    yield first, fixed
    for layout in _USUAL:
        if layout != first:
            yield layout, [usual, *fixed]


def _inputs(module: nn.Module, patient: Patient, name: str) -> Iterator[tuple[Any, int]]:
    """What the input may be: embeddings of some width, tokens of some vocabulary."""
    embeddings = [("embeddings", width) for width in widths_to_try(module, patient)]
    tokens = [("tokens", size) for size in vocabulary_of(module, patient)]
    tokens_first = seems_tokens(name)
    if tokens_first is None:
        tokens_first = size_named("vocab_size", patient) is not None
    yield from [*tokens, *embeddings] if tokens_first else [*embeddings, *tokens]


# What comes back


def with_output(trial: Trial, convention: Convention, *, batch: int = BATCH, length: int | None = None) -> Convention:
    """Call the module and find the output in what it returns."""
    x = trial.inputs(convention, batch=batch, length=length)
    returned = trial.returned(convention, x)
    found = find_output(returned, convention, x)
    if found is None:
        raise wrong_output(returned, x, convention)
    key, pooled = found
    flat = not pooled and elements(returned)[key].shape[0] == x.size(0) * x.size(1)
    convention = replace(convention, output=key, pooled=pooled, flat=flat)
    return replace(convention, d_out=convention.output_in(returned, x).size(-1))


def _in_any_batch(trial: Trial, convention: Convention) -> Convention:
    """The convention, if it runs with another number of samples too: else an axis of a fixed size was taken for it."""
    if not any(one.source == HANDED_ON for one in convention.arguments):
        with_output(trial, convention, batch=_BATCHES[1])
    return convention


def find_output(returned: Any, convention: Convention, x: Tensor) -> tuple[Any, bool] | None:
    """The key of the output in what was returned, and whether it is pooled."""
    ranked: list[tuple[int, Any, bool]] = []
    found, given = elements(returned), laid_out(x, convention.layout)
    made = {key: each for key, each in found.items() if not (isinstance(each, Tensor) and is_same(each, given))}
    for key, value in (made or found).items():  # what was given comes back beside what was made of it
        flat = isinstance(value, Tensor) and value.dim() in (1, 2) and len(value) == x.size(0) * x.size(1)
        for pooled in (False, True):
            try:
                output = replace(convention, output=key, pooled=pooled, flat=flat).output_in({key: value}, x)
            except ModuleError:
                continue
            ranked.append((_rank(output, convention, x), key, pooled))
            break
    best = min(ranked, key=lambda each: each[0], default=None)
    return None if best is None else best[1:]


def _rank(output: Tensor, convention: Convention, x: Tensor) -> int:
    """How unlike an output an element is: as wide as the input, of another width, weights, pooled, weights of one."""
    if output.dim() == 2:
        return 3
    if output.size(-1) == 1 != convention.d_in:
        return 4
    if output.size(-1) in (convention.d_in, convention.vocab_size):
        return 0
    return 2 if output.size(-1) == x.size(1) else 1


def _with_other_axes(trial: Trial, convention: Convention) -> Convention | None:
    """The convention in which the output comes back in another layout than the input's."""
    for layout in _RETURNED_IN:
        with contextlib.suppress(ModuleError):
            found = _in_any_batch(trial, with_output(trial, replace(convention, returned_in=layout)))
            if not found.pooled and (layout not in SPLIT or _is_as_wide_elsewhere(trial, found)):
                return found
    return None


def _is_as_wide_elsewhere(trial: Trial, found: Convention) -> bool:
    """Whether the output has the same width at another length, if there is one: what has another holds pairs."""
    with contextlib.suppress(ModuleError):
        return with_output(trial, found, length=found.length - 1).d_out == found.d_out
    return True


def _with_one_more(trial: Trial, convention: Convention) -> Convention | None:
    """The convention in which a loss is taken at all positions but the last, the input being its own target."""
    arguments = tuple(replace(one, source=ONE_MORE) if one.source == "x" else one for one in convention.arguments)
    with contextlib.suppress(ModuleError):
        found = _in_any_batch(trial, with_output(trial, replace(convention, arguments=arguments)))
        return found if found.of_loss and not found.pooled else None
    return None


def _with_one(trial: Trial, convention: Convention) -> Convention | None:
    """The convention in which the sequence comes first, if so there is one vector per sequence, whatever its sizes."""
    other = replace(convention, layout="sequence-first")
    with contextlib.suppress(ModuleError):
        found = [
            with_output(trial, other, batch=batch, length=other.length + longer)
            for batch, longer in itertools.product(_BATCHES, _LONGER)
        ]
        return found[0] if all(one.pooled and one.d_out == found[0].d_out for one in found) else None
    return None


def _with_slots(trial: Trial, convention: Convention) -> Convention | None:
    """The convention in which several vectors per sequence, as many at every length, are the output."""
    for longer in ((0,),) if convention.layout in IMAGES else (_LONGER, (0,)):  # at last at one length, if it shortens
        lengths = [convention.length + more for more in longer]
        try:
            first, *others = [_slots(trial, convention, *sizes) for sizes in itertools.product(_BATCHES, lengths)]
        except ModuleError:
            continue
        for key, shape in first.items():
            slots, width = shape
            one_length = longer == (0,) and convention.layout not in IMAGES
            if all(other.get(key) == shape for other in others) and (slots < convention.length or not one_length):
                found = replace(convention, output=key, pooled=True, slots=slots, d_out=slots * width)
                return replace(found, any_length=not one_length)
    return None


def _with_slots_batch_first(trial: Trial, convention: Convention) -> Convention | None:
    """The same, returned with the features last, whatever the layout of the input."""
    return _with_slots(trial, replace(convention, returned_in="batch-first"))


def _slots(trial: Trial, convention: Convention, batch: int, length: int) -> dict[Any, tuple[int, int]]:
    """Number and width of the vectors in every returned tensor that has the batch first; an input is no output."""
    x = trial.inputs(convention, batch=batch, length=length)
    layout = LAYOUTS[convention.returned_in or convention.layout]
    found: dict[Any, tuple[int, int]] = {}
    for key, value in elements(trial.returned(convention, x)).items():
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() in (3, layout.dims):
            size, slots, width = (layout.batch_first(value) if value.dim() == layout.dims else value).shape
            found |= {key: (slots, width)} if size == batch else {}
    return found


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
