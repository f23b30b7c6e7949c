"""What a client can do, without its connection: flows over the API, and the files that go up and come down."""

from __future__ import annotations

import hashlib
import json
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, TypeAlias

from penstock import wire
from penstock.answers import (
    ClientError,
    Corrupt,
    Event,
    Job,
    ModelInfo,
    Page,
    PenstockAPIError,
    Queue,
    read_event,
    read_job,
    read_model,
    read_page,
    read_queue,
)
from penstock.wire import Flow, JobOptions, OnBytes, Reply, Request, Save, Upload

#: Local files for the media fields of a model's input.
Files: TypeAlias = Mapping[str, str | Path | Sequence[str | Path]]

#: What a request is held open for while a job runs.
LONG_POLL_S = 30.0
CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class Operations:
    """What both clients can do, as flows; `patience_s` bounds the waiting between tries."""

    patience_s: float
    draw: Callable[[], float] = random.random

    def ask(self, method: str, path: str, **options: Any) -> Flow[Any]:
        """Return an answer's document; None where there is none."""
        reply = yield from self._exchange(Request(method, path, **options))
        return reply.document() if reply.body else None

    def job(self, job_id: str, wait_s: float) -> Flow[Job]:
        query = {"wait": f"{wait_s:g}"} if wait_s else {}
        return read_job((yield from self.ask("GET", f"/v1/jobs/{job_id}", query=query, wait_s=wait_s)))

    def jobs(self, **filters: Any) -> Flow[Page]:
        query = {name: str(value) for name, value in filters.items() if value is not None}
        return read_page((yield from self.ask("GET", "/v1/jobs", query=query)))

    def wait(self, job_id: str) -> Flow[Job]:
        while not (job := (yield from self.job(job_id, LONG_POLL_S))).over:
            pass
        return job

    def cancel(self, job_id: str) -> Flow[Job]:
        return read_job((yield from self.ask("POST", f"/v1/jobs/{job_id}/cancel")))

    def delete(self, job_id: str) -> Flow[None]:
        # A running job is canceled first; then its worker gives it up within a heartbeat, and it can go.
        while (yield from self.ask("DELETE", f"/v1/jobs/{job_id}")) is not None:
            yield from self.wait(job_id)

    def event_list(self, job_id: str) -> Flow[list[Event]]:
        headers = {"Accept": "application/json"}
        answer = yield from self.ask("GET", f"/v1/jobs/{job_id}/events", headers=headers)
        return [read_event(event) for event in answer["events"]]

    def deliveries(self, job_id: str) -> Flow[list[dict[str, Any]]]:
        answer = yield from self.ask("GET", f"/v1/jobs/{job_id}/deliveries")
        return list(answer["deliveries"])

    def models(self) -> Flow[list[ModelInfo]]:
        answer = yield from self.ask("GET", "/v1/models")
        return [read_model(model) for model in answer["models"]]

    def model(self, name: str) -> Flow[ModelInfo]:
        return read_model((yield from self.ask("GET", f"/v1/models/{name}")))

    def queue(self, name: str) -> Flow[Queue]:
        return read_queue((yield from self.ask("GET", f"/v1/queues/{name}")))

    def upload(self, path: Path, on_bytes: OnBytes | None) -> Flow[str]:
        place = (yield from self._exchange(wire.upload_request(path))).document()
        try:
            yield from self._exchange(wire.put_request(path, place, on_bytes))
        except PenstockAPIError as error:
            if error.status != HTTPStatus.PRECONDITION_FAILED:
                raise
            # S3 takes one file on a link that nobody else has: a try whose answer was lost has arrived.
        return str(place["media"])

    def submit(
        self, model: str, document: Mapping[str, Any], files: Files, on_bytes: OnBytes | None, options: JobOptions
    ) -> Flow[Job]:
        for name, paths in files.items():
            if isinstance(paths, str | Path):
                document = wire.with_media(document, name, (yield from self.upload(Path(paths), on_bytes)))
            else:
                document = wire.with_media(document, name, (yield from self._upload_all(paths, on_bytes)))
        key = options.pop("idempotency_key", None) or uuid.uuid4().hex
        request = wire.submission(model, document, key=key, options=options)
        return read_job((yield from self._exchange(request)).document())

    def download(self, job: Job, folder: Path, on_bytes: OnBytes | None) -> Flow[list[Path]]:
        saved = []
        for artifact in job.artifacts:
            path = wire.artifact_path(folder, artifact.name)
            _make_folder(path.parent)
            yield from self._exchange(wire.artifact_request(job.id, wire.Save(path, artifact, on_bytes)))
            saved.append(path)
        _make_folder(folder)
        return [*saved, *write_notes(job, folder)]

    def _upload_all(self, paths: Sequence[str | Path], on_bytes: OnBytes | None) -> Flow[list[str]]:
        references = []
        for path in paths:
            reference = yield from self.upload(Path(path), on_bytes)
            references.append(reference)
        return references

    def _exchange(self, request: Request) -> Flow[Reply]:
        return wire.exchange(request, patience_s=self.patience_s, draw=self.draw)


class Part:
    """A download in the making: it becomes its file when its bytes are those that were promised, or leaves nothing."""

    def __init__(self, save: Save) -> None:
        self._save = save
        self._draft = save.path.with_name(f".{save.path.name}.{uuid.uuid4().hex[:8]}.part")
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0
        self._file: BinaryIO

    def __enter__(self) -> Self:
        self._file = _opened(self._draft, "xb")
        return self

    def write(self, chunk: bytes) -> None:
        """Add bytes."""
        try:
            self._file.write(chunk)
        except OSError as error:
            raise ClientError(f"cannot write {self._save.path}: {error.strerror}") from error
        self._sha256.update(chunk)
        self._size_bytes += len(chunk)
        if self._save.on_bytes is not None:
            self._save.on_bytes(self._size_bytes, self._save.artifact.size_bytes)

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._file.close()
        try:
            if kind is None:
                self._check()
                self._draft.replace(self._save.path)
        finally:
            self._draft.unlink(missing_ok=True)

    def _check(self) -> None:
        artifact = self._save.artifact
        if (self._size_bytes, self._sha256.hexdigest()) != (artifact.size_bytes, artifact.sha256):
            raise Corrupt(f"{artifact.name} did not arrive as the {artifact.size_bytes} bytes that the job names")


def chunks(upload: Upload) -> Iterator[bytes]:
    """Yield a file's bytes, telling how far it is."""
    done = 0
    with _opened(upload.path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
            done += len(chunk)
            if upload.on_bytes is not None:
                upload.on_bytes(done, upload.size_bytes)


def write_notes(job: Job, folder: Path) -> list[Path]:
    """Write `manifest.json` and `job.json` beside a result and return their paths."""
    notes = {"manifest.json": wire.manifest(job), "job.json": dict(job.raw)}
    for name, content in notes.items():
        draft = folder / f".{name}.{uuid.uuid4().hex[:8]}.part"
        with _opened(draft, "xb") as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
        draft.replace(folder / name)
    return [folder / name for name in notes]


def _opened(path: Path, mode: Literal["rb", "xb"]) -> BinaryIO:
    try:
        return path.open(mode)
    except OSError as error:
        raise ClientError(f"cannot open {path}: {error.strerror}") from error


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClientError(f"cannot make the folder {path}: {error.strerror}") from error
