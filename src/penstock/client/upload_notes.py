"""Notes of unfinished uploads, with which another process resumes them."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from penstock.client.downloads import make_folder, open_file

#: Seconds that a note is kept: the service keeps parts for a day.
KEPT_S = 86_400.0


@dataclass(frozen=True, slots=True)
class UploadNote:
    """The idempotency key of a file's upload to a service. `remove` the note once the upload is complete."""

    key: str
    path: Path | None

    @classmethod
    def of(cls, folder: Path | None, service: str, file: Path) -> Self:
        """Return the note in a folder, or write a new one; without a folder the key is not stored."""
        if folder is None:
            return cls(uuid.uuid4().hex, None)
        make_folder(folder / "uploads")
        status = file.stat()
        identity = f"{service}\n{file.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"
        path = folder / "uploads" / sha256(identity.encode()).hexdigest()[:32]
        _delete_old(folder / "uploads")
        with suppress(FileNotFoundError):
            return cls(path.read_text(), path)
        return cls(_write_key(path, uuid.uuid4().hex), path)

    def remove(self) -> None:
        """Delete the note."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _write_key(path: Path, key: str) -> str:
    partial = path.with_name(f".{path.name}.{key[:8]}")
    with open_file(partial, "xb") as file:
        file.write(key.encode())
    partial.replace(path)
    return key


def _delete_old(folder: Path) -> None:
    for note in folder.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - note.stat().st_mtime > KEPT_S:
                note.unlink()
