"""Files that go up in parts and come down several at a time, as flows: see `penstock.wire`."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from penstock import wire
from penstock.answers import Artifact, ClientError, Job, Unreachable
from penstock.drafts import make_folder, require_place
from penstock.parts import joined_etag, part_sizes
from penstock.wire import Digest, Flow, OnBytes, Reply, Request, Save, Together, Upload

#: Larger files are sent in parts.
PARTS_FROM_BYTES = 16 << 20
AT_A_TIME = 4
#: What the joining of a large file may take.
COMPLETE_S = 600.0

#: Sends a request until it is answered.
Exchange: TypeAlias = Callable[[Request], Flow[Reply]]


class Stopped(ClientError):
    """A transfer ended because one beside it failed."""


class Tally:
    """Adds up how far transfers are that go on together, in several threads."""

    def __init__(self, on_bytes: OnBytes | None, total: int) -> None:
        self.stop = threading.Event()
        self._on_bytes = on_bytes
        self._total = total
        self._done: dict[object, int] = {}
        self._told = 0
        self._lock = threading.Lock()

    def of(self, name: object) -> OnBytes:
        """Return what is told of one transfer."""
        return lambda done, _total: self.tell(name, done)

    def done(self, name: object) -> int:
        """Return how far a transfer is."""
        return self._done.get(name, 0)

    def tell(self, name: object, done: int) -> None:
        """Note how far a transfer is; raise `Stopped` where it should end. What is told never gets less."""
        if self.stop.is_set():
            raise Stopped("another transfer failed")
        with self._lock:
            self._done[name] = done
            self._told = max(self._told, sum(self._done.values()))
            if self._on_bytes is not None:
                self._on_bytes(self._told, self._total)


def upload_parts(exchange: Exchange, path: Path, size: int, on_bytes: OnBytes | None, key: str) -> Flow[str]:
    """Send a file in parts, but for those that have arrived under the same `key`; return its reference.

    Each part goes with its MD5, and the whole is complete only if it is made of what was sent here.
    """
    before = path.stat()
    place = (yield from exchange(wire.upload_request(path, size, key=key, multipart=True))).document()
    media = str(place["media"])
    if place["uploaded"]:
        return media
    address, sizes = f"/v1/uploads/{media.removeprefix('media://')}", part_sizes(size, place["part_bytes"])
    arrived, tally = {part["number"]: part for part in place["parts"]}, Tally(on_bytes, size)
    flows = [
        _part(exchange, address, Upload(path, part_size, tally.of(number), start, before.st_mtime_ns), number, arrived)
        for number, (start, part_size) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False), 1)
    ]
    try:
        etags = yield Together(flows, AT_A_TIME, tally.stop)
    except Exception as error:  # what the store says of a part that is not what its MD5 was would only confuse
        _check_unchanged(path, before, error)
        raise
    _check_unchanged(path, before)
    assert isinstance(etags, list)  # noqa: S101  (what is done together is answered with a list)
    body = {"size_bytes": size, "etag": joined_etag(etags)}
    yield from exchange(Request("POST", f"{address}/complete", body=body, wait_s=COMPLETE_S))
    return media


def download(
    exchange: Exchange, place: str, artifacts: Sequence[Artifact], folder: Path, on_bytes: OnBytes | None
) -> Flow[list[Path]]:
    """Save artifacts from under `place` in a folder, several at a time; those that are there already stay."""
    tally = Tally(on_bytes, sum(artifact.size_bytes for artifact in artifacts))
    paths = [wire.artifact_path(folder, artifact.name) for artifact in artifacts]
    for parent in {folder, *(path.parent for path in paths)}:
        make_folder(parent)
    for path in paths:
        require_place(path)
    flows = [
        _save(exchange, place, Save(path, artifact, tally.of(artifact.name)), tally)
        for path, artifact in zip(paths, artifacts, strict=True)
    ]
    yield Together(flows, AT_A_TIME, tally.stop)
    return paths


def chosen(job: Job, names: Collection[str] | None) -> list[Artifact]:
    """Return a job's artifacts of these names (or this one), all for None; `ClientError` names those that there are."""
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
    """Send a part unless it has arrived; return its tag."""
    digest = yield Digest(upload.path, "md5", upload.start, upload.size_bytes)
    assert isinstance(digest, str)  # noqa: S101  (what a digest is answered with)
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


def _save(exchange: Exchange, place: str, save: Save, tally: Tally) -> Flow[None]:
    artifact = save.artifact
    if save.path.is_file() and save.path.stat().st_size == artifact.size_bytes:
        digest = yield Digest(save.path)
        if digest == artifact.sha256:
            tally.tell(artifact.name, artifact.size_bytes)
            return
    while True:
        before = tally.done(artifact.name)
        try:
            yield from exchange(Request("GET", f"{place}/{quote(artifact.name)}", save=save))
        except Unreachable:
            if tally.done(artifact.name) <= before:
                raise  # a connection that breaks again and again is used as long as it brings something
        else:
            return
