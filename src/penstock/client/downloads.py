"""Partial downloads, and reading the local files of uploads."""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, Literal, Self

from penstock.client.answers import ClientError, Corrupt
from penstock.client.protocol import Save, Upload

CHUNK_BYTES = 1 << 18


class PartialDownload:
    """A partial download, `.NAME.HASH.part` beside its file; it gets the file's name once size and SHA-256 match.

    A later attempt resumes it after a broken connection or an ended process. One process at a time owns it; another
    process meanwhile downloads to a file of its own.
    """

    def __init__(self, save: Save) -> None:
        self._save = save
        self._sha256 = hashlib.sha256()
        #: Bytes that are present.
        self.size_bytes = 0
        self._over = False
        self._path: Path
        self._file: BinaryIO

    @classmethod
    def open(cls, save: Save) -> Self:
        """Open a download, and read and hash what is present of it. `close` it after use."""
        partial = cls(save)
        partial._open()
        while chunk := partial._file.read(CHUNK_BYTES):
            partial._add(chunk)
        if partial.size_bytes >= save.artifact.size_bytes and not partial.complete:
            partial._restart()
        return partial

    @property
    def complete(self) -> bool:
        """True once size and SHA-256 are the artifact's."""
        artifact = self._save.artifact
        return (self.size_bytes, self._sha256.hexdigest()) == (artifact.size_bytes, artifact.sha256)

    @property
    def range(self) -> dict[str, str]:
        """The header that requests the rest."""
        return {"Range": f"bytes={self.size_bytes}-"} if self.size_bytes else {}

    def begin(self, status: int) -> None:
        """Start over unless the service answered with the rest (206)."""
        if status != HTTPStatus.PARTIAL_CONTENT and self.size_bytes:
            self._restart()

    def write(self, chunk: bytes) -> None:
        """Append bytes."""
        try:
            self._file.write(chunk)
        except OSError as error:
            raise ClientError(f"cannot write {self._save.path}: {error.strerror}") from error
        self._add(chunk)
        if self._save.on_bytes is not None:
            self._save.on_bytes(self.size_bytes, self._save.artifact.size_bytes)

    def finish(self) -> None:
        """Rename the download to its file; raise `Corrupt` and delete it where size or SHA-256 differ."""
        artifact, self._over = self._save.artifact, True
        if not self.complete:
            self._path.unlink(missing_ok=True)
            raise Corrupt(f"{artifact.name} did not arrive with the size and SHA-256 of the job: download it again")
        self._file.flush()
        rename(self._path, self._save.path)

    def close(self) -> None:
        """Keep the bytes that the next attempt can use, and close the file."""
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
            self._file = open_file(self._path, "a+b")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another process owns it, or the file system has no locks
                self._file.close()
                self._path = self._shared.with_suffix(f".{uuid.uuid4().hex[:8]}.part")
                self._file = open_file(self._path, "x+b")
                return
            if self._is_at(self._path):
                self._file.seek(0)
                return
            self._file.close()  # renamed or deleted meanwhile

    def _is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def _add(self, chunk: bytes) -> None:
        self._sha256.update(chunk)
        self.size_bytes += len(chunk)

    def _restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._sha256, self.size_bytes = hashlib.sha256(), 0


def chunks(upload: Upload) -> Iterator[bytes]:
    """Yield the bytes of a file or of a part, and report progress."""
    done = 0
    with open_file(upload.path, "rb") as file:
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


def open_file(path: Path, mode: Literal["rb", "xb", "x+b", "a+b"]) -> BinaryIO:
    """Open a file; raise `ClientError` where that fails."""
    try:
        return path.open(mode)
    except OSError as error:
        raise ClientError(f"cannot open {path}: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Create a folder unless it exists; raise `ClientError` where that fails or the folder is not writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClientError(f"cannot make the folder {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ClientError(f"cannot write in the folder {path}")


def require_place(path: Path) -> None:
    """Raise `ClientError` where a folder has the name of a file to be saved."""
    if path.is_dir():
        raise ClientError(f"cannot save {path}: there is a folder of that name; move it, or save elsewhere")


def rename(partial: Path, path: Path) -> None:
    """Rename a partial file; raise `ClientError` where that fails."""
    try:
        partial.replace(path)
    except OSError as error:
        raise ClientError(f"cannot save {path}: {error.strerror}") from error
