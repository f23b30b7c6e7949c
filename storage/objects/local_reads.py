"""Reads of whole objects in a folder; a file that changes during a read is an error."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from penstock.errors import MediaChanged
from penstock.storage.objects.base import CHUNK_BYTES, new_file


def etag_of(status: os.stat_result) -> str:
    """Return the etag of a file, which differs after each change of its bytes."""
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def copy_whole(source: int, status: os.stat_result, path: Path) -> None:
    """Copy an open file to a new one; raise `MediaChanged` if the file has changed since its `status`."""
    with new_file(path) as target, os.fdopen(source, "rb", closefd=False) as file:
        shutil.copyfileobj(file, target, CHUNK_BYTES)
        _require_same(source, status)


def read_whole(source: int, status: os.stat_result) -> bytes:
    """Return the bytes of an open file; raise `MediaChanged` if the file has changed since its `status`."""
    data = os.read(source, status.st_size)
    while len(data) < status.st_size and (more := os.read(source, status.st_size - len(data))):
        data += more
    _require_same(source, status)
    return data


def _require_same(source: int, status: os.stat_result) -> None:
    if etag_of(os.fstat(source)) != etag_of(status):
        raise MediaChanged
