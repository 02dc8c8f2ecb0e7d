"""How words of the command line become numbers, where the library that reads them is too kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token


def _whole(_: type, tokens: Sequence[Token]) -> int:
    """A whole number; 3.5 is none, and is not rounded in silence."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"must be a whole number; got {tokens[0].value}") from None


Whole = Annotated[int, Parameter(converter=_whole)]
"""A whole number, written as one."""
Runs = Annotated[tuple[Path, ...], Parameter(negative="")]
"""Folders of runs; there is no option that empties the list."""
