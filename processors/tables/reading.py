"""Table reader: Parquet and CSV files in batches of rows, with memory that does not grow with the file.

A table is read twice at the same pace, once for the network and once for the result. Columns that are no input of the
network are therefore never kept in memory.
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

from penstock.errors import InvalidInput, Issue, MediaTooLarge, MediaUnreadable

_POINTER = "/input/table"
#: Bytes of a CSV file that are read at once; a row must fit into them.
_BLOCK_BYTES = 2**22
#: Bytes of a column's texts in a group of rows that may be any multiple of what the file stores, and the largest
#: multiple beyond.
_GROWN_BYTES, _MAX_GROWTH = 2**26, 200
_COLUMN = re.compile(r"CSV column #(\d+)")
#: A row's number in pyarrow's messages, which count the line of names as the first row.
_ROW = re.compile(r"\bRow #(\d+)")
_DELIMITERS = (";", "\t", "|", ",")


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table file, with the contents of its header."""

    path: Path
    #: Delimiter of a CSV file; None = Parquet.
    delimiter: str | None
    names: Sequence[str]
    #: Types of a Parquet file by column; empty for CSV.
    types: Mapping[str, pa.DataType]
    #: Number of rows: exact for Parquet, an upper bound for CSV.
    rows: int

    def batches(self, types: Mapping[str, pa.DataType], size: int) -> Iterator[pa.RecordBatch]:
        """Yield the columns in `types`, in that order, in batches of `size` rows; the last batch may be shorter.

        CSV values are converted to these types; Parquet keeps its own. Raises `MediaUnreadable` if the file is damaged,
        and `InvalidInput` for values that cannot be converted.
        """
        with pyarrow_errors(self.names):
            yield from _rebatched(self._batches(types, size), size)

    def _batches(self, types: Mapping[str, pa.DataType], size: int) -> Iterator[pa.RecordBatch]:
        if self.delimiter is None:
            with parquet.ParquetFile(self.path, pre_buffer=False) as file:
                yield from file.iter_batches(batch_size=size, columns=list(types), use_threads=False)
            return
        convert = csv.ConvertOptions(column_types=types, include_columns=list(types), strings_can_be_null=False)
        with self.path.open("rb") as file, _open_csv(file, self.delimiter, convert) as reader:
            yield from reader


def open_table(path: Path, delimiter: str) -> TableFile:
    """Read a table's header; raise `MediaUnreadable` if the file is neither Parquet nor CSV."""
    with path.open("rb") as file:
        start = file.read(4096)
    if start[:4] == b"PAR1":
        with pyarrow_errors(()), parquet.ParquetFile(path) as table:
            schema = table.schema_arrow
            _check_growth(table.metadata)
            return TableFile(
                path, None, schema.names, dict(zip(schema.names, schema.types, strict=True)), table.metadata.num_rows
            )
    if b"\0" in start:
        raise MediaUnreadable("The file is not a table in a supported format: Parquet, or CSV in UTF-8.")
    header = start.splitlines()[0].decode(errors="replace") if start else ""
    hint = _delimiter_hint(header, delimiter) if delimiter not in header else ""
    with pyarrow_errors((), hint), path.open("rb") as file, _open_csv(file, delimiter, csv.ConvertOptions()) as reader:
        names = _header(reader)
    return TableFile(path, delimiter, names, {}, _max_rows(path))


def _check_growth(metadata: parquet.FileMetaData) -> None:
    """Raise `MediaTooLarge` for texts that take far more memory than bytes of the file: a cell is decoded whole."""
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        for number in range(rows.num_columns):
            column = rows.column(number)
            grown, stored = column.total_uncompressed_size, max(1, column.total_compressed_size)
            if column.physical_type == "BYTE_ARRAY" and grown > _GROWN_BYTES and grown > _MAX_GROWTH * stored:
                raise MediaTooLarge(
                    f"The table's column {column.path_in_schema!r} takes {grown:,} bytes in memory, from {stored:,} in "
                    f"the file; beyond {_GROWN_BYTES:,} it may grow {_MAX_GROWTH} times."
                )


def check_columns(table: TableFile, needed: Collection[str], added: Collection[str]) -> None:
    """Raise `InvalidInput` if a needed column is missing or not unique, or if an added column already exists."""
    have = set(table.names)
    if lacking := [name for name in needed if name not in have]:
        there = ", ".join(map(repr, table.names)) or "none"
        hint = "" if len(have) > 1 or table.delimiter is None else f". {_delimiter_hint(there, table.delimiter)}"
        what = "column" if len(lacking) == 1 else "columns"
        raise _wrong(f"The table lacks the {what} {', '.join(map(repr, lacking))}; it has: {there}{hint}")
    if twice := [name for name in needed if list(table.names).count(name) > 1]:
        raise _wrong(f"The table has the column {twice[0]!r} more than once.")
    if taken := [name for name in added if name in have]:
        raise _wrong(f"The table already has a column {taken[0]!r}: rename it, or set keep_columns = false.")


def _header(reader: csv.CSVStreamingReader) -> Sequence[str]:
    try:
        return list(reader.schema.names)
    except UnicodeDecodeError as error:
        raise _wrong("The table does not fit: the line of column names is not UTF-8.") from error


def _delimiter_hint(header: str, delimiter: str) -> str:
    """Return a hint that the delimiter may be wrong, with another delimiter that the text contains."""
    other = next((sign for sign in _DELIMITERS if sign != delimiter and sign in header), None)
    return f"Is its delimiter {delimiter!r}?" + (f" Its first line contains {other!r}." if other else "")


def _wrong(detail: str) -> InvalidInput:
    return InvalidInput(detail, errors=[Issue(_POINTER, detail)])


def _open_csv(file: Any, delimiter: str, convert: csv.ConvertOptions) -> csv.CSVStreamingReader:
    return csv.open_csv(
        file,
        read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=convert,
    )


def _max_rows(path: Path) -> int:
    """Return the maximum number of rows of a CSV file: the number of its line ends."""
    ends = {b"\n": 0, b"\r": 0}
    with path.open("rb") as file:
        while block := file.read(2**20):
            for end in ends:
                ends[end] += block.count(end)
    return max(ends.values())


def _rebatched(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of `size`."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for piece in batches:
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
def pyarrow_errors(names: Sequence[str], hint: str = "") -> Iterator[None]:
    """Translate pyarrow's errors about a file; no other code depends on the words of pyarrow's messages.

    `hint` is added to errors about rows with a wrong number of columns.
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
        note = f" {hint}" if hint and "Expected" in words else ""
        raise MediaUnreadable(f"The table cannot be read: {words}.{note}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise MediaUnreadable(f"The table cannot be read: {error}.") from error


def _named(names: Sequence[str], number: int) -> str:
    return f"column {names[number]!r}" if number < len(names) else f"column {number + 1}"
