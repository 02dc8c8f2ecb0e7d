"""What the ending of a file says of how it is compressed."""

from __future__ import annotations

from attnlab.core.errors import DataError

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz"}
"""How files with these endings are compressed, in fsspec's words."""
REFUSED = (".zip", ".7z", ".rar", ".tar", ".tgz", ".tbz2", ".txz", ".zst", ".lz4", ".lzma")
"""Endings of archives, which may hold several files, and of files that are compressed in other ways."""


def without_compression(path: str) -> str:
    """A path without the ending of a compressed file."""
    return path[: len(path) - len(_ending(path))]


def compression_of(path: str) -> str | None:
    """How a file is compressed; None if it is not.

    Raises
    ------
    DataError
        If it is an archive, or compressed in a way that is not read.
    """
    compression = COMPRESSED.get(_ending(path))
    inner = without_compression(path) if compression else path
    if _ending(inner) in REFUSED:
        raise DataError(
            f"{path} is compressed in a way that is not read; unpack it and name its files, "
            f"which may be compressed as {', '.join(COMPRESSED)}"
        )
    return compression


def _ending(path: str) -> str:
    """The ending of a compressed file, in small letters; nothing if it has none."""
    return next((one for one in (*COMPRESSED, *REFUSED) if path.lower().endswith(one)), "")
