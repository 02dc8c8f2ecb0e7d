"""Texts as files hold them, read a few megabytes at a time: plain, compressed, as JSON lines, as rows of tables.

A file may lie wherever fsspec reads: on this machine, or at an address such as ``s3://bucket/text.txt``. Whatever its
form, what is read has no byte order mark, lines end with a line feed, and characters are composed (Unicode's NFC).
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
import lzma
import re
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from typing import Any, BinaryIO, final

import fsspec
import numpy as np
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from jaxtyping import UInt32

from attnlab.core.errors import AttnlabError, DataError, no_credentials
from attnlab.core.storage.cache import keep_result, read_result
from attnlab.text.compressed import compression_of, without_compression
from attnlab.text.rows import ARROW, COMMAS, TABLES, TABS, read_texts

OBJECTS = ".jsonl"
"""Ending of files of which every line is a JSON object with a text in one of its fields."""
ONE_VALUE = ".json"  # ending of files that hold one value on many lines
ENDINGS = (".txt", OBJECTS, *TABLES)
"""Of the files that are read where a folder is named; that of a compressed file may follow."""
PARTED, TEMPORARY = "dataset_dict.json", "cache-"
"""What Hugging Face's ``datasets`` puts into a folder of several parts, and before what it computed by the way."""
WILDCARDS = frozenset("*?[")
FIELD = "text"  # of an object, where none is named
AT_A_TIME = 2**22  # bytes
REMEMBERED = 2**26  # bytes from which on the hash of a file is remembered: to compute it takes a tenth of a second
SHOWN = 60  # characters of a line in an error text
LOOKED_AT = 2**16  # bytes among which a place is looked for where a text may be cut
LINE_FEED, CARRIAGE_RETURN = b"\n\r"
LINE_END = re.compile(rb"\n|\r(?=[^\n])")
FIRST_OF_SEVERAL = 0xC2  # the first byte of a character of several bytes is no smaller, all others are
COMPOSED_LETTERS = re.compile("[\u1160-\u11ff\U00016d40-\U00016d7f]")
"""Blocks of letters that are composed with what stands before them: Hangul's vowels and finals, Kirat Rai's vowels."""


@final
@dataclass(frozen=True)
class Source:
    """Name a file, or a stretch of one."""

    path: str  # path or address
    size: int  # bytes of the file as they are stored
    version: str  # another one where the file has changed, by its size and times or what a store says of it
    start: int = 0  # byte at which the stretch begins
    stop: int | None = None  # byte at which it ends; None: at the end of the file
    ends_line: bool = False  # whether it is read with a line end at its end, because another file follows

    @property
    def has_objects(self) -> bool:
        """Whether every line is a JSON object."""
        return without_compression(self.path).endswith(OBJECTS)

    @property
    def is_table(self) -> bool:
        """Whether it is a Parquet or Arrow file."""
        return without_compression(self.path).endswith(TABLES)

    def stretches(self, size: int) -> list[Source]:
        """The file cut into stretches of about so many bytes, each of which can be read by itself."""
        if self.is_table or compression_of(self.path):
            return [self]
        edges = [0]
        with said(self.path), open_bytes(self.path) as file:
            for place in range(size, self.size, size):
                if place > edges[-1]:
                    edges.append(_boundary(file, place, objects=self.has_objects))
        edges = sorted({*edges, self.size})
        return [
            replace(self, start=start, stop=stop, ends_line=self.ends_line and stop == self.size)
            for start, stop in itertools.pairwise(edges)
        ]


def find_sources(paths: str | Sequence[str], hint: str = "") -> list[Source]:
    """Find the files of a text.

    Parameters
    ----------
    paths : str or sequence of str
        A file, a folder, a pattern such as ``data/*.txt.gz``, or several of these, read one after the other. A folder
        stands for all files below it that end in ``.txt``, ``.jsonl``, ``.parquet`` or ``.arrow``, compressed or not,
        by name.
    hint : str
        What is said besides where there is no such file.

    Raises
    ------
    DataError
        If there is none, or a place cannot be looked at.
    """
    found = [one for path in ([paths] if isinstance(paths, str) else paths) for one in _files_at(path, hint)]
    if not found:
        raise DataError("a text needs at least one file; got an empty list")
    return found if len(found) == 1 else [replace(one, ends_line=True) for one in found]


def _files_at(path: str, hint: str) -> list[Source]:
    if not path.strip():
        raise DataError(f"a text needs the name of a file or folder; got '{path}'")
    with said(path):
        files, place = url_to_fs(path)
        names = [place] if files.isfile(place) else []
        if not names and files.isdir(place):
            if files.isfile(f"{place}/{PARTED}"):
                raise DataError(
                    f"{place} holds several parts of a dataset; name one of its folders, such as {path}/train"
                )
            names = [name for name in files.find(place) if without_compression(name).endswith(ENDINGS)]
            names = [name for name in names if not (name.endswith(ARROW) and f"/{TEMPORARY}" in name)]
            if not names:
                raise DataError(
                    f"no file below {place} ends in {' or '.join(ENDINGS)} (or these and .gz); name the files"
                )
        if not names and WILDCARDS & set(path):
            names = [name for name in files.glob(place) if files.isfile(name)]
        if not names:
            raise DataError(f"no file {place}{hint}")
        known = ((files.unstrip_protocol(name) if "://" in path else name, files.info(name)) for name in sorted(names))
        return [Source(name, info["size"], _version(files, info)) for name, info in known]


def _version(files: AbstractFileSystem, info: Mapping[str, Any]) -> str:
    """What is another one where a file changed: on a machine its time, which copies have, too."""
    return repr(info["mtime"]) if "mtime" in info and "ino" in info else files.ukey(info["name"])


def read_pieces(source: Source, field: str = FIELD, seen: Callable[[bytes], object] = lambda _: None) -> Iterator[str]:
    """Read a text in pieces of some megabytes.

    Parameters
    ----------
    source : Source
        A file or a stretch of one.
    field : str
        The field of objects, or the column of a table, that holds a text. Each text there ends with a line end.
    seen : callable
        Is told the bytes as they are read, uncompressed.

    Yields
    ------
    str
        What follows in the text, never empty.

    Raises
    ------
    DataError
        If the file cannot be read, is not UTF-8, is JSON but not JSON lines, or a line or row has no text in the field.
    """
    _refuse_raw(source.path)
    place, last = source.start, ""
    left = None if source.stop is None else source.stop - place
    with said(source.path), open_bytes(source.path) as file:
        if source.is_table:
            for text in map(_line, filter(None, read_texts(file, source.path, field))):
                seen(text.encode())
                yield clean(text)
            return
        if place:
            file.seek(place)
        for block in _blocks(file, left, objects=source.has_objects):
            seen(block)
            text = _decoded(block, source.path, place)
            if source.has_objects:
                text = "".join(map(_line, _texts(text, field, source.path, place)))
            place, last = place + len(block), text[-1:] or last
            if text:
                yield clean(text)
    if source.ends_line and last not in ("", "\n", "\r"):
        yield "\n"


def read_documents(source: Source, field: str = FIELD) -> Iterator[tuple[str, bool]]:
    """Read the documents of a file: each object of a file of objects, each row of a table, or else the whole file.

    Yields
    ------
    tuple of str and bool
        A piece of a document, never empty, and whether the document ends with it.

    Raises
    ------
    DataError
        As in `read_pieces`.
    """
    if source.is_table:
        with said(source.path), open_bytes(source.path) as file:
            yield from ((clean(text), True) for text in read_texts(file, source.path, field) if text)
    elif source.has_objects:
        place = 0
        with said(source.path), open_bytes(source.path) as file:
            for block in _blocks(file, None, objects=True):
                texts = _texts(_decoded(block, source.path, place), field, source.path, place)
                yield from ((clean(text), True) for text in texts)
                place += len(block)
    else:
        pieces = read_pieces(replace(source, ends_line=False))
        piece = next(pieces, "")
        while piece:
            following = next(pieces, "")
            yield piece, not following
            piece = following


def read_whole(sources: Sequence[Source], field: str, most_bytes: int) -> tuple[str, str, int] | None:
    """A text with the sha256 and the number of its bytes, uncompressed; None if there are more than so many."""
    if sum(one.size for one in sources) > most_bytes:
        return None
    digest, size, pieces = hashlib.sha256(), 0, []

    def seen(block: bytes) -> None:
        nonlocal size
        digest.update(block)
        size += len(block)

    for piece in itertools.chain.from_iterable(read_pieces(one, field, seen) for one in sources):
        pieces.append(piece)
        if size > most_bytes:
            return None
    return "".join(pieces), digest.hexdigest(), size


def clean(text: str) -> str:
    """A text in the one form in which texts are read: lines end with a line feed, characters are composed."""
    return unicodedata.normalize("NFC", _with_line_feeds(text))


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def code_points(text: str) -> UInt32[np.ndarray, " length"]:
    """The Unicode code point of each character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def open_bytes(path: str, *, as_stored: bool = False) -> BufferedReader:
    """Open a file or an address to read its bytes, uncompressed as its ending says unless told otherwise."""
    return fsspec.open(path, "rb", compression=None if as_stored else compression_of(path)).open()  # pyrefly: ignore


def is_file(path: str) -> bool:
    """Whether a path or an address is one of a file."""
    with said(path):
        files, place = url_to_fs(path)
        return files.isfile(place)


def is_folder(path: str) -> bool:
    """Whether a path or an address is one of a folder."""
    with said(path):
        files, place = url_to_fs(path)
        return files.isdir(place)


def sha256_of(path: str) -> str:
    """The sha256 of a file as it is stored; that of a large one is remembered until the file changes."""
    (source,) = find_sources(path)
    asked = json.dumps([source.path, source.size, source.version])
    name = f"sha256-{hashlib.sha256(asked.encode()).hexdigest()}"
    kept = read_result(name) if source.size >= REMEMBERED else None
    if isinstance(kept, str):
        return kept
    with said(path), open_bytes(path, as_stored=True) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if source.size >= REMEMBERED:
        keep_result(name, digest)
    return digest


@contextmanager
def said(path: str) -> Iterator[None]:
    """Turn what goes wrong with a file into a `DataError` that names it."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, (ImportError, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError))
        if isinstance(error, AttnlabError) or not (known or "://" in path):  # a store's library has errors of its own
            raise
        if wanting := no_credentials(error, path):
            raise DataError(wanting) from error
        hint = "; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise DataError(f"{path} cannot be read: {error}{hint}") from error


def _refuse_raw(path: str) -> None:
    """Refuse what holds texts among other things, which would be learned as they stand in the file."""
    name = without_compression(path).lower()
    if name.endswith(ONE_VALUE):
        raise DataError(
            f"{path} would be read as raw JSON; write one object a line into a {OBJECTS} file (of an array: "
            f"jq -c '.[]' pages{ONE_VALUE} > pages{OBJECTS}), or name it .txt if raw JSON is meant"
        )
    if name.endswith((COMMAS, TABS)):
        raise DataError(
            f"{path} would be read as the raw lines of a table; write its texts into a {OBJECTS} or Parquet file, or "
            "name it .txt if that is meant"
        )


def _blocks(file: BinaryIO, left: int | None, *, objects: bool) -> Iterator[bytes]:
    """The bytes of a file up to a place, in blocks between which no line of objects, or no character is cut."""
    rest = b""
    while some := file.read(min(max(AT_A_TIME, len(rest)), sys.maxsize if left is None else left)):
        left = None if left is None else left - len(some)
        rest += some
        if objects:
            cut = max(rest.rfind(b"\n"), rest.rfind(b"\r", 0, -1)) + 1
        else:
            cut = _new_place(rest, range(len(rest) - 1, max(0, len(rest) - LOOKED_AT), -1)) or 0
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _boundary(file: BinaryIO, place: int, *, objects: bool) -> int:
    """The first place from one on where a file may be cut, as in `_blocks`."""
    file.seek(place)
    while block := file.read(LOOKED_AT):
        line_end = LINE_END.search(block) if objects else None
        found = line_end and line_end.end() if objects else _new_place(block, range(len(block)))
        if found is not None:
            return place + found
        place += len(block)
    return place


def _new_place(block: bytes, places: Sequence[int]) -> int | None:
    """The first of some places of a text where it may be cut: at an ASCII character if there is one among them.

    Before it nothing is composed with what follows, and no line end is cut.
    """
    plain = (place for place in places if block[place] < 128 and block[place] != LINE_FEED)
    found = next(plain, None)
    return next((place for place in places if _is_new(block, place)), None) if found is None else found


def _is_new(block: bytes, place: int) -> bool:
    """Whether a character begins at a place that is not ASCII and takes no part in what stands before it."""
    first = block[place]
    if first == LINE_FEED:
        return place > 0 and block[place - 1] != CARRIAGE_RETURN
    character = block[place : place + 4].decode("utf-8", "ignore")[:1] if first >= FIRST_OF_SEVERAL else ""
    if not character:
        return False
    begins = unicodedata.normalize("NFD", character)[0]
    return not unicodedata.category(begins).startswith("M") and not COMPOSED_LETTERS.match(begins)


def _decoded(block: bytes, path: str, place: int) -> str:
    """The text of a block that begins at a place of a file."""
    mark = 0 if place or not block.startswith(codecs.BOM_UTF8) else len(codecs.BOM_UTF8)
    try:
        return block[mark:].decode("utf-8")
    except UnicodeDecodeError as error:
        offset = place + mark + error.start
        raise DataError(
            f"{path} must be UTF-8; got byte 0x{block[mark + error.start]:02x} at offset {offset} "
            f"(line {_lines_before(path, offset) + 1}): {error.reason}; save it as UTF-8 and try again"
        ) from error


def _texts(block: str, field: str, path: str, place: int) -> Iterator[str]:
    """The texts of lines of objects that are not empty."""
    for number, line in enumerate(_with_line_feeds(block).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            text = parse_line(line)[field]
            text.encode()  # half of a surrogate pair is no character
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}, line {_lines_before(path, place) + number}: a JSON object with a text in '{field}' is "
                f"needed; got {line[:SHOWN]!r}" + ("; field: names another" if isinstance(error, KeyError) else "")
            ) from error
        if text:
            yield text


def parse_line(line: str) -> Any:
    """What a line of JSON holds; a `ValueError` where it is none, or nested too deeply."""
    try:
        return json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _line(text: str) -> str:
    """A text with a line end."""
    return text if text.endswith("\n") else text + "\n"


def _lines_before(path: str, place: int) -> int:
    """The line ends before a place of a file."""
    lines, last = 0, b""
    with open_bytes(path) as file:
        while place and (block := file.read(min(AT_A_TIME, place))):
            twice = block.count(b"\r\n") + (last + block[:1] == b"\r\n")
            lines += block.count(b"\n") + block.count(b"\r") - twice
            place, last = place - len(block), block[-1:]
    return lines
