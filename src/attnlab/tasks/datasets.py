"""Texts by name, fetched once from a pinned address, and texts from a person's own files.

`TEXTS` is the table of names. A named text is looked for in ``$ATTNLAB_DATA``, then in the user's
cache, then fetched; wherever it comes from, its content must have the pinned sha256.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import final

import pooch

from attnlab.core.cache import cache_folder
from attnlab.core.errors import DataError, nearest
from attnlab.text.characters import decode_utf8

VARIABLE = "ATTNLAB_DATA"
HOST = "https://raw.githubusercontent.com"
RETRIES = 2  # after a failed attempt; pooch waits 1 and 2 seconds
TIMEOUT_S = 30.0  # without an answer


@final
@dataclass(frozen=True)
class NamedText:
    """Pin a text: where it comes from, what it must contain, under which license."""

    file: str  # folder and file below ``$ATTNLAB_DATA`` and below the cache; ``.gz`` may be added there
    repository: str  # owner and name on GitHub
    commit: str  # commit, 40 hexadecimal digits
    path: str  # path inside the repository; what ends in ``.gz`` is uncompressed after it was fetched
    sha256: str  # hash of the content (uncompressed)
    size_bytes: int  # size of the content (uncompressed)
    license: str  # license as its source states it

    @property
    def address(self) -> str:
        """The pinned address."""
        return f"{HOST}/{self.repository}/{self.commit}/{self.path}"

    @property
    def cached_file(self) -> str:
        """The file below the cache."""
        return self.file + (".gz" if self.path.endswith(".gz") else "")


TEXTS = {
    "tinyshakespeare": NamedText(
        file="tinyshakespeare/input.txt",
        repository="karpathy/char-rnn",
        commit="6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e",
        path="data/tinyshakespeare/input.txt",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        size_bytes=1_115_394,
        license="repository MIT; the plays are in the public domain",
    ),
}


@final
@dataclass(frozen=True)
class Text:
    """Hold a text and what identifies it."""

    name: str  # name or path it was asked for by
    content: str  # the whole text
    sha256: str  # hash of its bytes
    size_bytes: int  # number of its bytes
    source: str  # address or path it comes from
    license: str  # license as its source states it


def load_text(text: str) -> Text:
    """Load a named text or a UTF-8 file."""
    if text in TEXTS:
        named = TEXTS[text]
        content, source, license_text = load_named(named), named.address, named.license
    else:
        content, source, license_text = _read_own(text), text, "not stated"
    digest = hashlib.sha256(content).hexdigest()
    return Text(text, decode_utf8(content, text), digest, len(content), source, license_text)


def _read_own(text: str) -> bytes:
    """The content of a person's own file."""
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        raise DataError(f"a text must be a file; {path} is a folder")
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"no file {path}, and no text is named '{text}'; {nearest(text, TEXTS)}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"the text {path} cannot be read: {error}") from error


def load_named(named: NamedText) -> bytes:
    """The content of a named text, fetched if it is not on this machine."""
    return _read_pinned(_path_of(named), named)


def locate_named(named: NamedText) -> Path:
    """The file of a named text, fetched if it is not on this machine."""
    path = _path_of(named)
    _read_pinned(path, named)
    return path


def _path_of(named: NamedText) -> Path:
    given = os.environ.get(VARIABLE)
    if given:
        for ending in ("", ".gz"):
            path = Path(given).expanduser() / (named.file + ending)
            if path.is_file():
                return path
    return _fetch(named)


def _read_pinned(path: Path, named: NamedText) -> bytes:
    """A file's content, uncompressed, if it has the pinned hash."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"the text {path} cannot be read: {error}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != named.sha256:
        raise DataError(
            f"{path} must have sha256 {named.sha256}; got {digest}; replace it by {named.address} or remove it"
        )
    return content


def _fetch(named: NamedText) -> Path:
    """The cached file, downloaded if it is absent or damaged; progress and license go to stderr."""
    folder, file = cache_folder() / "texts", named.cached_file
    if not (folder / file).is_file():
        print(f"fetching {named.address}\nlicense: {named.license}", file=sys.stderr)
    compressed = file != named.file  # the pinned hash is that of the content, which is checked when it is read
    store = pooch.create(
        path=folder,
        base_url="",
        registry={file: None if compressed else f"sha256:{named.sha256}"},
        urls={file: named.address},
        retry_if_failed=RETRIES,
    )
    downloader = pooch.HTTPDownloader(progressbar=True, timeout=TIMEOUT_S)
    try:
        return Path(store.fetch(file, downloader=downloader))  # pyrefly: ignore
    except (OSError, ValueError) as error:  # what requests raises is an OSError, a wrong hash a ValueError
        raise DataError(
            f"cannot fetch {named.address}: {_root(error)}\n"
            f"Get the file with sha256 {named.sha256} by other means and put it at "
            f"{folder / named.file}, or at {named.file} in a folder that {VARIABLE} names."
        ) from error


def _root(error: BaseException) -> BaseException:
    """Where a chain of errors began: the library that fetches repeats it in three others."""
    while error.__context__ is not None:
        error = error.__context__
    return error
