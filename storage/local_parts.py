"""The parts of an upload to a local store: a folder for each key, until they are joined or the sweep comes.

A part is a file `NUMBER-MD5`; `type` holds the object's content type, and its time is that of the beginning.
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

from penstock.storage.base import CHUNK_BYTES, StoredPart

_TYPE = "type"


@dataclass(frozen=True, slots=True)
class PartFolder:
    """Where the parts of one object wait. What is not there is a `FileNotFoundError`."""

    path: Path

    def begin(self, content_type: str) -> None:
        """Make the folder, unless there is one."""
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self.path / f".{uuid4().hex}"
        draft.write_text(content_type)
        try:
            with suppress(FileExistsError):
                (self.path / _TYPE).hardlink_to(draft)
        finally:
            draft.unlink()

    def content_type(self) -> str:
        """Return the object's type."""
        return (self.path / _TYPE).read_text()

    def put(self, number: int, source: Path, md5: str) -> StoredPart:
        """Take a file as a part, in the place of what was sent as this part before."""
        part = StoredPart(number, source.stat().st_size, md5)
        self.content_type()
        draft = self.path / f".{uuid4().hex}"
        try:
            shutil.move(source, draft)
            _sync(draft)
            before = [path for path in self._files() if path.name.startswith(f"{number:05}-")]
            draft.replace(self._file(part))
        finally:
            draft.unlink(missing_ok=True)
        for path in before:
            if path != self._file(part):
                path.unlink(missing_ok=True)
        return part

    def parts(self) -> list[StoredPart]:
        """Return the parts that have arrived, by number."""
        self.content_type()
        return [_read(path) for path in self._files()]

    def write(self, parts: Sequence[StoredPart], file: BinaryIO) -> None:
        """Write the parts into a file, one behind the other."""
        for part in parts:
            with self._file(part).open("rb") as source:
                shutil.copyfileobj(source, file, CHUNK_BYTES)

    def remove(self) -> None:
        """Remove the folder; where there is none that is no error."""
        shutil.rmtree(self.path, ignore_errors=True)

    @classmethod
    def sweep(cls, folder: Path, *, before_s: float) -> int:
        """Remove the folders under `folder` that began before a time; return how many there were."""
        found = [path for path in folder.glob("*") if _begun_s(path) <= before_s]
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
    """Return when a folder's upload began; that of a writer who died at once, when the folder was made."""
    for path in (folder / _TYPE, folder):
        with suppress(FileNotFoundError):
            return path.stat().st_mtime
    return float("inf")  # it is gone


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
