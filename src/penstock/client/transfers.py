"""Multipart uploads, the notes that resume them, and parallel downloads, as flows: see `penstock.client.protocol`."""

from __future__ import annotations

import base64
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Self, TypeAlias
from urllib.parse import quote

from penstock.client import protocol
from penstock.client.answers import Artifact, ClientError, Job, Unreachable
from penstock.client.downloads import make_folder, open_file, require_place
from penstock.client.protocol import Digest, Flow, OnBytes, Reply, Request, Save, Together, Upload
from penstock.multipart import joined_etag, part_sizes

#: Larger files are sent as multipart uploads.
MULTIPART_FROM_BYTES = 16 << 20
AT_A_TIME = 4
#: Seconds that joining the parts of a large file may take.
COMPLETE_S = 600.0
#: Seconds that a note is kept: the service keeps parts for a day.
NOTE_S = 86_400.0

#: Sends a request, with retries, and returns the answer.
Exchange: TypeAlias = Callable[[Request], Flow[Reply]]


class TransferStopped(ClientError):
    """A transfer was stopped because another one failed."""


class TransferProgress:
    """The summed progress of transfers in several threads."""

    def __init__(self, on_bytes: OnBytes | None, total: int) -> None:
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


def upload_parts(exchange: Exchange, path: Path, size: int, on_bytes: OnBytes | None, key: str) -> Flow[str]:
    """Send a file in parts, except those that arrived before under the same `key`; return its reference.

    Each part carries its MD5, and the service joins only the parts that were sent here.
    """
    before = path.stat()
    begun = (yield from exchange(protocol.upload_request(path, size, key=key, multipart=True))).document()
    media = str(begun["media"])
    if begun["uploaded"]:
        return media
    address, sizes = f"/v1/uploads/{media.removeprefix('media://')}", part_sizes(size, begun["part_bytes"])
    arrived, progress = {part["number"]: part for part in begun["parts"]}, TransferProgress(on_bytes, size)
    flows = [
        _part(
            exchange, address, Upload(path, part_size, progress.of(number), start, before.st_mtime_ns), number, arrived
        )
        for number, (start, part_size) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False), 1)
    ]
    try:
        etags = yield Together(flows, AT_A_TIME, progress.stop)
    except Exception as error:  # the change of the file explains the store's error
        _check_unchanged(path, before, error)
        raise
    _check_unchanged(path, before)
    assert isinstance(etags, list)  # noqa: S101  (the result of Together is a list)
    body = {"size_bytes": size, "etag": joined_etag(etags)}
    yield from exchange(Request("POST", f"{address}/complete", body=body, wait_s=COMPLETE_S))
    return media


def download(
    exchange: Exchange, address: str, artifacts: Sequence[Artifact], folder: Path, on_bytes: OnBytes | None
) -> Flow[list[Path]]:
    """Save the artifacts under `address` in a folder, several at once; complete files stay as they are."""
    progress = TransferProgress(on_bytes, sum(artifact.size_bytes for artifact in artifacts))
    paths = [protocol.artifact_path(folder, artifact.name) for artifact in artifacts]
    for parent in {folder, *(path.parent for path in paths)}:
        make_folder(parent)
    for path in paths:
        require_place(path)
    flows = [
        _save(exchange, address, Save(path, artifact, progress.of(artifact.name)), progress)
        for path, artifact in zip(paths, artifacts, strict=True)
    ]
    yield Together(flows, AT_A_TIME, progress.stop)
    return paths


def select_artifacts(job: Job, names: Collection[str] | None) -> list[Artifact]:
    """Return the artifacts of these names (or this one), all for None; a `ClientError` lists the known names."""
    if names is None:
        return list(job.artifacts)
    names = {names} if isinstance(names, str) else set(names)
    unknown = sorted(names - {artifact.name for artifact in job.artifacts})
    if unknown:
        known = ", ".join(artifact.name for artifact in job.artifacts) or "none"
        raise ClientError(f"job {job.id} has no {', '.join(unknown)}; its artifacts: {known}")
    return [artifact for artifact in job.artifacts if artifact.name in names]


def _check_unchanged(path: Path, before: os.stat_result, error: Exception | None = None) -> None:
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ClientError(f"{path} was changed while it was sent") from error


def _part(
    exchange: Exchange, address: str, upload: Upload, number: int, arrived: Mapping[int, Mapping[str, Any]]
) -> Flow[str]:
    """Send a part unless it arrived before; return its ETag."""
    digest = yield Digest(upload.path, "md5", upload.start, upload.size_bytes)
    assert isinstance(digest, str)  # noqa: S101  (the result of Digest)
    known = arrived.get(number, {})
    if (known.get("etag"), known.get("size_bytes")) == (digest, upload.size_bytes):
        if upload.on_bytes is not None:
            upload.on_bytes(upload.size_bytes, upload.size_bytes)
        return digest
    body = {"number": number, "size_bytes": upload.size_bytes}
    link = (yield from exchange(Request("POST", f"{address}/parts", body=body))).document()
    headers = {**link["headers"], "Content-MD5": base64.b64encode(bytes.fromhex(digest)).decode()}
    reply = yield from exchange(Request(link["method"], link["url"], headers=headers, upload=upload))
    return reply.headers.get("etag", digest).strip('"')


def _save(exchange: Exchange, address: str, save: Save, progress: TransferProgress) -> Flow[None]:
    artifact = save.artifact
    if save.path.is_file() and save.path.stat().st_size == artifact.size_bytes:
        digest = yield Digest(save.path)
        if digest == artifact.sha256:
            progress.report(artifact.name, artifact.size_bytes)
            return
    while True:
        before = progress.done(artifact.name)
        try:
            yield from exchange(Request("GET", f"{address}/{quote(artifact.name)}", save=save))
        except Unreachable:
            if progress.done(artifact.name) <= before:
                raise  # a connection that keeps breaking is used as long as each attempt makes progress
        else:
            return


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
            if time.time() - note.stat().st_mtime > NOTE_S:
                note.unlink()
