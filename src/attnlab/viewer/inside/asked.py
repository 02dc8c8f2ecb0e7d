"""What a person asks to see, read from the body of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast, final

from attnlab.core.errors import DataError
from attnlab.inspection.interventions import How

Kind = TypeVar("Kind")


@final
@dataclass(frozen=True)
class Asked:
    """Hold what a person wants to see; what is equal is answered alike."""

    text: str = ""  # what is read; of a translation model a sentence
    target: str = ""  # translation that is to be judged; empty: what the whole model writes
    off: tuple[str, ...] = ()  # heads that are switched off, as `ablate` names places
    how: How = "zero"  # what stands in their place, as `ablate` takes it
    values: tuple[float, ...] = ()  # a sequence of numbers, of a model that reads such
    wanted: tuple[float, ...] = ()  # what should come out of it; empty: nobody knows


def asked_in(body: Mapping[str, Any]) -> Asked:
    """What a body asks to see."""
    off = field(body, "off", list, [])
    if not all(isinstance(one, str) for one in off):
        raise DataError(f"'off' must be a list of heads such as 'stack.blocks.0.mixer:2'; got {off}")
    text, target, how = (
        field(body, name, str, usual) for name, usual in (("text", ""), ("target", ""), ("how", "zero"))
    )
    values, wanted = (_numbers(body, name) for name in ("values", "wanted"))
    return Asked(text, target, tuple(sorted(off)), cast(How, how), values, wanted)


def field(body: Mapping[str, Any], name: str, kind: type[Kind], usual: Kind) -> Kind:
    """A field of a body, of a type."""
    value = body.get(name, usual)
    if not isinstance(value, kind):
        raise DataError(f"'{name}' must be a {kind.__name__}; got {value!r}")
    return value


def _numbers(body: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = field(body, name, list, [])
    if not all(isinstance(one, int | float) and abs(one) < LARGEST for one in values):
        raise DataError(f"'{name}' must be a list of numbers; got {str(values)[:60]}")
    return tuple(map(float, values))


LARGEST = 1e30
"""Of a number that is read: its square is still one to float32."""
