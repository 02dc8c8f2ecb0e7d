"""Tables of pairs: which columns hold the two sides, and their rows, from CSV, Parquet and Arrow files."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from attnlab.core.errors import DataError
from attnlab.text.compressed import without_compression
from attnlab.text.rows import TABLES, read_cells, read_columns

DELIMITERS = ",;\t"  # of CSV files: whichever stands most often in the line of names
NESTED = "translation"
"""The column, or the field of an object, that may hold both sides, as in Hugging Face's corpora."""
GENERAL = (("source", "target"), ("src", "tgt"), ("src", "trg"))
"""What the sides are called where they are not called by their languages."""
NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")


def names_of(known: Sequence[str], languages: tuple[str, str]) -> tuple[str, str] | None:
    """What the two sides are called among some names, whatever the case; None if they are not there."""
    as_written = {name.strip().casefold(): name for name in reversed(known)}
    for pair in (languages, *GENERAL):
        found = [as_written.get(name.casefold()) for name in pair]
        if found[0] is not None and found[1] is not None:
            return found[0], found[1]
    return None


def columns_of_text(rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    """The first two columns of some rows that are not numbers all the way down, such as those of sentences are.

    The first row may name them; rows of another width than most say nothing.
    """
    width, _ = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
    below = [row for row in rows[1:] if len(row) == width]
    texts = [column for column in range(width) if not all(NUMBER.fullmatch(row[column].strip()) for row in below)]
    return (texts[0], texts[1]) if below and len(texts) > 1 else (0, 1)


def read_sides(file: BinaryIO, path: str, languages: tuple[str, str]) -> Iterator[tuple[Any, Any]]:
    """The two sides of every row of a CSV, Parquet or Arrow file.

    Raises
    ------
    DataError
        If it cannot be read as a table, or has no columns by these names.
    """
    if without_compression(path).lower().endswith(TABLES):
        for batch in read_columns(file, path, None):
            names = names_of(list(batch), languages)
            if names is None and NESTED in batch:
                yield from (_sides_in(one, path, languages) for one in batch[NESTED])
            else:
                source, target = names or _missing(path, list(batch), languages)
                yield from zip(batch[source], batch[target], strict=True)
        return
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        begins, first = next(((number, line) for number, line in enumerate(text, 1) if line.strip()), (1, ""))
        delimiter = max(DELIMITERS, key=first.count)
        known = next(read_cells([first], path, delimiter, before=begins - 1), [])
        source, target = names_of(known, languages) or _missing(path, known, languages)
        places = known.index(source), known.index(target)
        for row in read_cells(text, path, delimiter, before=begins, count=len(known)):
            yield row[places[0]], row[places[1]]


def _sides_in(both: Any, path: str, languages: tuple[str, str]) -> tuple[Any, Any]:
    """The sides of a translation that holds several languages."""
    held: Mapping[str, Any] = both if isinstance(both, Mapping) else {}
    source, target = names_of(list(held), languages) or _missing(path, [f"{NESTED}.{name}" for name in held], languages)
    return held[source], held[target]


def _missing(path: str, known: Sequence[str], languages: tuple[str, str]) -> tuple[str, str]:
    raise DataError(
        f"{path} has no columns '{languages[0]}' and '{languages[1]}' (nor source and target, nor a {NESTED} with "
        f"both); it has {', '.join(known) or 'none'}"
    )
