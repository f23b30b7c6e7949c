"""Files of a local store: written under a temporary name, moved to their place, read as a whole."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from penstock.errors import InvalidRequest, MediaChanged, ObjectExists, ObjectStoreFull, ObjectStoreUnavailable
from penstock.storage.objects.base import CHUNK_BYTES, new_file
from penstock.storage.spool import is_full

#: Times that a put makes its folder again after a concurrent delete removed the empty folder.
FOLDER_TRIES = 100


@contextmanager
def translated() -> Iterator[None]:
    """Raise an `OSError` of the block as `ObjectStoreFull` or `ObjectStoreUnavailable`."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise ObjectStoreFull(
                f"the disk of the object store's folder is full ({error.strerror}); free space there"
            ) from error
        raise ObjectStoreUnavailable(f"the object store's folder: {error.strerror}") from error


def etag_of(status: os.stat_result) -> str:
    """Return the etag of a file, which differs after each change of its bytes."""
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def copy_whole(source: BinaryIO, status: os.stat_result, path: Path) -> None:
    """Copy an open file to a new one; raise `MediaChanged` if the file has changed since its `status`."""
    with new_file(path) as target:
        shutil.copyfileobj(source, target, CHUNK_BYTES)
        _require_same(source, status)


def read_whole(source: BinaryIO, status: os.stat_result) -> bytes:
    """Return the bytes of an open file; raise `MediaChanged` if the file has changed since its `status`."""
    data = source.read(status.st_size)
    _require_same(source, status)
    return data


def _require_same(source: BinaryIO, status: os.stat_result) -> None:
    if etag_of(os.fstat(source.fileno())) != etag_of(status):
        raise MediaChanged


def place_file(temporary: Path, target: Path, root: Path, *, if_absent: bool) -> list[Path]:
    """Give a temporary file the name of its object, in a folder under `root`; return the folders with new entries."""
    changed: list[Path] = []
    is_missing = False
    for tries_left in reversed(range(FOLDER_TRIES)):
        try:
            if is_missing:
                changed += _make_folder(target.parent, root)
            (os.link if if_absent else os.rename)(temporary, target)
            break
        except FileNotFoundError:
            if not tries_left:
                raise
            is_missing = True
        except FileExistsError as error:
            raise ObjectExists(f"{target.name!r} exists already") from error
        except (IsADirectoryError, NotADirectoryError) as error:
            raise in_the_way(target) from error
    return [*changed, target.parent]


def _make_folder(folder: Path, root: Path) -> list[Path]:
    """Make a missing folder under `root`, which must exist; return the folder above each new folder."""
    if folder == root:
        return []
    changed: list[Path] = []
    try:
        try:
            folder.mkdir()
        except FileNotFoundError:
            changed = _make_folder(folder.parent, root)
            folder.mkdir()
    except FileExistsError:  # another writer has made it meanwhile, and may not have synced it yet
        if not stat.S_ISDIR(folder.stat().st_mode):  # FileNotFoundError where a delete has removed it
            raise NotADirectoryError(folder) from None
    return [*changed, folder.parent]


def in_the_way(target: Path) -> InvalidRequest:
    """Return the error of a key that is a folder, or lies under an object."""
    return InvalidRequest(f"{target.name!r} is, or lies under, another object's key")
