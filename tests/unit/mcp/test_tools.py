"""The tools of agents: their arguments, files, and the sentence where the protocol's package is missing."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

pytest.importorskip("mcp_types", reason="needs the Model Context Protocol's SDK: pip install '.[mcp]'")

from penstock.client import ClientError
from penstock.mcp.answers import file_of, file_uri
from penstock.mcp.tools import MAX_INLINE_BYTES, Tools, Upload, Wait


class Uploads:
    """A client that keeps what is uploaded."""

    def __init__(self) -> None:
        self.files: list[tuple[str, bytes]] = []

    async def upload(self, path: Path) -> str:
        self.files.append((path.name, path.read_bytes()))
        return "media://one"


def uploaded(tools: Tools, **given: Any) -> tuple[str, bytes]:
    client, wanted = Uploads(), tools.arguments("penstock_upload", given)
    assert isinstance(wanted, Upload)
    answer = asyncio.run(tools.upload(client, wanted))  # type: ignore[arg-type]
    assert answer.structured_content["reference"] == "media://one"
    [file] = client.files
    return file


def test_a_small_file_comes_in_the_call(tmp_path: Path) -> None:
    assert uploaded(Tools(), name="a.txt", text="äöü") == ("a.txt", "äöü".encode())
    assert uploaded(Tools(tmp_path), name="a.png", base64=base64.b64encode(b"\x89PNG").decode()) == (
        "a.png",
        b"\x89PNG",
    )


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"name": "a"}, "as one of `text` and `base64`"),
        ({"name": "a", "text": "b", "base64": "Yg=="}, "as one of `text` and `base64`"),
        ({"name": "a", "base64": "?"}, "cannot be decoded"),
        ({"name": "..", "text": "x"}, "is no name of a file"),
        ({"name": "ж" * 200, "text": "x"}, "is no name of a file"),
        ({"name": "a", "text": "x" * (MAX_INLINE_BYTES + 1)}, "a call takes 2097152 at most"),
    ],
)
def test_a_file_that_cannot_be_taken_is_refused_with_the_reason(given: dict[str, str], error: str) -> None:
    with pytest.raises(ClientError, match=error):
        uploaded(Tools(), **given)


def test_files_of_the_machine_are_those_below_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "scenes"
    folder.mkdir()
    (folder / "a.tif").write_bytes(b"II")
    (tmp_path / "secret").write_bytes(b"no")
    (folder / "way-out").symlink_to(tmp_path / "secret")
    assert uploaded(Tools(folder), path="a.tif") == ("a.tif", b"II")
    assert uploaded(Tools(folder), path=str(folder / "a.tif")) == ("a.tif", b"II")
    for path in ("../secret", "way-out", str(tmp_path / "secret")):
        with pytest.raises(ClientError, match="outside of"):
            uploaded(Tools(folder), path=path)
    with pytest.raises(ClientError, match="is no path"):
        uploaded(Tools(folder), path="a\0b")
    with pytest.raises(ClientError, match="there is no file"):
        uploaded(Tools(folder), path="b.tif")
    with pytest.raises(ValidationError, match="path"):
        Tools().arguments("penstock_upload", {"name": "a", "path": str(folder / "a.tif")})


def test_a_wait_is_shorter_than_a_minute() -> None:
    assert isinstance(Tools().arguments("penstock_wait", {"job_id": "1", "seconds": 55}), Wait)
    for given in ({}, {"job_id": "1", "seconds": 61}, {"job_id": "1", "other": 1}):
        with pytest.raises(ValidationError):
            Tools().arguments("penstock_wait", given)
    assert Tools().arguments("csmask", {}) is None


def test_a_file_has_a_uri_whatever_its_name() -> None:
    assert file_of(file_uri("job-1", "a b/ü#?.tif")) == ("job-1", "a b/ü#?.tif")
    for uri in ("file:///etc/passwd", "penstock://jobs/1", "penstock://jobs//a", "penstock://jobs/1/"):
        with pytest.raises(ValueError, match="no file of a job"):
            file_of(uri)


def test_without_the_protocols_package_the_command_names_it() -> None:
    code = "import sys; sys.modules['mcp_types'] = None; from penstock.cli.main import app; app(['mcp'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "pip install 'penstock[mcp]'" in done.stderr
