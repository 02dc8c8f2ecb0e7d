"""Whether a large file is still what was written: by its time, and where that is another one by a checksum."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

from attnlab.core.errors import DataError

AT_A_TIME = 2**18  # bytes

Seal = Sequence[int]
"""A checksum and a time in nanoseconds."""


def seal(path: Path) -> Seal:
    """The seal of a file that was written."""
    return _checksum(path), path.stat().st_mtime_ns


def require_sealed(path: Path, sealed: Seal, hint: str) -> None:
    """Raise unless a file is there and has the content that was sealed."""
    checksum, written_ns = sealed
    try:
        if path.stat().st_mtime_ns == written_ns or _checksum(path) == checksum:
            return
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}; {hint}") from error
    raise DataError(f"{path} was changed after it was written; {hint}")


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(AT_A_TIME):
            checksum = zlib.crc32(block, checksum)
    return checksum
