"""A cache that machines share: folders made once by one of them, in an object store or below a path that all see."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import file_sha256, read_sealed, sealed, writing
from attnlab.core.storage.store import Store, address

VARIABLE = "ATTNLAB_SHARED_CACHE"
FORM = 1
"""Raised when what is kept there changes, so that other forms are not read."""


def fetch_shared(name: str, empty: Path) -> str | None:
    """Copy into an empty folder what another machine made under a name.

    Parameters
    ----------
    name : str
        What identifies the content, the same on every machine.
    empty : Path
        A folder without a file; it is so again if nothing that is whole was found.

    Returns
    -------
    str or None
        The name that the folder had where it was made; None where nothing was found or no cache is shared.

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
        return None
    try:
        if _record(name) not in store.tags(prefix=_record(name)):
            return None
        return _fetch(store, name, empty)
    except RunError as error:
        print(f"the shared cache {store.url} is not used: {error}", file=sys.stderr)
        with writing(empty):
            shutil.rmtree(empty)
            empty.mkdir()
        return None


def send_shared(name: str, folder: Path, called: str) -> None:
    """Copy a folder that was made to the other machines; a cache that cannot be written is said on standard error.

    Parameters
    ----------
    name : str
        As in `fetch_shared`.
    folder : Path
        Where its files are.
    called : str
        The name that `fetch_shared` returns.
    """
    if (store := _shared()) is None:
        return
    try:
        files = {}
        for path in _files(folder):
            below = path.relative_to(folder).as_posix()
            files[below] = [path.stat().st_size, file_sha256(path), path.stat().st_mtime_ns]
            store.send(path, f"{name}/{below}")
        record = sealed({"form": FORM, "folder": called, "files": files})
        store.write({_record(name): json.dumps(record).encode()})
    except (RunError, OSError) as error:
        print(f"the shared cache {store.url} is not used: {error}", file=sys.stderr)


def _shared() -> Store | None:
    """The cache that is shared, if one is."""
    if not (given := os.environ.get(VARIABLE)):
        return None
    try:
        return Store(str(address(os.path.expanduser(given))))
    except SpecError as error:
        raise SpecError(f"{VARIABLE}: {error}") from None


def _record(name: str) -> str:
    """The object that is written when all files of a folder are there, and says what they are."""
    return f"{name}.json"


def _fetch(store: Store, name: str, empty: Path) -> str:
    """Copy what a record names, and compare it."""
    path = empty / _record(name)
    with writing(empty):
        store.fetch(_record(name), path)
    record = read_sealed(path, required=True)
    path.unlink()
    if record.get("form") != FORM or not _plain(record["folder"]) or not all(map(_plain, record["files"])):
        raise RunError(f"{_record(name)} there is of another version, or none of attnlab's; remove it")
    files: Mapping[str, Any] = record["files"]
    size = sum(one[0] for one in files.values())
    print(f"copying {size:,} bytes from the shared cache {store.url} into {empty.parent}", file=sys.stderr)
    for below, (length, sha256, written_ns) in files.items():
        path = empty / below
        with writing(empty):
            path.parent.mkdir(parents=True, exist_ok=True)
            store.fetch(f"{name}/{below}", path)
            if path.stat().st_size != length or file_sha256(path) != sha256:
                raise RunError(
                    f"{name}/{below} there was cut off or changed; remove {_record(name)} to have it sent again"
                )
            os.utime(path, ns=(written_ns, written_ns))  # by which a reader knows it
    return record["folder"]


def _plain(name: str) -> bool:
    """Whether a name leads to nowhere but below the folder that it is in."""
    parts = name.split("/")
    return not {"", ".", ".."} & set(parts) and not {"\\", ":", "\0"} & set(name)


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file())
