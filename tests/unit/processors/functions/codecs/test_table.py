from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.errors import MediaUnreadable
from penstock.models import Limits
from penstock.processors.functions.codecs import table
from penstock.processors.testing import FolderSink

ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_tables_of_each_format_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "t.parquet":
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text("a,b\n1,x\n2,\n" if name == "t.csv" else '{"a": 1, "b": "x"}\n{"a": 2, "b": null}\n')
    read = pa.ipc.open_stream(table.decode(path, {}, Limits())).read_all().to_pylist()
    assert [{**row, "b": row["b"] or None} for row in read] == ROWS


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and nothing")
    with pytest.raises(MediaUnreadable, match="cannot be read as CSV, Parquet or JSON lines"):
        table.decode(tmp_path / "t.parquet", {}, Limits())


def test_the_answer_shows_the_first_rows(tmp_path: Path) -> None:
    whole = pa.table({"n": range(50), "x": [float("nan")] * 50})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    (tmp_path / "out").mkdir()
    told = table.encode(FolderSink(tmp_path / "out"), "", bytes(sink.getvalue()))
    assert (told["count"], len(told["rows"]), told["rows"][3]) == (50, 20, {"n": 3, "x": None})
