"""Files of results in local folders: their names, partial downloads, and the notes beside them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, Self

from penstock.client.answers import Artifact, ClientError, Corrupt, Job
from penstock.client.options import OnBytes

CHUNK_BYTES = 1 << 18
#: Files that are written beside a job's artifacts.
NOTES = ("manifest.json", "job.json")


@dataclass(frozen=True, slots=True)
class Save:
    """The file for an artifact, whose bytes must be the artifact's."""

    path: Path
    artifact: Artifact
    on_bytes: OnBytes | None = None


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
    def headers(self) -> dict[str, str]:
        """The headers that request the rest."""
        range_ = {"Range": f"bytes={self.size_bytes}-"} if self.size_bytes else {}
        return {"Accept-Encoding": "identity", **range_}  # a range counts stored bytes

    def begin(self, status: int) -> None:
        """Start over unless the service answered with the rest (206)."""
        if status != HTTPStatus.PARTIAL_CONTENT and self.size_bytes:
            self._restart()

    def write(self, chunk: bytes) -> None:
        """Append bytes."""
        with file_errors("save", self._save.path):
            self._file.write(chunk)
        self._add(chunk)
        if self._save.on_bytes is not None:
            self._save.on_bytes(self.size_bytes, self._save.artifact.size_bytes)

    def finish(self) -> None:
        """Rename the download to its file; raise `Corrupt` and delete it where size or SHA-256 differ."""
        artifact, self._over = self._save.artifact, True
        if not self.complete:
            self._path.unlink(missing_ok=True)
            raise Corrupt(f"{artifact.name} did not arrive with the size and SHA-256 of the job: download it again")
        with file_errors("save", self._save.path):
            self._file.flush()
            self._path.replace(self._save.path)

    def close(self) -> None:
        """Keep the bytes that the next attempt can use, and close the file."""
        if not self._over and (self.size_bytes == 0 or self._path != self._shared):
            self._path.unlink(missing_ok=True)
        with suppress(OSError):  # the disk is full, which was said already
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


@contextmanager
def file_errors(what: str, path: Path) -> Iterator[None]:
    """Raise `ClientError` where the block cannot do this with a file: `open`, `save`."""
    try:
        yield
    except OSError as error:
        raise ClientError(f"cannot {what} {path}: {error.strerror}") from error


def open_file(path: Path, mode: Literal["rb", "x+b", "a+b"]) -> BinaryIO:
    """Open a file; raise `ClientError` where that fails."""
    with file_errors("open", path):
        return path.open(mode)


def make_folder(path: Path) -> None:
    """Create a folder unless it exists; raise `ClientError` where that fails or the folder is not writable."""
    with file_errors("make the folder", path):
        path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise ClientError(f"cannot write in the folder {path}")


def require_place(path: Path) -> None:
    """Raise `ClientError` where a folder has the name of a file to be saved."""
    if path.is_dir():
        raise ClientError(f"cannot save {path}: there is a folder of that name; move it, or save elsewhere")


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


def places(artifacts: Iterable[Artifact], folder: Path) -> list[Path]:
    """Return the path of each artifact in a folder, and make the folders that are missing.

    Raises `ClientError` for a name that leads out of the folder, and where a folder has the name of a file.
    """
    paths = [artifact_path(folder, artifact.name) for artifact in artifacts]
    for parent in {folder, *(path.parent for path in paths)}:
        make_folder(parent)
    for path in paths:
        require_place(path)
    return paths


def artifact_path(folder: Path, name: str) -> Path:
    """Return the path for an artifact; raise `ClientError` for a name that leads out of the folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name:
        raise ClientError(f"the artifact {name!r} cannot be saved: its name leads out of the folder")
    return folder.joinpath(*parts)


def write_notes(job: Job, folder: Path) -> list[Path]:
    """Write `manifest.json` and `job.json` beside a result and return their paths."""
    for name, content in zip(NOTES, (manifest(job), dict(job.raw)), strict=True):
        partial = folder / f".{name}.{uuid.uuid4().hex[:8]}.part"
        with file_errors("save", folder / name):
            partial.write_bytes(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
            partial.replace(folder / name)
    return [folder / name for name in NOTES]


def manifest(job: Job) -> Mapping[str, Any]:
    """Return the content of `manifest.json` for a downloaded result."""
    files = [
        {"name": a.name, "content_type": a.content_type, "size_bytes": a.size_bytes, "sha256": a.sha256}
        for a in job.artifacts
    ]
    return {"job": job.id, "model": job.model, "artifacts": files}
