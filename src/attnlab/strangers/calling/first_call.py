"""Find a first way to call a module that runs and returns one vector per position, or one per sequence."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.convention import Convention, elements, wrong_output
from attnlab.strangers.calling.layouts import IMAGES, LAYOUTS, SPLIT
from attnlab.strangers.calling.roles import Filling, Parameter, calls_for, roles_of, seems_tokens, with_a_vector
from attnlab.strangers.calling.sources import NUMBERS
from attnlab.strangers.calling.trial import BATCH, Trial
from attnlab.strangers.calling.widths import (
    LENGTH,
    grids_to_try,
    lengths_to_try,
    size_named,
    vocabulary_of,
    widths_to_try,
)
from attnlab.strangers.loading.sizes import D_MODEL
from attnlab.strangers.patient import LAYOUTS_DECLARED, Patient
from attnlab.strangers.words import Said, layout_said, sizes_said

_USUAL = ("channels-first", "sequence-first", "batch-first")
_PATIENCE_S = 10.0  # of computing, after which a module that fails late and slowly is given up
_MOST_CALLS = 4000  # that fail one after the other; a failing call takes some 0.1 ms
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
    failures: list[ModuleError] = []
    unlike: Convention | None = None
    returned_something = False
    start_s = time.process_time()
    for attempt in itertools.islice(_attempts(trial, patient, parameters, said, sizes), _MOST_CALLS):
        if returned_something and (attempt.length != LENGTH or attempt.layout in ("sequence-first", "unbatched")):
            continue  # where a wrong output may happen to look right
        try:
            return Found(_tried(trial, attempt), parameters, said)
        except ModuleError as error:
            failures.append(error)
            returned_something |= error.__cause__ is None
            unlike = attempt if unlike is None and returned_something else unlike
        if time.process_time() - start_s > _PATIENCE_S:
            break
    pooled = None if unlike is None else _with_slots(trial, unlike)
    if pooled is not None:
        return Found(pooled, parameters, said)
    raise most_telling(failures, parameters, patient)


def _declared(patient: Patient) -> Said | None:
    layout = patient.declared.layout
    return None if layout is None else Said(LAYOUTS_DECLARED[layout], "--layout")


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
    calls = calls_for(parameters, size_named("d_head", patient), size_named("vocab_size", patient))
    inputs = list(_inputs(trial.module, patient, input_of(parameters, patient)))
    widths = [size for takes, size in inputs if takes == "embeddings"]
    images = _images(patient, calls, widths)
    two_dimensional = any(isinstance(part, nn.Conv2d) for part in trial.module.modules())
    if two_dimensional or (said is not None and said.what in IMAGES):
        yield from images
    usual, *others = lengths_to_try(patient)
    split = sorted(SPLIT, key=lambda layout: said is None or layout != said.what)
    plain, masked = ([call for call in calls if bool(call.masks) is given] for given in (False, True))
    for some, at_usual in ((plain, False), (masked, True), (masked, False)):  # masks multiply the ways to call
        for layout, lengths in _places(patient, said, sizes):
            chosen = [length for length in lengths if length == usual] if at_usual else lengths
            for (takes, size), call, length in itertools.product(inputs, some, chosen):
                if takes == "embeddings" or layout != "channels-first":
                    yield _opening(call, takes, size, length, layout)
        yield from (_of_numbers(call, usual) for call in some)
        for layout, width, call in itertools.product(split, [D_MODEL, *widths], some):
            yield _opening(call, "embeddings", width, usual, layout)
    yield from images
    for width, call in itertools.product([width for width in widths if width > 1], calls):
        yield _opening(call, "embeddings", width, usual, "unbatched")
    yield from (_of_numbers(call, length) for call, length in itertools.product(calls, others))
    beside = dict.fromkeys([*widths, *(total - one for total in widths for one in widths if total > one)])
    for layout, width, of_vector, call in itertools.product(_USUAL[::-1], beside, widths, calls):
        yield from (_opening(each, "embeddings", width, usual, layout) for each in with_a_vector(call, of_vector))


def _of_numbers(call: Filling, length: int) -> Convention:
    """A call with the input as one number per position."""
    arguments = tuple(replace(one, source=NUMBERS) if one.source == "x" else one for one in call.arguments)
    return replace(_opening(call, "embeddings", 1, length, "batch-first"), arguments=arguments)


def _images(patient: Patient, calls: list[Filling], widths: list[int]) -> Iterator[Convention]:
    """Yield calls with images."""
    grids = grids_to_try(patient)
    for layout in IMAGES:
        for width, length, call in itertools.product(dict.fromkeys([*grids.channels, *widths]), grids.lengths, calls):
            yield _opening(call, "embeddings", width, length, layout)


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


def _tried(trial: Trial, convention: Convention) -> Convention:
    """Call the module and find the output in what it returns."""
    x = trial.inputs(convention)
    returned = trial.returned(convention, x)
    found = find_output(returned, convention, x)
    if found is None:
        raise wrong_output(returned, x, convention)
    key, pooled = found
    flat = not pooled and elements(returned)[key].shape[0] == x.size(0) * x.size(1)
    convention = replace(convention, output=key, pooled=pooled, flat=flat)
    return replace(convention, d_out=convention.output_in(returned, x).size(-1))


def find_output(returned: Any, convention: Convention, x: Tensor) -> tuple[Any, bool] | None:
    """The key of the output in what was returned, and whether it is pooled."""
    ranked: list[tuple[int, Any, bool]] = []
    for key, value in elements(returned).items():
        flat = isinstance(value, Tensor) and value.dim() == 2 and len(value) == x.size(0) * x.size(1)
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


def _with_slots(trial: Trial, convention: Convention) -> Convention | None:
    """The convention in which several vectors per sequence, as many at every length, are the output."""
    grid = convention.layout in IMAGES
    lengths = [convention.length + more for more in ((0,) if grid else _LONGER)]
    try:
        first, *others = [_slots(trial, convention, *sizes) for sizes in itertools.product(_BATCHES, lengths)]
    except ModuleError:
        return None
    for key, shape in first.items():
        if all(other.get(key) == shape for other in others):
            slots, width = shape
            return replace(convention, output=key, pooled=True, slots=slots, d_out=slots * width)
    return None


def _slots(trial: Trial, convention: Convention, batch: int, length: int) -> dict[Any, tuple[int, int]]:
    """Number and width of the vectors in every returned tensor that has the batch first; an input is no output."""
    x = trial.inputs(convention, batch=batch, length=length)
    layout = LAYOUTS[convention.layout]
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
