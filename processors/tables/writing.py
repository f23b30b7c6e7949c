"""Prediction files: tables that are written batch by batch, optionally with the input's columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.base import Output
from penstock.processors.tables.features import arrow_types
from penstock.processors.tables.options import Prediction, TableOptions
from penstock.processors.tables.reading import TableFile

#: Minimum number of rows per row group of a Parquet file.
_GROUP_ROWS = 2**17
#: Maximum bytes of rows in memory.
_GROUP_BYTES = 2**26


class PredictionWriter:
    """Writer of one file of predictions."""

    def __init__(
        self, path: Path, kind: str, table: TableFile, options: TableOptions, *, keep: bool, delimiter: str
    ) -> None:
        self._path, self._is_csv, self._delimiter = path, kind == "csv", delimiter
        self._kept = self._open_kept(table, options) if keep else None
        self._empty = _empty(table, options, as_text=self._is_csv, keep=keep)
        self._writer: Any = None
        self._waiting: list[pa.RecordBatch] = []

    def add(self, predicted: pa.RecordBatch) -> None:
        """Write the predictions of the next rows."""
        if self._kept is not None:
            kept = next(self._kept)
            if kept.num_rows != predicted.num_rows:
                raise ProcessorFailed("The table changed between its two readings.")
            predicted = pa.RecordBatch.from_arrays(
                [*kept.columns, *predicted.columns], [*kept.schema.names, *predicted.schema.names]
            )
        self._waiting.append(predicted)
        held = sum(batch.num_rows for batch in self._waiting), sum(batch.nbytes for batch in self._waiting)
        if held[0] >= _GROUP_ROWS or held[1] >= _GROUP_BYTES:
            self._flush()

    def finish(self) -> None:
        """Write the remaining rows; without any rows, write the column names."""
        if not self._waiting and self._writer is None:
            self._waiting.append(self._empty)
        self._flush()
        self.close()

    def close(self) -> None:
        """Close the input and the output file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._kept is not None:
            self._kept.close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting = []
        if self._writer is None:
            self._writer = self._open(rows.schema)
        self._writer.write_table(rows)

    def _open(self, schema: pa.Schema) -> Any:
        if not self._is_csv:
            return parquet.ParquetWriter(self._path, schema)
        return csv.CSVWriter(self._path, schema, write_options=csv.WriteOptions(delimiter=self._delimiter))

    def _open_kept(self, table: TableFile, options: TableOptions) -> Any:
        return table.batches(_kept_types(table, options, as_text=self._is_csv), options.batch_rows)


def check_kept(table: TableFile, kinds: Sequence[str], *, keep: bool) -> None:
    """Raise `InvalidInput` if columns that are kept cannot be written as CSV."""
    nested = [name for name, kind in table.types.items() if pa.types.is_nested(kind)]
    if keep and nested and "csv" in kinds:
        raise InvalidInput(
            f"The table's column {nested[0]!r} holds {table.types[nested[0]]}, which CSV cannot store: request parquet."
        )


def predictions(
    output: Output, options: TableOptions, missing: npt.NDArray[np.bool_]
) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
    """Return an output's columns and the mask of rows without a prediction; raise `ProcessorFailed` for others."""
    columns, absent = [], missing.copy()
    for prediction in options.predictions:
        if prediction.output not in output.data:
            there = ", ".join(map(repr, output.data))
            raise ProcessorFailed(f"The network has no output {prediction.output!r}; its outputs: {there}.")
        numbers = _table(output.data[prediction.output], prediction, len(missing))
        for column in numbers.T:
            without = missing | (np.isnan(column) if column.dtype.kind == "f" else False)
            absent |= without
            columns.append(_named(column, prediction, without))
    return pa.RecordBatch.from_arrays(columns, list(options.predicted)), absent


def _table(array: Any, prediction: Prediction, rows: int) -> npt.NDArray[Any]:
    wanted = (rows, len(prediction.columns))
    numbers = np.asarray(array)
    if numbers.shape == (rows,):
        numbers = numbers[:, None]
    if not isinstance(array, np.ndarray) or numbers.shape != wanted:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else "no array"
        raise ProcessorFailed(f"The network's output {prediction.output!r} is {found}; expected {wanted}.")
    return numbers


def _named(column: npt.NDArray[Any], prediction: Prediction, without: npt.NDArray[np.bool_]) -> pa.Array:
    """Return a column of numbers, or of the labels of its ids."""
    if not prediction.labels:
        return pa.array(np.ascontiguousarray(column), mask=without)
    ids = np.where(without, 0, column)
    known = (ids >= 0) & (ids < len(prediction.labels)) & (ids == np.floor(ids))
    if not known.all():
        unknown = ids[~known][0]
        raise ProcessorFailed(f"The network answered class {unknown}, but there are {len(prediction.labels)} labels.")
    return pa.array(np.array(prediction.labels, dtype=object)[ids.astype(int)], pa.string(), mask=without)


def _kept_types(table: TableFile, options: TableOptions, *, as_text: bool) -> dict[str, pa.DataType]:
    """Return the types of the table's own columns; columns that are no input of the network stay text.

    Types are never guessed from a file's values: `007` stays text unless the options declare a number.
    """
    own = {} if as_text else arrow_types(options)
    return {name: own.get(name, pa.string()) for name in table.names}


def _empty(table: TableFile, options: TableOptions, *, as_text: bool, keep: bool) -> pa.RecordBatch:
    kept = {**_kept_types(table, options, as_text=as_text), **table.types} if keep else {}
    made = {
        name: pa.string() if prediction.labels else pa.float32()
        for prediction in options.predictions
        for name in prediction.columns
    }
    schema = pa.schema(list({**kept, **made}.items()))
    return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)
