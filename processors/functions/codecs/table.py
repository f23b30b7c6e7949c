"""Tables: CSV, Parquet or JSON lines in, as Arrow's stream; Parquet out, with the first rows in the answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet
from pyarrow import json as lines

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.base import ArtifactSink

#: Rows of a table that the answer shows, and bytes of a table in memory.
SHOWN_ROWS, MAX_BYTES = 20, 2**30


def decode(source: Path, options: Mapping[str, Any], limits: Limits) -> bytes:  # noqa: ARG001  (a codec's form)
    """Return the table as bytes of Arrow's stream; raise `MediaUnreadable` or `MediaTooLarge`."""
    try:
        with source.open("rb") as file:
            head = file.read(64)
        if head[:4] == b"PAR1":
            size = sum(group.total_byte_size for group in _groups(parquet.read_metadata(source)))
            if size > MAX_BYTES:
                raise MediaTooLarge(f"The table takes {size:,} bytes in memory; at most {MAX_BYTES:,} are allowed.")
            table = parquet.read_table(source)
        elif head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            table = lines.read_json(source)
        else:
            table = csv.read_csv(source)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MediaUnreadable(f"The table cannot be read as CSV, Parquet or JSON lines: {error}") from error
    if table.nbytes > MAX_BYTES:
        raise MediaTooLarge(f"The table takes {table.nbytes:,} bytes in memory; at most {MAX_BYTES:,} are allowed.")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def encode(sink: ArtifactSink, name: str, value: Any) -> dict[str, Any]:
    """Write Arrow's stream as Parquet."""
    table = pa.ipc.open_stream(pa.py_buffer(value)).read_all()
    file = f"{name or 'table'}.parquet"
    path = sink.path(file)
    parquet.write_table(table, path)
    sink.add(file, path, media_type="application/vnd.apache.parquet")
    shown = [{str(key): _plain(one) for key, one in row.items()} for row in table.slice(0, SHOWN_ROWS).to_pylist()]
    return {"columns": table.column_names, "count": table.num_rows, "rows": shown}


def _groups(metadata: Any) -> list[Any]:
    return [metadata.row_group(at) for at in range(metadata.num_row_groups)]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    return value if value is None or isinstance(value, bool | int | str | list | dict) else str(value)
