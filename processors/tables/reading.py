"""Tables read in batches of rows: Parquet and CSV files, in memory that does not grow with them.

A table is read twice at the same pace, once for the network and once for the result, so that columns which the network
does not see are never kept while it works.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from penstock.errors import InvalidInput, MediaUnreadable
from penstock.reports import Issue

_POINTER = "/input/table"
#: A CSV file is read in pieces of this size, of which each must hold a row at least.
_BLOCK_BYTES = 2**22
_COLUMN = re.compile(r"CSV column #(\d+)")
#: pyarrow counts the line of names as the first row.
_ROW = re.compile(r"\bRow #(\d+)")
_DELIMITERS = (";", "\t", "|", ",")


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table whose header was read."""

    path: Path
    #: None = Parquet.
    delimiter: str | None
    names: Sequence[str]
    #: Of a Parquet file, by column; CSV files say nothing of types.
    types: Mapping[str, pa.DataType]
    #: Exactly in a Parquet file, at most in a CSV file.
    rows: int

    def batches(self, types: Mapping[str, pa.DataType], size: int) -> Iterator[pa.RecordBatch]:
        """Yield the columns in `types`, in that order, in batches of `size` rows; the last one may be shorter.

        CSV is read as these types; Parquet has its own. Raises `MediaUnreadable` where the file is damaged, and
        `InvalidInput` for what is not of the type.
        """
        with reading(self.names):
            yield from _evenly(self._pieces(types, size), size)

    def _pieces(self, types: Mapping[str, pa.DataType], size: int) -> Iterator[pa.RecordBatch]:
        if self.delimiter is None:
            with parquet.ParquetFile(self.path, pre_buffer=False) as file:
                yield from file.iter_batches(batch_size=size, columns=list(types), use_threads=False)
            return
        convert = csv.ConvertOptions(column_types=types, include_columns=list(types), strings_can_be_null=False)
        with self.path.open("rb") as file, _open_csv(file, self.delimiter, convert) as reader:
            yield from reader


def open_table(path: Path, delimiter: str) -> TableFile:
    """Read a table's header; raise `MediaUnreadable` for what is neither Parquet nor CSV."""
    with path.open("rb") as file:
        start = file.read(4096)
    if start[:4] == b"PAR1":
        with reading(()), parquet.ParquetFile(path) as table:
            schema = table.schema_arrow
            return TableFile(
                path, None, schema.names, dict(zip(schema.names, schema.types, strict=True)), table.metadata.num_rows
            )
    if b"\0" in start:
        raise MediaUnreadable("The file is no table that is taken here: Parquet, or CSV in UTF-8.")
    header = start.splitlines()[0].decode(errors="replace") if start else ""
    doubt = _doubt(header, delimiter) if delimiter not in header else ""
    with reading((), doubt), path.open("rb") as file, _open_csv(file, delimiter, csv.ConvertOptions()) as reader:
        names = _header(reader)
    return TableFile(path, delimiter, names, {}, _most_rows(path))


def check_columns(table: TableFile, needed: Collection[str], added: Collection[str]) -> None:
    """Raise `InvalidInput` for a table that lacks a column, has one twice, or has one that would be added."""
    have = set(table.names)
    if lacking := [name for name in needed if name not in have]:
        there = ", ".join(map(repr, table.names)) or "none"
        hint = "" if len(have) > 1 or table.delimiter is None else f". {_doubt(there, table.delimiter)}"
        what = "column" if len(lacking) == 1 else "columns"
        raise _wrong(f"The table lacks the {what} {', '.join(map(repr, lacking))}; it has: {there}{hint}")
    if twice := [name for name in needed if list(table.names).count(name) > 1]:
        raise _wrong(f"The table has the column {twice[0]!r} more than once.")
    if taken := [name for name in added if name in have]:
        raise _wrong(f"The table has a column {taken[0]!r} already: rename it, or ask for keep_columns = false.")


def _header(reader: csv.CSVStreamingReader) -> Sequence[str]:
    try:
        return list(reader.schema.names)
    except UnicodeDecodeError as error:
        raise _wrong("The table does not fit: the line of column names is not UTF-8.") from error


def _doubt(header: str, delimiter: str) -> str:
    """Return the question whether a table of one column has another delimiter, and which one stands there."""
    other = next((sign for sign in _DELIMITERS if sign != delimiter and sign in header), None)
    return f"Is its delimiter {delimiter!r}?" + (f" There is {other!r} in its first line." if other else "")


def _wrong(detail: str) -> InvalidInput:
    return InvalidInput(detail, errors=[Issue(_POINTER, detail)])


def _open_csv(file: Any, delimiter: str, convert: csv.ConvertOptions) -> csv.CSVStreamingReader:
    return csv.open_csv(
        file,
        read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=convert,
    )


def _most_rows(path: Path) -> int:
    """Return how many rows a CSV file has at most: one for each end of a line, whichever kind the file has."""
    ends = {b"\n": 0, b"\r": 0}
    with path.open("rb") as file:
        while block := file.read(2**20):
            for end in ends:
                ends[end] += block.count(end)
    return max(ends.values())


def _evenly(pieces: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of `size`."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for piece in pieces:
        waiting.append(piece)
        count += piece.num_rows
        while count >= size:
            rows = pa.Table.from_batches(waiting)
            yield _batch(rows.slice(0, size))
            count -= size
            waiting = rows.slice(size).to_batches() if count else []
    if count:
        yield _batch(pa.Table.from_batches(waiting))


def _batch(table: pa.Table) -> pa.RecordBatch:
    [batch] = table.combine_chunks().to_batches()
    return batch


@contextmanager
def reading(names: Sequence[str], doubt: str = "") -> Iterator[None]:
    """Translate what pyarrow raises of a file: the only place that knows its words.

    `doubt` is said of rows with another number of columns.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        words = _COLUMN.sub(lambda found: _named(names, int(found[1])), str(error)).strip()
        words = _ROW.sub(lambda found: f"row {int(found[1]) - 1}", words)
        if "conversion error" in words:
            raise _wrong(f"The table does not fit: {words}.") from error
        if "straddling" in words:
            words = f"a row has more than {_BLOCK_BYTES} bytes"
        asked = f" {doubt}" if doubt and "Expected" in words else ""
        raise MediaUnreadable(f"The table cannot be read: {words}.{asked}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise MediaUnreadable(f"The table cannot be read: {error}.") from error


def _named(names: Sequence[str], number: int) -> str:
    return f"column {names[number]!r}" if number < len(names) else f"column {number + 1}"
