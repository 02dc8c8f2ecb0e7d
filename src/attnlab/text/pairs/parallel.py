"""Parallel text: lines of two languages that are translations of each other, read one pair at a time.

Nothing here holds a whole corpus, so that one of millions of lines takes no more memory than a small one. Files may be
compressed and lie wherever fsspec reads; lines have no blanks around them, and characters are composed (Unicode's NFC).
"""

from __future__ import annotations

import codecs
import functools
import hashlib
import itertools
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, ClassVar, NamedTuple, final

from attnlab.core.errors import DataError
from attnlab.text.pairs.columns import NESTED, columns_of_text, names_of, read_sides
from attnlab.text.pairs.tmx import read_units
from attnlab.text.sources import SHOWN, open_bytes, parse_line, said

LINES_NAMED = 5  # of those that are left out
LOOKED_AT = 16  # lines by which columns are told apart


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

    source: str  # path or address; UTF-8, one sentence a line
    target: str  # the same, in the other language
    begins: ClassVar[int] = 1  # number of the line of the first pair

    @property
    def files(self) -> tuple[str, ...]:
        """What is read."""
        return self.source, self.target

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
    """Read one file with a sentence, a tab and its translation on every line.

    Where the first line names both languages, or ``source`` and ``target``, those columns are read; else the first two
    that are not numbers all the way down, so that the numbers of sentences are none.
    """

    path: str  # path or address; UTF-8
    languages: tuple[str, str] = ("", "")  # codes, from and to

    @property
    def files(self) -> tuple[str, ...]:
        """What is read."""
        return (self.path,)

    @functools.cached_property
    def _named(self) -> tuple[int, int] | None:
        """The columns of the two sides, if the first line names them."""
        known = next(self._lines(), "").split("\t")
        names = names_of(known, self.languages)
        return None if names is None else (known.index(names[0]), known.index(names[1]))

    @property
    def begins(self) -> int:
        """Number of the line of the first pair."""
        return 1 if self._named is None else 2

    def pairs(self) -> Iterator[Pair]:
        """All pairs, those with an empty side among them."""
        lines = itertools.islice(self._lines(), self.begins - 1, None)
        first = list(itertools.islice(lines, LOOKED_AT))
        places = self._named or columns_of_text([line.split("\t") for line in first if line.strip()])
        for number, line in enumerate(itertools.chain(first, lines), start=self.begins):
            row = line.split("\t")
            if line.strip() and len(row) <= max(places):
                raise DataError(
                    f"{self.path}, line {number}: a sentence, a tab and its translation are needed; got {_shown(line)}"
                )
            yield Pair(*(row[place].strip() for place in places)) if line.strip() else Pair("", "")

    def _lines(self) -> Iterator[str]:
        """The lines with the tabs at their ends, behind which a cell is empty."""
        with said(self.path), open_bytes(self.path) as file:
            yield from decoded_lines(file, self.path, strip="\r\n")


@final
@dataclass(frozen=True)
class ObjectFile:
    """Read one file with a JSON object on every line that holds the sentence of each language, or such an object."""

    path: str  # path or address; UTF-8
    languages: tuple[str, str]  # fields, from and to; else they are called source and target
    begins: ClassVar[int] = 1  # number of the first line

    @property
    def files(self) -> tuple[str, ...]:
        """What is read."""
        return (self.path,)

    def pairs(self) -> Iterator[Pair]:
        """All pairs, those with an empty side among them."""
        for number, line in enumerate(numbered(self.path), start=1):
            try:
                found: dict[str, Any] = parse_line(line) if line else dict.fromkeys(self.languages, "")
                nested = found.get(NESTED)
                sides = nested if isinstance(nested, dict) else found
                yield Pair(
                    *(_one_line(sides[name]) for name in names_of(list(sides), self.languages) or self.languages)
                )
            except (ValueError, LookupError, AttributeError) as error:
                raise DataError(
                    f"{self.path}, line {number}: a JSON object with texts in '{self.languages[0]}' and "
                    f"'{self.languages[1]}' is needed; got {_shown(line)}"
                ) from error


@final
@dataclass(frozen=True)
class MemoryFile:
    """Read a translation memory (TMX); for its numbers, a unit is a line."""

    path: str  # path or address
    languages: tuple[str, str]  # codes, from and to; a memory's ``en-GB`` is ``en`` too
    begins: ClassVar[int] = 1  # number of the first line

    @property
    def files(self) -> tuple[str, ...]:
        """What is read."""
        return (self.path,)

    def pairs(self) -> Iterator[Pair]:
        """All pairs, those with an empty side among them."""
        missing, there = set(self.languages), set()
        with said(self.path), open_bytes(self.path) as file:
            for unit in read_units(file, self.path):
                pair = Pair(*(unicodedata.normalize("NFC", self._text(unit, code)) for code in self.languages))
                missing -= {code for code, text in zip(self.languages, pair, strict=True) if text}
                there |= unit.keys()
                yield pair
        if missing:
            raise DataError(
                f"{self.path} has no text in {' or '.join(sorted(missing))}; it has {', '.join(sorted(there))}"
            )

    @staticmethod
    def _text(unit: Mapping[str, str], asked: str) -> str:
        code = asked.replace("_", "-").lower()
        return unit.get(code) or next((text for one, text in unit.items() if one.startswith(f"{code}-")), "")


@final
@dataclass(frozen=True)
class TableFiles:
    """Read tables with a column for each side, or one that holds both: CSV with a line of names, Parquet, Arrow."""

    paths: tuple[str, ...]  # or addresses; read one after the other
    languages: tuple[str, str]  # names of columns, from and to; else they are called source and target
    begins: ClassVar[int] = 1  # rows are numbered, over all files

    @property
    def files(self) -> tuple[str, ...]:
        """What is read."""
        return tuple(self.paths)

    def pairs(self) -> Iterator[Pair]:
        """All pairs, those with an empty side among them."""
        for path in self.paths:
            with said(path), open_bytes(path) as file:
                for number, sides in enumerate(read_sides(file, path, self.languages), start=1):
                    if not all(side is None or isinstance(side, str) for side in sides):
                        raise DataError(f"{path}, row {number}: two texts are needed; got {_shown(str(sides))}")
                    yield Pair(*(_one_line(side or "") for side in sides))


ParallelText = TwoFiles | TabFile | ObjectFile | MemoryFile | TableFiles
KINDS: Mapping[str, type[ParallelText]] = {
    kind.__name__: kind for kind in (TwoFiles, TabFile, ObjectFile, MemoryFile, TableFiles)
}


@final
@dataclass
class LeftOut:
    """Count pairs that are left out, and keep the numbers of the first lines."""

    count: int = 0  # pairs so far
    lines: list[int] = field(default_factory=list)  # their line numbers from 1, at most `LINES_NAMED`

    def add(self, line: int) -> None:
        """Count a pair."""
        self.count += 1
        if len(self.lines) < LINES_NAMED:
            self.lines.append(line)

    def __str__(self) -> str:
        """The line numbers, for a text."""
        more = ", ..." if self.count > len(self.lines) else ""
        return ("line " if self.count == 1 else "lines ") + ", ".join(map(str, self.lines)) + more


def place_of(sentence: str) -> int:
    """Where a sentence stands among all, at random and always the same; case does not count."""
    return int.from_bytes(hashlib.blake2b(sentence.casefold().encode(), digest_size=7).digest())


@final
@dataclass(frozen=True)
class Part:
    """Name the pairs of a parallel text that are one part of a corpus."""

    text: ParallelText  # the text
    cut: int | None = None  # pairs whose source has a lower `place_of` are held out; None: all are one part
    held_out: bool = False  # whether the part is those that are held out
    without: tuple[str, ...] = ()  # sources that are left out

    def pairs(self, empty: LeftOut | None = None) -> Iterator[tuple[int, Pair]]:
        """The pairs that have two sides, with their line numbers from 1."""
        without = set(self.without)
        for number, pair in enumerate(self.text.pairs(), start=self.text.begins):
            elsewhere = self.cut is not None and (place_of(pair.source) < self.cut) != self.held_out
            if elsewhere or pair.source in without:
                continue
            if pair.source and pair.target:
                yield number, pair
            elif empty is not None:
                empty.add(number)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {"kind": type(self.text).__name__, **asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Part:
        """What another process named."""
        text: dict[str, Any] = content["text"]
        fields: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in text.items()}
        return cls(KINDS[content["kind"]](**fields), content["cut"], content["held_out"], tuple(content["without"]))

    @functools.cached_property
    def sentences(self) -> list[Pair]:
        """All pairs that have two sides, in memory: for a held-out part."""
        return [pair for _, pair in self.pairs()]


def numbered(path: str) -> Iterator[str]:
    """The lines of a UTF-8 file without line ends and without blanks around them."""
    with said(path), open_bytes(path) as file:
        yield from decoded_lines(file, path)


def decoded_lines(file: BinaryIO, name: str, strip: str | None = None) -> Iterator[str]:
    """The lines of a UTF-8 file that is open, without line ends and without blanks around them, or what is stripped."""
    for number, line in enumerate(file, start=1):
        yield _decoded(line if number > 1 else line.removeprefix(codecs.BOM_UTF8), name, number).strip(strip)


def _decoded(line: bytes, name: str, number: int) -> str:
    try:
        return unicodedata.normalize("NFC", line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}: must be UTF-8; got byte 0x{line[error.start]:02x} at its character "
            f"{len(line[: error.start].decode('utf-8', 'replace')) + 1}: {error.reason}; save it as UTF-8 and try again"
        ) from error


def _one_line(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.strip().split("\n")))


def _shown(line: str) -> str:
    return repr(line if len(line) <= SHOWN else line[: SHOWN - 3] + "...")
