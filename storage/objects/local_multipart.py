"""Multipart uploads to a local store: a folder of parts for each key, until the parts are joined or swept.

A part is a file `NUMBER-MD5`; `key` holds the object's key, `type` its content type, and the time of `type` is the
beginning of the upload.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from penstock.storage.objects.base import CHUNK_BYTES, StoredPart

_TYPE, _KEY = "type", "key"


@dataclass(frozen=True, slots=True)
class PartFolder:
    """The folder with the parts of one object. A missing file is a `FileNotFoundError`."""

    path: Path

    def begin(self, content_type: str, key: str) -> None:
        """Make the folder, unless it exists; the folder of all uploads exists."""
        self.path.mkdir(exist_ok=True)
        (self.path / _KEY).write_text(key)
        temporary = self.path / f".{uuid4().hex}"
        temporary.write_text(content_type)
        try:
            with suppress(FileExistsError):
                (self.path / _TYPE).hardlink_to(temporary)
        finally:
            temporary.unlink()

    def content_type(self) -> str:
        """Return the object's type."""
        return (self.path / _TYPE).read_text()

    def put(self, number: int, source: Path, md5: str) -> StoredPart:
        """Move a file into place as a part; it replaces an earlier upload of this part."""
        part = StoredPart(number, source.stat().st_size, md5)
        self.content_type()
        temporary = self.path / f".{uuid4().hex}"
        try:
            shutil.move(source, temporary)
            _sync(temporary)
            before = [path for path in self._files() if path.name.startswith(f"{number:05}-")]
            temporary.replace(self._file(part))
        finally:
            temporary.unlink(missing_ok=True)
        for path in before:
            if path != self._file(part):
                path.unlink(missing_ok=True)
        return part

    def parts(self) -> list[StoredPart]:
        """Return the stored parts, by number."""
        self.content_type()
        return [_read(path) for path in self._files()]

    def write(self, parts: Sequence[StoredPart], file: BinaryIO) -> None:
        """Write the parts into a file, one after the other."""
        for part in parts:
            with self._file(part).open("rb") as source:
                shutil.copyfileobj(source, file, CHUNK_BYTES)

    def remove(self) -> None:
        """Remove the folder, if it exists."""
        shutil.rmtree(self.path, ignore_errors=True)

    @classmethod
    def sweep(cls, folder: Path, *, before_s: float) -> int:
        """Remove the folders under `folder` that began before a time; return their number."""
        found = [path for path in folder.glob("*") if _begun_s(path) <= before_s]
        for path in found:
            cls(path).remove()
        return len(found)

    @classmethod
    def remove_all(cls, folder: Path, prefix: str) -> int:
        """Remove the folders under `folder` of keys that begin with the prefix; return their number."""
        found = [path.parent for path in folder.glob(f"*/{_KEY}") if path.read_text().startswith(prefix)]
        for path in found:
            cls(path).remove()
        return len(found)

    def _file(self, part: StoredPart) -> Path:
        return self.path / f"{part.number:05}-{part.etag}"

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("[0-9]*-*"))


def _read(path: Path) -> StoredPart:
    number, _, md5 = path.name.partition("-")
    return StoredPart(int(number), path.stat().st_size, md5)


def _begun_s(folder: Path) -> float:
    """Return the time at which an upload began, or its folder was made by a writer that died at once."""
    for path in (folder / _TYPE, folder):
        with suppress(FileNotFoundError):
            return path.stat().st_mtime
    return float("inf")  # it was removed meanwhile


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
