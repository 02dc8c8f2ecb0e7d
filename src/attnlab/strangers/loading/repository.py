"""The repository that a file belongs to: its other files, the nearest first."""

from __future__ import annotations

import ast
import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from attnlab.core.own_files import FOLDERS_ABOVE, tree_of

_MARKS = (".git", "setup.py", "pyproject.toml", "requirements.txt", "environment.yml", "LICENSE", "README.md")
"""What lies in the top folder of a repository."""

_MOST_FILES = 200
_MOST_FOLDERS = 300
_MOST_BYTES = 1_000_000  # of Python that is parsed for one question, some two seconds
_MOST_OF_ONE = 200_000  # bytes; a larger file is data
_NEVER = frozenset(["node_modules", "site-packages", "build", "dist", "__pycache__", "venv", "env"])


@functools.lru_cache(maxsize=64)
def files_around(file: Path, endings: tuple[str, ...] = (".py",)) -> tuple[Path, ...]:
    """The other files of a file's repository: those beside it first, then the fewer folders lie between the earlier.

    Where nothing tells a repository, those beside it are all.
    """
    found: list[Path] = []
    for folder, inside, names in itertools.islice(os.walk(_top_of(file)), _MOST_FOLDERS):
        inside[:] = sorted(name for name in inside if name not in _NEVER and not name.startswith("."))
        found += [Path(folder, name) for name in sorted(names) if name.endswith(endings)]
    beside = [path for path in sorted(file.parent.iterdir()) if path.name.endswith(endings)]
    others = (path for path in dict.fromkeys([*beside, *found]) if path != file)
    small = (path for path in others if path.is_file() and path.stat().st_size <= _MOST_OF_ONE)
    return tuple(sorted(small, key=lambda path: _apart(file, path))[:_MOST_FILES])


def _top_of(file: Path) -> Path:
    """The highest folder above a file that is marked as a repository's; its own where none is."""
    above = [folder for folder in list(file.parents)[: FOLDERS_ABOVE + 1] if folder != Path.home()]
    return next((folder for folder in reversed(above) if any((folder / mark).exists() for mark in _MARKS)), file.parent)


def _apart(one: Path, other: Path) -> int:
    """The number of folders to leave and to enter on the way from one file to another."""
    common = len(os.path.commonpath([one, other]).split(os.sep))
    return len(one.parts) + len(other.parts) - 2 * common


def trees_with(file: Path, *words: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the files of a repository that hold one of some words, the file itself first, and their syntax trees."""
    parsed = 0
    for path in (file, *files_around(file)):
        source = path.read_bytes()
        if any(word.encode() in source for word in words):
            parsed += len(source)
            yield path, tree_of(source)
        if parsed > _MOST_BYTES:
            return
