"""How words of the command line become numbers, where the library that reads them is too kind."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token

from attnlab.core.errors import SpecError


def _whole(_: type, tokens: Sequence[Token]) -> int:
    """A whole number; 3.5 is none, and is not rounded in silence."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"must be a whole number; got {tokens[0].value}") from None


def _folder(_: type, tokens: Sequence[Token]) -> Path:
    """A folder; an empty word, such as a variable that is not set, is not the current one."""
    if not tokens[0].value.strip():
        raise ValueError("must be a folder; got an empty word (. is the current folder)")
    return Path(tokens[0].value)


Folder = Annotated[Path, Parameter(converter=_folder)]
"""A folder that is written to."""
Whole = Annotated[int, Parameter(converter=_whole)]
"""A whole number, written as one."""
Runs = Annotated[tuple[Path, ...], Parameter(negative="")]
"""Folders of runs; there is no option that empties the list."""

_VALUES = {"true": True, "false": False, "null": None, "none": None}


def argument(word: str) -> tuple[str, Any]:
    """Name and value of ``name=value``; what reads like a number, a list or a truth value is one."""
    name, equals, value = word.partition("=")
    if not equals or not name.isidentifier():
        raise SpecError(f"--arg must be name=value; got '{word}' (hint: --arg d_model=64 --arg n_heads=4)")
    if value.lower() in _VALUES:
        return name, _VALUES[value.lower()]
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
