"""Texts by name, fetched once from a pinned address, and texts from a person's own files.

`TEXTS` is the table of names. A named text is looked for in ``$ATTNLAB_DATA``, then in the user's
cache, then fetched; wherever it comes from, its content must have the pinned sha256.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import pooch

from attnlab.core.errors import DataError, nearest
from attnlab.core.files import user_path
from attnlab.core.storage.cache import cache_folder
from attnlab.text.sources import Source, find_sources, open_bytes, read_pieces, said

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
class TextFiles:
    """Say where a text is."""

    name: str | list[str]  # what it was asked for by
    files: Sequence[Source]  # its files, in their order
    source: str | list[str]  # address or paths it comes from
    license: str  # license as its source states it

    def content(self) -> str:
        """The whole text."""
        return "".join(piece for file in self.files for piece in read_pieces(file))


def find_text(text: str | list[str]) -> TextFiles:
    """Find the files of a named text, or of a person's own; see `find_sources`."""
    if isinstance(text, str) and text in TEXTS:
        named = TEXTS[text]
        return TextFiles(text, find_sources(str(locate_named(named))), named.address, named.license)
    hint = f", and no text is named '{text}'; {nearest(text, TEXTS)}" if isinstance(text, str) else ""
    return TextFiles(text, find_sources(text, hint), text, "not stated")


def locate_named(named: NamedText) -> Path:
    """The file of a named text, fetched if it is not on this machine, with the pinned content."""
    path = _path_of(named)
    _require_pinned(path, named)
    return path


def _path_of(named: NamedText) -> Path:
    given = os.environ.get(VARIABLE)
    if given:
        for ending in ("", ".gz"):
            path = user_path(given) / (named.file + ending)
            if path.is_file():
                return path
    return _fetch(named)


def _require_pinned(path: Path, named: NamedText) -> None:
    """Raise unless a file's content, uncompressed, has the pinned hash."""
    with said(str(path)), open_bytes(str(path)) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != named.sha256:
        raise DataError(
            f"{path} must have sha256 {named.sha256}; got {digest}; replace it by {named.address} or remove it"
        )


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
