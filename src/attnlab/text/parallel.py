"""Parallel text: lines of two languages that are translations of each other, read one pair at a time.

Nothing here holds a whole corpus, so that one of millions of lines takes no more memory than a small one.
"""

from __future__ import annotations

import codecs
import gzip
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast, final

from attnlab.core.errors import DataError

SHOWN = 60  # characters of a line in an error text


@final
class Pair(NamedTuple):
    """Hold a sentence and its translation.

    Parameters
    ----------
    source : str
        The sentence.
    target : str
        Its translation.
    """

    source: str
    target: str


@final
@dataclass(frozen=True)
class TwoFiles:
    """Read two files of which line n of one is the translation of line n of the other."""

    source: Path  # UTF-8, one sentence a line; ``.gz`` is uncompressed while it is read
    target: Path  # the same, in the other language

    def pairs(self) -> Iterator[Pair]:
        """All pairs, those with an empty side among them."""
        lines = itertools.zip_longest(numbered(self.source), numbered(self.target))
        previous: Pair | None = None
        for number, (source, target) in enumerate(lines, start=1):
            if source is None or target is None:
                raise self._unequal(number - 1, previous)
            previous = Pair(source, target)
            yield previous

    def _unequal(self, shared: int, last: Pair | None) -> DataError:
        longer, shorter = self.source, self.target
        if sum(1 for _ in numbered(self.source)) == shared:
            longer, shorter = shorter, longer
        total = sum(1 for _ in numbered(longer))
        seen = "" if last is None else f"; line {shared} reads {_shown(last.source)} and {_shown(last.target)}"
        return DataError(
            f"{longer} has {total:,} lines and {shorter} {shared:,}: line n of one must be the translation of line n "
            f"of the other{seen}. If that is no translation, a line is missing before it"
        )


@final
@dataclass(frozen=True)
class TabFile:
    """Read one file with a sentence, a tab and its translation on every line."""

    path: Path  # UTF-8; ``.gz`` is uncompressed while it is read

    def pairs(self) -> Iterator[Pair]:
        """All pairs, those with an empty side among them."""
        for number, line in enumerate(numbered(self.path), start=1):
            source, tab, rest = line.partition("\t")
            if not tab and line:
                raise DataError(
                    f"{self.path}, line {number}: a sentence, a tab and its translation are needed; got {_shown(line)}"
                )
            yield Pair(source.strip(), rest.partition("\t")[0].strip())


ParallelText = TwoFiles | TabFile


def numbered(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file without line ends and without blanks around them."""
    try:
        with _opened(path) as file:
            yield from decoded_lines(file, str(path))
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def decoded_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """The lines of a UTF-8 file that is open, without line ends and without blanks around them."""
    for number, line in enumerate(file, start=1):
        yield _decoded(line if number > 1 else line.removeprefix(codecs.BOM_UTF8), name, number).strip()


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _decoded(line: bytes, name: str, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}: must be UTF-8; got byte 0x{line[error.start]:02x} at its character "
            f"{len(line[: error.start].decode('utf-8', 'replace')) + 1}: {error.reason}; save it as UTF-8 and try again"
        ) from error


def _shown(line: str) -> str:
    return repr(line if len(line) <= SHOWN else line[: SHOWN - 3] + "...")
