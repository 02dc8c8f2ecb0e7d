"""How words of the command line become numbers, where the library that reads them is too kind."""

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
        folders = (PACKAGE / package / "library" for package in packages)
        return [
            *sorted(path.stem for folder in folders for path in folder.glob("*.yaml")),
            *sorted(glob.glob(glob.escape(context.incomplete) + "*.yaml")),
        ]

    return names


def _scales(context: CompletionContext) -> list[str]:
    """The scales of the study or case that was named before."""
    from ruamel.yaml import YAML

    named = next(
        one.value for one in context.arguments if one.field_info.name in ("study", "case") for one in one.tokens
    )
    places = (Path(named), *(PACKAGE / package / "library" / f"{named}.yaml" for package in ("studies", "explain")))
    path = next(place for place in places if place.is_file())
    return list(YAML(typ="safe").load(path).get("scales", {}))


StudyName = Annotated[str, Parameter(completer=_library("studies"))]
"""A study of the library, or a file."""
CaseName = Annotated[str, Parameter(completer=_library("explain"))]
"""A case of the library, or a file."""
Asked = Annotated[str, Parameter(completer=_library("studies", "explain"))]
"""A study or a case of the library, or a file."""
Scale = Annotated[str | None, Parameter(completer=_scales)]
"""One of the scales of a study or a case."""

PACKAGE = Path(__file__).resolve().parent.parent
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
