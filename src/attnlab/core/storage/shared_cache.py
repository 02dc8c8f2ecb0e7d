"""A cache that machines share: folders made once by one of them, in an object store or below a path that all see."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attnlab.core.errors import AttnlabError, RunError, SpecError
from attnlab.core.files import file_sha256, read_sealed, sealed, writing
from attnlab.core.storage.store import Store, address

VARIABLE = "ATTNLAB_SHARED_CACHE"
FORM = 1
"""Raised when what is kept there changes; part of all names, so that versions do not meet."""
LARGEST_RECORD = 2**24  # bytes; some hundred thousand files
LATEST_NS = 2**63  # nanoseconds

Fact = tuple[int, str, int]
"""Bytes, sha256 and time in nanoseconds of a file."""


def fetch_shared(name: str, empty: Path, is_whole: Callable[[Path], object]) -> bool:
    """Copy into an empty folder what another machine made under a name, if there is such.

    Parameters
    ----------
    name : str
        What identifies the content, the same on every machine.
    empty : Path
        A folder without a file; it is so again if nothing that is whole was found.
    is_whole : callable
        Says of the folder whether it is what is wanted; it may raise an `AttnlabError`.

    Returns
    -------
    bool
        Whether the content is there now.

    Raises
    ------
    SpecError
        If ``$ATTNLAB_SHARED_CACHE`` names no place that can be used.

    Notes
    -----
    Sizes and sha256 of all files are compared with what was sent. A cache that cannot be reached, or holds something
    else, is said on standard error, and the caller makes the folder itself.
    """
    if (store := _shared()) is None:
        return False
    try:
        if _fetch(store, f"{name}.{FORM}", empty) and is_whole(empty):
            return True
        if any(empty.iterdir()):
            raise RunError(f"{name}.{FORM} there is not what it should be; remove it")
    except (AttnlabError, OSError) as error:
        _say(store, error)
        with writing(empty):
            shutil.rmtree(empty)
            empty.mkdir()
    return False


def send_shared(name: str, folder: Path) -> None:
    """Copy a folder that was made to the other machines; a cache that cannot be written is said on standard error.

    Parameters
    ----------
    name : str
        As in `fetch_shared`.
    folder : Path
        Where its files are.

    Raises
    ------
    SpecError
        If ``$ATTNLAB_SHARED_CACHE`` names no place that can be used.
    """
    if (store := _shared()) is None:
        return
    try:
        files: dict[str, Fact] = {}
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            below = path.relative_to(folder).as_posix()
            files[below] = (path.stat().st_size, file_sha256(path), path.stat().st_mtime_ns)
            store.send(path, f"{name}.{FORM}/{below}")
        store.write({_record(f"{name}.{FORM}"): json.dumps(sealed({"files": files})).encode()})
    except (RunError, OSError) as error:
        _say(store, error)


def _shared() -> Store | None:
    """The cache that is shared, if one is."""
    if not (given := os.environ.get(VARIABLE)):
        return None
    try:
        place = address(given)
        if isinstance(place, Path) and not place.is_absolute():
            raise SpecError(f"a place that several machines see is a URL or an absolute path; got {given}")
        return Store(str(place))
    except SpecError as error:
        raise SpecError(f"{VARIABLE}: {error}") from None


def _record(name: str) -> str:
    """The object that is written when all files of a folder are there, and says what they are."""
    return f"{name}.json"


def _fetch(store: Store, name: str, empty: Path) -> bool:
    """Copy what a record names, and compare it; False where there is no record."""
    if (size := store.size(_record(name))) is None:
        return False
    path, files = empty / _record(name), None
    if size <= LARGEST_RECORD:
        with writing(empty):
            store.fetch(_record(name), path)
        with contextlib.suppress(RunError):  # told below
            files = _facts(read_sealed(path, required=True))
        path.unlink()
    if files is None:
        raise RunError(f"{_record(name)} there was cut off or changed, or is none of attnlab's; remove it")
    total = sum(length for length, _, _ in files.values())
    print(f"copying {total:,} bytes from the shared cache {store.url} into {empty.parent}", file=sys.stderr)
    for below, (length, sha256, written_ns) in files.items():
        path = empty / below
        with writing(empty):
            path.parent.mkdir(parents=True, exist_ok=True)
            as_sent = store.size(f"{name}/{below}") == length
            if as_sent:
                store.fetch(f"{name}/{below}", path)
                os.utime(path, ns=(written_ns, written_ns))  # by which a reader knows it
        if not as_sent or file_sha256(path) != sha256:
            changed = f"{name}/{below} there was removed, cut off or changed"
            raise RunError(f"{changed}; remove {_record(name)} to have it sent again")
    return True


def _facts(record: Mapping[str, Any]) -> dict[str, Fact] | None:
    """What a record says of its files; None where that cannot be."""
    found: dict[str, Fact] = {}
    files = record.get("files")
    for name, fact in files.items() if isinstance(files, dict) else ():
        match fact:
            case [int(size), str(sha256), int(written_ns)] if (
                size >= 0 and 0 <= written_ns < LATEST_NS and _plain(name)
            ):
                found[name] = (size, sha256, written_ns)
            case _:
                return None
    return found or None


def _plain(name: str) -> bool:
    """Whether a name leads to nowhere but below the folder that it is in, and can be shown."""
    return name.isprintable() and not {"", ".", ".."} & set(name.split("/")) and not {"\\", ":"} & set(name)


def _say(store: Store, error: Exception) -> None:
    """Say that the cache is left out; what a place says of itself may hold anything."""
    words = "".join(one if one.isprintable() else " " for one in str(error))
    print(f"the shared cache {store.url} is not used: {words}", file=sys.stderr)
