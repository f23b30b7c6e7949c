"""What a client can do, without its connection: flows over the API, and the files that go up and come down."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from penstock import transfers, wire
from penstock.answers import (
    ClientError,
    Event,
    Job,
    ModelInfo,
    Page,
    PenstockAPIError,
    Queue,
    WebhookDelivery,
    Worker,
    read_delivery,
    read_event,
    read_job,
    read_model,
    read_page,
    read_queue,
    read_worker,
)
from penstock.drafts import named, opened, require_place
from penstock.transfers import PARTS_FROM_BYTES
from penstock.upload_notes import UploadNote
from penstock.wire import Deadline, Flow, JobOptions, OnBytes, Reply, Request

#: Local files for the media fields of a model's input.
Files: TypeAlias = Mapping[str, str | Path | Sequence[str | Path]]

#: What a request is held open for while a job runs.
LONG_POLL_S = 30.0
#: How often somebody who wants to see a job's estimate is told.
TELL_EVERY_S = 1.0

#: What is written beside a job's artifacts.
NOTES = ("manifest.json", "job.json")

#: Told of a job while it is waited for.
OnJob: TypeAlias = Callable[[Job], None]


@dataclass(frozen=True)
class Operations:
    """What both clients can do, as flows; `patience_s` bounds the waiting between tries."""

    patience_s: float
    draw: Callable[[], float] = random.random
    #: The service's address.
    service: str = ""
    #: Where uploads that did not end are noted; None = nowhere.
    state_dir: Path | None = None

    def ask(self, method: str, path: str, **options: Any) -> Flow[Any]:
        """Return an answer's document; None where there is none."""
        reply = yield from self.exchange(Request(method, path, **options))
        return reply.document() if reply.body else None

    def job(self, job_id: str, wait_s: float) -> Flow[Job]:
        query = {"wait": f"{wait_s:g}"} if wait_s else {}
        return read_job((yield from self.ask("GET", _job(job_id), query=query, wait_s=wait_s)))

    def jobs(self, query: Mapping[str, str]) -> Flow[Page]:
        return read_page((yield from self.ask("GET", "/v1/jobs", query=query)))

    def wait(self, job_id: str, deadline: Deadline, on_job: OnJob | None = None) -> Flow[Job]:
        hold_s = LONG_POLL_S if on_job is None else TELL_EVERY_S
        while True:
            job = yield from self.job(job_id, min(hold_s, deadline.left_s()))
            if on_job is not None:
                on_job(job)
            if job.over:
                return job
            deadline.check(job)

    def cancel(self, job_id: str) -> Flow[Job]:
        return read_job((yield from self.ask("POST", f"{_job(job_id)}/cancel")))

    def retry(self, job_id: str, key: str | None) -> Flow[Job]:
        headers = {} if (key := wire.idempotency_key(key)) is None else {"Idempotency-Key": key}
        return read_job((yield from self.ask("POST", f"{_job(job_id)}/retry", headers=headers)))

    def delete(self, job_id: str) -> Flow[None]:
        # A running job is canceled first; its worker gives it up within a heartbeat, and it goes by itself.
        while (yield from self.ask("DELETE", _job(job_id))) is not None:
            if (yield from until_gone(self.wait(job_id, Deadline(None)))):
                return

    def event_list(self, job_id: str) -> Flow[list[Event]]:
        headers = {"Accept": "application/json"}
        answer = yield from self.ask("GET", f"{_job(job_id)}/events", headers=headers)
        return [read_event(event) for event in answer["events"]]

    def deliveries(self, job_id: str) -> Flow[list[WebhookDelivery]]:
        answer = yield from self.ask("GET", f"{_job(job_id)}/deliveries")
        return [read_delivery(delivery) for delivery in answer["deliveries"]]

    def redeliver(self, job_id: str, delivery_id: str) -> Flow[WebhookDelivery]:
        path = f"{_job(job_id)}/deliveries/{wire.segment(delivery_id)}/redeliver"
        return read_delivery((yield from self.ask("POST", path)))

    def models(self) -> Flow[list[ModelInfo]]:
        answer = yield from self.ask("GET", "/v1/models")
        return [read_model(model) for model in answer["models"]]

    def model(self, name: str) -> Flow[ModelInfo]:
        return read_model((yield from self.ask("GET", f"/v1/models/{quote(name)}")))

    def queues(self) -> Flow[list[Queue]]:
        answer = yield from self.ask("GET", "/v1/queues")
        return [read_queue(queue) for queue in answer["queues"]]

    def queue(self, name: str) -> Flow[Queue]:
        return read_queue((yield from self.ask("GET", _queue(name))))

    def workers(self) -> Flow[list[Worker]]:
        answer = yield from self.ask("GET", "/v1/workers")
        return [read_worker(worker) for worker in answer["workers"]]

    def set_queue(self, name: str, move: Literal["pause", "resume", "drain"]) -> Flow[Queue]:
        return read_queue((yield from self.ask("POST", f"{_queue(name)}/{move}")))

    def purge(self, name: str) -> Flow[int]:
        canceled, more = 0, True
        while more:
            answer = yield from self.ask("POST", f"{_queue(name)}/purge")
            canceled += answer["canceled"]
            # What could not be canceled is left, and must not be asked for again and again.
            more = answer["more"] and answer["canceled"] > 0
        return canceled

    def dead_letters(self, name: str, limit: int) -> Flow[list[Job]]:
        answer = yield from self.ask("GET", f"{_queue(name)}/dead-letters", query={"limit": str(limit)})
        return [read_job(job) for job in answer["jobs"]]

    def requeue_dead_letters(self, name: str) -> Flow[list[Job]]:
        made: list[Job] = []
        more = True
        while more:
            answer = yield from self.ask("POST", f"{_queue(name)}/dead-letters/requeue")
            made += [read_job(job) for job in answer["jobs"]]
            more = answer["more"] and len(answer["jobs"]) > 0
        return made

    def job_store(self) -> Flow[str | None]:
        found = (yield from self.ask("GET", "/readyz")).get("job_store")
        return None if found is None else str(found)

    def upload(self, path: Path, on_bytes: OnBytes | None, key: str | None = None) -> Flow[str]:
        """Send a file and return its reference: the same again for the same `key` and bytes, which are sent once."""
        size = wire.file_size(path)
        if key is not None:
            key = yield from wire.keyed(path, key)
        if size > PARTS_FROM_BYTES:
            return (yield from self._upload_parts(path, size, on_bytes, key))
        request = wire.upload_request(path, size, key=key, multipart=False)
        place = (yield from self.exchange(request)).document()
        if place.get("uploaded"):
            return str(place["media"])
        try:
            yield from self.exchange(wire.put_request(path, place, on_bytes))
        except PenstockAPIError as error:
            if error.status != HTTPStatus.PRECONDITION_FAILED:
                raise
            # S3 takes one file on a link that nobody else has: a try whose answer was lost has arrived.
        return str(place["media"])

    def _upload_parts(self, path: Path, size: int, on_bytes: OnBytes | None, key: str | None) -> Flow[str]:
        if key is not None:
            return (yield from transfers.upload_parts(self.exchange, path, size, on_bytes, key))
        note = UploadNote.of(self.state_dir, self.service, path)
        media = yield from transfers.upload_parts(self.exchange, path, size, on_bytes, note.key)
        note.over()
        return media

    def submit(
        self, model: str, document: Mapping[str, Any], files: Files, on_bytes: OnBytes | None, options: JobOptions
    ) -> Flow[Job]:
        # A key of the caller's is the uploads' too: the same files again make the same request, and so the same job.
        wire.known(options, JobOptions)
        key = wire.idempotency_key(options.pop("idempotency_key", None)) or options.get("job_id")
        for name, paths in files.items():
            if isinstance(paths, str | Path):
                document = wire.with_media(document, name, (yield from self.upload(Path(paths), on_bytes, key)))
            else:
                document = wire.with_media(document, name, (yield from self._upload_all(paths, on_bytes, key)))
        request = wire.submission(model, document, key=key or uuid.uuid4().hex, options=options)
        return read_job((yield from self.exchange(request)).document())

    def download(
        self, job: Job, folder: Path, on_bytes: OnBytes | None, names: Collection[str] | None
    ) -> Flow[list[Path]]:
        if not job.over:
            raise ClientError(f"the job {job.id} is {job.status}: its files come when it is over, wait for it first")
        wanted = transfers.chosen(job, names)
        for note in NOTES if names is None else ():
            require_place(folder / note)
        place = f"/v1/jobs/{job.id}/artifacts"
        saved = yield from transfers.download(self.exchange, place, wanted, folder, on_bytes)
        return saved if names is not None else [*saved, *write_notes(job, folder)]

    def _upload_all(self, paths: Sequence[str | Path], on_bytes: OnBytes | None, key: str | None) -> Flow[list[str]]:
        references = []
        for path in paths:
            reference = yield from self.upload(Path(path), on_bytes, key)
            references.append(reference)
        return references

    def exchange(self, request: Request) -> Flow[Reply]:
        """Send a request until it is answered."""
        return wire.exchange(request, patience_s=self.patience_s, draw=self.draw)


def write_notes(job: Job, folder: Path) -> list[Path]:
    """Write `manifest.json` and `job.json` beside a result and return their paths."""
    contents = (wire.manifest(job), dict(job.raw))
    for name, content in zip(NOTES, contents, strict=True):
        draft = folder / f".{name}.{uuid.uuid4().hex[:8]}.part"
        with opened(draft, "xb") as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
        named(draft, folder / name)
    return [folder / name for name in NOTES]


def until_gone(waiting: Flow[object]) -> Flow[bool]:
    """Wait for the end of what was deleted: True when it is gone."""
    try:
        yield from waiting
    except PenstockAPIError as error:
        if error.status != HTTPStatus.GONE:
            raise
        return True
    return False


def _job(job_id: str) -> str:
    return f"/v1/jobs/{wire.segment(job_id)}"


def _queue(name: str) -> str:
    return f"/v1/queues/{wire.segment(name)}"
