"""Make a comparison fair: solve a variant's width so that its parameters or FLOPs equal the baseline's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnlab.core.constructors import named
from attnlab.core.errors import SpecError
from attnlab.models import MODELS

WIDTHS = ("d_model", "channels", "hidden")
"""Constructor arguments that are a model's width, in the order they are looked for."""
LARGEST_FACTOR = 8
"""A width is looked for between 1/8 and 8 times the one written."""
CLOSE_ENOUGH = 0.02
"""A match within 2 % is called matched; a worse one is named in the plan as it is."""
NEIGHBORS = 16
"""Widths tried on either side of the best one, where heads do not divide it."""


def match_width(
    spec: Mapping[str, Any], target: float, measure: Callable[[Mapping[str, Any]], float], *, quantity: str
) -> tuple[dict[str, Any], str]:
    """A model specification whose quantity is as close to the target as its width allows."""
    argument, width = width_of(spec)
    low, high = max(1, width // LARGEST_FACTOR), width * LARGEST_FACTOR
    centre = _bisect(low, high, target, lambda value: _try(measure, spec, argument, value))
    candidates = range(max(1, centre - NEIGHBORS), centre + NEIGHBORS + 1)
    tried = {value: _try(measure, spec, argument, value) for value in candidates}
    buildable = {value: got for value, got in tried.items() if got is not None}
    if not buildable:
        raise SpecError(f"no {argument} near {centre} can be built, so {quantity} cannot be matched")
    best = min(buildable, key=lambda value: abs(buildable[value] - target))
    off = buildable[best] / target - 1
    judged = "" if abs(off) <= CLOSE_ENOUGH else ", no closer width exists"
    note = f"{quantity} matched by {argument} {width} -> {best}: {off:+.1%} of the baseline's{judged}"
    return {**spec, argument: best}, note


def width_of(spec: Mapping[str, Any]) -> tuple[str, int]:
    """Which argument is the width of a model, and its value."""
    import inspect

    factory = MODELS.get(str(spec["name"]))
    defaults = inspect.signature(factory).parameters if factory else {}
    for argument in (*WIDTHS, *named("d_model", spec)):
        if isinstance(spec.get(argument), int):
            return argument, spec[argument]
        if argument in defaults and isinstance(defaults[argument].default, int):
            return argument, defaults[argument].default
    raise SpecError(f"model '{spec['name']}' has no width ({', '.join(WIDTHS)}) to match with")


def _try(
    measure: Callable[[Mapping[str, Any]], float], spec: Mapping[str, Any], argument: str, width: int
) -> float | None:
    """The quantity at a width, or None where it cannot be built."""
    try:
        return measure({**spec, argument: width})
    except SpecError:
        return None


def _bisect(low: int, high: int, target: float, value_at: Callable[[int], float | None]) -> int:
    """The largest width whose quantity does not exceed the target, stepping over unbuildable ones."""
    while high - low > 1:
        middle = (low + high) // 2
        probe, got = middle, value_at(middle)
        while got is None and probe + 1 < high:
            probe += 1
            got = value_at(probe)
        if got is None or got > target:
            high = middle
        else:
            low = probe
    return low
