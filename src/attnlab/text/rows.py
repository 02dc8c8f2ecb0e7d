"""Rows of tables: CSV and TSV, Parquet, and Arrow files such as Hugging Face's ``datasets`` saves."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from attnlab.core.errors import DataError
from attnlab.text.compressed import without_compression

PARQUET, ARROW = ".parquet", ".arrow"
TABLES = (PARQUET, ARROW)
"""Endings of tables."""
COMMAS, TABS = ".csv", ".tsv"
"""Endings of tables of plain text."""
LONGEST_CELL = 2**31 - 1  # characters of one of theirs; Python stops at 2**17, which a document has
ROWS = 1024  # that are read together
ARROW_FILE = b"ARROW1"  # how Arrow's file form begins; its stream form, which ``datasets`` writes, does not


def read_cells(
    lines: Iterable[str], path: str, delimiter: str, *, before: int = 0, count: int = 0
) -> Iterator[list[str]]:
    """The cells of each row of CSV or TSV that is not empty.

    Between tabs a quote is a character like others, unless a cell begins and ends with one.

    Parameters
    ----------
    lines : iterable of str
        The lines, with their ends.
    path : str
        The file, for what is said of it.
    delimiter : str
        What stands between cells.
    before : int
        How many lines of the file stand before.
    count : int
        How many cells each row has; by default as many as the first.

    Raises
    ------
    DataError
        If a row has another number of cells, or a quote is not closed, or does not end its cell.
    """
    csv.field_size_limit(LONGEST_CELL)
    tabs = delimiter == "\t"
    reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL)
    begins = before + 1
    try:
        for row in filter(None, reader):
            count = count or len(row)
            if len(row) != count:
                quotes = "; tabs and line breaks within quotes are read of CSV alone" if tabs else ""
                raise DataError(f"{path}, line {begins}: {count} columns are needed; got {len(row)}{quotes}")
            yield list(map(_without_quotes, row)) if tabs else row
            begins = before + reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {begins}: the row that begins here is no CSV: {error}") from error


def _without_quotes(cell: str) -> str:
    """A cell without the quotes around it, where all within it are doubled."""
    inner = cell[1:-1].replace('""', "") if len(cell) > 1 and cell[0] == cell[-1] == '"' else '"'
    return cell if '"' in inner else cell[1:-1].replace('""', '"')


def read_columns(file: BinaryIO, path: str, columns: list[str] | None) -> Iterator[dict[str, list[Any]]]:
    """Columns of a table, all of them unless some are named, some rows at a time.

    Raises
    ------
    DataError
        If pyarrow is not installed, or the table has no such column.
    """
    try:
        import pyarrow as pa
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise DataError(f"{path} needs pyarrow: pip install 'attnlab[parquet]'") from error
    try:
        if without_compression(path).lower().endswith(PARQUET):
            table = parquet.ParquetFile(file)
            known, batches = table.schema_arrow.names, table.iter_batches(ROWS, columns=columns)
        else:
            is_file = file.read(len(ARROW_FILE)) == ARROW_FILE
            file.seek(0)
            opened = ipc.open_file(file) if is_file else ipc.open_stream(file)
            known = opened.schema.names
            batches = map(opened.get_batch, range(opened.num_record_batches)) if is_file else iter(opened)
        if missing := [name for name in columns or () if name not in known]:
            raise DataError(f"{path} has no column '{missing[0]}'; it has {', '.join(known)}")
        for batch in batches:
            yield {name: batch.column(name).to_pylist() for name in columns or known}
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from error


def read_texts(file: BinaryIO, path: str, column: str) -> Iterator[str]:
    """The texts in a column of a table, one a row.

    Raises
    ------
    DataError
        As in `read_columns`, or if a row has no text there.
    """
    rows = (text for batch in read_columns(file, path, [column]) for text in batch[column])
    for number, text in enumerate(rows, start=1):
        if not isinstance(text, str):
            raise DataError(f"{path}, row {number}: a text in '{column}' is needed; got {text!r:.60}")
        yield text
