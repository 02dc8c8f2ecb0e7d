"""Arrays and tables as files hold them: ``.npy``, CSV, JSON lines, Parquet."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fsspec.core import url_to_fs
from jaxtyping import Int64

from attnlab.core.errors import DataError
from attnlab.text.compressed import without_compression
from attnlab.text.rows import COMMAS, TABLES, TABS, read_cells, read_columns
from attnlab.text.sources import OBJECTS, Source, find_sources, is_folder, open_bytes, parse_line, read_pieces, said

ARRAY = ".npy"
ENDINGS = (ARRAY, COMMAS, TABS, OBJECTS, *TABLES)
PLAIN = ".txt"
TEXT, LABEL = "text", "label"
"""Columns of a table of texts and their classes, unless others are named."""
FEWEST_CLASSES = 2
CHECKED = 4096  # items that are looked at together, so that a mapped array is never in memory whole

WHOLE = re.compile(r"[+-]?\d+")

Table = Mapping[str, Sequence[Any]]
"""The values of each column."""


def read_groups(
    groups: str, inputs: str, items: int, column: Sequence[Any] | None = None
) -> Int64[np.ndarray, " items"]:
    """The number of each item's group, from a column of their table or an ``.npy`` file of one value an item.

    Raises
    ------
    DataError
        If there is neither, or there are not as many values as items.
    """
    if column is None and not groups.endswith(ARRAY):
        raise DataError(f"{inputs} has no column '{groups}' of groups; beside arrays it must be an {ARRAY} file")
    values = np.asarray(read_array(groups)) if column is None else np.array(list(map(str, column)))
    if values.shape != (items,):
        raise DataError(f"groups must be one value an item; got shape {values.shape} for {items} items ({groups})")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def read_array(path: str) -> np.ndarray:
    """An array of numbers: that of an ``.npy`` file, mapped into memory, or the rows of a CSV file.

    Raises
    ------
    DataError
        If it cannot be read, holds no numbers, rows of different lengths, or a number that is not finite.
    """
    if path.endswith((COMMAS, TABS)):
        array = _rows_of_numbers(path, read_table(path))
    elif path.endswith(ARRAY):
        (source,) = find_sources(path)
        try:
            with said(path):
                array = np.load(source.path, mmap_mode="r", allow_pickle=False)
        except DataError as error:
            raise DataError(f"{error}; an array of numbers is needed, whose rows are of one length") from error
    else:
        raise DataError(f"{path} must be an array ({ARRAY}) or a table of numbers ({COMMAS}, {TABS})")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{path} must hold numbers; got {array.dtype}")
    if array.ndim == 0 or not array.size:
        raise DataError(f"{path} holds no items: its shape is {array.shape}")
    require_finite(array, path)
    return array


def require_finite(array: np.ndarray, path: str) -> None:
    """Raise unless every number is finite."""
    for first in range(0, len(array) if array.dtype.kind == "f" else 0, CHECKED):
        wrong = np.argwhere(~np.isfinite(array[first : first + CHECKED]))
        if len(wrong):
            place = (int(wrong[0][0]) + first, *map(int, wrong[0][1:]))
            raise DataError(
                f"{path} must hold finite numbers; got {array[place]} at {list(place)}; fill it in or leave it out"
            )


def _rows_of_numbers(path: str, table: Table) -> np.ndarray:
    """The rows of a table as one array, of whole numbers where all are."""
    if not table:
        raise DataError(f"{path} holds no items: it has no row of numbers")
    columns = [numbers(values, f"{path}, column '{name}'") for name, values in table.items()]
    return np.stack(columns, axis=1) if len(columns) > 1 else columns[0]


def numbers(values: Sequence[Any], where: str) -> np.ndarray:
    """Values as numbers, whole ones where all are; raise where one is none."""
    if all(_is_whole(value) for value in values):
        return np.array([int(value) for value in values])
    if all(_is_number(value) for value in values):
        return np.array([float(value) for value in values])
    wrong = next(number for number, value in enumerate(values, 1) if not _is_number(value))
    raise DataError(f"{where} must hold numbers; got {values[wrong - 1]!r:.60} in row {wrong}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and WHOLE.fullmatch(value.strip()) is not None)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def read_table(path: str) -> Table:
    """The columns of a table: CSV or TSV with or without a line of names, JSON lines, Parquet or Arrow, or several.

    A folder with a folder of texts for each class, one text a file, is a table with the columns `TEXT` and `LABEL`.

    Raises
    ------
    DataError
        If it cannot be read, a row has other columns than the first, or texts do not lie in folders.
    """
    sources = find_sources(path)
    if all(without_compression(source.path).endswith(PLAIN) for source in sources) and is_folder(path):
        return _of_folders(path, sources)
    return _merged(
        [one for source in sources for one in _tables_of(source, path if len(sources) == 1 else source.path)]
    )


def _tables_of(source: Source, path: str) -> list[Table]:
    with said(path), open_bytes(source.path) as file:
        if source.is_table:
            return list(read_columns(file, path, None))
        with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            if source.has_objects:
                return [_of_objects(path, [(number, line) for number, line in enumerate(text, 1) if line.strip()])]
            return [_of_lines(path, text)]


def _of_folders(path: str, sources: Sequence[Source]) -> Table:
    """Texts, and the folder of each, which is its class; what lies beside those folders, or is hidden, is none."""
    place = url_to_fs(path)[1].rstrip("/")
    found: dict[str, list[Source]] = {}
    for source in sources:
        one, *below = url_to_fs(source.path)[1].removeprefix(f"{place}/").split("/")
        if len(below) > 1:
            raise DataError(f"{source.path} must lie in the folder of its class in {path}, and no deeper")
        if below and not one.startswith("."):
            found.setdefault(one, []).append(source)
    if len(found) < FEWEST_CLASSES:
        raise DataError(f"{path} must be a table, or hold a folder of texts for each class; got {len(sources)} texts")
    texts = [("".join(read_pieces(source)).strip(), name) for name, some in found.items() for source in some]
    return {TEXT: [text for text, _ in texts], LABEL: [name for _, name in texts]}


def _merged(batches: Sequence[Table]) -> Table:
    """Tables one below the other."""
    for other in batches[1:]:
        if other.keys() != batches[0].keys():
            raise DataError(
                f"tables must have the same columns; got {', '.join(batches[0]) or 'none'} in the first, and "
                f"{', '.join(other) or 'none'} in a later one"
            )
    return {name: [value for batch in batches for value in batch[name]] for name in batches[0]} if batches else {}


def _of_objects(path: str, lines: Sequence[tuple[int, str]]) -> Table:
    rows = []
    for number, line in lines:
        try:
            row = parse_line(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: a JSON object is needed; got {line.strip()!r:.60}") from error
        if not isinstance(row, dict) or (rows and row.keys() != rows[0].keys()):
            wanted = f"with {', '.join(rows[0])}" if rows else "is needed"
            raise DataError(f"{path}, line {number}: a JSON object {wanted}; got {line.strip()!r:.60}")
        rows.append(row)
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _of_lines(path: str, text: io.TextIOWrapper) -> Table:
    """The columns of CSV or TSV; where the first line is of numbers alone, columns are named by their numbers."""
    rows = list(read_cells(text, path, "\t" if ".tsv" in path else ","))
    if not rows:
        return {}
    if len(rows[0]) == 1 and ";" in rows[0][0] and ".tsv" not in path:
        raise DataError(f"{path} has semicolons between its columns; commas are needed, or tabs in a .tsv file")
    named = not all(map(_is_number, rows[0]))
    names, rows = (rows[0], rows[1:]) if named else (list(map(str, range(1, len(rows[0]) + 1))), rows)
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)} if rows else {}
