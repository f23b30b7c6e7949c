"""Webhook deliveries by Standard Webhooks: small signed bodies, retried over three days, independent of the jobs.

`storage/redis/lua/deliver.lua` decides which delivery is due: receivers and tenants take turns, each with a limit, so
that a slow receiver blocks few threads for a few seconds and delays no other receiver.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Event
from typing import Any

import structlog
from standardwebhooks import Webhook as Signer

from penstock.client.retries import retry_after_s
from penstock.errors import PenstockError, UnknownEndpoint, Unreached
from penstock.intake import ogc
from penstock.intake.event_formats import CONTENT_TYPES, in_format
from penstock.intake.guard import GuardedClient
from penstock.jobs import TERMINAL, Delivery, Job, Progress, State
from penstock.observation.job_spans import Context, Span, SpanKind, root_of, within
from penstock.observation.log import redact_text
from penstock.observation.telemetry import NoSpans, Spans
from penstock.storage.event_targets import EventSenders, OutgoingEvent
from penstock.storage.journal import endpoint_changes, endpoints, journal
from penstock.storage.journal.answered import Answered
from penstock.storage.journal.endpoints import Endpoint, EndpointKey
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.outputs import output_json
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import tenant_webhook_secret
from penstock.storage.redis import deliveries, records
from penstock.storage.redis.deliveries import Attempt, DeliveryRecord, Task

#: Seconds before each try; three days in all.
SCHEDULE_S = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
#: Longest delay in seconds that a receiver may request (`Retry-After`).
MAX_RETRY_AFTER_S = 86_400.0
TIMEOUT_S = 15.0
#: Seconds after which another keeper repeats an unfinished try.
TRY_LEASE_S = 60.0
#: Most tries at a time. Each is a thread that waits for a receiver.
CONCURRENCY = 64
#: Bytes of a body without the output: what does not fit is omitted and can be read at the job's link.
MAX_BODY_BYTES = 20_000
#: Characters of the error in a body that would be too large.
MAX_DETAIL_CHARS = 1_000
#: Characters of a receiver's response that are stored, to show why it refused.
ANSWER_CHARS = 200
#: Events that are sent once and never retried: they lose their value quickly.
NOT_RETRIED = frozenset({"job.progress", "webhook.test"})
#: Endpoints whose secrets a keeper caches.
_REMEMBERED = 1_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DeliveryVerdict:
    """The consequence of a try: the new state of its delivery, and the delay of the next try."""

    outcome: Delivery
    delay_s: float = 0.0


def verdict_on(
    status: int | None, tries: int, *, retry_after_s: float | None, draw: float, not_retried: bool = False
) -> DeliveryVerdict:  # fmt: skip
    """Return the verdict on a receiver's response; `status` None = no response, `draw` (0..1) is the jitter.

    2xx is delivered. 410 ends the delivery. Everything else (3xx too) is retried as long as the schedule allows, except
    `not_retried` events.
    """
    if status is not None and 200 <= status < 300:
        return DeliveryVerdict(Delivery.DELIVERED)
    if status == 410 or not_retried or tries >= len(SCHEDULE_S):
        return DeliveryVerdict(Delivery.FAILED)
    delay_s = SCHEDULE_S[tries] * (0.8 + 0.4 * draw)
    return DeliveryVerdict(Delivery.PENDING, max(delay_s, min(retry_after_s or 0.0, MAX_RETRY_AFTER_S)))


def body_of(delivery: DeliveryRecord, job: Job, base_url: str, output_bytes: int = 0) -> str:
    """Return the body: `type`, `timestamp` and a small `data`; for an OGC subscriber the body of that standard.

    `data` has the `output` of a job that succeeded, its text and its JSON, if that has at most `output_bytes` as JSON;
    else its size and a link to it.

    Every try of a delivery has the same body, also after a loss of Redis. Only the body of `job.progress` depends on
    the time of the try; such a delivery is sent once.
    """
    job = _as_of(delivery, job)
    if delivery.endpoint is None and (sent := ogc.callback(job, delivery.event, base_url, MAX_BODY_BYTES)) is not None:
        return sent
    data = _data(delivery, job, f"{base_url}/v1/jobs/{job.key.id}")
    body = {"type": delivery.event, "timestamp": _iso(delivery.created_s), "data": data}
    for name in ("metadata", "artifacts", "progress"):
        if _too_large(body):
            data[name] = None
    if _too_large(body) and job.error is not None:
        data["error"] = {**job.error.to_json(), "detail": job.error.detail[:MAX_DETAIL_CHARS], "errors": []}
    data.update(_output(job, output_bytes))
    if "output_bytes" in data:
        data["links"]["output"] = f"{data['links']['self']}/output"
    return json.dumps(body, separators=(",", ":"))


def signed_headers(delivery_id: str, body: str, secrets: Sequence[str], *, at: float) -> dict[str, str]:
    """Return the headers of one try, with a signature by each secret: a receiver needs to know one secret."""
    moment = datetime.fromtimestamp(at, UTC)
    return {
        "content-type": "application/json",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(int(at)),
        "webhook-signature": " ".join(Signer(secret).sign(delivery_id, moment, body) for secret in secrets),
    }


@dataclass(frozen=True, slots=True)
class _Answer:
    """The response of one try."""

    status: int | None
    note: str
    retry_after_s: float | None = None
    body: str = ""


class Deliverer:
    """Sends due deliveries."""

    def __init__(
        self, store: records.Runs, objects: ObjectStore, guard: GuardedClient, *, base_url: str,
        output_bytes: int = 0, spans: Spans | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._objects = objects
        self._guard = guard
        self._targets = EventSenders(guard.settings)
        self._base_url = base_url
        self._output_bytes = output_bytes
        self._spans = spans or NoSpans()
        self._answered = Answered(objects)
        self._pool = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="webhook")
        self._tries: set[Future[None]] = set()
        self._closing = Event()
        self._endpoints: dict[EndpointKey, Endpoint] = {}

    def deliver_due(self) -> int:
        """Start a try of each due delivery, as far as threads are free; return their number.

        A thread whose try has ended continues with the next due delivery.
        """
        started, more = 0, True
        while more:
            self._tries = {future for future in self._tries if not future.done()}
            free = CONCURRENCY - len(self._tries)
            if free <= 0:
                break
            found = self._store.run(deliveries.due(free, TRY_LEASE_S))
            more = found.more or len(found.tasks) == free
            started += len(found.tasks)
            self._tries |= {self._pool.submit(self._work, task) for task in found.tasks}
        return started

    def write_answered(self) -> None:
        """Store which deliveries were answered, so that a loss of Redis does not send them again."""
        self._answered.write()

    def close(self) -> None:
        """Wait for the running tries."""
        self._closing.set()
        self._pool.shutdown()
        with suppress(PenstockError):  # what is not stored may be sent again
            self.write_answered()

    def _work(self, task: Task) -> None:
        tasks: tuple[Task, ...] = (task,)
        while tasks:
            self._try(tasks[0])
            tasks = () if self._closing.is_set() else self._next()

    def _next(self) -> tuple[Task, ...]:
        try:
            return self._store.run(deliveries.due(1, TRY_LEASE_S)).tasks
        except PenstockError:
            return ()  # the keeper repeats the request soon

    def _try(self, task: Task) -> None:
        try:
            self._send(task)
        except PenstockError as error:
            log.warning("delivery.interrupted", delivery=task.delivery.id, code=error.code)  # its lease will expire
        except Exception:  # a failed try must end its lease, not its thread
            log.exception("delivery.crashed", delivery=task.delivery.id)

    def _send(self, task: Task) -> None:
        delivery = task.delivery
        body = self._body(task)
        if body is None:
            return  # the job and its deliveries were deleted
        at, began = time.time(), time.monotonic()
        place = _place(task)
        answer = self._post(task, body, self._trace_headers(task.job, place), at)
        verdict = verdict_on(
            answer.status, delivery.tries, retry_after_s=answer.retry_after_s, draw=random.random(),  # noqa: S311
            not_retried=delivery.event in NOT_RETRIED,
        )  # fmt: skip
        latency_ms = round((time.monotonic() - began) * 1000, 1)
        if task.job is not None and place is not None:
            self._spans.send(_span(task, task.job, place, at, latency_ms, answer))
        attempt = Attempt(delivery.tries, at, answer.status, answer.note, latency_ms, answer.body)
        if answer.status == 410 and delivery.endpoint is not None:
            self._disable(EndpointKey(delivery.key.tenant, delivery.endpoint), delivery.url)
        self._store.run(deliveries.settle(delivery, verdict.outcome, attempt, delay_s=verdict.delay_s))
        if verdict.outcome is Delivery.DELIVERED and delivery.event not in NOT_RETRIED:
            self._answered.add(delivery.key.tenant, delivery.id)
        log.info("delivery.tried", delivery=delivery.id, status=answer.status, outcome=verdict.outcome.value)

    def _trace_headers(self, job: Job | None, place: Context | None) -> dict[str, str]:
        """Return the `traceparent` of the try's span, or, without spans, of the request that created the job."""
        if self._spans.wanted and place is not None:
            return {"traceparent": place.traceparent(sampled=self._spans.sampled(place))}
        given = None if job is None else job.submission.traceparent
        return {} if given is None else {"traceparent": given}

    def _body(self, task: Task) -> str | None:
        """Return the body of every try. It is stored before the first try: another keeper sends the same body."""
        if task.delivery.body is not None or task.job is None:
            return task.delivery.body
        job = task.job
        if task.delivery.endpoint is None and ogc.requested_answer(job) is not None:
            job = Journal(self._store, self._objects).run(journal.whole(job))  # sent by value where it is small
        body = body_of(task.delivery, job, self._base_url, self._output_bytes)
        if (endpoint := self._endpoint(task)) is not None:
            body = in_format(endpoint.format, body, task.delivery.id, self._base_url)
        return self._store.run(deliveries.fix_body(task.delivery, body))

    def _endpoint(self, task: Task) -> Endpoint | None:
        """Return the endpoint of a delivery; None for the webhook of a request."""
        if task.delivery.endpoint is None:
            return None
        key = EndpointKey(task.delivery.key.tenant, task.delivery.endpoint)
        known = self._endpoints.get(key)
        if known is None or known.revision < (task.revision or 0):
            known = endpoints.read_endpoint(self._objects, key)
            while len(self._endpoints) >= _REMEMBERED:
                self._endpoints.pop(next(iter(self._endpoints)), None)
            self._endpoints[key] = known
        return known

    def _disable(self, key: EndpointKey, url: str) -> None:
        try:
            edit = endpoint_changes.disabled(url, "its receiver responded with status 410")
            Journal(self._store, self._objects).run(endpoint_changes.change(key, edit))
        except UnknownEndpoint:
            return
        log.warning("endpoint.disabled", endpoint=str(key), status=410)

    def _headers(self, task: Task, body: str, at: float) -> Mapping[str, str]:
        endpoint = self._endpoint(task)
        if endpoint is None:
            secret = tenant_webhook_secret(self._objects, task.delivery.key.tenant)
            return signed_headers(task.delivery.id, body, (secret,), at=at)
        kind = CONTENT_TYPES.get(endpoint.format, CONTENT_TYPES["webhook"])
        return {**signed_headers(task.delivery.id, body, endpoint.signing(at), at=at), "content-type": kind}

    def _post(self, task: Task, body: str, more: Mapping[str, str], at: float) -> _Answer:
        delivery = task.delivery
        try:
            if delivery.url.startswith("arn:"):
                event = OutgoingEvent(delivery.id, delivery.event, body, group=delivery.key.id or "test")
                status = self._targets.send(delivery.url, delivery.key.tenant, event)
                return _Answer(status, f"{delivery.url.split(':')[2].upper()} {status}")
            headers = {**self._headers(task, body, at), **more}
            response = self._guard.post(delivery.url, body.encode(), headers=headers, timeout_s=TIMEOUT_S)
        except Unreached as error:
            return _Answer(None, f"{error.code}: {error.detail}")
        except PenstockError as error:
            return _Answer(None, error.code)
        after = retry_after_s(response.headers.get("retry-after"), at)
        return _Answer(response.status, f"HTTP {response.status}", after, _beginning(response.body))


def _as_of(delivery: DeliveryRecord, job: Job) -> Job:
    """Return the job as it was at the event: since then the job may have started again or ended."""
    if delivery.event not in ("job.queued", "job.started"):
        return job
    job = replace(job, cancel_requested=False, completed_s=None, artifacts=(), error=None, progress=Progress())
    if delivery.event == "job.queued":
        return replace(job, state=State.QUEUED, attempt=0, started_s=None)
    return replace(job, state=State.RUNNING, attempt=delivery.attempt or job.attempt, started_s=delivery.created_s)


def _place(task: Task) -> Context | None:
    """Return the place of the span of a try in the trace of its job; None for an event without a job."""
    if task.job is None:
        return None
    root = root_of(task.job.key, task.job.submission.traceparent)
    return within(root, "webhook", task.delivery.id, str(task.delivery.tries))


def _span(task: Task, job: Job, place: Context, at: float, latency_ms: float, answer: _Answer) -> Span:
    root = root_of(job.key, job.submission.traceparent)
    delivery = task.delivery
    about: dict[str, str | int | float | bool] = {
        "penstock.job": job.key.id, "penstock.tenant": job.key.tenant, "penstock.delivery": delivery.id,
        "penstock.event": delivery.event, "penstock.try": delivery.tries, "http.request.method": "POST",
    }  # fmt: skip
    if answer.status is not None:
        about["http.response.status_code"] = answer.status
    delivered = answer.status is not None and 200 <= answer.status < 300
    error = None if delivered else answer.note.partition(":")[0]
    return Span(f"webhook {delivery.event}", place, root, at, at + latency_ms / 1000, about, error, SpanKind.CLIENT)


def _beginning(body: bytes) -> str:
    """Return the first characters of a response, without secrets: a receiver may echo the request."""
    text = redact_text(body[: 4 * ANSWER_CHARS].decode("utf-8", "replace"))
    return "".join(c if c.isprintable() else " " for c in text)[:ANSWER_CHARS].strip()


def _data(delivery: DeliveryRecord, job: Job, link: str) -> dict[str, Any]:
    name = delivery.event.removeprefix("job.")
    data: dict[str, Any] = {
        "id": job.key.id,
        "object": "job",
        "model": job.submission.model,
        "status": name if name == "queued" or name in set(TERMINAL) else State.RUNNING.value,
        "attempt": job.attempt,
        "created_at": _iso(job.created_s),
        "started_at": _iso(job.started_s),
        "completed_at": _iso(job.completed_s),
        "error": job.error.to_json() if job.error else None,
        "artifacts": [
            {"name": a.name, "content_type": a.content_type, "size_bytes": a.size_bytes, "sha256": a.sha256,
             "url": f"{link}/artifacts/{a.name}"}
            for a in job.artifacts
        ],
        "metadata": dict(job.submission.metadata),
        "links": {"self": link},
    }  # fmt: skip
    if delivery.event == "job.progress":
        shown = job.progress
        data["phase"] = job.phase.value
        data["progress"] = {"done": shown.done, "total": shown.total, "unit": shown.unit, "message": shown.message}
    return data


def _output(job: Job, most_bytes: int) -> dict[str, Any]:
    """Return `output`, the text and JSON of a succeeded job as `GET /v1/jobs/ID` has them; the size of larger ones."""
    if job.state is not State.SUCCEEDED or not job.has_output:
        return {"output": None}
    size = job.output.size_bytes if job.output is not None else len(output_json(job.text, job.data))
    if job.output is None and size <= most_bytes:
        return {"output": {"text": job.text, "json": job.data}}
    return {"output": None, "output_bytes": size}


def _too_large(body: Mapping[str, Any]) -> bool:
    return len(json.dumps(body).encode()) > MAX_BODY_BYTES


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
