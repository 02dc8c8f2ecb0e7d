"""Where the parts of a parallel corpus are: a corpus by name, or a person's own files."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from attnlab.core.cache import keep_result, read_result
from attnlab.core.errors import DataError, SpecError, nearest
from attnlab.tasks.datasets import locate_named
from attnlab.tasks.translation.corpora import CORPORA
from attnlab.text.pairs.parallel import (
    MemoryFile,
    ObjectFile,
    ParallelText,
    Part,
    TabFile,
    TwoFiles,
    decoded_lines,
    numbered,
    place_of,
)
from attnlab.text.sources import OBJECTS, is_file, is_folder, sha256_of

HELD_OUT_SHARE, MOST_HELD_OUT = 20, 2000
"""Where a person's own text comes without a validation part: one pair in so many, at most so many."""
ENDINGS = ("", ".gz")
MEMORY = ".tmx"


def read_sentences(file: Path | BinaryIO, name: str = "") -> Iterator[str]:
    """The lines of a file as a corpus is read, one after the other."""
    return numbered(str(file)) if isinstance(file, Path) else decoded_lines(file, name)


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
        return {part: Part(TwoFiles(*(str(locate_named(text)) for text in texts))) for part, texts in chosen.items()}
    path = corpus if "://" in corpus else str(Path(corpus).expanduser().absolute())
    if is_folder(path):
        names = _needed({"train": "train", "validation": "val", "test": test}, only)
        return {part: Part(_own_text(f"{path}/{name}", languages)) for part, name in names.items()}
    text = _own_text(path, languages, corpus)
    if test:
        raise DataError(f"a test part needs a folder with train, val and {test}; {corpus} is one text")
    cut = _cut(text, corpus)
    return {"train": Part(text, cut), "validation": Part(text, cut, held_out=True)}


def _needed(names: Mapping[str, str | None], only: str | None) -> dict[str, str]:
    """The parts that there are, or the one that is wanted, with what they are called."""
    return {part: name for part, name in names.items() if name and only in (None, part)}


def _cut(text: ParallelText, corpus: str) -> int:
    """The `place_of` a source below which pairs are held out, found once: those of one source stay together."""
    asked = [type(text).__name__, getattr(text, "languages", None), *map(sha256_of, text.files)]
    name = f"held-out-{hashlib.sha256(repr(asked).encode()).hexdigest()}"
    kept = read_result(name)
    if isinstance(kept, int):
        return kept
    count, lowest = 0, []  # the negative of the lowest places, largest first
    for pair in text.pairs():
        if pair.source and pair.target:
            count += 1
            heapq.heappush(lowest, -place_of(pair.source))
            if len(lowest) > MOST_HELD_OUT + 1:
                heapq.heappop(lowest)
    held_out = min(MOST_HELD_OUT, count // HELD_OUT_SHARE)
    if not held_out:
        raise DataError(f"{corpus} has {count} pairs; at least {HELD_OUT_SHARE} are needed, one in so many is held out")
    places = sorted(-place for place in lowest)
    cut = places[held_out]
    if cut == places[0]:  # more pairs of one source than should be held out
        raise DataError(
            f"{corpus} has more than {held_out} pairs of one source, and pairs of a source are not parted; name a "
            "folder with train and val"
        )
    keep_result(name, cut)
    return cut


def _own_text(path: str, languages: tuple[str, str], asked: str = "") -> ParallelText:
    """The text whose files begin like a path: one per language, or one of tabs, of JSON objects, or of units."""
    if is_file(path):
        return _one_file(path, languages)
    for ending in ENDINGS:
        for form in (".tsv", OBJECTS, MEMORY):
            if is_file(f"{path}{form}{ending}"):
                return _one_file(f"{path}{form}{ending}", languages)
    found = []
    for language in languages:
        there = [place for ending in ENDINGS if is_file(place := f"{path}.{language}{ending}")]
        if not there:
            hint = f", and no corpus is named '{asked}'; {nearest(asked, CORPORA)}" if asked else ""
            raise DataError(
                f"no file {path}.{language} (nor {path.rpartition('/')[2]}.tsv, {OBJECTS} or {MEMORY}){hint}"
            )
        found.append(there[0])
    return TwoFiles(*found)


def _one_file(path: str, languages: tuple[str, str]) -> ParallelText:
    form = path.removesuffix(".gz").lower()
    if form.endswith(OBJECTS):
        return ObjectFile(path, languages)
    return MemoryFile(path, languages) if form.endswith(MEMORY) else TabFile(path)
