"""Notes of uploads that did not end, so that another process goes on with them."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from penstock.drafts import make_folder, opened

#: The service keeps parts for a day; a note is of no use after that.
KEPT_S = 86_400.0


@dataclass(frozen=True, slots=True)
class UploadNote:
    """The key under which a file, as it is now, is sent to a service; it goes when the upload is `over`."""

    key: str
    path: Path | None

    @classmethod
    def of(cls, folder: Path | None, service: str, file: Path) -> Self:
        """Return the note that there is in a folder, or a new one; without a folder the key is kept nowhere."""
        if folder is None:
            return cls(uuid.uuid4().hex, None)
        make_folder(folder / "uploads")
        status = file.stat()
        named = f"{service}\n{file.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"
        path = folder / "uploads" / sha256(named.encode()).hexdigest()[:32]
        _forget_old(folder / "uploads")
        with suppress(FileNotFoundError):
            return cls(path.read_text(), path)
        return cls(_written(path, uuid.uuid4().hex), path)

    def over(self) -> None:
        """Forget it: the upload is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _written(path: Path, key: str) -> str:
    draft = path.with_name(f".{path.name}.{key[:8]}")
    with opened(draft, "xb") as file:
        file.write(key.encode())
    draft.replace(path)
    return key


def _forget_old(folder: Path) -> None:
    for note in folder.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - note.stat().st_mtime > KEPT_S:
                note.unlink()
