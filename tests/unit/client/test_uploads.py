"""The local files of uploads."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from penstock.client.answers import ClientError
from penstock.client.uploads import (
    TransferProgress,
    TransferStopped,
    Upload,
    UploadNote,
    file_digest,
    parts_of,
    upload_key,
)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    path = tmp_path / "scene.tif"
    path.write_bytes(b"0123456789")
    return path


def test_parts_are_the_bytes_of_the_file_and_their_digests(scene: Path) -> None:
    parts = parts_of(scene, scene.stat(), 4, TransferProgress(None, 10))
    assert {number: b"".join(part.chunks()) for number, part in parts.items()} == {1: b"0123", 2: b"4567", 3: b"89"}
    assert [part.md5() for part in parts.values()] == [hashlib.md5(b).hexdigest() for b in (b"0123", b"4567", b"89")]


@pytest.mark.parametrize("bytes_", [b"01", b"longer than it was"])
def test_a_file_that_changed_is_no_body(scene: Path, bytes_: bytes) -> None:
    whole = Upload(scene, 10, mtime_ns=scene.stat().st_mtime_ns - 1)
    with pytest.raises(ClientError, match="was changed while it was sent"):
        list(whole.chunks())
    scene.write_bytes(bytes_)
    sent = Upload(scene, 50).chunks()
    with pytest.raises(ClientError, match="was changed while it was sent"):
        list(sent)


def test_the_key_of_an_upload_is_of_the_callers_key_and_the_bytes(scene: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.tif").write_bytes(scene.read_bytes())
    assert upload_key(scene, "k") == upload_key(tmp_path / "copy.tif", "k")
    assert upload_key(scene, "k") != upload_key(scene, "l")
    assert file_digest(scene) == hashlib.sha256(b"0123456789").hexdigest()
    with pytest.raises(ClientError, match="cannot read"):
        file_digest(tmp_path / "none.tif")


def test_a_note_keeps_the_key_of_the_same_file_and_service(scene: Path, tmp_path: Path) -> None:
    note = UploadNote.of(tmp_path / "state", "http://a", scene)
    assert UploadNote.of(tmp_path / "state", "http://a", scene) == note
    assert UploadNote.of(tmp_path / "state", "http://b", scene).key != note.key
    note.remove()
    assert UploadNote.of(tmp_path / "state", "http://a", scene).key != note.key
    assert UploadNote.of(None, "http://a", scene).path is None


def test_the_sum_never_decreases_when_a_transfer_begins_anew() -> None:
    told: list[tuple[int, int]] = []
    progress = TransferProgress(lambda done, total: told.append((done, total)), 20)
    progress.of("a")(5, 10)
    progress.of("b")(3, 10)
    progress.of("a")(0, 10)
    progress.of("b")(9, 10)
    assert told == [(5, 20), (8, 20), (8, 20), (9, 20)]
    assert progress.done("a") == 0


def test_a_transfer_ends_at_its_next_report_after_another_failed() -> None:
    progress = TransferProgress(None, 20)
    progress.stop.set()
    with pytest.raises(TransferStopped):
        progress.of("a")(1, 10)
