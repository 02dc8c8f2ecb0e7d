"""The user's cache folder: small results kept in it as JSON, and folders that are made once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import pooch

from attnlab.core.files import writing

VARIABLE = "ATTNLAB_CACHE"


def cache_folder() -> Path:
    """The folder for what can be made again: ``$ATTNLAB_CACHE``, or the operating system's own for caches."""
    given = os.environ.get(VARIABLE)
    return Path(given).expanduser() if given else Path(pooch.os_cache("attnlab"))


def read_result(name: str) -> Any:
    """A result kept earlier, or None where there is none or it cannot be read: it is computed again then."""
    try:
        return json.loads(_path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def keep_result(name: str, result: Any) -> None:
    """Keep a result of JSON types, replacing an earlier one in a single step.

    Notes
    -----
    A cache that cannot be written (full disk, read-only home) is no error: the result is merely
    computed again the next time.
    """
    path = _path(name)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(result, file)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise


def made_once(folder: Path, whole: str, make: Callable[[Path], None]) -> None:
    """Make a folder unless it is there: by the first of the processes that ask, and at its place only when it is whole.

    Parameters
    ----------
    folder : Path
        The folder.
    whole : str
        The file in it by which a whole one is known.
    make : callable
        Writes that file and all else into an empty folder.

    Raises
    ------
    RunError
        If the disk is full or cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if (folder / whole).is_file():
        return
    with filelock.FileLock(folder.with_suffix(".lock")):
        if (folder / whole).is_file():
            return
        temporary = folder.with_suffix(".part")
        shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
        try:
            with writing(folder):
                temporary.mkdir()
                make(temporary)
                shutil.rmtree(folder, ignore_errors=True)  # a part of what was there
                os.replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _path(name: str) -> Path:
    return cache_folder() / "results" / f"{name}.json"
