"""Ways to call a module that may run, the most plausible first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.layouts import FRAMES, HEADS, IMAGES, SPLIT, STILLS
from attnlab.strangers.calling.roles import (
    Filling,
    Parameter,
    calls_for,
    input_of,
    of_graph,
    one_step,
    seems_tokens,
    told_apart,
    with_a_vector,
)
from attnlab.strangers.calling.sources import NUMBERS, PACKED, SEVERAL, TURNED
from attnlab.strangers.calling.widths import (
    LENGTH,
    grids_to_try,
    lengths_to_try,
    size_named,
    vocabulary_of,
    widths_to_try,
)
from attnlab.strangers.loading.sizes import D_MODEL
from attnlab.strangers.patient import Patient
from attnlab.strangers.said.layout import axes_said, turned_keys
from attnlab.strangers.said.source import Said, source_of, source_of_forward
from attnlab.strangers.trying.trial import Trial

_USUAL = ("channels-first", "sequence-first", "batch-first")
_AXIS = r"(?:\w+|\([^()]*\))"
_FIVE_AXES = re.compile(
    r"\w+ *, *(?P<second>\w+)( *, *\w+){3} *= *\w+\.(?:shape|size\(\))"
    rf"|[\"'] *{_AXIS} (?P<axis>\w+)( {_AXIS}){{3}} *->"
)
"""How code takes an input with five axes apart."""
_REARRANGES = re.compile(r"Rearrange\(\s*([\"'].*?[\"'])")
_CHANNELS = re.compile(r"c|ch|chn|(in_?)?chan\w*", re.IGNORECASE)


def attempts_at(
    trial: Trial,
    patient: Patient,
    parameters: tuple[Parameter, ...],
    said: Said | None,
    sizes: tuple[int, int] | None,
) -> Iterator[Convention]:
    """Yield ways to call the module, the most plausible first; the rarest layouts and plain numbers come last."""
    d_head = size_named("d_head", patient)
    calls = calls_for(parameters, d_head, size_named("vocab_size", patient))
    calls = [*_with_turned(calls, turned_keys(trial.module))]
    inputs = list(_inputs(trial.module, patient, input_of(parameters, patient)))
    scalars = [each for each in inputs[1:] if each == ("embeddings", 1)]  # of what has several heads they run by chance
    widths = [size for takes, size in inputs if takes == "embeddings"]
    wider = [width for width in widths if ("embeddings", width) not in scalars]
    apart = [call for call in calls if any(one.source in (SEVERAL, PACKED) for one in call.arguments)]
    stills = sorted(STILLS, key=lambda layout: said is None or layout != said.what)
    images = _images(patient, apart or calls, widths, stills)  # of one image samples would be taken apart
    beside = dict.fromkeys([*widths, *(total - one for total in widths for one in widths if total > one)])
    usual, *others = lengths = lengths_to_try(patient)
    steps = list(itertools.product(lengths, _USUAL[:0:-1], widths, beside))
    yield from _steps(parameters, steps, alone=False)
    yield from _told_apart(trial.module, parameters, steps)
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


def _with_turned(calls: Iterable[Filling], turned: Container[str]) -> Iterator[Filling]:
    """Calls in which the input is given with its last axes exchanged, where that is wanted."""
    for call in calls:
        given = (replace(one, source=TURNED) if one.parameter in turned else one for one in call.arguments)
        yield replace(call, arguments=tuple(given))


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


def _told_apart(
    module: nn.Module, parameters: Sequence[Parameter], sizes: Iterable[tuple[int, str, int, int]]
) -> Iterator[Convention]:
    """Yield calls in which one vector asks sequences, as the shapes say that stand behind their names."""
    axes = axes_said(module, [one.name for one in parameters if one.name])
    for length, layout, of_vector, width in sizes:
        calls = told_apart(parameters, axes, of_vector)
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
