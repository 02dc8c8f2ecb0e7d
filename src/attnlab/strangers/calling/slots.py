"""Outputs of as many vectors at every length: latents that read a sequence, seeds that pool it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.trial import BATCH, Trial
from attnlab.strangers.conventions import LAYOUTS, elements
from attnlab.strangers.usage import Usage

_BATCHES = (BATCH, BATCH + 2)  # the axis that follows the batch is the batch
_LONGER = (0, -1, 2)  # lengths at which there must be as many vectors, relative to the first


def with_slots(trial: Trial, usage: Usage) -> Usage | None:
    """The usage in which several vectors per sequence, as many at every length, are the output."""
    calls = [(batch, usage.length + more) for batch in _BATCHES for more in _LONGER]
    try:
        first, *others = [_shapes(trial, usage, *sizes) for sizes in calls]
    except ModuleError:
        return None
    for key, shape in first.items():
        if all(other.get(key) == shape for other in others):
            slots, width = shape
            return replace(usage, output=key, pooled=True, slots=slots, d_out=slots * width)
    return None


def _shapes(trial: Trial, usage: Usage, batch: int, length: int) -> dict[Any, tuple[int, int]]:
    """Return (slots, width) of every returned tensor that has the batch first; an input is no output."""
    x = trial.inputs(usage, batch=batch, length=length)
    found: dict[Any, tuple[int, int]] = {}
    for key, value in elements(trial.returned(usage, x)).items():
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 3:
            size, slots, width = LAYOUTS[usage.layout](value).shape
            found |= {key: (slots, width)} if size == batch else {}
    return found
