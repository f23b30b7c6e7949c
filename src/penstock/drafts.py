"""Downloads in the making, and the local files that go up."""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, Literal, Self

from penstock.answers import ClientError, Corrupt
from penstock.wire import Save, Upload

CHUNK_BYTES = 1 << 18


class Draft:
    """A download in the making: it becomes its file when its bytes are those that were promised.

    What a broken connection or an ended process leaves is gone on with: it lies beside the file as `.NAME.HASH.part`.
    A draft belongs to one process at a time; another that wants the same meanwhile has one of its own.
    """

    def __init__(self, save: Save) -> None:
        self._save = save
        self._sha256 = hashlib.sha256()
        #: How much of it is there.
        self.size_bytes = 0
        self._over = False
        self._path: Path
        self._file: BinaryIO

    @classmethod
    def open(cls, save: Save) -> Self:
        """Return the draft with what there is of it, which is read; `close` it."""
        draft = cls(save)
        draft._open()
        while chunk := draft._file.read(CHUNK_BYTES):
            draft._take(chunk)
        if draft.size_bytes >= save.artifact.size_bytes and not draft.complete:
            draft._restart()
        return draft

    @property
    def complete(self) -> bool:
        """Whether all bytes are there, and are those that were promised."""
        artifact = self._save.artifact
        return (self.size_bytes, self._sha256.hexdigest()) == (artifact.size_bytes, artifact.sha256)

    @property
    def range(self) -> dict[str, str]:
        """The header that asks for the rest."""
        return {"Range": f"bytes={self.size_bytes}-"} if self.size_bytes else {}

    def begin(self, status: int) -> None:
        """Note how the service answered: with the rest (206), or with the whole all the same."""
        if status != HTTPStatus.PARTIAL_CONTENT and self.size_bytes:
            self._restart()

    def write(self, chunk: bytes) -> None:
        """Add bytes."""
        try:
            self._file.write(chunk)
        except OSError as error:
            raise ClientError(f"cannot write {self._save.path}: {error.strerror}") from error
        self._take(chunk)
        if self._save.on_bytes is not None:
            self._save.on_bytes(self.size_bytes, self._save.artifact.size_bytes)

    def finish(self) -> None:
        """Give the file its name; raise `Corrupt`, and leave nothing, where its bytes are others."""
        artifact, self._over = self._save.artifact, True
        if not self.complete:
            self._path.unlink(missing_ok=True)
            raise Corrupt(f"{artifact.name} did not arrive as the {artifact.size_bytes} bytes that the job names")
        self._file.flush()
        named(self._path, self._save.path)

    def close(self) -> None:
        """Keep what is of use to the next try."""
        if not self._over and (self.size_bytes == 0 or self._path != self._shared):
            self._path.unlink(missing_ok=True)
        self._file.close()

    @property
    def _shared(self) -> Path:
        save = self._save
        return save.path.with_name(f".{save.path.name}.{save.artifact.sha256[:12]}.part")

    def _open(self) -> None:
        self._path = self._shared
        while True:
            self._file = opened(self._path, "a+b")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # somebody else is at it, or the file system has no locks
                self._file.close()
                self._path = self._shared.with_suffix(f".{uuid.uuid4().hex[:8]}.part")
                self._file = opened(self._path, "x+b")
                return
            if self._is_at(self._path):
                self._file.seek(0)
                return
            self._file.close()  # it got its name meanwhile, or was given up

    def _is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def _take(self, chunk: bytes) -> None:
        self._sha256.update(chunk)
        self.size_bytes += len(chunk)

    def _restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._sha256, self.size_bytes = hashlib.sha256(), 0


def chunks(upload: Upload) -> Iterator[bytes]:
    """Yield a file's bytes, or those of a part, telling how far it is."""
    done = 0
    with opened(upload.path, "rb") as file:
        if upload.mtime_ns not in (None, os.fstat(file.fileno()).st_mtime_ns):
            raise ClientError(f"{upload.path} was changed while it was sent")
        file.seek(upload.start)
        while chunk := file.read(min(CHUNK_BYTES, upload.size_bytes - done)):
            yield chunk
            done += len(chunk)
            if upload.on_bytes is not None:
                upload.on_bytes(done, upload.size_bytes)
    if done < upload.size_bytes:
        raise ClientError(f"{upload.path} was changed while it was sent")


def opened(path: Path, mode: Literal["rb", "xb", "x+b", "a+b"]) -> BinaryIO:
    """Open a file; what keeps us from it is a `ClientError`."""
    try:
        return path.open(mode)
    except OSError as error:
        raise ClientError(f"cannot open {path}: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Make a folder unless there is one; what keeps us from it, or from writing there, is a `ClientError`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClientError(f"cannot make the folder {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ClientError(f"cannot write in the folder {path}")


def require_place(path: Path) -> None:
    """Raise `ClientError` where a file cannot get this name because a folder has it."""
    if path.is_dir():
        raise ClientError(f"cannot save {path}: there is a folder of that name; move it, or save elsewhere")


def named(draft: Path, path: Path) -> None:
    """Give a draft its name; what keeps us from it is a `ClientError`."""
    try:
        draft.replace(path)
    except OSError as error:
        raise ClientError(f"cannot save {path}: {error.strerror}") from error
