"""The places of artifacts in a folder."""

from __future__ import annotations

from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.client.answers import Artifact, ClientError, Job
from penstock.client.decoding import read
from penstock.client.downloads import PartialDownload, Save, artifact_path, write_notes
from tests.support.full_disk import files_of_at_most


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "a\\..\\x"])
def test_an_artifact_does_not_leave_its_folder(name: str) -> None:
    with pytest.raises(ClientError):
        artifact_path(Path("out"), name)


def test_an_artifact_may_lie_in_a_folder_of_its_own() -> None:
    assert artifact_path(Path("out"), "tiles/1.tif") == Path("out/tiles/1.tif")


@pytest.mark.parametrize("size_bytes", [100, 1 << 20])
def test_a_full_disk_is_said_in_a_sentence(tmp_path: Path, size_bytes: int) -> None:
    content = b"x" * size_bytes
    artifact = Artifact(name="stats.json", size_bytes=size_bytes, sha256=sha256(content).hexdigest())

    def save() -> None:
        with closing(PartialDownload.open(Save(tmp_path / "stats.json", artifact))) as download:
            download.write(content)
            download.finish()

    with (
        files_of_at_most(size_bytes - 1),
        pytest.raises(ClientError, match=r"cannot save .*/stats\.json: File too large"),
    ):
        save()
    job = read(Job, {"id": "1", "model": "m", "status": "succeeded", "created_at": "2026-01-01T00:00:00Z"})
    with files_of_at_most(10), pytest.raises(ClientError, match=r"cannot save .*/manifest\.json: File too large"):
        write_notes(job, tmp_path)
