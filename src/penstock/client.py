"""The client: submit a job, follow it, fetch its result.

    with Client("http://127.0.0.1:8080") as penstock:
        job = penstock.submit("csmask", files={"scene": "scene.tif"})
        job = penstock.wait(job.id)
        penstock.download(job, Path("result"))

A service that asks for API keys takes one as `Client(url, api_key="penstock_...")`.

`Client` and `AsyncClient` have the same methods. Every request is safe to repeat and is repeated by itself when the
connection fails or the service says 429 or 503, as long as the waiting takes no longer than `patience_s`. They raise
`PenstockAPIError` (the service's problem), `Unreachable`, `Corrupt`, `StillRunning`, or their base `ClientError`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx
import httpx_sse

from penstock import connection, wire
from penstock import webhook_operations as webhooks
from penstock.answers import (
    Artifact,
    ClientError,
    Corrupt,
    DeliveryPage,
    Event,
    Job,
    ModelInfo,
    Page,
    PenstockAPIError,
    Queue,
    StillRunning,
    Try,
    Unreachable,
    WebhookDelivery,
    WebhookEndpoint,
    Worker,
)
from penstock.async_client import AsyncClient
from penstock.batch_answers import Batch, BatchPage, LineOutcome
from penstock.batch_operations import BatchOperations, BatchOptions, OnBatch, outcomes
from penstock.connection import DEFAULT_URL, PATIENCE_S
from penstock.drafts import CHUNK_BYTES, Draft, chunks
from penstock.operations import Files, OnJob, Operations
from penstock.webhook_operations import EndpointOptions
from penstock.wire import Digest, Flow, JobOptions, OnBytes, Pause, Reply, Request, Save, Step, Together

__all__ = [
    "Artifact", "AsyncClient", "Batch", "BatchOptions", "BatchPage", "Client", "ClientError", "Corrupt", "DeliveryPage",
    "EndpointOptions", "Event", "Job", "JobOptions", "LineOutcome", "ModelInfo", "Page", "PenstockAPIError", "Queue",
    "StillRunning", "Try", "Unreachable", "WebhookDelivery", "WebhookEndpoint", "Worker",
]  # fmt: skip

T = TypeVar("T")


class Client:
    """The sync client. Close it, or use it as a context manager."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        patience_s: float = PATIENCE_S,
        state_dir: str | Path | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(**connection.options(base_url), transport=transport)
        self._api_key = connection.checked_key(api_key)
        self._do = Operations(patience_s, service=base_url, state_dir=None if state_dir is None else Path(state_dir))
        self._batches = BatchOperations(self._do)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(
        self,
        model: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002  (the API's own word)
        *,
        files: Files | None = None,
        on_bytes: OnBytes | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Submit a job and return it; `files` are uploaded first and named in their fields of `input`."""
        return self._run(self._do.submit(model, input or {}, files or {}, on_bytes, options))

    def upload(self, path: str | Path, *, on_bytes: OnBytes | None = None) -> str:
        """Send a local file and return its `media://` reference; a large one goes in parts, several at a time.

        With a `state_dir` an upload that broke off goes on when the same file is sent again, by any process.
        """
        return self._run(self._do.upload(Path(path), on_bytes))

    def job(self, job_id: str, *, wait_s: float = 0) -> Job:
        """Return a job, at once or when it ended (after at most `wait_s`, 60)."""
        return self._run(self._do.job(job_id, wait_s))

    def jobs(
        self,
        *,
        status: str | None = None,
        model: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Page:
        """Return a page of jobs, newest first; it may be short and have a `next_cursor` all the same."""
        wanted = wire.job_filters(
            status=status, model=model, limit=limit, cursor=cursor, created_after=created_after,
            created_before=created_before, metadata=metadata,
        )  # fmt: skip
        return self._run(self._do.jobs(wanted))

    def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_job: OnJob | None = None,
    ) -> Job:
        """Return the job when it ended; `StillRunning` if it has not within `timeout_s` (None: however long it takes).

        Meanwhile either `on_event` is told what happens, or `on_job`, about once a second, how far the job is
        (`progress`, `queue_position`) and how long it will take (`eta_s`).
        """
        deadline = wire.Deadline(timeout_s)
        if on_event is not None:
            for event in self._events(job_id, "", deadline):
                on_event(event)
        return self._run(self._do.wait(job_id, deadline, on_job))

    def events(self, job_id: str, *, after: str = "") -> Iterator[Event]:
        """Yield what happens to a job until it ended, from the beginning or after an event's id.

        The first event is `snapshot`, the job itself, and again after each time the connection was lost.
        """
        return self._events(job_id, after, wire.Deadline(None))

    def _events(self, job_id: str, after: str, deadline: wire.Deadline) -> Iterator[Event]:
        reader = wire.EventReader(job_id, after, wire.Delays(self._do.patience_s, self._do.draw), deadline)
        while not reader.over:
            try:
                with (
                    self._http.stream(**connection.stream(reader.request, self._api_key)) as response,
                    connection.cut_off(response, deadline.left_s()),
                ):
                    if response.status_code != 200:
                        response.read()
                    for sent in httpx_sse.EventSource(connection.streaming(response)).iter_sse():
                        if (event := reader.take(sent.event, sent.data)) is not None:
                            yield event
                delay_s = reader.closed()
            except httpx.TransportError as error:
                delay_s = reader.failed(self._unreachable(error))
            except PenstockAPIError as error:
                delay_s = reader.failed(error)
            time.sleep(delay_s)

    def event_list(self, job_id: str) -> list[Event]:
        """Return what happened to a job so far, oldest first."""
        return self._run(self._do.event_list(job_id))

    def deliveries(self, job_id: str) -> list[WebhookDelivery]:
        """Return the webhook deliveries of a job with each try."""
        return self._run(self._do.deliveries(job_id))

    def redeliver(self, job_id: str, delivery_id: str) -> WebhookDelivery:
        """Have an event sent now, under the same id and with the same bytes: once more, or sooner than it was due."""
        return self._run(self._do.redeliver(job_id, delivery_id))

    def webhook_endpoints(self) -> list[WebhookEndpoint]:
        """Return the webhook endpoints, the oldest first."""
        return self._run(webhooks.list_all(self._do))

    def webhook_endpoint(self, endpoint_id: str) -> WebhookEndpoint:
        """Return a webhook endpoint."""
        return self._run(webhooks.read(self._do, endpoint_id))

    def create_webhook_endpoint(self, url: str, **options: Unpack[EndpointOptions]) -> WebhookEndpoint:
        """Make a webhook endpoint; what is returned has its `secret`, which is not told again."""
        return self._run(webhooks.create(self._do, url, options))

    def change_webhook_endpoint(
        self, endpoint_id: str, *, url: str | None = None, **options: Unpack[EndpointOptions]
    ) -> WebhookEndpoint:
        """Change a webhook endpoint: what is not given stays as it is."""
        return self._run(webhooks.change(self._do, endpoint_id, url, options))

    def delete_webhook_endpoint(self, endpoint_id: str) -> None:
        """Delete a webhook endpoint; what waits to be sent to it is not sent any more."""
        self._run(webhooks.delete(self._do, endpoint_id))

    def rotate_webhook_secret(self, endpoint_id: str, *, overlap_s: int | None = None) -> WebhookEndpoint:
        """Give an endpoint a new `secret`; the one before signs beside it for `overlap_s` (as the service is set)."""
        return self._run(webhooks.rotate(self._do, endpoint_id, overlap_s))

    def test_webhook_endpoint(self, endpoint_id: str, *, wait_s: float = 20) -> WebhookDelivery:
        """Send an endpoint a `webhook.test` event, and return how that went."""
        return self._run(webhooks.test(self._do, endpoint_id, wait_s))

    def endpoint_deliveries(self, endpoint_id: str, *, limit: int = 50, cursor: str | None = None) -> DeliveryPage:
        """Return a page of an endpoint's deliveries, the latest first."""
        return self._run(webhooks.of_endpoint(self._do, endpoint_id, limit, cursor))

    def delivery(self, delivery_id: str, *, wait_s: float = 0) -> WebhookDelivery:
        """Return a delivery, at once or when it is settled (after at most `wait_s`, 60)."""
        return self._run(webhooks.read_one(self._do, delivery_id, wait_s))

    def dead_deliveries(self, *, endpoint_id: str | None = None, limit: int = 50) -> list[WebhookDelivery]:
        """Return the deliveries that failed for good, the latest first, at most `limit` (500)."""
        return self._run(webhooks.dead(self._do, endpoint_id, limit))

    def redeliver_dead(self, *, endpoint_id: str | None = None) -> int:
        """Have all deliveries that failed for good sent again, and return how many that are."""
        return self._run(webhooks.redeliver_dead(self._do, endpoint_id))

    def submit_batch(
        self,
        requests: Sequence[Mapping[str, Any]] | str | Path,
        *,
        on_bytes: OnBytes | None = None,
        **options: Unpack[BatchOptions],
    ) -> Batch:
        """Submit many requests at once and return their batch.

        `requests` are objects as POST /v1/jobs takes them, each with a `custom_id` if you like; or a local JSONL file
        that holds them, or a reference to one (`media://`, `s3://`).
        """
        return self._run(self._batches.submit(requests, on_bytes, options))

    def batch(self, batch_id: str, *, wait_s: float = 0) -> Batch:
        """Return a batch, at once or when it ended (after at most `wait_s`, 60)."""
        return self._run(self._batches.read(batch_id, wait_s))

    def batches(self, *, limit: int | None = None, cursor: str | None = None) -> BatchPage:
        """Return a page of batches, newest first."""
        return self._run(self._batches.page(limit=limit, cursor=cursor))

    def wait_batch(self, batch_id: str, *, on_batch: OnBatch | None = None) -> Batch:
        """Return the batch when it ended, however long that takes; `on_batch` is told about once a second."""
        return self._run(self._batches.wait(batch_id, on_batch))

    def cancel_batch(self, batch_id: str) -> Batch:
        """Ask for a batch's end and return it; what succeeded before is in its results."""
        return self._run(self._batches.cancel(batch_id))

    def delete_batch(self, batch_id: str) -> None:
        """Delete a batch with its jobs and all results; one that is not over is canceled first and waited for."""
        self._run(self._batches.delete(batch_id))

    def download_batch(self, batch: Batch, folder: str | Path, *, on_bytes: OnBytes | None = None) -> list[Path]:
        """Save `results.jsonl` and `errors.jsonl` of a batch that is over; return the files."""
        return self._run(self._batches.save(batch, Path(folder), on_bytes))

    def batch_results(self, batch_id: str) -> Iterator[LineOutcome]:
        """Yield what each line of a batch that is over came to, in their order, errors among them."""
        with tempfile.TemporaryDirectory() as folder:
            self.download_batch(self.batch(batch_id), folder)
            yield from outcomes(Path(folder))

    def cancel(self, job_id: str) -> Job:
        """Ask for a job's end and return it; a running one may still be `canceling`."""
        return self._run(self._do.cancel(job_id))

    def retry(self, job_id: str, *, idempotency_key: str | None = None) -> Job:
        """Submit what a failed, expired or canceled job asked for as a new job, and return that.

        A job has one retry, however often it is asked for, unless each call has a key of its own.
        """
        return self._run(self._do.retry(job_id, idempotency_key))

    def delete(self, job_id: str) -> None:
        """Delete a job and its artifacts; a running one is canceled first and waited for."""
        self._run(self._do.delete(job_id))

    def download(
        self,
        job: Job,
        folder: str | Path,
        *,
        names: Collection[str] | None = None,
        on_bytes: OnBytes | None = None,
    ) -> list[Path]:
        """Save a job's artifacts, `manifest.json` and `job.json` in a folder; return the files.

        With `names` only these artifacts. Several come at a time, and what broke off goes on, in another process too.
        Each appears under its name only when its bytes are those that the job names; raises `Corrupt` otherwise.
        """
        return self._run(self._do.download(job, Path(folder), on_bytes, names))

    def models(self) -> list[ModelInfo]:
        """Return the service's models."""
        return self._run(self._do.models())

    def model(self, name: str) -> ModelInfo:
        """Return a model with its input's JSON Schema."""
        return self._run(self._do.model(name))

    def queue(self, name: str = "default") -> Queue:
        """Return a queue's depth and speed."""
        return self._run(self._do.queue(name))

    def queues(self) -> list[Queue]:
        """Return every queue, by name."""
        return self._run(self._do.queues())

    def workers(self) -> list[Worker]:
        """Return the workers that live, the oldest first."""
        return self._run(self._do.workers())

    def pause_queue(self, name: str = "default") -> Queue:
        """Have a queue give no more jobs to workers; jobs are still accepted, and what runs, runs on."""
        return self._run(self._do.set_queue(name, "pause"))

    def drain_queue(self, name: str = "default") -> Queue:
        """Have a queue accept no more jobs; what waits is worked off."""
        return self._run(self._do.set_queue(name, "drain"))

    def resume_queue(self, name: str = "default") -> Queue:
        """End a queue's pause or drain."""
        return self._run(self._do.set_queue(name, "resume"))

    def purge_queue(self, name: str = "default") -> int:
        """Cancel all jobs that wait in a queue and return how many that were."""
        return self._run(self._do.purge(name))

    def dead_letters(self, name: str = "default", *, limit: int = 50) -> list[Job]:
        """Return a queue's jobs whose workers died too often, newest first, at most `limit` (500)."""
        return self._run(self._do.dead_letters(name, limit))

    def requeue_dead_letters(self, name: str = "default") -> list[Job]:
        """Retry all of a queue's dead letters and return the new jobs."""
        return self._run(self._do.requeue_dead_letters(name))

    def job_store(self) -> str | None:
        """Return the mark of the job store behind a service that is ready, None where no keeper has given it one."""
        return self._run(self._do.job_store())

    def _run(self, flow: Flow[T], pause: Callable[[float], object] = time.sleep) -> T:
        try:
            step = next(flow)
            while True:
                try:
                    done = self._do_step(step, pause)
                except Exception as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(done)
        except StopIteration as end:
            result: T = end.value
            return result

    def _do_step(self, step: Step, pause: Callable[[float], object]) -> Reply | str | list[Any] | None:
        match step:
            case Pause():
                pause(step.seconds)
                return None
            case Digest():
                return step.read()
            case Together():
                return self._run_together(step)
            case Request():
                return self._answer(step)

    def _answer(self, request: Request) -> Reply:
        try:
            return self._perform(request)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _run_together(self, step: Together) -> list[Any]:
        with ThreadPoolExecutor(step.at_a_time, thread_name_prefix="penstock-transfer") as pool:
            futures = [pool.submit(self._run, flow, step.stop.wait) for flow in step.flows]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                step.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [future.result() for future in futures]

    def _perform(self, request: Request) -> Reply:
        if request.save is not None:
            return self._save(request, request.save)
        content = chunks(request.upload) if request.upload else connection.body(request)
        with self._http.stream(**connection.stream(request, self._api_key), content=content) as response:
            return Reply(response.status_code, response.headers, response.read())

    def _save(self, request: Request, save: Save) -> Reply:
        with closing(Draft.open(save)) as draft:
            if not draft.complete:
                asked = connection.stream(replace(request, headers=draft.range), self._api_key)
                with self._http.stream(**asked) as response:
                    if response.status_code >= 300:
                        return Reply(response.status_code, response.headers, response.read())
                    draft.begin(response.status_code)
                    for chunk in response.iter_bytes(CHUNK_BYTES):
                        draft.write(chunk)
            draft.finish()
        return Reply(200, {}, b"")

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        return connection.no_answer(self._http.base_url, error)
