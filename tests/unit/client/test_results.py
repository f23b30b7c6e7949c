"""A result in the interactive interpreter."""

from __future__ import annotations

from pathlib import Path

from penstock.client.answers import read_job
from penstock.client.results import Result


def test_a_result_prints_as_one_short_line() -> None:
    files = [{"name": "a.tif", "content_type": "image/tiff", "size_bytes": 1, "sha256": "", "url": "http://s/a"}]
    base = {"id": "j1", "model": "csmask", "status": "succeeded", "created_at": "2026-01-01T00:00:00Z"}
    result = Result(read_job({**base, "artifacts": files}), Path("out"), "http://s/ui")
    assert repr(result) == "<Result of csmask, job j1: a.tif>"
