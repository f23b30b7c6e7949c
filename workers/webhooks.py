"""Webhook deliveries after Standard Webhooks: thin bodies, signed, tried over three days, never in a job's way."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from standardwebhooks import Webhook as Signer

from penstock.errors import PenstockError
from penstock.jobs import Delivery, Job
from penstock.storage import deliveries, records
from penstock.storage.base import ObjectStore
from penstock.storage.deliveries import Attempt, DeliveryRecord
from penstock.storage.guard import GuardedClient
from penstock.storage.objects import tenant_webhook_secret

#: Seconds before each try: over three days in all.
SCHEDULE_S = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
TIMEOUT_S = 15.0
#: How long a try may take before another keeper takes it for lost.
TRY_LEASE_S = 60.0
#: How many receivers are talked to at a time.
CONCURRENCY = 16
#: Of a body: what does not fit is left out and can be read at the job's link.
MAX_BODY_BYTES = 20_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a try means for its delivery."""

    outcome: Delivery
    delay_s: float = 0.0


def judge(status: int | None, tries: int, *, retry_after_s: float | None, draw: float) -> Verdict:
    """Return what a receiver's answer means; `status` None = no answer, `draw` (0..1) is the jitter.

    2xx is delivered, 410 ends it, everything else (3xx too) is tried again as long as the schedule goes.
    """
    if status is not None and 200 <= status < 300:
        return Verdict(Delivery.DELIVERED)
    if status == 410 or tries >= len(SCHEDULE_S):
        return Verdict(Delivery.FAILED)
    delay_s = SCHEDULE_S[tries] * (0.8 + 0.4 * draw)
    return Verdict(Delivery.PENDING, max(delay_s, retry_after_s or 0.0))


def body_of(delivery: DeliveryRecord, job: Job, base_url: str) -> str:
    """Return what is sent: `type`, `timestamp` and a thin `data`, artifacts by reference."""
    link = f"{base_url}/v1/jobs/{job.key.id}"
    data: dict[str, Any] = {
        "id": job.key.id,
        "object": "job",
        "model": job.submission.model,
        "status": delivery.event.removeprefix("job."),
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
    body = {"type": delivery.event, "timestamp": _iso(delivery.created_s), "data": data}
    for name in ("metadata", "artifacts"):
        if len(json.dumps(body).encode()) > MAX_BODY_BYTES:
            data[name] = None
    return json.dumps(body, separators=(",", ":"))


def signed_headers(delivery_id: str, body: str, secret: str, *, at: float) -> dict[str, str]:
    """Return the headers of one try."""
    moment = datetime.fromtimestamp(at, UTC)
    return {
        "content-type": "application/json",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(int(at)),
        "webhook-signature": Signer(secret).sign(delivery_id, moment, body),
    }


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

    def deliver_due(self) -> int:
        """Start a try of every delivery that is due, as far as there are free threads; return how many."""
        self._tries = {future for future in self._tries if not future.done()}
        free = CONCURRENCY - len(self._tries)
        due = self._store.run(deliveries.due(free, TRY_LEASE_S)) if free > 0 else ()
        for delivery, job in due:
            self._tries.add(self._pool.submit(self._try, delivery, job))
        return len(due)

    def close(self) -> None:
        """Wait for the tries under way."""
        self._pool.shutdown()

    def _try(self, delivery: DeliveryRecord, job: Job) -> None:
        try:
            self._send(delivery, job)
        except PenstockError as error:
            log.warning("delivery.interrupted", delivery=delivery.id, code=error.code)  # its lease ends by itself

    def _send(self, delivery: DeliveryRecord, job: Job) -> None:
        body = delivery.body or body_of(delivery, job, self._base_url)
        secret = tenant_webhook_secret(self._objects, delivery.key.tenant)
        at = time.time()
        status, note, retry_after_s = self._post(
            delivery.url, body.encode(), signed_headers(delivery.id, body, secret, at=at)
        )
        verdict = judge(status, delivery.tries, retry_after_s=retry_after_s, draw=random.random())  # noqa: S311
        attempt = Attempt(delivery.tries, at, status, note)
        self._store.run(deliveries.settle(delivery, verdict.outcome, attempt, body, delay_s=verdict.delay_s))
        log.info("delivery.tried", delivery=delivery.id, status=status, outcome=verdict.outcome.value)

    def _post(
        self, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int | None, str, float | None]:  # fmt: skip
        try:
            response = self._guard.post(url, body, headers=headers, timeout_s=TIMEOUT_S)
        except PenstockError as error:
            return None, error.code, None
        after = response.headers.get("retry-after", "")
        return response.status, f"HTTP {response.status}", float(after) if after.isdigit() else None


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
