"""Webhook deliveries after Standard Webhooks: thin bodies, signed, tried over three days, never in a job's way.

Which delivery may be tried when is decided in `storage/lua/deliver.lua`: receivers and tenants in turn, each with a
limit, so that a slow receiver holds some threads for some seconds and no other receiver up.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Event
from typing import Any

import structlog
from standardwebhooks import Webhook as Signer

from penstock import ogc
from penstock.errors import PenstockError, UnknownEndpoint, Unreached
from penstock.jobs import TERMINAL, Delivery, Job, State
from penstock.log import redact_text
from penstock.storage import deliveries, endpoint_changes, endpoints, records
from penstock.storage.base import ObjectStore
from penstock.storage.deliveries import Attempt, DeliveryRecord, Task
from penstock.storage.endpoints import Endpoint, EndpointKey
from penstock.storage.guard import GuardedClient
from penstock.storage.journal import Journal
from penstock.storage.objects import tenant_webhook_secret

#: Seconds before each try: over three days in all.
SCHEDULE_S = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
#: The longest that a receiver may ask us to wait (`Retry-After`).
MAX_RETRY_AFTER_S = 86_400.0
TIMEOUT_S = 15.0
#: How long a try may take before another keeper takes it for lost.
TRY_LEASE_S = 60.0
#: How many tries are under way at a time. Each is a thread that waits for a receiver.
CONCURRENCY = 64
#: Of a body: what does not fit is left out and can be read at the job's link.
MAX_BODY_BYTES = 20_000
#: Of the error in a body that would be too large.
MAX_DETAIL_CHARS = 1_000
#: What is kept of a receiver's answer, for whoever looks why it refused.
ANSWER_CHARS = 200
#: Events that are told while they are news, and not again.
PASSING = frozenset({"job.progress", "webhook.test"})
#: Endpoints whose secrets a keeper remembers.
_REMEMBERED = 1_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a try means for its delivery."""

    outcome: Delivery
    delay_s: float = 0.0


def judge(
    status: int | None, tries: int, *, retry_after_s: float | None, draw: float, passing: bool = False
) -> Verdict:  # fmt: skip
    """Return what a receiver's answer means; `status` None = no answer, `draw` (0..1) is the jitter.

    2xx is delivered, 410 ends it, everything else (3xx too) is tried again as long as the schedule goes; what is
    `passing` is not.
    """
    if status is not None and 200 <= status < 300:
        return Verdict(Delivery.DELIVERED)
    if status == 410 or passing or tries >= len(SCHEDULE_S):
        return Verdict(Delivery.FAILED)
    delay_s = SCHEDULE_S[tries] * (0.8 + 0.4 * draw)
    return Verdict(Delivery.PENDING, max(delay_s, min(retry_after_s or 0.0, MAX_RETRY_AFTER_S)))


def retry_after_s(header: str, at: float) -> float | None:
    """Return the seconds that a `Retry-After` asks for, as seconds or as an HTTP date; None where it says nothing."""
    text = header.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:12])
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - at)


def body_of(delivery: DeliveryRecord, job: Job, base_url: str) -> str:
    """Return what is sent: `type`, `timestamp` and a thin `data`, artifacts by reference; to a subscriber of OGC API -
    Processes what that standard says.
    """
    if delivery.endpoint is None and (told := ogc.callback(job, delivery.event, base_url, MAX_BODY_BYTES)) is not None:
        return told
    data = _data(delivery, job, f"{base_url}/v1/jobs/{job.key.id}")
    body = {"type": delivery.event, "timestamp": _iso(delivery.created_s), "data": data}
    for name in ("metadata", "artifacts", "progress"):
        if _too_large(body):
            data[name] = None
    if _too_large(body) and job.error is not None:
        data["error"] = {**job.error.to_json(), "detail": job.error.detail[:MAX_DETAIL_CHARS], "errors": []}
    return json.dumps(body, separators=(",", ":"))


def signed_headers(delivery_id: str, body: str, secrets: Sequence[str], *, at: float) -> dict[str, str]:
    """Return the headers of one try, with a signature by each secret: a receiver needs to know one of them."""
    moment = datetime.fromtimestamp(at, UTC)
    return {
        "content-type": "application/json",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(int(at)),
        "webhook-signature": " ".join(Signer(secret).sign(delivery_id, moment, body) for secret in secrets),
    }


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came of a try."""

    status: int | None
    note: str
    retry_after_s: float | None = None
    body: str = ""


class Deliverer:
    """Sends what is due."""

    def __init__(
        self, store: records.Runs, objects: ObjectStore, guard: GuardedClient, *, base_url: str
    ) -> None:  # fmt: skip
        self._store = store
        self._objects = objects
        self._guard = guard
        self._base_url = base_url
        self._pool = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="webhook")
        self._tries: set[Future[None]] = set()
        self._closing = Event()
        self._endpoints: dict[EndpointKey, Endpoint] = {}

    def deliver_due(self) -> int:
        """Start a try of every delivery that is due, as far as there are free threads; return how many.

        A thread whose try has ended goes on with what is due by then.
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

    def close(self) -> None:
        """Wait for the tries under way."""
        self._closing.set()
        self._pool.shutdown()

    def _work(self, task: Task) -> None:
        tasks: tuple[Task, ...] = (task,)
        while tasks:
            self._try(tasks[0])
            tasks = () if self._closing.is_set() else self._next()

    def _next(self) -> tuple[Task, ...]:
        try:
            return self._store.run(deliveries.due(1, TRY_LEASE_S)).tasks
        except PenstockError:
            return ()  # the keeper asks again soon

    def _try(self, task: Task) -> None:
        try:
            self._send(task)
        except PenstockError as error:
            log.warning("delivery.interrupted", delivery=task.delivery.id, code=error.code)  # its lease ends by itself
        except Exception:  # a try that broke must end its lease, not its thread
            log.exception("delivery.broke", delivery=task.delivery.id)

    def _send(self, task: Task) -> None:
        delivery = task.delivery
        body = self._body(task)
        if body is None:
            return  # the job and its deliveries were deleted
        at, began = time.time(), time.monotonic()
        headers = signed_headers(delivery.id, body, self._secrets(task, at), at=at) | _trace_headers(task.job)
        answer = self._post(delivery.url, body.encode(), headers, at)
        verdict = judge(
            answer.status, delivery.tries, retry_after_s=answer.retry_after_s, draw=random.random(),  # noqa: S311
            passing=delivery.event in PASSING,
        )  # fmt: skip
        latency_ms = round((time.monotonic() - began) * 1000, 1)
        attempt = Attempt(delivery.tries, at, answer.status, answer.note, latency_ms, answer.body)
        if answer.status == 410 and delivery.endpoint is not None:
            self._disable(EndpointKey(delivery.key.tenant, delivery.endpoint), delivery.url)
        self._store.run(deliveries.settle(delivery, verdict.outcome, attempt, delay_s=verdict.delay_s))
        log.info("delivery.tried", delivery=delivery.id, status=answer.status, outcome=verdict.outcome.value)

    def _body(self, task: Task) -> str | None:
        """Return what every try sends. It is stored before it is sent: a keeper that dies leaves it to the next."""
        if task.delivery.body is not None or task.job is None:
            return task.delivery.body
        return self._store.run(deliveries.fix_body(task.delivery, body_of(task.delivery, task.job, self._base_url)))

    def _secrets(self, task: Task, at: float) -> Sequence[str]:
        tenant = task.delivery.key.tenant
        if task.delivery.endpoint is None:
            return (tenant_webhook_secret(self._objects, tenant),)
        key = EndpointKey(tenant, task.delivery.endpoint)
        known = self._endpoints.get(key)
        if known is None or known.revision < (task.revision or 0):
            known = endpoints.read_endpoint(self._objects, key)
            while len(self._endpoints) >= _REMEMBERED:
                self._endpoints.pop(next(iter(self._endpoints)), None)
            self._endpoints[key] = known
        return known.signing(at)

    def _disable(self, key: EndpointKey, url: str) -> None:
        try:
            edit = endpoint_changes.disabled(url, "its receiver answered 410")
            Journal(self._store, self._objects).run(endpoint_changes.change(key, edit))
        except UnknownEndpoint:
            return
        log.warning("endpoint.disabled", endpoint=str(key), status=410)

    def _post(self, url: str, body: bytes, headers: Mapping[str, str], at: float) -> _Answer:
        try:
            response = self._guard.post(url, body, headers=headers, timeout_s=TIMEOUT_S)
        except Unreached as error:
            return _Answer(None, f"{error.code}: {error.detail}")
        except PenstockError as error:
            return _Answer(None, error.code)
        after = retry_after_s(response.headers.get("retry-after", ""), at)
        return _Answer(response.status, f"HTTP {response.status}", after, _beginning(response.body))


def _trace_headers(job: Job | None) -> dict[str, str]:
    """Return the `traceparent` of the request that made the job, as it came: we make no spans of our own."""
    given = None if job is None else job.submission.traceparent
    return {} if given is None else {"traceparent": given}


def _beginning(body: bytes) -> str:
    """Return the first characters of an answer as harmless text. A receiver may send back what it was sent."""
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


def _too_large(body: Mapping[str, Any]) -> bool:
    return len(json.dumps(body).encode()) > MAX_BODY_BYTES


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
