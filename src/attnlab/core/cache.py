"""The user's cache folder, and small results kept in it as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pooch

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


def _path(name: str) -> Path:
    return cache_folder() / "results" / f"{name}.json"
