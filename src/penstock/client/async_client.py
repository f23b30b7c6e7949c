"""The client of one service. Import it from `penstock.client`."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2

from penstock.client import async_runtime as runtime
from penstock.client import connection, protocol, results
from penstock.client import webhook_operations as webhooks
from penstock.client.answers import (
    Batch,
    BatchPage,
    DeliveryPage,
    Event,
    Job,
    JobLog,
    LineOutcome,
    ModelInfo,
    Page,
    PenstockAPIError,
    Queue,
    UsageReport,
    WebhookDelivery,
    WebhookEndpoint,
    Worker,
    WorkerLine,
)
from penstock.client.batch_operations import BatchOperations, BatchOptions, OnBatch, OnLine, outcomes
from penstock.client.connection import DEFAULT_URL, PATIENCE_S
from penstock.client.downloads import CHUNK_BYTES, PartialDownload
from penstock.client.operations import Files, OnJob, Operations
from penstock.client.protocol import Flow, JobFilters, JobOptions, OnBytes, Reply, Request
from penstock.client.results import Result
from penstock.client.webhook_operations import EndpointOptions

T = TypeVar("T")


class AsyncClient:
    """A client of one service. Close it after use, or use it as a context manager."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        patience_s: float = PATIENCE_S,
        state_dir: str | Path | None = None,
        on_retry: protocol.OnRetry | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx2.AsyncClient(**connection.options(base_url), transport=transport)
        self._api_key = connection.checked_key(api_key)
        notes = None if state_dir is None else Path(state_dir)
        self._do = Operations(patience_s, service=base_url, state_dir=notes, on_retry=on_retry)
        self._batches = BatchOperations(self._do)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def submit(
        self,
        model: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002  (the API's own word)
        *,
        files: Files | None = None,
        on_bytes: OnBytes | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Submit a job and return it. `files` are uploaded first; their references go into the fields of `input`."""
        return await self._run(self._do.submit(model, input or {}, files or {}, on_bytes, options))

    async def run(
        self,
        model: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002  (the API's own word)
        *,
        folder: str | Path | None = None,
        timeout_s: float | None = None,
        on_job: OnJob | None = None,
        on_bytes: OnBytes | None = None,
        options: JobOptions | None = None,
        **fields: Any,
    ) -> Result:
        """Run a job and return its result: `client.run("csmask", scene="scene.tif").classes` is a path.

        `fields` are those of the model's input; a local path in a field for media is uploaded. The files are saved in
        `folder`, by default in one that is deleted when the process ends. Raises `JobFailed` for a job without a
        result, and `StillRunning` after `timeout_s` seconds.
        """
        document, place = {**(input or {}), **fields}, None if folder is None else Path(folder)
        deadline = protocol.Deadline(timeout_s)
        flow = results.run(self._do, model, document, place, deadline, on_job, on_bytes, options or JobOptions())
        return await self._run(flow)

    async def upload(self, path: str | Path, *, on_bytes: OnBytes | None = None) -> str:
        """Send a local file and return its `media://` reference. A large file is sent in parts, several at once.

        With a `state_dir` any process resumes an interrupted upload by sending the same file again.
        """
        return await self._run(self._do.upload(Path(path), on_bytes))

    async def job(self, job_id: str, *, wait_s: float = 0) -> Job:
        """Return a job, at once or when it has ended, after at most `wait_s` seconds (55 at most)."""
        return await self._run(self._do.job(job_id, wait_s))

    async def jobs(self, **filters: Unpack[JobFilters]) -> Page:
        """Return a page of jobs, the newest first, without large outputs. A short page may have a `next_cursor` too."""
        return await self._run(self._do.jobs(filters))

    async def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_job: OnJob | None = None,
    ) -> Job:
        """Wait for a job's end and return the job; raise `StillRunning` after `timeout_s` seconds (None = no timeout).

        Meanwhile `on_event` is called with each event, or `on_job` about once a second with the job, which has its
        progress (`progress`, `queue_position`) and estimate (`eta_s`).
        """
        deadline = protocol.Deadline(timeout_s)
        if on_event is not None:
            await runtime.follow(self._events(job_id, "", deadline), on_event, timeout_s)
        return await self._run(self._do.wait(job_id, deadline, on_job))

    def events(self, job_id: str, *, after: str = "") -> AsyncIterator[Event]:
        """Yield the events of a job until it ends, from the beginning or after an event's id.

        The first event is `snapshot`, the job itself; each reconnection begins with another `snapshot`.
        """
        return self._events(job_id, after, protocol.Deadline(None))

    async def _events(self, job_id: str, after: str, deadline: protocol.Deadline) -> AsyncIterator[Event]:
        reader = protocol.EventReader(job_id, after, self._do.delays, deadline)
        while not reader.over:
            try:
                async with (
                    self._http.stream(**connection.stream(reader.request, self._api_key)) as response,
                    runtime.cut_off(response, deadline.left_s()),
                ):
                    if response.status_code != 200:
                        await response.aread()
                    async for sent in connection.events(response):
                        if (event := reader.read(sent.event, sent.data)) is not None:
                            yield event
                delay_s = reader.closed()
            except httpx2.TransportError as error:
                delay_s = reader.failed(connection.no_answer(self._http.base_url, error))
            except PenstockAPIError as error:
                delay_s = reader.failed(error)
            await runtime.sleep(delay_s)

    async def event_list(self, job_id: str) -> list[Event]:
        """Return the events of a job so far, the oldest first."""
        return await self._run(self._do.event_list(job_id))

    async def deliveries(self, job_id: str) -> list[WebhookDelivery]:
        """Return the webhook deliveries of a job with all attempts."""
        return await self._run(self._do.deliveries(job_id))

    async def logs(self, job_id: str) -> JobLog:
        """Return the lines that a job's processor and runner logged or printed, the oldest first."""
        return await self._run(self._do.logs(job_id))

    async def redeliver(self, job_id: str, delivery_id: str) -> WebhookDelivery:
        """Send an event now, with the same id and bytes: again, or before its next attempt is due."""
        return await self._run(self._do.redeliver(job_id, delivery_id))

    async def webhook_endpoints(self) -> list[WebhookEndpoint]:
        """Return the webhook endpoints, the oldest first."""
        return await self._run(webhooks.list_all(self._do))

    async def webhook_endpoint(self, endpoint_id: str) -> WebhookEndpoint:
        """Return a webhook endpoint."""
        return await self._run(webhooks.read(self._do, endpoint_id))

    async def create_webhook_endpoint(self, url: str, **options: Unpack[EndpointOptions]) -> WebhookEndpoint:
        """Create a webhook endpoint and return it with its `secret`, which is not shown again."""
        return await self._run(webhooks.create(self._do, url, options))

    async def change_webhook_endpoint(
        self, endpoint_id: str, *, url: str | None = None, **options: Unpack[EndpointOptions]
    ) -> WebhookEndpoint:
        """Change a webhook endpoint; options that are left out stay as they are."""
        return await self._run(webhooks.change(self._do, endpoint_id, url, options))

    async def delete_webhook_endpoint(self, endpoint_id: str) -> None:
        """Delete a webhook endpoint and its pending deliveries."""
        await self._run(webhooks.delete(self._do, endpoint_id))

    async def rotate_webhook_secret(self, endpoint_id: str, *, overlap_s: int | None = None) -> WebhookEndpoint:
        """Give an endpoint a new `secret`; the old one also signs for `overlap_s` (default: the service's setting)."""
        return await self._run(webhooks.rotate(self._do, endpoint_id, overlap_s))

    async def test_webhook_endpoint(self, endpoint_id: str, *, wait_s: float = 20) -> WebhookDelivery:
        """Send an endpoint a `webhook.test` event and return its delivery."""
        return await self._run(webhooks.test(self._do, endpoint_id, wait_s))

    async def endpoint_deliveries(
        self, endpoint_id: str, *, limit: int = 50, cursor: str | None = None
    ) -> DeliveryPage:
        """Return a page of an endpoint's deliveries, the latest first."""
        return await self._run(webhooks.of_endpoint(self._do, endpoint_id, limit, cursor))

    async def delivery(self, delivery_id: str, *, wait_s: float = 0) -> WebhookDelivery:
        """Return a delivery, at once or when it is settled, after at most `wait_s` seconds (55 at most)."""
        return await self._run(webhooks.read_one(self._do, delivery_id, wait_s))

    async def dead_deliveries(self, *, endpoint_id: str | None = None, limit: int = 50) -> list[WebhookDelivery]:
        """Return the deliveries that failed for good, the latest first, at most `limit` (up to 500)."""
        return await self._run(webhooks.dead(self._do, endpoint_id, limit))

    async def redeliver_dead(self, *, endpoint_id: str | None = None) -> int:
        """Send all deliveries that failed for good again and return their number."""
        return await self._run(webhooks.redeliver_dead(self._do, endpoint_id))

    async def submit_batch(
        self,
        requests: Sequence[Mapping[str, Any]] | str | Path,
        *,
        on_bytes: OnBytes | None = None,
        **options: Unpack[BatchOptions],
    ) -> Batch:
        """Submit many requests at once and return their batch.

        `requests` are bodies of POST /v1/jobs, each with an optional `custom_id`; or a local JSONL file of them, or a
        reference to such a file (`media://`, `s3://`).
        """
        return await self._run(self._batches.submit(requests, on_bytes, options))

    async def batch(self, batch_id: str, *, wait_s: float = 0) -> Batch:
        """Return a batch, at once or when it has ended, after at most `wait_s` seconds (55 at most)."""
        return await self._run(self._batches.read(batch_id, wait_s))

    async def batches(self, *, limit: int | None = None, cursor: str | None = None) -> BatchPage:
        """Return a page of batches, the newest first."""
        return await self._run(self._batches.page(limit=limit, cursor=cursor))

    async def wait_batch(self, batch_id: str, *, on_batch: OnBatch | None = None) -> Batch:
        """Wait for a batch's end and return the batch; `on_batch` is called with it about once a second."""
        return await self._run(self._batches.wait(batch_id, on_batch))

    async def cancel_batch(self, batch_id: str) -> Batch:
        """Cancel a batch and return it; its results hold the jobs that succeeded before."""
        return await self._run(self._batches.cancel(batch_id))

    async def delete_batch(self, batch_id: str) -> None:
        """Delete a batch with its jobs and results; a running one is canceled first and waited for."""
        await self._run(self._batches.delete(batch_id))

    async def download_batch(
        self,
        batch: Batch,
        folder: str | Path,
        *,
        artifacts: bool = False,
        on_bytes: OnBytes | None = None,
        on_line: OnLine | None = None,
    ) -> list[Path]:
        """Save `results.jsonl` and `errors.jsonl` of a batch that is over; return the paths.

        With `artifacts` also the files of each line, in a folder named after its `custom_id`, or `line-7` where that is
        no unique name; `on_line` is then called with (lines saved, lines with files).
        """
        if artifacts:
            return await self._run(self._batches.save_all(batch, Path(folder), on_bytes, on_line))
        return await self._run(self._batches.save(batch, Path(folder), on_bytes))

    async def batch_results(self, batch_id: str) -> AsyncIterator[LineOutcome]:
        """Yield the outcome of each line of a batch that is over, in order, errors included."""
        with tempfile.TemporaryDirectory() as folder:
            await self.download_batch(await self.batch(batch_id), folder)
            for outcome in outcomes(Path(folder)):
                yield outcome

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job and return it; a running one may still be `canceling`."""
        return await self._run(self._do.cancel(job_id))

    async def retry(self, job_id: str, *, idempotency_key: str | None = None) -> Job:
        """Submit the request of a failed, expired or canceled job as a new job and return the new job.

        Repeated calls return the same new job, unless each call has an idempotency key of its own.
        """
        return await self._run(self._do.retry(job_id, idempotency_key))

    async def delete(self, job_id: str) -> None:
        """Delete a job and its artifacts; a running one is canceled first and waited for."""
        await self._run(self._do.delete(job_id))

    async def download(
        self,
        job: Job,
        folder: str | Path,
        *,
        names: Collection[str] | None = None,
        on_bytes: OnBytes | None = None,
    ) -> list[Path]:
        """Save a job's artifacts, `manifest.json` and `job.json` in a folder; return their paths.

        With `names` only these artifacts are saved. Several are downloaded at once; any process resumes an interrupted
        download. A file gets its name only when size and SHA-256 are the job's; raises `Corrupt` otherwise.
        """
        return await self._run(self._do.download(job, Path(folder), on_bytes, names))

    async def models(self) -> list[ModelInfo]:
        """Return the service's models."""
        return await self._run(self._do.models())

    async def model(self, name: str) -> ModelInfo:
        """Return a model with its input's JSON Schema."""
        return await self._run(self._do.model(name))

    async def queue(self, name: str = "default") -> Queue:
        """Return a queue's depth and speed."""
        return await self._run(self._do.queue(name))

    async def queues(self) -> list[Queue]:
        """Return all queues, by name."""
        return await self._run(self._do.queues())

    async def workers(self) -> list[Worker]:
        """Return the live workers, the oldest first."""
        return await self._run(self._do.workers())

    async def worker_lines(self, worker_id: str) -> list[WorkerLine]:
        """Return the latest log lines of a worker, the oldest first; needs the scope `admin`."""
        return await self._run(self._do.worker_lines(worker_id))

    async def usage(
        self, *, first: date | str | None = None, last: date | str | None = None, model: str | None = None,
        tenant: str | None = None,
    ) -> UsageReport:  # fmt: skip
        """Return the usage of ended jobs by model and day, from `first` to `last` (UTC; default: the last 31 days).

        With a key of the scope `admin`, `tenant` may be another tenant, or `*` for all.
        """
        return await self._run(self._do.usage(**{"from": first, "to": last, "model": model, "tenant": tenant}))

    async def drops(self) -> dict[str, Any]:
        """Return the service's drop rules (`rules`) with their last listings, as the API tells them."""
        return await self._run(self._do.drops())

    async def pause_queue(self, name: str = "default") -> Queue:
        """Pause a queue: workers get no more of its jobs. It still accepts jobs, and running jobs go on."""
        return await self._run(self._do.set_queue(name, "pause"))

    async def drain_queue(self, name: str = "default") -> Queue:
        """Drain a queue: it accepts no more jobs, and its queued jobs still run."""
        return await self._run(self._do.set_queue(name, "drain"))

    async def resume_queue(self, name: str = "default") -> Queue:
        """End a queue's pause or drain."""
        return await self._run(self._do.set_queue(name, "resume"))

    async def purge_queue(self, name: str = "default") -> int:
        """Cancel all queued jobs of a queue and return their number."""
        return await self._run(self._do.purge(name))

    async def dead_letters(self, name: str = "default", *, limit: int = 50) -> list[Job]:
        """Return a queue's jobs whose workers died too often, the newest first, at most `limit` (up to 500)."""
        return await self._run(self._do.dead_letters(name, limit))

    async def requeue_dead_letters(self, name: str = "default") -> list[Job]:
        """Retry all of a queue's dead letters and return the new jobs."""
        return await self._run(self._do.requeue_dead_letters(name))

    async def job_store(self) -> str | None:
        """Return the id of a ready service's job store; None before a keeper has set one."""
        return await self._run(self._do.job_store())

    async def _run(self, flow: Flow[T], sleep: runtime.Sleep = runtime.sleep) -> T:
        try:
            step = next(flow)
            while True:
                try:
                    done = await self._do_step(step, sleep)
                except Exception as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(done)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _do_step(self, step: protocol.Step, sleep: runtime.Sleep) -> Reply | str | list[Any] | None:
        match step:
            case protocol.Pause():
                await sleep(step.seconds)
                return None
            case protocol.Digest():
                return await runtime.blocking(step.read)
            case protocol.Together():
                return await runtime.together(self._run, step)
            case Request():
                return await self._answer(step)

    async def _answer(self, request: Request) -> Reply:
        try:
            if request.save is not None:
                return await self._save(request, request.save)
            content = runtime.chunks(request.upload) if request.upload else connection.body(request)
            async with self._http.stream(**connection.stream(request, self._api_key), content=content) as response:
                return connection.reply(response, await response.aread())
        except httpx2.TransportError as error:
            raise connection.no_answer(self._http.base_url, error) from error

    async def _save(self, request: Request, save: protocol.Save) -> Reply:
        with closing(await runtime.blocking(PartialDownload.open, save)) as partial:
            if not partial.complete:
                arguments = connection.stream(replace(request, headers=partial.range), self._api_key)
                async with self._http.stream(**arguments) as response:
                    if response.status_code >= 300:
                        return connection.reply(response, await response.aread())
                    partial.begin(response.status_code)
                    async for chunk in response.aiter_bytes(CHUNK_BYTES):
                        partial.write(chunk)
            partial.finish()
        return Reply(200, {}, b"")
