"""Tabular prediction: adds a network's predictions to the rows of a CSV or Parquet file."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as parquet

from penstock.errors import MediaTooLarge
from penstock.models import Limits, Model
from penstock.processors.base import (
    ArtifactSink,
    Dummy,
    Media,
    Output,
    OutputSpec,
    Prepared,
    Prompt,
    Result,
    final_outputs,
)
from penstock.processors.io_signature import IOSignature
from penstock.processors.tables.features import INPUT_NAME, arrow_types, check_types, features
from penstock.processors.tables.options import Column, TableOptions, read_options
from penstock.processors.tables.reading import TableFile, check_columns, open_table
from penstock.processors.tables.request import TabularRequest, request_for
from penstock.processors.tables.writing import PredictionWriter, check_kept, predictions
from penstock.views import View

#: Rows of `head`.
_HEAD_ROWS = 10
_TYPES = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class TabularContext:
    """Request state for `post_process`."""

    request: TabularRequest
    table: TableFile
    #: Masks of the rows without a prediction, one per unfinished prompt.
    pending: deque[npt.NDArray[np.bool_]] = field(default_factory=deque)


class Tabular:
    """The tabular processor."""

    request: type[TabularRequest] = TabularRequest
    outputs = (
        OutputSpec("parquet", _TYPES["parquet"], "predictions.parquet: a row for each row of the table"),
        OutputSpec("csv", _TYPES["csv"], "predictions.csv: the same as CSV", default=False),
    )

    views = (View("rows", "/head"),)
    #: The names are those of a model's options.
    io_signatures = (IOSignature(prompt={"*": "array (rows, columns)"}, output={"*": "array (rows, ...)"}),)

    def __init__(self, model: Model) -> None:
        self._limits = model.limits
        self._options = read_options(model)
        self.request = request_for({column.name: column.categories for column in self._options.columns})
        self.io_signatures = (_signature(self._options),)

    def pre_process(self, request: TabularRequest, media: Media) -> Prepared[TabularContext]:
        """Return one prompt per batch of rows.

        `Prepared.count` and `cost` are upper bounds for CSV, because a quoted value may contain line ends.
        """
        options = self._options
        table = open_table(media.path(request.table), request.delimiter)
        check_columns(table, options.names, options.predicted if request.keep_columns else ())
        check_types(table.types, options)
        check_kept(table, request.outputs, keep=request.keep_columns)
        if table.delimiter is None:
            self._check_rows(table.rows)
        context = TabularContext(request, table)
        count, unit = -(-table.rows // options.batch_rows), f"batches of {options.batch_rows} rows"
        return Prepared(self._prompts(context), count, table.rows, context, unit=unit)

    def post_process(self, outputs: Iterator[Output], context: TabularContext, sink: ArtifactSink) -> Result:
        """Write the artifacts and return `{"rows", "without_prediction", "columns", "head"}`.

        `columns` are the added ones, and `head` has their values in the first rows.
        """
        request, rows, without, head = context.request, 0, 0, list[dict[str, Any]]()
        with ExitStack() as stack:
            sheets = {kind: self._sheet(kind, context, sink) for kind in dict.fromkeys(request.outputs)}
            for sheet in sheets.values():
                stack.enter_context(closing(sheet))
            for output in final_outputs(outputs):
                batch, absent = predictions(output, self._options, context.pending.popleft())
                rows, without = rows + len(absent), without + int(absent.sum())
                head += map(_json_row, batch.slice(0, _HEAD_ROWS - len(head)).to_pylist())
                for sheet in sheets.values():
                    sheet.add(batch)
            for kind, sheet in sheets.items():
                sheet.finish()
                name = f"predictions.{kind}"
                sink.add(name, sink.path(name), media_type=_TYPES[kind])
        columns = list(self._options.predicted)
        return Result(data={"rows": rows, "without_prediction": without, "columns": columns, "head": head})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a table with one batch of rows."""
        rows = min(self._options.batch_rows, limits.max_items or self._options.batch_rows)
        path = folder / "dummy.parquet"
        columns = {column.name: _noise(column, rows) for column in self._options.columns}
        parquet.write_table(pa.table(columns), path)
        return Dummy({"table": "media://dummy"}, {"media://dummy": path})

    def _prompts(self, context: TabularContext) -> Iterator[Prompt]:
        options, first = self._options, 1
        for batch in context.table.batches(arrow_types(options), options.batch_rows):
            self._check_rows(first - 1 + batch.num_rows)
            data, missing = features(batch, options, first)
            context.pending.append(missing)
            first += batch.num_rows
            yield Prompt(data, cost=batch.num_rows)

    def _check_rows(self, rows: int) -> None:
        most = self._limits.max_items
        if most is not None and rows > most:
            raise MediaTooLarge(f"The table has {rows} rows or more; this model accepts at most {most}.")

    def _sheet(self, kind: str, context: TabularContext, sink: ArtifactSink) -> PredictionWriter:
        request = context.request
        path = sink.path(f"predictions.{kind}")
        return PredictionWriter(
            path, kind, context.table, self._options, keep=request.keep_columns, delimiter=request.delimiter
        )


def _signature(options: TableOptions) -> IOSignature:
    """Return the values of a batch of rows, see `features`, and of its predictions."""
    if options.inputs == "matrix":
        prompt = {INPUT_NAME: f"{options.columns[0].dtype} (rows, {len(options.columns)})"}
    else:
        prompt = {column.name: f"{column.dtype} (rows, 1)" for column in options.columns}
    return IOSignature(prompt=prompt, output={wanted.output: "array (rows, ...)" for wanted in options.predictions})


def _noise(column: Column, rows: int) -> Any:
    rng = np.random.default_rng(0)
    if column.categories:
        return pa.array([column.categories[i] for i in rng.integers(0, len(column.categories), rows)])
    return rng.integers(0, 2, rows).astype(column.dtype)


def _json_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of labels and float32 numbers as JSON has them: seven digits, and null for an infinite number."""
    return {
        name: value if not isinstance(value, float) else float(f"{value:.7g}") if math.isfinite(value) else None
        for name, value in row.items()
    }
