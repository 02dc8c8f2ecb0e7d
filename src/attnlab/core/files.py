"""Writes that are either there or not: JSON files and folders replaced at once, errors of the disk in words.

A process killed at any moment leaves the old file or the new one. A folder takes two renames; between them the
old one is found under ``NAME.old``, and `recover_folder` puts things right.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from attnlab.core.errors import RunError

SEAL = "seal"
"""Key of a record that holds a fingerprint of all the others."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers that mean that what is to be written does not fit."""


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into a `RunError` that names the folder and the free bytes."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(_what_is_wrong(folder, error)) from error


def _what_is_wrong(folder: Path, error: Exception) -> str:
    free = _free_bytes(folder)
    full = getattr(error, "errno", None) in NO_ROOM or any(f"os error {number})" in str(error) for number in NO_ROOM)
    what = "no room left to write in" if full else "cannot write in"
    return (
        f"{what} {folder}: {error} ({free:,} bytes are free there). "
        "What was saved before is still valid; make room and start the same run again to go on from it"
    )


def _free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def fingerprint(content: Mapping[str, Any]) -> str:
    """The sha256 of a mapping of JSON types, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write JSON without NaN so that a reader finds the old content or the new, never a part."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def finite(value: Any) -> Any:
    """JSON types with every number that is not finite replaced by None, at any depth."""
    match value:
        case Mapping():
            return {str(key): finite(one) for key, one in value.items()}
        case list() | tuple():
            return [finite(one) for one in value]
        case float():
            return float(value) if math.isfinite(value) else None
        case _:
            return value


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with a fingerprint of itself."""
    plain = json.loads(json.dumps(record))  # keys as they will be read
    return {**plain, SEAL: fingerprint(plain)}


def read_sealed(path: Path, *, required: bool) -> dict[str, Any]:
    """Read what was written with a fingerprint of itself.

    Raises
    ------
    RunError
        If it was changed since, or has no fingerprint where one is required.
    """
    record = read_json(path)
    seal = record.pop(SEAL, None) if isinstance(record, dict) else None
    if seal != fingerprint(record) and (required or seal is not None):
        raise RunError(
            f"{path} was changed after it was written, so nothing can be judged by it; put back what was changed, or "
            "run the study anew in another folder"
        )
    return record


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file so that a reader finds the old content or the new, never a part."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader finds the old content or the new, never a part."""
    temporary = path.with_name(f"{path.name}.tmp")
    with writing(path.parent):
        try:
            temporary.write_bytes(content)
            synchronize(temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def synchronize(path: Path) -> None:
    """Wait until a file's content is on the disk, so that a rename after it is safe against a power cut."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """Read a JSON file of a run folder."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def replace_folder(new: Path, target: Path) -> None:
    """Put a complete new folder of the same file system in the place of an old one."""
    old = old_name(target)
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(new, target)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(target: Path) -> None:
    """Finish or undo a replacement that was cut short, and remove its leftovers."""
    old, new = old_name(target), new_name(target)
    if old.exists() and not target.exists():
        os.rename(new if new.exists() else old, target)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(new, ignore_errors=True)


def old_name(target: Path) -> Path:
    """The name under which a folder waits while it is replaced."""
    return target.with_name(f"{target.name}.old")


def new_name(target: Path) -> Path:
    """The name under which the replacement of a folder is written."""
    return target.with_name(f"{target.name}.new")
