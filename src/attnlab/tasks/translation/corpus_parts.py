"""Where the parts of a parallel corpus are: a corpus by name, or a person's own files."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, final

from attnlab.core.errors import DataError, SpecError, nearest
from attnlab.tasks.datasets import locate_named
from attnlab.tasks.translation.corpora import CORPORA
from attnlab.text.parallel import Pair, ParallelText, TabFile, TwoFiles, decoded_lines, numbered

HELD_OUT_SHARE, MOST_HELD_OUT = 20, 2000
"""Where a person's own text comes without a validation part: one pair in so many at its end, at most so many."""
ENDINGS = ("", ".gz")
LINES_NAMED = 5  # of those that are left out


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


@final
@dataclass(frozen=True)
class Part:
    """Name the lines of a parallel text that are one part of a corpus."""

    text: ParallelText  # the text
    start: int = 0  # the first line, from 0
    stop: int | None = None  # the line after the last; all that follow unless given

    def pairs(self, empty: LeftOut | None = None) -> Iterator[tuple[int, Pair]]:
        """The pairs that have two sides, with their line numbers from 1."""
        numbered = enumerate(self.text.pairs(), start=1)
        for number, pair in itertools.islice(numbered, self.start, self.stop):
            if pair.source and pair.target:
                yield number, pair
            elif empty is not None:
                empty.add(number)

    @functools.cached_property
    def sentences(self) -> list[Pair]:
        """All pairs that have two sides, in memory: for a held-out part."""
        return [pair for _, pair in self.pairs()]


def read_sentences(file: Path | BinaryIO, name: str = "") -> Iterator[str]:
    """The lines of a file as a corpus is read, one after the other."""
    return numbered(file) if isinstance(file, Path) else decoded_lines(file, name)


def languages_of(pair: str) -> tuple[str, str]:
    """The two languages of a pair."""
    source, dash, target = pair.partition("-")
    if not (source and dash and target) or source == target:
        raise SpecError(f"pair must be two languages, from and to, like en-de; got '{pair}'")
    return source, target


def parts_of(corpus: str, languages: tuple[str, str], *, test: str | None, only: str | None = None) -> dict[str, Part]:
    """Where the parts of a corpus are."""
    if corpus in CORPORA:
        wanted = _needed({"train": "train", "validation": "validation", "test": test}, only)
        named = CORPORA[corpus]
        chosen = {part: [named.part(name, language) for language in languages] for part, name in wanted.items()}
        return {part: Part(TwoFiles(*map(locate_named, texts))) for part, texts in chosen.items()}
    path = Path(corpus).expanduser().absolute()
    if path.is_dir():
        names = _needed({"train": "train", "validation": "val", "test": test}, only)
        return {part: Part(_own_text(path / name, languages)) for part, name in names.items()}
    text = _own_text(path, languages, corpus)
    if test:
        raise DataError(f"a test part needs a folder with train, val and {test}; {corpus} is one text")
    count = sum(1 for _ in text.pairs())
    held_out = min(MOST_HELD_OUT, count // HELD_OUT_SHARE)
    if not held_out:
        raise DataError(f"{corpus} has {count} pairs; at least {HELD_OUT_SHARE} are needed, the last of them held out")
    return {"train": Part(text, stop=count - held_out), "validation": Part(text, start=count - held_out)}


def _needed(names: Mapping[str, str | None], only: str | None) -> dict[str, str]:
    """The parts that there are, or the one that is wanted, with what they are called."""
    return {part: name for part, name in names.items() if name and only in (None, part)}


def _own_text(path: Path, languages: tuple[str, str], asked: str = "") -> ParallelText:
    """The text whose files begin like a path: one per language, or one with tabs."""
    if path.is_file():
        return TabFile(path)
    for ending in ENDINGS:
        tab = path.with_name(f"{path.name}.tsv{ending}")
        if tab.is_file():
            return TabFile(tab)
    found = []
    for language in languages:
        places = [path.with_name(f"{path.name}.{language}{ending}") for ending in ENDINGS]
        there = [place for place in places if place.is_file()]
        if not there:
            hint = f", and no corpus is named '{asked}'; {nearest(asked, CORPORA)}" if asked else ""
            raise DataError(f"no file {places[0]} (nor {path.name}.tsv){hint}")
        found.append(there[0])
    return TwoFiles(*found)


def files_of(text: ParallelText) -> list[Path]:
    """The files of a parallel text."""
    return [text.path] if isinstance(text, TabFile) else [text.source, text.target]
