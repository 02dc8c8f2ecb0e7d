"""How words of the command line are read where the library that reads them is too kind, and what completes them."""

from __future__ import annotations

import ast
import glob
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token

from attnlab.core.errors import SpecError

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext


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
Device = Literal["cpu", "cuda"]
"""Where something is computed."""
Weights = Literal["last", "best"]
"""Weights of a run: those at the end, or of the best evaluation."""


def _library(*packages: str) -> Callable[[CompletionContext], list[str]]:
    """What completes a word that names a file of the library, or a YAML file."""

    def names(context: CompletionContext) -> list[str]:
        from attnlab.studies.define.reading import library

        known = (name for package in packages for name in library(package))
        return [*known, *sorted(glob.glob(glob.escape(context.incomplete) + "*.yaml"))]

    return names


def _scales(context: CompletionContext) -> list[str]:
    """The scales of the study or case that was named before."""
    from attnlab.studies.define.reading import find, library, read

    named = next(
        one.value for one in context.arguments if one.field_info.name in ("study", "case") for one in one.tokens
    )
    return list(read(find(named, library(STUDIES) | library(CASES), "study")).get("scales", {}))


STUDIES, CASES = "attnlab.studies", "attnlab.explain"
"""Packages with a library."""
StudyName = Annotated[str, Parameter(completer=_library(STUDIES))]
"""A study of the library, or a file."""
CaseName = Annotated[str, Parameter(completer=_library(CASES))]
"""A case of the library, or a file."""
Asked = Annotated[str, Parameter(completer=_library(STUDIES, CASES))]
"""A study or a case of the library, or a file."""
Scale = Annotated[str | None, Parameter(completer=_scales)]
"""One of the scales of a study or a case."""

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
