"""The client's operations on jobs, models, queues and files, as flows without a connection."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

from penstock.client import protocol, transfers
from penstock.client.answers import (
    ClientError,
    Event,
    Job,
    JobLog,
    ModelInfo,
    Page,
    PenstockAPIError,
    Queue,
    UsageReport,
    WebhookDelivery,
    Worker,
    WorkerLine,
)
from penstock.client.decoding import read
from penstock.client.downloads import open_file, rename, require_place
from penstock.client.local_files import files_beside, lists_beside, with_media
from penstock.client.protocol import Deadline, Flow, JobFilters, JobOptions, OnBytes, OnRetry, Reply, Request
from penstock.client.transfers import MULTIPART_FROM_BYTES, UploadNote

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
#: Local files for the media fields of a model's input.
Files: TypeAlias = Mapping[str, str | Path | Sequence[str | Path]]

#: Seconds that a request is held open while a job runs.
LONG_POLL_S = 30.0
#: Seconds between calls of `on_job` and `on_batch`.
REPORT_EVERY_S = 1.0

#: Files that are written beside a job's artifacts.
NOTES = ("manifest.json", "job.json")

#: Called with the job while it is waited for.
OnJob: TypeAlias = Callable[[Job], None]


@dataclass(frozen=True)
class Operations:
    """The operations of both clients as flows; `patience_s` bounds the time between retries."""

    patience_s: float
    draw: Callable[[], float] = random.random
    #: The service's address.
    service: str = ""
    #: The folder for notes of unfinished uploads; None = no notes.
    state_dir: Path | None = None
    #: Called before each retry.
    on_retry: OnRetry | None = None

    def fetch(self, method: str, path: str, **options: Any) -> Flow[Any]:
        """Send a request and return the JSON of its answer; None for an empty answer."""
        reply = yield from self.exchange(Request(method, path, **options))
        return reply.document() if reply.body else None

    def value(self, kind: type[T], method: str, path: str, **options: Any) -> Flow[T]:
        """Send a request and return its answer as a value."""
        reply = yield from self.exchange(Request(method, path, **options))
        with reply.of_penstock():
            return read(kind, reply.document())

    def values(self, kind: type[T], name: str, path: str, **options: Any) -> Flow[list[T]]:
        """Return the values in the list `name` of an answer."""
        reply = yield from self.exchange(Request("GET", path, **options))
        with reply.of_penstock():
            return [read(kind, each) for each in reply.document()[name]]

    def job(self, job_id: str, wait_s: float) -> Flow[Job]:
        query = {"wait": f"{wait_s:g}"} if wait_s else {}
        return self.value(Job, "GET", _job(job_id), query=query, wait_s=wait_s)

    def jobs(self, filters: JobFilters) -> Flow[Page]:
        protocol.check_options(filters, JobFilters)
        return self.value(Page, "GET", "/v1/jobs", query=protocol.query_of(filters))

    def wait(self, job_id: str, deadline: Deadline, on_job: OnJob | None = None) -> Flow[Job]:
        hold_s = LONG_POLL_S if on_job is None else REPORT_EVERY_S
        while True:
            job = yield from self.job(job_id, min(hold_s, deadline.left_s()))
            if on_job is not None:
                on_job(job)
            if job.over:
                return job
            deadline.check(job)

    def _whole(self, job: Job) -> Flow[Job]:
        """Return a job with its output, which is left out of other answers than that about a single job if large."""
        missing = job.output_bytes is not None and job.text is None and job.data is None
        return (yield from self.job(job.id, 0)) if missing else job

    def cancel(self, job_id: str) -> Flow[Job]:
        return (yield from self._whole((yield from self.value(Job, "POST", f"{_job(job_id)}/cancel"))))

    def retry(self, job_id: str, key: str | None) -> Flow[Job]:
        headers = {} if (key := protocol.idempotency_key(key)) is None else {"Idempotency-Key": key}
        return (yield from self._whole((yield from self.value(Job, "POST", f"{_job(job_id)}/retry", headers=headers))))

    def delete(self, job_id: str) -> Flow[None]:
        # The service cancels a running job first, and deletes it once its worker has stopped, within a heartbeat.
        while (yield from self.fetch("DELETE", _job(job_id))) is not None:
            if (yield from until_gone(self.wait(job_id, Deadline(None)))):
                return

    def event_list(self, job_id: str) -> Flow[list[Event]]:
        return self.values(Event, "events", f"{_job(job_id)}/events", headers={"Accept": "application/json"})

    def deliveries(self, job_id: str) -> Flow[list[WebhookDelivery]]:
        return self.values(WebhookDelivery, "deliveries", f"{_job(job_id)}/deliveries")

    def logs(self, job_id: str) -> Flow[JobLog]:
        return self.value(JobLog, "GET", f"{_job(job_id)}/logs")

    def redeliver(self, job_id: str, delivery_id: str) -> Flow[WebhookDelivery]:
        path = f"{_job(job_id)}/deliveries/{protocol.segment(delivery_id)}/redeliver"
        return self.value(WebhookDelivery, "POST", path)

    def models(self) -> Flow[list[ModelInfo]]:
        return self.values(ModelInfo, "models", "/v1/models")

    def model(self, name: str) -> Flow[ModelInfo]:
        return self.value(ModelInfo, "GET", f"/v1/models/{quote(name)}")

    def queues(self) -> Flow[list[Queue]]:
        return self.values(Queue, "queues", "/v1/queues")

    def queue(self, name: str) -> Flow[Queue]:
        return self.value(Queue, "GET", _queue(name))

    def workers(self) -> Flow[list[Worker]]:
        return self.values(Worker, "workers", "/v1/workers")

    def worker_lines(self, worker_id: str) -> Flow[list[WorkerLine]]:
        return self.values(WorkerLine, "lines", f"/v1/workers/{quote(worker_id)}/logs")

    def usage(self, **filters: object) -> Flow[UsageReport]:
        return self.value(UsageReport, "GET", "/v1/usage", query=protocol.query_of(filters))

    def drops(self) -> Flow[dict[str, Any]]:
        found: dict[str, Any] = yield from self.fetch("GET", "/v1/drops")
        return found

    def set_queue(self, name: str, move: Literal["pause", "resume", "drain"]) -> Flow[Queue]:
        return self.value(Queue, "POST", f"{_queue(name)}/{move}")

    def purge(self, name: str) -> Flow[int]:
        canceled, more = 0, True
        while more:
            answer = yield from self.fetch("POST", f"{_queue(name)}/purge")
            canceled += answer["canceled"]
            # Without progress the rest cannot be canceled: stop.
            more = answer["more"] and answer["canceled"] > 0
        return canceled

    def dead_letters(self, name: str, limit: int) -> Flow[list[Job]]:
        return self.values(Job, "jobs", f"{_queue(name)}/dead-letters", query={"limit": str(limit)})

    def requeue_dead_letters(self, name: str) -> Flow[list[Job]]:
        jobs: list[Job] = []
        more = True
        while more:
            answer = yield from self.fetch("POST", f"{_queue(name)}/dead-letters/requeue")
            jobs += [read(Job, job) for job in answer["jobs"]]
            more = answer["more"] and len(answer["jobs"]) > 0
        return jobs

    def job_store(self) -> Flow[str | None]:
        reply = yield from self.exchange(Request("GET", "/readyz"))
        with reply.of_penstock():
            found = reply.document().get("job_store")
        return None if found is None else str(found)

    def upload(self, path: Path, on_bytes: OnBytes | None, key: str | None = None) -> Flow[str]:
        """Send a file and return its reference. The same `key` and bytes are sent once and get the same reference."""
        size = protocol.file_size(path)
        if key is not None:
            key = yield from protocol.keyed(path, key)
        if size > MULTIPART_FROM_BYTES:
            return (yield from self._upload_parts(path, size, on_bytes, key))
        request = protocol.upload_request(path, size, key=key, multipart=False)
        begun = (yield from self.exchange(request)).document()
        if begun.get("uploaded"):
            return str(begun["media"])
        try:
            yield from self.exchange(protocol.put_request(path, begun, on_bytes))
        except PenstockAPIError as error:
            if error.status != HTTPStatus.PRECONDITION_FAILED:
                raise
            # The link is private to this upload and S3 accepts one file on it: an earlier attempt has arrived.
        return str(begun["media"])

    def _upload_parts(self, path: Path, size: int, on_bytes: OnBytes | None, key: str | None) -> Flow[str]:
        if key is not None:
            return (yield from transfers.upload_parts(self.exchange, path, size, on_bytes, key))
        note = UploadNote.of(self.state_dir, self.service, path)
        media = yield from transfers.upload_parts(self.exchange, path, size, on_bytes, note.key)
        note.remove()
        return media

    def submit(
        self, model: str, document: Mapping[str, Any], files: Files, on_bytes: OnBytes | None, options: JobOptions
    ) -> Flow[Job]:
        # The caller's key is also the uploads': the same files make the same request, and so find the same job.
        protocol.check_options(options, JobOptions)
        key = protocol.idempotency_key(options.get("idempotency_key")) or options.get("job_id")
        for name, paths in (yield from self._with_beside(model, document, files)).items():
            if isinstance(paths, str):
                document = with_media(document, name, (yield from self.upload(Path(paths), on_bytes, key)))
            else:
                document = with_media(document, name, (yield from self._upload_all(paths, on_bytes, key)))
        request = protocol.submission(model, document, key=key or uuid.uuid4().hex, options=options)
        reply = yield from self.exchange(request)
        with reply.of_penstock():
            job = read(Job, reply.document())
        return (yield from self._whole(job))

    def _with_beside(
        self, model: str, document: Mapping[str, Any], files: Files
    ) -> Flow[dict[str, str | list[str]]]:  # fmt: skip
        """Return the files of a job with those that lie beside them, if the model has a field for these."""
        found = {name: str(one) if isinstance(one, str | Path) else [*map(str, one)] for name, one in files.items()}
        every = chain.from_iterable([each] if isinstance(each, str) else each for each in found.values())
        beside = list(chain.from_iterable(map(files_beside, every)))
        if not beside or "beside" in {*document, *found}:
            return found
        try:
            schema = (yield from self.model(model)).input_schema
        except PenstockAPIError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            said = (
                f"{Path(beside[0]).name} may belong to a file of this job, and this key may not read the model to know"
            )
            raise ClientError(f"{said}: list such files as `beside`, or give `beside` as [] for none") from error
        return found | lists_beside(document, found, schema)

    def download(
        self, job: Job, folder: Path, on_bytes: OnBytes | None, names: Collection[str] | None
    ) -> Flow[list[Path]]:
        if not job.over:
            raise ClientError(f"the job {job.id} is {job.status} and has no files yet: wait for it first")
        wanted = transfers.select_artifacts(job, names)
        for note in NOTES if names is None else ():
            require_place(folder / note)
        address = f"/v1/jobs/{job.id}/artifacts"
        saved = yield from transfers.download(self.exchange, address, wanted, folder, on_bytes)
        return saved if names is not None else [*saved, *write_notes((yield from self._whole(job)), folder)]

    def _upload_all(self, paths: Sequence[str | Path], on_bytes: OnBytes | None, key: str | None) -> Flow[list[str]]:
        references = []
        for path in paths:
            reference = yield from self.upload(Path(path), on_bytes, key)
            references.append(reference)
        return references

    def exchange(self, request: Request) -> Flow[Reply]:
        """Send a request, with retries, and return the answer."""
        return protocol.exchange(request, patience_s=self.patience_s, draw=self.draw, on_retry=self.on_retry)

    @property
    def delays(self) -> protocol.Delays:
        """New delays between the tries of a request."""
        return protocol.Delays(self.patience_s, self.draw, self.on_retry)


def manifest(job: Job) -> dict[str, Any]:
    """Return the content of `manifest.json` for a downloaded result."""
    files = [
        {"name": a.name, "content_type": a.content_type, "size_bytes": a.size_bytes, "sha256": a.sha256}
        for a in job.artifacts
    ]
    return {"job": job.id, "model": job.model, "artifacts": files}


def write_notes(job: Job, folder: Path) -> list[Path]:
    """Write `manifest.json` and `job.json` beside a result and return their paths."""
    contents = (manifest(job), dict(job.raw))
    for name, content in zip(NOTES, contents, strict=True):
        partial = folder / f".{name}.{uuid.uuid4().hex[:8]}.part"
        with open_file(partial, "xb") as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
        rename(partial, folder / name)
    return [folder / name for name in NOTES]


def until_gone(waiting: Flow[object]) -> Flow[bool]:
    """Wait for the end of a deleted job or batch; return True once it is gone."""
    try:
        yield from waiting
    except PenstockAPIError as error:
        if error.status != HTTPStatus.GONE:
            raise
        return True
    return False


def _job(job_id: str) -> str:
    return f"/v1/jobs/{protocol.segment(job_id)}"


def _queue(name: str) -> str:
    return f"/v1/queues/{protocol.segment(name)}"
