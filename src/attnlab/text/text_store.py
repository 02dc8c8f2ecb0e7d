"""A text of any size on disk, as numbers of its characters: read once by several processes, then mapped into memory.

Each shard numbers its own characters in the order in which they come, in as few bytes as do. So a file is read once,
and what is kept depends neither on how a text is split nor on the part that a vocabulary is taken from.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import mmap
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import filelock
import numpy as np
from jaxtyping import Int32, Int64, UInt64

from attnlab.core.errors import DataError, SpecError
from attnlab.core.files import read_sealed, sealed, write_json, writing
from attnlab.core.processes.apart import call_apart
from attnlab.core.storage.cache import cache_folder, keep_result, read_if_whole, read_result
from attnlab.core.storage.shared_cache import fetch_shared, send_shared
from attnlab.text.overlap import GRAM, sample_passages, standing_in
from attnlab.text.seals import Seal, require_sealed, seal
from attnlab.text.sources import Source, code_points, read_pieces

FORM = 1
"""Raised when what is kept on disk changes, so that older folders are not read."""
INDEX = "index.json"
HASH, NAME = r"[0-9a-f]{64}", r"\d+-\d+"
"""What the hash of a text looks like, and the name of a shard."""
NUMBERS, PASSAGES = ".npy", ".passages.npy"
STRETCH = 2**24  # bytes of a file that are read in one go
SHARD = 2**24  # characters after which a shard ends
CALLS = 4  # of every process, so that all of them end at about the same time
AT_ONCE = 64  # shards whose sampled passages are compared together, pieces after which their pages are given back
CODE_POINTS = 0x110000  # Unicode's size

Stretches = Sequence[tuple[int, int]]
"""Where a part of a text is: stretches from one character to before another."""


@final
@dataclass(frozen=True)
class Shard:
    """Name the files of a part of a text, and say what their numbers mean."""

    name: str  # of its files, without their endings
    length: int  # characters
    characters: str  # the character of each number
    seals: Mapping[str, Seal]  # by ending

    def mapped(self, folder: Path, ending: str = NUMBERS) -> np.ndarray:
        """The numbers of its characters, or its sampled passages: a row of places and one of hashes."""
        path, hint = folder / f"{self.name}{ending}", f"remove {folder} to have the text read again"
        require_sealed(path, self.seals[ending], hint)
        try:
            return np.load(path, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}; {hint}") from error


@final
class TextStore:
    """Look up the characters of a text on disk.

    Parameters
    ----------
    folder : Path
        Where `open_text` put them.

    Raises
    ------
    DataError
        If a file there is missing, was cut off, or was changed.
    """

    def __init__(self, folder: Path) -> None:
        if (index := read_if_whole(folder / INDEX)) is None:
            raise DataError(f"{folder} holds no text that can be read: its {INDEX} is missing or was changed")
        self._folder = folder
        try:
            self.sha256: str = index["sha256"]
            self.size_bytes: int = index["bytes"]
            self._shards = [Shard(**fields) for fields in index["shards"]]
            if not re.fullmatch(HASH, self.sha256) or not all(re.fullmatch(NAME, one.name) for one in self._shards):
                raise DataError(f"{folder / INDEX} names files that are none of a text's")
            self._numbers = [shard.mapped(folder) for shard in self._shards]
            self._begins = [0, *itertools.accumulate(shard.length for shard in self._shards)]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder / INDEX} is no index of a text: {error}") from error

    def __len__(self) -> int:
        return self._begins[-1]

    def characters(self, part: Stretches) -> str:
        """The different characters of a part, sorted."""
        found: set[str] = set()
        for number, first, last in self._within(part):
            shard = self._shards[number]
            whole = last - first == shard.length
            numbers = range(len(shard.characters)) if whole else np.unique(self._numbers[number][first:last]).tolist()
            found.update(shard.characters[one] for one in numbers)
        return "".join(sorted(found))

    def part(self, part: Stretches, tokens: Int32[np.ndarray, " code_points"]) -> StoredPart:
        """A part as tokens, given that of each code point."""
        tables = {number: tokens[code_points(self._shards[number].characters)] for number, _, _ in self._within(part)}
        return StoredPart(
            [(self._numbers[number][first:last], tables[number]) for number, first, last in self._within(part)]
        )

    def shared(self, train: Stretches, held_out: Stretches) -> tuple[int, int]:
        """How many of the sampled passages of a held-out part stand in the training part, and how many there are."""
        asked = np.concatenate([np.empty(0, dtype=np.uint64), *self._passages(held_out)])
        found = np.zeros(len(asked), dtype=bool)
        known = self._passages(train)
        while some := list(itertools.islice(known, AT_ONCE)):
            hashes = np.concatenate(some)
            if len(hashes):
                found |= standing_in(hashes, asked)
        return int(found.sum()), len(found)

    def _passages(self, part: Stretches) -> Iterator[UInt64[np.ndarray, " sampled"]]:
        """The hashes of the sampled passages of a part, shard by shard."""
        for number, first, last in self._within(part):
            places, hashes = self._shards[number].mapped(self._folder, PASSAGES)
            yield hashes[(places >= first) & (places + GRAM <= last)]

    def _within(self, part: Stretches) -> Iterator[tuple[int, int, int]]:
        """What a part consists of: the number of a shard, and from where to where in it."""
        for start, stop in part:
            for number, (begin, end) in enumerate(itertools.pairwise(self._begins)):
                first, last = max(start, begin), min(stop, end)
                if first < last:
                    yield number, first - begin, last - begin


@final
class StoredPart:
    """Read the tokens of a part of a text from disk.

    Parameters
    ----------
    segments : sequence
        The numbers of its characters in pieces that follow each other, each with the token of every number.
    """

    def __init__(self, segments: Sequence[tuple[np.ndarray, Int32[np.ndarray, " numbers"]]]) -> None:
        self._segments = segments
        self._begins = [0, *itertools.accumulate(len(numbers) for numbers, _ in segments)]

    def __len__(self) -> int:
        return self._begins[-1]

    def windows(self, starts: Int64[np.ndarray, " count"], length: int) -> Int32[np.ndarray, "count length"]:
        """The tokens from each of some places on."""
        found = np.empty((len(starts), length), dtype=np.int32)
        for row, start in zip(found, starts.tolist(), strict=True):
            number, filled = bisect.bisect_right(self._begins, start) - 1, 0
            while filled < length:
                numbers, tokens = self._segments[number]
                some = numbers[start + filled - self._begins[number] :][: length - filled]
                row[filled : filled + len(some)] = tokens[some]
                number, filled = number + 1, filled + len(some)
        return found

    def spread(self, count: int, length: int) -> Int32[np.ndarray, "count length"]:
        """So many pieces of a length, evenly spread, the first at the beginning and the last at the end."""
        starts = np.linspace(0, len(self) - length, count).astype(np.int64)
        found = np.empty((count, length), dtype=np.int32)
        for first in range(0, count, AT_ONCE):
            found[first : first + AT_ONCE] = self.windows(starts[first : first + AT_ONCE], length)
            self.release()
        return found

    def release(self) -> None:
        """Give the pages that were read back to the system, which maps more of a file than is asked for."""
        for numbers, _ in self._segments:
            _release(numbers)


def _release(mapped: np.ndarray) -> None:
    """Give the pages of a mapped file back, where a system can."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped._mmap.madvise(mmap.MADV_DONTNEED)  # pyrefly: ignore[missing-attribute]


def open_text(sources: Sequence[Source], field: str) -> TextStore:
    """Open a text on disk, read from its files if that was not done yet.

    Parameters
    ----------
    sources : sequence of Source
        Its files.
    field : str
        That of files of objects which holds their text.

    Returns
    -------
    TextStore
        The text.

    Raises
    ------
    DataError
        If a file cannot be read, or what was kept of it is damaged.
    RunError
        If there is no room for it.
    SpecError
        If machines share a cache, and its place cannot be used.

    Notes
    -----
    It is kept in the cache under a hash of its content, and found by the names, sizes and times of its files. Who asks
    while another process reads it waits. What a killed process left behind is removed by the next that reads it.
    """
    asked = json.dumps([FORM, STRETCH, field, *([one.path, one.size, one.version] for one in sources)])
    name = f"text-{hashlib.sha256(asked.encode()).hexdigest()[:32]}"
    folder = cache_folder() / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    made = None
    content = _kept(folder, name)
    if content is None:
        with filelock.FileLock(folder / f"{name}.lock"):
            content = _kept(folder, name)
            if content is None:
                content, fetched = _store(sources, field, folder, name)
                keep_result(name, content)
                made = None if fetched else folder / content
    if made is not None:
        send_shared(name, made)
    return TextStore(folder / content)


def _kept(folder: Path, name: str) -> str | None:
    """The folder of a text that was read before and is still there, by its name."""
    content = read_result(name)
    return content if isinstance(content, str) and read_if_whole(folder / content / INDEX) is not None else None


def _store(sources: Sequence[Source], field: str, folder: Path, name: str) -> tuple[str, bool]:
    """Put a text into a folder that is there when it is whole; its name, and whether another machine had read it."""
    temporary = folder / f"{name}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    with writing(folder):
        temporary.mkdir()
    try:
        if not (fetched := fetch_shared(name, temporary, TextStore)):
            _read(sources, field, temporary)
        target = folder / read_sealed(temporary / INDEX, required=True)["sha256"][:32]
        if read_if_whole(target / INDEX) is None:
            shutil.rmtree(target, ignore_errors=True)
            os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target.name, fetched


def _read(sources: Sequence[Source], field: str, folder: Path) -> None:
    """Read a text into an empty folder by several processes."""
    from attnlab.core.machine import usable_cores  # with it comes torch, which the reading processes do without

    stretches = [stretch for one in sources for stretch in one.stretches(STRETCH)]
    processes = min(usable_cores(), len(stretches))
    size = sum(one.size for one in sources)
    with_them = f"{processes} process{'' if processes == 1 else 'es'}"
    print(f"reading {size:,} bytes of text with {with_them} into {folder.parent}", file=sys.stderr)
    calls = [
        (str(folder), field, {number: asdict(stretches[number]) for number in range(call, len(stretches), step)})
        for step in [min(CALLS * processes, len(stretches))]
        for call in range(step)
    ]
    try:
        with ThreadPoolExecutor(processes) as pool:
            some = pool.map(lambda call: call_apart(store_stretches, *call), calls)
            done = {int(number): found for answer in some for number, found in answer.items()}
    except SpecError as error:  # what a process said
        raise DataError(str(error)) from error
    found = [done[number] for number in range(len(stretches))]
    content = hashlib.sha256(json.dumps([field, *(one["sha256"] for one in found)]).encode()).hexdigest()
    index: dict[str, Any] = {"sha256": content, "bytes": sum(one["bytes"] for one in found)}
    index["shards"] = [shard for one in found for shard in one["shards"]]
    write_json(folder / INDEX, sealed(index))


def store_stretches(folder: str, field: str, stretches: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Read stretches of files into shards.

    Parameters
    ----------
    folder : str
        Where to.
    field : str
        As in `open_text`.
    stretches : mapping
        The fields of a `Source` by its number.

    Returns
    -------
    dict
        By number: its sha256, its bytes, and the fields of each `Shard`.
    """
    found = {}
    for number, fields in stretches.items():
        digest, sizes = hashlib.sha256(), []

        def seen(block: bytes, digest: Any = digest, sizes: list[int] = sizes) -> None:
            digest.update(block)
            sizes.append(len(block))

        with writing(Path(folder)):
            pieces = read_pieces(Source(**fields), field, seen)
            shards = [asdict(shard) for shard in _shards(pieces, Path(folder), f"{int(number):06d}")]
        found[number] = {"sha256": digest.hexdigest(), "bytes": sum(sizes), "shards": shards}
    return found


def _shards(pieces: Iterator[str], folder: Path, name: str) -> Iterator[Shard]:
    """Write the shards of a stretch."""
    for place in itertools.count():
        numbers_of, characters = np.full(CODE_POINTS, -1, dtype=np.int32), ""
        numbers, passages, length = [], [np.empty((2, 0), dtype=np.uint64)], 0
        while length < SHARD and (piece := next(pieces, "")):
            codes = code_points(piece)
            some = numbers_of[codes]
            if some.min() < 0:
                seen = np.zeros(CODE_POINTS, dtype=bool)
                seen[codes] = True
                new = np.flatnonzero(seen & (numbers_of < 0))
                numbers_of[new] = np.arange(len(characters), len(characters) + len(new), dtype=np.int32)
                characters += "".join(map(chr, new.tolist()))
                some = numbers_of[codes]
            numbers.append(some.astype(np.min_scalar_type(len(characters) - 1)))
            places, hashes = sample_passages(codes)
            passages.append(np.stack(((length + places).astype(np.uint64), hashes)))
            length += len(codes)
        if not length:
            return
        files = {ending: folder / f"{name}-{place}{ending}" for ending in (NUMBERS, PASSAGES)}
        np.save(files[NUMBERS], np.concatenate(numbers))
        np.save(files[PASSAGES], np.concatenate(passages, axis=1))
        yield Shard(f"{name}-{place}", length, characters, {ending: seal(file) for ending, file in files.items()})
