"""What is wrong with a study, said with the line of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from attnlab.core.errors import nearest
from attnlab.studies.define.reading import line_of
from attnlab.studies.define.rules import Rules

PLACED = ("task", "model", "training", "variants")
FILE_KEYS = ("question", "task", "model", "baseline", "variants", "compare", "rules", "training", "published")


def places_of(raw: Mapping[str, Any], path: Path | None) -> dict[str, str]:
    """Where a file names its parts and what is in them, for what is found wrong with them after reading."""
    if path is None:
        return {}
    keys = [[part] for part in PLACED if part in raw]
    keys += [[part, key] for (part,) in keys if isinstance(raw[part], Mapping) for key in raw[part]]
    return {".".join(map(str, key)): f"{_place(raw, key, path)}: " for key in keys}


def _place(raw: Mapping[str, Any], key: Sequence[Any], path: Path) -> str:
    """File and, where it is known, line of a key."""
    line = line_of(raw, key)
    return f"{path} line {line}" if line else str(path)


def explain(error: pydantic.ValidationError, raw: Mapping[str, Any], path: Path) -> str:
    """All problems of a study, one a line, each with file and line."""
    lines = []
    if {"saw", "expected"} <= raw.keys():
        lines.append(f"{path} says what was seen and expected, as a case does: attnlab explain {path}")
    for problem in error.errors():
        where = _keys_on_path(raw, problem["loc"] or _subject(problem["msg"]))
        lines.append(f"{_place(raw, where, path)}: {_sentence(problem, where)}")
    return "\n".join(dict.fromkeys(lines))


def _sentence(problem: Mapping[str, Any], where: Sequence[Any]) -> str:
    key = ".".join(str(part) for part in problem["loc"]) if problem["loc"] else "study"
    if problem["type"] == "extra_forbidden":
        known = Rules.model_fields if problem["loc"][0] == "rules" else [*FILE_KEYS, "scales"]
        return f"unknown key '{problem['loc'][-1]}'; {nearest(str(problem['loc'][-1]), known)}"
    if problem["type"] == "missing":
        own = "; it may be so where every variant has a 'name'; one of your own is model: {name: ./mine.py:Class}"
        return f"'{key}' is missing" + (own if key == "model" else "")
    text = problem["msg"].removeprefix("Value error, ")
    shown = "" if problem["type"] == "value_error" else f"; got {problem['input']!r}"
    name = ".".join(str(part) for part in where) if problem["loc"] else ""
    return f"{name}: {text}{shown}" if name else f"{text}{shown}"


def _subject(message: str) -> Sequence[str]:
    """The key of the file that a complaint about the whole study begins with."""
    first = message.removeprefix("Value error, ").split()[0].rstrip(":")
    return [first] if first in FILE_KEYS else []


def _keys_on_path(raw: Any, location: Sequence[Any]) -> list[Any]:
    """The leading parts of a location that are keys of the file."""
    found = []
    for part in location:
        if not isinstance(raw, Mapping) or part not in raw:
            break
        found.append(part)
        raw = raw[part]
    return found
