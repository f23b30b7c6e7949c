"""The local files of uploads: bytes, digests, parts of large ones, notes that resume these, and their progress."""

from __future__ import annotations

import math
import mimetypes
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import new, sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Self

from penstock.client.answers import ClientError
from penstock.client.downloads import CHUNK_BYTES, file_errors, make_folder, open_file
from penstock.client.options import OnBytes
from penstock.multipart import part_sizes

#: Larger files are sent as multipart uploads.
MULTIPART_FROM_BYTES = 16 << 20
#: Seconds that joining the parts of a large file may take.
COMPLETE_S = 600.0
#: Seconds that a note is kept: the service keeps parts for a day.
NOTE_S = 86_400.0
_DIGEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Upload:
    """A local file, or a part of a file, as a request's body."""

    path: Path
    size_bytes: int
    on_bytes: OnBytes | None = None
    #: The offset in the file.
    start: int = 0
    #: The file's expected modification time; another one is a `ClientError`. None = any.
    mtime_ns: int | None = None

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes, and report progress."""
        done = 0
        with open_file(self.path, "rb") as file:
            if self.mtime_ns not in (None, os.fstat(file.fileno()).st_mtime_ns):
                raise ClientError(f"{self.path} was changed while it was sent")
            file.seek(self.start)
            while chunk := file.read(min(CHUNK_BYTES, self.size_bytes - done)):
                yield chunk
                done += len(chunk)
                if self.on_bytes is not None:
                    self.on_bytes(done, self.size_bytes)
        if done < self.size_bytes:
            raise ClientError(f"{self.path} was changed while it was sent")

    def md5(self) -> str:
        """Return the MD5 of the bytes, in hexadecimal digits."""
        return file_digest(self.path, "md5", self.start, self.size_bytes)


def file_digest(
    path: Path, algorithm: Literal["sha256", "md5"] = "sha256", start: int = 0, size_bytes: int | None = None
) -> str:
    """Return the digest of a file from `start`, of all the rest or of `size_bytes`, in hexadecimal digits.

    Raises `ClientError` for a file that cannot be read.
    """
    digest = new(algorithm, usedforsecurity=False)
    left = math.inf if size_bytes is None else size_bytes
    with file_errors("read", path), path.open("rb") as file:
        file.seek(start)
        while left and (chunk := file.read(int(min(left, _DIGEST_BYTES)))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def file_size(path: Path) -> int:
    """Return the size of a local file; raise `ClientError` for one that cannot be sent."""
    with file_errors("read", path):
        size = path.stat().st_size
    if not path.is_file():
        raise ClientError(f"cannot read {path}: not a file")
    if size == 0:
        raise ClientError(f"{path} is empty")
    return size


def upload_key(path: Path, key: str) -> str:
    """Return the idempotency key of a file's upload: the same for the same `key` and bytes."""
    return sha256(f"{key}\n{file_digest(path)}".encode()).hexdigest()


def upload_body(path: Path, size_bytes: int) -> dict[str, Any]:
    """Return the body of the request that begins a file's upload."""
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return {"filename": path.name, "content_type": kind, "size_bytes": size_bytes}


def parts_of(path: Path, status: os.stat_result, part_bytes: int, progress: TransferProgress) -> dict[int, Upload]:
    """Return the parts of a file, by their numbers from 1."""
    sizes = part_sizes(status.st_size, part_bytes)
    return {
        number: Upload(path, size, progress.of(number), start, status.st_mtime_ns)
        for number, (start, size) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False), 1)
    }


def has_arrived(part: Upload, digest: str, arrived: Mapping[str, Any] | None) -> bool:
    """Return True for a part that the service has already, and report its bytes as sent."""
    if arrived is None or (arrived["etag"], arrived["size_bytes"]) != (digest, part.size_bytes):
        return False
    if part.on_bytes is not None:
        part.on_bytes(part.size_bytes, part.size_bytes)
    return True


def check_unchanged(path: Path, before: os.stat_result, error: Exception | None = None) -> None:
    """Raise `ClientError` for a file that changed or is gone; the change explains an `error` of its upload."""
    with file_errors("read", path):
        after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ClientError(f"{path} was changed while it was sent") from error


@dataclass(frozen=True, slots=True)
class UploadNote:
    """The idempotency key of a file's upload to a service. `remove` the note once the upload is complete."""

    key: str
    path: Path | None = None

    @classmethod
    def of(cls, folder: Path | None, service: str, file: Path) -> Self:
        """Return the note in a folder, or write a new one; without a folder the key is not stored."""
        if folder is None:
            return cls(uuid.uuid4().hex)
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
    with file_errors("save", path):
        partial.write_text(key)
        partial.replace(path)
    return key


def _delete_old(folder: Path) -> None:
    for note in folder.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - note.stat().st_mtime > NOTE_S:
                note.unlink()


class TransferStopped(ClientError):
    """A transfer was stopped because another one failed."""


class TransferProgress:
    """The summed progress of transfers in several threads."""

    def __init__(self, on_bytes: OnBytes | None, total: int) -> None:
        #: Set to end the transfers.
        self.stop = threading.Event()
        self._on_bytes = on_bytes
        self._total = total
        self._done: dict[object, int] = {}
        self._reported = 0
        self._lock = threading.Lock()

    def of(self, name: object) -> OnBytes:
        """Return the callback of one transfer."""
        return lambda done, _total: self.report(name, done)

    def done(self, name: object) -> int:
        """Return the bytes done of a transfer."""
        return self._done.get(name, 0)

    def report(self, name: object, done: int) -> None:
        """Record a transfer's progress; raise `TransferStopped` where it should end. The sum never decreases."""
        if self.stop.is_set():
            raise TransferStopped("another transfer failed")
        with self._lock:
            self._done[name] = done
            self._reported = max(self._reported, sum(self._done.values()))
            if self._on_bytes is not None:
                self._on_bytes(self._reported, self._total)
