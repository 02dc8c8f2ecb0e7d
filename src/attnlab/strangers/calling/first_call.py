"""Find a first way to call the patient that runs and returns one vector per position, or one per sequence."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.axes_said import Said, layout_said, sizes_said
from attnlab.strangers.calling.plans import Plan, plans_for
from attnlab.strangers.calling.roles import Parameter, roles_of, seems_tokens
from attnlab.strangers.calling.slots import with_slots
from attnlab.strangers.calling.sources import NUMBERS, Argument
from attnlab.strangers.calling.trial import Trial
from attnlab.strangers.calling.widths import LENGTH, lengths_to_try, size_named, vocabulary_of, widths_to_try
from attnlab.strangers.conventions import LAYOUTS, elements
from attnlab.strangers.patient import LAYOUTS_DECLARED, Patient
from attnlab.strangers.usage import Usage

_PATIENCE_S = 10.0  # after which a module that fails late and slowly is given up
_MOST_CALLS = 4000  # that fail one after the other; a failing call takes some 0.1 ms


@dataclass(frozen=True)
class Call:
    """Hold a call that ran, and what was said about it.

    Parameters
    ----------
    usage : Usage
        The call; everything that is learned later is at its default.
    parameters : tuple of Parameter
        Of ``forward``.
    layout : Said or None
        What the class says about its layout.
    """

    usage: Usage
    parameters: tuple[Parameter, ...]
    layout: Said | None


def first_call(trial: Trial, patient: Patient) -> Call:
    """The most plausible call that runs."""
    parameters = roles_of(trial.module)
    name = _input_of(parameters, patient)
    sizes = sizes_said(trial.module, name, patient.text)
    said = _declared(patient) or layout_said(trial.module, name, patient.text) or _said_by_sizes(trial.module, sizes)
    failures: list[ModuleError] = []
    unlike: Usage | None = None
    returned_something = False
    start_s = time.monotonic()
    for attempt in itertools.islice(_attempts(trial, patient, parameters, (said, sizes)), _MOST_CALLS):
        if returned_something and (attempt.length != LENGTH or attempt.layout == "sequence-first"):
            continue  # where a wrong output may happen to look right
        try:
            return Call(_tried(trial, attempt), parameters, said)
        except ModuleError as error:
            failures.append(error)
            returned_something |= error.__cause__ is None
            unlike = attempt if unlike is None and returned_something else unlike
        if time.monotonic() - start_s > _PATIENCE_S:
            break
    pooled = None if unlike is None else with_slots(trial, unlike)
    if pooled is not None:
        return Call(pooled, parameters, said)
    raise _most_telling(failures, parameters, patient)


def _declared(patient: Patient) -> Said | None:
    layout = patient.declared.layout
    return None if layout is None else Said(LAYOUTS_DECLARED[layout], "--layout")


def _input_of(parameters: tuple[Parameter, ...], patient: Patient) -> str:
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


def _attempts(
    trial: Trial,
    patient: Patient,
    parameters: tuple[Parameter, ...],
    said: tuple[Said | None, tuple[int, int] | None],
) -> Iterator[Usage]:
    """Yield ways to call the module, the most plausible first; one number per position is what is thought of last."""
    plans = plans_for(parameters, size_named("d_head", patient), size_named("vocab_size", patient))
    inputs = list(_inputs(trial.module, patient, _input_of(parameters, patient)))
    for layout, lengths in _places(patient, *said):
        for (takes, size), plan, length in itertools.product(inputs, plans, lengths):
            d_in, vocab_size = (size, None) if takes == "embeddings" else (0, size)
            if takes == "embeddings" or layout != "channels-first":
                start = Usage("layer", takes, d_in, 0, vocab_size=vocab_size, length=length, layout=layout)
                yield replace(start, arguments=plan.arguments, masks=plan.masks, flag=plan.flag)
    for plan, length in itertools.product(plans, lengths_to_try(patient)):
        start = Usage("layer", "embeddings", 1, 0, length=length, masks=plan.masks, flag=plan.flag)
        yield replace(start, arguments=_of_numbers(plan))


def _of_numbers(plan: Plan) -> tuple[Argument, ...]:
    """The arguments of a plan with the input as one number per position."""
    return tuple(replace(one, source=NUMBERS) if one.source == "x" else one for one in plan.arguments)


def _places(patient: Patient, said: Said | None, sizes: tuple[int, int] | None) -> Iterator[tuple[str, list[int]]]:
    """Yield layouts with lengths to try: what is said, or batch first, at all lengths before any other layout.

    Channels first comes before other lengths where nothing is said: it runs only in what has channels first. A
    recurrence that keeps a state for one sample takes the batch for time, and runs at length 1 alone.
    """
    usual, *fixed = lengths_to_try(patient)
    first = "batch-first" if said is None else said.what
    if sizes is not None:
        fixed = [sizes[1] if first == "channels-first" else sizes[0], *fixed]
    elif any(isinstance(part, nn.RNNBase) for part in patient.module.modules()):
        fixed = [*fixed, 1]
    yield first, [usual]
    if said is None:
        yield "channels-first", [usual]
    yield first, fixed
    for layout in ("channels-first", "sequence-first", "batch-first"):
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


def _tried(trial: Trial, usage: Usage) -> Usage:
    """Call the module and find the output in what it returns."""
    x = trial.inputs(usage)
    returned = trial.returned(usage, x)
    found = _find_output(returned, usage, x)
    if found is None:
        raise ModuleError(
            f"forward returned {_shapes(returned)} for an input {tuple(LAYOUTS[usage.layout](x).shape)}; it must return"
            " a floating tensor with one vector per position, or one per sequence"
        )
    key, pooled = found
    usage = replace(usage, output=key, pooled=pooled)
    return replace(usage, d_out=usage.output_in(returned, x).size(-1))


def _find_output(returned: Any, usage: Usage, x: Tensor) -> tuple[Any, bool] | None:
    """The key of the output in what was returned, and whether it is pooled."""
    ranked: list[tuple[int, Any, bool]] = []
    for key, value in elements(returned).items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        for pooled in (False, True):
            try:
                output = replace(usage, output=key, pooled=pooled).output_in({key: value}, x)
            except ModuleError:
                continue
            ranked.append((_rank(output, usage, x), key, pooled))
            break
    best = min(ranked, key=lambda each: each[0], default=None)
    return None if best is None else best[1:]


def _rank(output: Tensor, usage: Usage, x: Tensor) -> int:
    """How unlike an output an element is: as wide as the input, of another width, weights, pooled."""
    if output.dim() == 2:
        return 3
    if output.size(-1) in (usage.d_in, usage.vocab_size):
        return 0
    return 2 if output.size(-1) == x.size(1) else 1


def _shapes(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)}" + ("" if value.is_floating_point() else f" of {value.dtype}")
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {', '.join(_shapes(each) for each in value)}"
    return type(value).__name__ if value is not None else "None"


def _most_telling(failures: list[ModuleError], parameters: tuple[Parameter, ...], patient: Patient) -> ModuleError:
    """The failure that says most to the person: a wrong output, an argument nobody can guess, the first."""
    wrong = next((each for each in failures if each.__cause__ is None), None)
    unknown = [one.name for one in parameters if one.required and one.role == "open"]
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
