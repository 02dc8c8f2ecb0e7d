"""Where in a running model something is changed: a module's output, a head, a position, an edge between two."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final, get_args

from torch import Tensor

from attnlab.core.errors import SpecError
from attnlab.core.sizes import require_known
from attnlab.nn.attention import Step

Function = Callable[[Tensor], Tensor]
"""What stands in the place of a value, of the same shape or one that fits it."""

_TEXT = re.compile(
    r"(?P<module>[^:@\s]+)(:(?P<head>\d+|\*)(:(?P<query>\d+|\*)->(?P<key>\d+|\*))?)?(@(?P<position>\d+))?"
)
_FORMS = "NAME (what a module returns), NAME:2 (a head), NAME:2:5->3 or NAME:*:5->3 (an edge), NAME@5 (a position)"


@final
@dataclass(frozen=True)
class Place:
    """Name what is changed.

    Parameters
    ----------
    module : str
        Dotted name of a module; of an attention as `capture` names it: ``"model"`` is the whole, ``name#2`` the second
        call in a forward pass, and a name without number all of them.
    step : {"output", "q", "k", "v", "scores", "weights", "head_outputs"}
        What the module returns, or a step of its attention, laid out as in `Captured`.
    head : int, optional
        Of a step of an attention; all heads if left out.
    query : int, optional
        Position of the query, or of the output; counted from the end if negative. All of them if left out.
    key : int, optional
        Position of the key; likewise.

    Raises
    ------
    SpecError
        If there is no such step, or it has no such axis.

    Examples
    --------
    >>> Place.parse("stack.blocks.0.mixer:2")
    Place(module='stack.blocks.0.mixer', step='head_outputs', head=2, query=None, key=None)
    >>> str(Place.parse("stack.blocks.0.mixer:*:5->3"))
    'stack.blocks.0.mixer:*:5->3'
    """

    module: str
    step: Step = "output"
    head: int | None = None
    query: int | None = None
    key: int | None = None

    def __post_init__(self) -> None:
        require_known("step", self.step, get_args(Step))
        if self.step == "output" and (self.head is not None or self.key is not None):
            raise SpecError(f"what {self.module} returns has no heads and no keys: name a step of its attention")
        if self.key is not None and self.step in ("q", "head_outputs"):
            raise SpecError(f"'{self.step}' of {self.module} has no axis of keys")
        if self.query is not None and self.step in ("k", "v"):
            raise SpecError(f"'{self.step}' of {self.module} has no axis of queries")

    @staticmethod
    def parse(text: str) -> Place:
        """The place that a text names: ``NAME``, ``NAME:HEAD``, ``NAME:HEAD:QUERY->KEY``, ``NAME@POSITION``.

        A head, a query or a key may be ``*``: all of them.
        """
        found = _TEXT.fullmatch(text)
        if found is None or (found["position"] and found["key"]):
            raise SpecError(f"{text!r} is no place in a model: write {_FORMS}")
        head, query, key, position = (_number(found[name]) for name in ("head", "query", "key", "position"))
        if found["key"]:
            return Place(found["module"], "weights", head, query, key)
        return Place(found["module"], "head_outputs" if found["head"] else "output", head, position)

    def __str__(self) -> str:
        if self.step == "weights":
            return f"{self.module}:{_shown(self.head)}:{_shown(self.query)}->{_shown(self.key)}"
        kind = "" if self.step in ("output", "head_outputs") else f".{self.step}"
        head = "" if self.step == "output" else f":{_shown(self.head)}"
        at = self.query if self.key is None else self.key
        return f"{self.module}{kind}{head}" + ("" if at is None else f"@{at}")

    def index(self, value: Tensor) -> tuple[slice, ...]:
        """What of a step's value it is; of what a module returns, whose second axis is the length.

        Raises
        ------
        SpecError
            If there is no such head or position.
        """
        if self.step == "output":
            return (slice(None), self._slice(value, self.query, 1, "position"))
        rows = self.query if self.step not in ("k", "v") else self.key
        index = [slice(None), self._slice(value, self.head, 1, "head"), self._slice(value, rows, 2, "position")]
        if self.step in ("scores", "weights"):
            index.append(self._slice(value, self.key, 3, "position"))
        return tuple(index)

    def _slice(self, value: Tensor, number: int | None, axis: int, kind: str) -> slice:
        if number is None:
            return slice(None)
        count = value.shape[axis] if value.ndim > axis else 0
        if not -count <= number < count:
            raise SpecError(f"{self}: there is no {kind} {number}, only {count}, counted from 0")
        return slice(number % count, number % count + 1)


Changed = tuple[Place, Function]
"""A place, and what of its value is put there."""


def places(where: str | Place | Sequence[str | Place]) -> tuple[Place, ...]:
    """All places that are named."""
    several = [where] if isinstance(where, str | Place) else where
    return tuple(Place.parse(one) if isinstance(one, str) else one for one in several)


def _number(text: str | None) -> int | None:
    return None if text in (None, "*") else int(text)


def _shown(number: int | None) -> str:
    return "*" if number is None else str(number)
