"""Object stores, where an object is replaced in one step: asked in few requests, their errors in words."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from fsspec.core import url_to_fs

from attnlab.core.errors import RunError, SpecError, no_credentials
from attnlab.core.files import NO_ROOM

LIBRARIES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
"""Schemes of stores that replace an object in one step, and create one only if it is not there; the library of each."""
AT_ONCE = 64
"""Objects that are read together."""
FULL = re.compile(r"quota|storage.?full|insufficient.?storage|no space", re.IGNORECASE)
"""What stores say that have no room left, of which S3 itself knows none."""


def address(folder: str | os.PathLike[str]) -> Path | str:
    """A folder as it was named: a path, or the URL of a store as text. A `Path` of a URL has lost a slash.

    Raises
    ------
    SpecError
        If it is a URL, and none of a store that can be used.

    Examples
    --------
    >>> address(Path("s3://bucket/my-study"))
    's3://bucket/my-study'
    """
    text = os.fspath(folder)
    found = re.fullmatch(r"([a-z][a-z0-9+.-]+):(/.*)?", text.replace(os.sep, "/"))
    if not found:
        return Path(folder)
    scheme, rest = found[1], (found[2] or "").strip("/")
    if scheme == "file" and rest:
        return Path(f"/{rest}")
    if scheme not in LIBRARIES:
        known = ", ".join(f"{one}://" for one in LIBRARIES)
        raise SpecError(
            f"a folder is a path, or lies in an object store ({known}); got {scheme}://{rest}; mount it, name the path"
        )
    if not rest or ".." in rest.split("/"):
        raise SpecError(f"a folder in a store is {scheme}://BUCKET/FOLDER; got {scheme}://{rest}")
    return f"{scheme}://{rest}"


@final
class Store:
    """Read and write the objects below a URL, by their names from there.

    Parameters
    ----------
    url : str
        As `address` gives it; a path of this machine is one, too, whose folders are made as they are needed, and whose
        files are written in place.

    Raises
    ------
    SpecError
        If the library for it is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            options = {"use_listings_cache": False} if "://" in url else {"auto_mkdir": True}
            self._files, self._root = url_to_fs(url, **options)
        except ImportError:
            library = LIBRARIES[url.partition(":")[0]]
            extra = "'attnlab[cloud]'" if library == "s3fs" else library
            raise SpecError(f"{url} needs {library}: pip install {extra}") from None

    def tags(self, below: str = "", prefix: str = "") -> dict[str, str]:
        """The objects below a folder, of names that begin so; a tag is another one where an object was replaced."""
        folder = self._path(below).rstrip("/")
        with self._said():
            found = self._files.find(folder, detail=True, **({"prefix": prefix} if prefix else {}))
        named = {path: _tag(info) for path, info in found.items() if path.startswith(f"{folder}/{prefix}")}
        return {path.removeprefix(f"{self._root}/"): tag for path, tag in named.items()}

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield objects with their contents, some of them read at a time."""
        left = list(names)
        while left:
            some, left = left[:AT_ONCE], left[AT_ONCE:]
            with self._said():
                found = self._files.cat([self._path(name) for name in some])
            yield from ((name, found[self._path(name)]) for name in some)

    def write(self, contents: Mapping[str, bytes]) -> None:
        """Write objects, each in one step."""
        if contents:
            with self._said():
                self._files.pipe({self._path(name): content for name, content in contents.items()})

    def create(self, name: str, content: bytes) -> bool:
        """Write an object that is not there yet; whether it was not."""
        with self._said():
            try:
                self._files.pipe_file(self._path(name), content, mode="create")
            except FileExistsError:
                return False
        return True

    def size(self, name: str) -> int | None:
        """The bytes of an object; None where there is none, or something else than a file."""
        with self._said():
            try:
                info = self._files.info(self._path(name))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return int(info["size"]) if info["type"] == "file" else None

    def fetch(self, name: str, file: Path) -> None:
        """Copy an object into a file."""
        with self._said():
            self._files.get_file(self._path(name), str(file))

    def send(self, file: Path, name: str) -> None:
        """Copy a file into an object, in one step."""
        with self._said():
            self._files.put_file(str(file), self._path(name))

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, if they are there."""
        for name in names:
            with self._said(), contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._path(name))

    def seconds_since(self, name: str) -> float:
        """How long ago an object was written, by the clock of the store."""
        probe = f".clock-{uuid.uuid4().hex}"
        self.write({probe: b""})
        with self._said():
            now, then = self._files.modified(self._path(probe)), self._files.modified(self._path(name))
        self.delete([probe])
        return (now - then).total_seconds()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        """Turn an error of the store into a `RunError`; what may pass is caused by an error of storage that may."""
        try:
            yield
        except Exception as error:
            words = " ".join(str(error).split()) or type(error).__name__
            for_good = self._what_is_wrong(error, words)
            if for_good:
                raise RunError(for_good) from error
            raise RunError(f"{self.url} cannot be reached: {words}") from OSError(errno.EIO, words)

    def _what_is_wrong(self, error: Exception, words: str) -> str:
        """What a person has to put right; nothing where waiting may help."""
        if wanting := no_credentials(error, self.url):
            return wanting
        if isinstance(error, FileNotFoundError):
            return f"{self.url} is not there: {words}; create the bucket first, or correct its name"
        if getattr(error, "errno", None) in NO_ROOM or FULL.search(words):
            return f"no room left in {self.url}: {words}; make room there"
        if isinstance(error, PermissionError):
            return f"{self.url} refuses these credentials: {words}; they must allow to list, read, write and delete"
        return ""


def _tag(info: Mapping[str, Any]) -> str:
    return str(info.get("ETag") or info.get("etag") or info.get("LastModified") or info.get("created"))
