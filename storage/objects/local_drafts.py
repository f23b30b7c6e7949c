"""Drafts: objects of a local store between the call of a put and its end."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from penstock.errors import InvalidRequest, ObjectExists, PenstockError
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local_syncs import Witness

#: Times that a put makes its folder again after a concurrent delete removed the empty folder.
FOLDER_TRIES = 100
#: Largest object whose contents are synced in a group.
GROUPED_BYTES = 1 << 20


@dataclass(slots=True)
class Draft:
    """An object to store. `write` writes its bytes into an open file, by its descriptor."""

    key: str
    write: Callable[[int], object]
    content_type: str
    if_absent: bool = False
    #: Path of the temporary file, and the open file.
    temporary: str = ""
    witness: Witness = field(default_factory=lambda: Witness(0, -1))
    #: Folders with new entries.
    folders: list[str] = field(default_factory=list)
    #: The object; its size and etag are known once its bytes are written.
    info: ObjectInfo = field(default_factory=lambda: ObjectInfo("", 0, "", 0.0))
    #: The reason why the object is not stored.
    error: PenstockError | None = None

    def stored(self) -> ObjectInfo:
        """Return the object, or raise the reason why it is not stored."""
        if self.error is not None:
            raise self.error
        return self.info

    def sync_alone(self) -> None:
        """Sync the contents of a large object at once: small ones do not wait for it."""
        if self.info.size_bytes > GROUPED_BYTES:
            os.fsync(self.witness.descriptor)

    def unsynced(self) -> list[int]:
        """Return the open file, unless its contents are on the disk."""
        return [self.witness.descriptor] if self.info.size_bytes <= GROUPED_BYTES else []

    def place(self, root: str) -> None:
        """Give the temporary file the name of the object, in its folder under `root`."""
        target, is_missing = f"{root}/{self.key}", False
        folder = target.rpartition("/")[0]
        for tries_left in reversed(range(FOLDER_TRIES)):
            try:
                if is_missing:
                    self.folders += _make_folder(folder, root)
                (os.link if self.if_absent else os.rename)(self.temporary, target)
                return self.folders.append(folder)
            except FileNotFoundError:
                if not tries_left:
                    raise
                is_missing = True
            except FileExistsError as error:
                raise ObjectExists(f"{Path(target).name!r} exists already") from error
            except (IsADirectoryError, NotADirectoryError) as error:
                raise in_the_way(Path(target)) from error
        return None

    def discard(self) -> None:
        """Close the temporary file, and remove it unless it has become the object."""
        os.close(self.witness.descriptor)
        with suppress(FileNotFoundError):
            os.unlink(self.temporary)  # noqa: PTH108  (texts instead of paths: a small put has many)


def bytes_writer(data: bytes) -> Callable[[int], object]:
    """Return a `write` of bytes."""

    def write(descriptor: int) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]

    return write


def file_writer(write: Callable[[BinaryIO], object]) -> Callable[[int], object]:
    """Return a `write` of a function that fills a file."""

    def fill(descriptor: int) -> None:
        with open(descriptor, "wb", closefd=False) as file:
            write(file)

    return fill


def in_the_way(target: Path) -> InvalidRequest:
    """Return the error of a key that is a folder, or lies under an object."""
    return InvalidRequest(f"{target.name!r} is, or lies under, another object's key")


def _make_folder(folder: str, root: str) -> list[str]:
    """Make a missing folder under `root`, which must exist; return the folder above each new folder."""
    if folder == root:
        return []
    above, changed = folder.rpartition("/")[0], []
    try:
        try:
            os.mkdir(folder)  # noqa: PTH102
        except FileNotFoundError:
            changed = _make_folder(above, root)
            os.mkdir(folder)  # noqa: PTH102
    except FileExistsError:  # somebody else has made it meanwhile, and may not have synced it yet
        if not stat.S_ISDIR(os.stat(folder).st_mode):  # noqa: PTH116  FileNotFoundError where a delete has removed it
            raise NotADirectoryError(folder) from None
    return [*changed, above]
