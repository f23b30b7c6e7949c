"""The files of a batch's results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.client.answers import ClientError
from penstock.client.batch_files import ERRORS, RESULTS, is_small, line_folders, outcomes, write_requests

FILE = {"name": "map.tif", "size_bytes": 1, "sha256": "x"}


def write(path: Path, *lines: dict[str, object]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_lines_come_in_order_from_both_files_and_those_with_files_have_a_folder_each(tmp_path: Path) -> None:
    done = {"status": "succeeded", "job_id": "j", "artifacts": [FILE]}
    write(
        tmp_path / RESULTS,
        {"line": 1, "custom_id": "north", **done},
        {"line": 3, "custom_id": "twice", **done},
        {"line": 4, "custom_id": "twice", **done},
        {"line": 5, "custom_id": "../up", **done},
        {"line": 6, "custom_id": "no-files", **done, "artifacts": []},
    )
    write(tmp_path / ERRORS, {"line": 2, "status": "invalid", "error": {"code": "invalid_request"}})
    assert [(each.line, each.succeeded) for each in outcomes(tmp_path)] == [
        (1, True), (2, False), (3, True), (4, True), (5, True), (6, True),
    ]  # fmt: skip
    folders = {path.relative_to(tmp_path).as_posix(): each.line for path, each in line_folders(tmp_path).items()}
    assert folders == {"north": 1, "line-3": 3, "line-4": 4, "line-5": 5}


def test_a_batch_of_many_or_long_requests_is_a_file(tmp_path: Path) -> None:
    assert is_small([{"input": {}}] * 1000)
    assert not is_small([{"input": {}}] * 1001)
    assert not is_small([{"input": "x" * 500_000}])
    with pytest.raises(ClientError, match="at least one"):
        is_small([])
    assert write_requests([{"a": 1}, {"b": 2}], tmp_path).read_text() == '{"a": 1}\n{"b": 2}\n'
