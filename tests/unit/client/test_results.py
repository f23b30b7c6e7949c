"""A result in the interactive interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from penstock.client.answers import ClientError, Job
from penstock.client.decoding import read
from penstock.client.results import Result


def test_a_result_prints_as_one_short_line() -> None:
    files = [{"name": "a.tif", "content_type": "image/tiff", "size_bytes": 1, "sha256": "", "url": "http://s/a"}]
    base = {"id": "j1", "model": "csmask", "status": "succeeded", "created_at": "2026-01-01T00:00:00Z"}
    result = Result(read(Job, {**base, "artifacts": files}), Path("out"), "http://s/ui")
    assert repr(result) == "<Result of csmask, job j1: a.tif>"


def result_of(folder: Path, name: str, content_type: str) -> Result:
    file = {"name": name, "content_type": content_type, "size_bytes": 1, "sha256": "", "url": "http://s/a"}
    base = {"id": "j1", "model": "m", "status": "succeeded", "created_at": "2026-01-01T00:00:00Z"}
    return Result(read(Job, {**base, "artifacts": [file]}), folder, "http://s/ui")


@pytest.mark.parametrize(("metadata", "library"), [({"geo": "{}"}, "geopandas"), (None, "pandas")])
def test_geoparquet_opens_as_vectors_and_other_parquet_as_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: dict[str, str] | None, library: str
) -> None:
    parquet.write_table(pyarrow.table({"a": [1]}).replace_schema_metadata(metadata), tmp_path / "a.parquet")
    for name in ("geopandas", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ClientError, match=f"needs {library}:"):
        result_of(tmp_path, "a.parquet", "application/vnd.apache.parquet").open()


def test_text_is_read_as_utf_8(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes('{"a": "Grüße"}'.encode())
    code = (
        "import sys; from pathlib import Path; from penstock.client.results import _opener; "
        "path = Path(sys.argv[1]); assert _opener(path)(path) == {'a': 'Gr\\u00fc\\u00dfe'}"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", code, tmp_path / "a.json"], env=env, check=True)
