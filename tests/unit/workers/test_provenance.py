"""The provenance of results: the facts, and their bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from penstock import __version__
from penstock.models import Model
from penstock.workers import provenance as module
from penstock.workers.engine.device_class import device_class
from penstock.workers.job_media import Input
from penstock.workers.provenance import (
    MAX_INPUTS,
    Course,
    copied,
    environment,
    facts_of,
    provenance,
    record_sha256,
    weights_sha256,
)
from penstock.workers.software import checked_software, loaded_software

ONE = Input.of("/scene", "media://up/a.tif", 3, "0" * 64, "tag")


def model(**changes: Any) -> Model:
    fields = {"name": "m", "title": "M", "runner": "torch", "processor": "none", "source": "", "revision": "1"}
    return Model(**(fields | {"device": "cpu"} | changes))


def test_a_result_names_its_model_software_machine_and_inputs() -> None:
    assert environment(facts_of(model()), {"torch": "2", "numpy": "1"}) == {
        "model": {
            "name": "m", "revision": "1", "record_sha256": record_sha256(model()), "runner": "torch",
            "dtype": "float32", "processor": "none",
        },
        "machine": device_class(model()),
        "software": {"numpy": "1", "torch": "2"},
    }  # fmt: skip
    assert json.loads(provenance("e", [ONE], {"/n": 1})) == {
        "environment": "e",
        "inputs": [{"place": "/scene", "reference": "media://up/a.tif", "size_bytes": 3, "sha256": "0" * 64}],
        "defaults": {"/n": 1},
    }
    assert json.loads(provenance(None, [], {})) == {}


def test_a_partial_file_has_a_strong_etag_and_a_web_address_no_query() -> None:
    [strong, weak] = [Input.of(None, "https://a.example/b.tif?key=secret", 9, None, tag) for tag in ("x", 'W/"x"')]
    assert strong.to_json() == {"reference": "https://a.example/b.tif", "size_bytes": 9, "etag": "x"}
    assert weak.to_json() == {"reference": "https://a.example/b.tif", "size_bytes": 9}
    assert Input.of(None, "s3://b/k?1#etag=z", 9, None, "z").reference == "s3://b/k?1#etag=z"


def test_many_inputs_are_kept_as_one_digest() -> None:
    many = [replace(ONE, size_bytes=number) for number in range(MAX_INPUTS + 2)]
    others = [json.loads(provenance("e", rows, {})) for rows in (many, [*many[:-1], ONE])]
    assert len(others[0]["inputs"]) == MAX_INPUTS
    assert others[0]["other_inputs"]["number"] == 2
    assert others[0]["other_inputs"]["size_bytes"] == 2 * MAX_INPUTS + 1
    assert others[0]["other_inputs"]["sha256"] != others[1]["other_inputs"]["sha256"]


def test_a_copied_result_has_the_makers_of_the_first_job_and_inputs_of_its_own() -> None:
    first = json.loads(provenance("e", [ONE], {"/n": 1}, Course(parts=2, resumed=5)))
    mine = replace(ONE, reference="media://mine/a.tif")
    second = json.loads(copied(first, [mine], {"/n": 1}, "first"))
    assert second == first | {"inputs": [mine.to_json()], "copied_from": "first"}
    assert json.loads(copied(second, [ONE], {}, "second"))["copied_from"] == "first"
    assert json.loads(copied({}, [ONE], {}, "old"))["copied_from"] == "old"


@pytest.mark.parametrize("change", [{"title": "N"}, {"queue": "other"}, {"source": "/x"}, {"cache": True}], ids=str)
def test_fields_that_change_no_result_leave_the_digest_of_the_record(change: dict[str, Any]) -> None:
    assert record_sha256(model(**change)) == record_sha256(model())


@pytest.mark.parametrize("change", [{"revision": "2"}, {"dtype": "bfloat16"}, {"max_batch": 2}, {"options": {"a": 1}}])
def test_fields_that_change_results_change_the_digest_of_the_record(change: dict[str, Any]) -> None:
    assert record_sha256(model(**change)) != record_sha256(model())


def test_the_weights_digest_is_that_of_the_record_or_of_the_files(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"weights")
    digest = sha256(b"weights").hexdigest()
    assert weights_sha256(model(sha256="1" * 64)) == "1" * 64
    assert weights_sha256(model(source=str(file))) == digest
    folder = weights_sha256(model(source=str(tmp_path)))
    assert folder == weights_sha256(model(files={"a.bin": digest})) != digest
    assert weights_sha256(model(source=str(tmp_path / "none"))) is None


def test_a_model_without_a_source_does_not_hash_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    assert weights_sha256(model()) is None


def test_large_weights_without_hashes_have_no_digest(tmp_path: Path) -> None:
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(module.MAX_HASHED_BYTES + 1)  # a hole takes no space
    assert weights_sha256(model(source=str(tmp_path))) is None


def test_of_a_folder_with_many_files_little_is_read(tmp_path: Path) -> None:
    """A model without weights of its own may name a repository, or a disk, as its source."""
    (tmp_path / "inside").mkdir()
    for number in range(module.MAX_HASHED_FILES + 1):
        (tmp_path / "inside" / str(number)).touch()
    assert weights_sha256(model(source=str(tmp_path))) is None


def test_links_between_folders_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    before = weights_sha256(model(source=str(tmp_path)))
    (tmp_path / "again").symlink_to(tmp_path)
    assert weights_sha256(model(source=str(tmp_path))) == before


def test_the_software_is_what_the_process_has_loaded() -> None:
    import numpy as np

    found = loaded_software()
    assert (found["penstock"], found["numpy"]) == (__version__, np.__version__)
    assert all(found.values())


def test_a_library_that_is_imported_later_is_named_from_then_on() -> None:
    code = "import numpy; from penstock.workers.software import loaded_software as found; print(*found()); found();"
    code += "import PIL; print(*found())"
    before, after = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.splitlines()  # fmt: skip
    assert set(after.split()) - set(before.split()) == {"PIL"}


@pytest.mark.parametrize("sent", [None, 3, ["a"], {str(n): "1" for n in range(51)}], ids=type)
def test_software_that_no_process_of_ours_sends_is_left_out(sent: object) -> None:
    assert checked_software(sent) == {}


def test_versions_that_are_no_short_text_are_left_out() -> None:
    assert checked_software({"a": "1", "b": 2, "c": "x" * 101}) == {"a": "1"}
