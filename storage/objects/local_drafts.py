"""Drafts: objects of a local store between the call of a put and its end."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from penstock.errors import InvalidRequest, ObjectExists, PenstockError
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local_syncs import FILE_SYSTEMS, Witness, file_system

#: Times that a put makes its folder again after a concurrent delete removed the empty folder.
FOLDER_TRIES = 100
#: Flags that open a file without a name in a folder; without `O_TMPFILE` (macOS), the open fails.
NAMELESS: int = os.O_WRONLY | getattr(os, "O_TMPFILE", 0) | os.O_CLOEXEC
#: Largest object whose contents are synced in a group.
GROUPED_BYTES = 1 << 20


@dataclass(slots=True)
class Draft:
    """An object to store. `write` writes its bytes into an open file, by its descriptor."""

    key: str
    write: Callable[[int], object]
    content_type: str
    if_absent: bool = False
    #: Path of the temporary file (None for one without a name), and the open file.
    temporary: str | None = None
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
                self._name(target)
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

    def _name(self, target: str) -> None:
        if self.temporary is None:
            _name(self.witness.descriptor, target)
        else:
            (os.link if self.if_absent else os.rename)(self.temporary, target)

    def discard(self) -> None:
        """Close the temporary file, and remove its name; the object's name stays."""
        os.close(self.witness.descriptor)
        if self.temporary is not None:
            with suppress(FileNotFoundError):  # renamed
                os.unlink(self.temporary)  # noqa: PTH108


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


def has_nameless(folder: str) -> bool:
    """Return True if a folder can have files without a name that can be synced and then be named; else False.

    False for other file systems than `FILE_SYSTEMS`: Btrfs, for one, does not sync a file without a name. Raises
    `FileNotFoundError` if there is no such folder.
    """
    path = f"{folder}/{uuid.uuid4().hex}"
    try:
        descriptor = os.open(folder, NAMELESS, 0o600)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    if file_system(Path(folder)) not in FILE_SYSTEMS:
        os.close(descriptor)
        return False
    try:
        _name(descriptor, path)
        os.unlink(path)  # noqa: PTH108  (strings instead of `Path`, as everywhere here: a small put would cost 0.1 ms more)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _name(descriptor: int, path: str) -> None:
    """Give an open file a further name, or its first; raise `FileExistsError` if the name is taken."""
    # Python follows the link in /proc only if it gets `src_dir_fd`, which has no other effect on an absolute path.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)


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
    except FileExistsError:  # another put made it meanwhile, and may not have synced it yet
        if not stat.S_ISDIR(os.stat(folder).st_mode):  # noqa: PTH116  FileNotFoundError where a delete has removed it
            raise NotADirectoryError(folder) from None
    return [*changed, above]
