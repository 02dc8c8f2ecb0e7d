"""Where the parts of a parallel corpus are: a corpus by name, or a person's own files."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from attnlab.core.errors import DataError, SpecError, nearest
from attnlab.core.files import user_path
from attnlab.core.storage.cache import keep_result, read_result
from attnlab.tasks.datasets import locate_named
from attnlab.tasks.translation.corpora import CORPORA
from attnlab.text.compressed import without_compression
from attnlab.text.pairs.parallel import (
    MemoryFile,
    ObjectFile,
    ParallelText,
    Part,
    TabFile,
    TableFiles,
    TwoFiles,
    decoded_lines,
    numbered,
    place_of,
)
from attnlab.text.rows import COMMAS, TABLES, TABS
from attnlab.text.sources import OBJECTS, ONE_VALUE, find_sources, is_file, is_folder, sha256_of

Name = TypeVar("Name")
_OF = re.compile(r"-\d{5}-of-(\d{5})\.\w+$")

HELD_OUT_SHARE, MOST_HELD_OUT = 20, 2000
"""Where a person's own text comes without a validation part: one pair in so many, at most so many."""
ENDINGS = ("", ".gz")
MEMORY = ".tmx"
FORMS = (TABS, OBJECTS, MEMORY, COMMAS, *TABLES)
SAVED = "state.json"
"""What Hugging Face's ``datasets`` puts beside the tables of one part."""
VALIDATION = ("val", "validation", "valid", "dev")
"""What a part for validation is called, the first that is there."""


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
    path = corpus if "://" in corpus else str(user_path(corpus).absolute())
    if is_folder(path) and not is_file(f"{path}/{SAVED}"):
        wanted = _needed({"train": ("train",), "validation": VALIDATION, "test": (test,) if test else None}, only)
        return {part: Part(_part_in(path, names, languages)) for part, names in wanted.items()}
    text = _own_text(path, languages, corpus)
    if test:
        raise DataError(f"a test part needs a folder with train, val and {test}; {corpus} is one text")
    cut = _cut(text, corpus)
    return {"train": Part(text, cut), "validation": Part(text, cut, held_out=True)}


def _needed(names: Mapping[str, Name | None], only: str | None) -> dict[str, Name]:
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


def _part_in(folder: str, names: Sequence[str], languages: tuple[str, str]) -> ParallelText:
    """A part of a folder, by the first of its names under which there is anything."""
    for name in names:
        if found := _text_at(f"{folder}/{name}", languages):
            return found
    return _own_text(f"{folder}/{names[0]}", languages)


def _own_text(path: str, languages: tuple[str, str], asked: str = "") -> ParallelText:
    """The text whose files begin like a path, or an error that says what may be there."""
    if found := _text_at(path, languages):
        return found
    missing = next(one for one in languages if _of_language(path, one) is None)
    hint = f", and no corpus is named '{asked}'; {nearest(asked, CORPORA)}" if asked else ""
    forms = f"{', '.join(FORMS[1:-1])} or {FORMS[-1]}"
    raise DataError(f"no file {path}.{missing} (nor {path.rpartition('/')[2]}{TABS}, {forms}){hint}")


def _text_at(path: str, languages: tuple[str, str]) -> ParallelText | None:
    """The text whose files begin like a path: one of each language, one of pairs, or tables; None without."""
    if is_file(path):
        return _one_file(path, languages)
    for ending in ENDINGS:
        for form in FORMS:
            if is_file(f"{path}{form}{ending}"):
                return _one_file(f"{path}{form}{ending}", languages)
    sides = [_of_language(path, language) for language in languages]
    if sides[0] and sides[1]:
        return TwoFiles(sides[0], sides[1])
    tables = _tables_at(path)
    return TableFiles(tables, languages) if tables else None


def _of_language(path: str, language: str) -> str | None:
    return next((place for ending in ENDINGS if is_file(place := f"{path}.{language}{ending}")), None)


def _tables_at(path: str) -> tuple[str, ...]:
    """The tables in a folder, or those of a part as Hugging Face's hub has them: ``train-00000-of-00002.parquet``."""
    found: list[str] = []
    for place in (path, *(f"{glob.escape(path)}-*-of-*{form}" for form in TABLES)):
        with contextlib.suppress(DataError):
            found += [one.path for one in find_sources(place) if one.is_table]
    counts = [int(count[1]) for one in found if (count := _OF.search(one))]
    if any(count != len(found) for count in counts):
        raise DataError(f"{path} should have {max(counts)} files, and has {len(found)}: {', '.join(found)}")
    return tuple(found)


def _one_file(path: str, languages: tuple[str, str]) -> ParallelText:
    form = without_compression(path).lower()
    if form.endswith((OBJECTS, ONE_VALUE)):
        return ObjectFile(path, languages)
    if form.endswith((COMMAS, *TABLES)):
        return TableFiles((path,), languages)
    return MemoryFile(path, languages) if form.endswith(MEMORY) else TabFile(path, languages)
