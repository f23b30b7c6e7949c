"""Features: the network's input arrays from a batch of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInput, Issue
from penstock.processors.tables.options import Column, TableOptions

#: The only input of a network with `inputs = "matrix"`: (rows, columns).
INPUT_NAME = "features"

_ARROW = {
    "float32": pa.float64(),
    "float64": pa.float64(),
    "int32": pa.int64(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
}


def arrow_types(options: TableOptions) -> dict[str, pa.DataType]:
    """Return the Arrow types with which the network's columns are read from a CSV file."""
    return {column.name: pa.string() if column.categories else _ARROW[column.dtype] for column in options.columns}


def check_types(types: Mapping[str, pa.DataType], options: TableOptions) -> None:
    """Raise `InvalidInput` for columns of a Parquet file whose types do not fit the network."""
    wrong = [
        f"{column.name!r} holds {types[column.name]}, not {_wanted(column)}"
        for column in options.columns
        if column.name in types and not _suits(types[column.name], column)
    ]
    if wrong:
        detail = f"The table does not fit: {'; '.join(wrong)}."
        raise InvalidInput(detail, errors=[Issue("/input/table", detail)])


def features(
    batch: pa.RecordBatch, options: TableOptions, first_row: int
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.bool_]]:
    """Return the network's inputs, and a mask of the rows without a prediction.

    `first_row` is the number of the batch's first row in the table, from 1. Raises `InvalidInput` for an unknown
    category, an infinite number, and, with `missing = "refuse"`, a missing value.
    """
    missing = np.zeros(batch.num_rows, bool)
    columns = {}
    for column in options.columns:
        numbers, absent = _numbers(batch.column(column.name), column, first_row)
        if options.missing == "refuse" and absent.any():
            raise _at(column, first_row, absent, "is empty")
        missing |= absent
        if options.missing == "nan":
            numbers = np.where(absent, np.nan, numbers)
        columns[column.name] = numbers.astype(column.dtype)
    missing &= options.missing == "skip"
    if options.inputs == "columns":
        return {name: numbers[:, None] for name, numbers in columns.items()}, missing
    return {INPUT_NAME: np.stack(list(columns.values()), axis=1)}, missing


def _numbers(values: pa.Array, column: Column, first_row: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return a column's numbers, with 0 for missing values, and a mask of the missing values."""
    if column.categories:
        return _codes(values, column, first_row)
    try:
        numbers = values.cast(_ARROW[column.dtype])
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"The table does not fit: column {column.name!r} is not {_wanted(column)}: {error}."
        ) from error
    absent = np.asarray(pc.is_null(numbers, nan_is_null=pa.types.is_floating(numbers.type)))
    plain = np.asarray(pc.fill_null(numbers, False if column.dtype == "bool" else 0))
    plain = np.where(absent, np.zeros((), plain.dtype), plain)
    with np.errstate(over="ignore"):
        endless = np.isinf(plain.astype(column.dtype))
    if plain.dtype.kind == "f" and (infinite := np.isinf(plain)).any():
        raise _at(column, first_row, infinite, "is infinite")
    if endless.any():
        raise _at(column, first_row, endless, f"is too large for {column.dtype}")
    if column.dtype == "int32" and (wide := plain != plain.astype(np.int32)).any():
        raise _at(column, first_row, wide, "is too large for int32")
    return plain, absent


def _codes(values: pa.Array, column: Column, first_row: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    words = values.cast(pa.string())
    absent = np.asarray(pc.fill_null(pc.equal(pc.utf8_trim_whitespace(words), ""), True))
    codes = pc.index_in(words, value_set=pa.array(column.categories, pa.string()))
    unknown = np.asarray(pc.is_null(codes)) & ~absent
    if unknown.any():
        word, known = words[int(unknown.argmax())].as_py(), ", ".join(column.categories)
        raise _at(column, first_row, unknown, f"is {word!r}; known categories: {known}")
    return np.asarray(pc.fill_null(codes, 0)), absent


def _at(column: Column, first_row: int, where: npt.NDArray[np.bool_], what: str) -> InvalidInput:
    """Return an error that names the first row of the mask `where`."""
    detail = f"The table does not fit: column {column.name!r} in row {first_row + int(where.argmax())} {what}."
    return InvalidInput(detail, errors=[Issue("/input/table", detail)])


def _wanted(column: Column) -> str:
    if column.categories:
        return "words"
    return {"bool": "true or false", "int32": "whole numbers", "int64": "whole numbers"}.get(column.dtype, "numbers")


def _suits(kind: pa.DataType, column: Column) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    words = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if column.categories:
        return bool(words)
    if column.dtype == "bool":
        return bool(pa.types.is_boolean(kind))
    numbers = pa.types.is_integer(kind) or pa.types.is_null(kind)
    if column.dtype.startswith("int"):
        return bool(numbers)
    return bool(numbers or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
