"""Find the output in what a module returns: one vector per position, one per sequence, or several per sequence."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import Any

from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.convention import Convention, elements, wrong_output
from attnlab.strangers.calling.layouts import IMAGES, LAYOUTS, SPLIT
from attnlab.strangers.calling.sources import HANDED_ON, ONE_MORE, is_same, laid_out
from attnlab.strangers.trying.trial import BATCH, Trial

_RETURNED_IN = ("batch-first", "channels-first", *SPLIT, "sequence-first")
_BATCHES = (BATCH, BATCH + 2)  # the axis that follows the batch is the batch
_LONGER = (0, -1, 2)  # lengths at which there must be as many vectors, relative to the first


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


def in_any_batch(trial: Trial, convention: Convention) -> Convention:
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


def with_another_output(trial: Trial, convention: Convention) -> Convention | None:
    """The convention in which what is returned is something else than one vector per position in the input's layout."""
    ways = (_with_one_more, _with_other_axes, _with_one, _with_slots, _with_slots_batch_first)
    return next((found for way in ways if (found := way(trial, convention)) is not None), None)


def _with_other_axes(trial: Trial, convention: Convention) -> Convention | None:
    """The convention in which the output comes back in another layout than the input's."""
    for layout in _RETURNED_IN:
        with contextlib.suppress(ModuleError):
            found = in_any_batch(trial, with_output(trial, replace(convention, returned_in=layout)))
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
        found = in_any_batch(trial, with_output(trial, replace(convention, arguments=arguments)))
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
