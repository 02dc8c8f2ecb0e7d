"""The user's cache folder: small results kept in it as JSON, and folders that are made once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import filelock
import pooch

from attnlab.core.errors import RunError
from attnlab.core.files import read_sealed, sealed, user_path, write_json, writing
from attnlab.core.storage.shared_cache import fetch_shared, send_shared

VARIABLE = "ATTNLAB_CACHE"


def cache_folder() -> Path:
    """The folder for what can be made again: ``$ATTNLAB_CACHE``, or the operating system's own for caches.

    Raises
    ------
    RunError
        If it lies in the home of a person who is not known here.
    """
    given = os.environ.get(VARIABLE)
    path = user_path(given) if given else Path(pooch.os_cache("attnlab"))
    if path.parts and path.parts[0].startswith("~"):
        raise RunError(f"{VARIABLE} is {given}, and nobody of that name is known here; name another folder")
    return path


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


def made_once(folder: Path, whole: str, make: Callable[[Path], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Make a folder unless it is there, or can be had from a cache that machines share.

    The first of the processes that ask makes it, and it is at its place only when it is whole.

    Parameters
    ----------
    folder : Path
        The folder.
    whole : str
        The file in it that holds what is known of it; where that is missing, cut off or changed, all is made again.
    make : callable
        Writes all else into an empty folder, and gives what is to be known of it, as JSON types.

    Returns
    -------
    mapping
        What is known of it.

    Raises
    ------
    RunError
        If the disk is full or cannot be written.
    SpecError
        If machines share a cache, and its place cannot be used.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if known := read_if_whole(folder / whole):
        return known
    shared = f"{folder.parent.name}-{folder.name}"
    with filelock.FileLock(folder.with_suffix(".lock")):
        if known := read_if_whole(folder / whole):
            return known
        temporary = folder.with_suffix(".part")
        shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
        try:
            with writing(folder):
                temporary.mkdir()
                fetched = fetch_shared(shared, temporary, lambda found: read_if_whole(found / whole))
                if not fetched:
                    write_json(temporary / whole, sealed(make(temporary)))
                shutil.rmtree(folder, ignore_errors=True)  # a part of what was there
                os.replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    if not fetched:
        send_shared(shared, folder)
    return read_sealed(folder / whole, required=True)


def read_if_whole(path: Path) -> dict[str, Any] | None:
    """A sealed record that can be made again; None where it is missing, cut off or changed."""
    try:
        return read_sealed(path, required=True)
    except RunError:
        return None


def _path(name: str) -> Path:
    return cache_folder() / "results" / f"{name}.json"
