"""An object that changes while it is read is never half of one version and half of another."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import MediaChanged
from penstock.storage.objects.local_reads import copy_whole, read_whole


def _read(source: int, status: os.stat_result, path: Path) -> bytes:
    copy_whole(source, status, path)
    return path.read_bytes()


READERS = (lambda source, status, _: read_whole(source, status), _read)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("size", [0, 1, 100, 3_000_000])
def test_an_object_is_read_as_a_whole(read: Callable[..., bytes], size: int, tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(data := os.urandom(size))
    with (tmp_path / "object").open("rb") as file:
        assert read(file.fileno(), os.fstat(file.fileno()), tmp_path / "copy") == data
        assert not file.closed


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("size", [50, 150])
def test_an_object_that_has_another_size_meanwhile_is_media_changed(
    read: Callable[..., bytes], size: int, tmp_path: Path
) -> None:
    (tmp_path / "object").write_bytes(b"0" * 100)
    with (tmp_path / "object").open("r+b") as file:
        status = os.fstat(file.fileno())
        file.truncate(size)
        with pytest.raises(MediaChanged):
            read(file.fileno(), status, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
