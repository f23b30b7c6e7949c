"""The webhook outbox: the script of an event writes the rows, and the keeper leases a row for each try.

`lua/outbox.lua` has the model. Commands, as in `records.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock import formats
from penstock.errors import JobGone, StateConflict, UnknownDelivery, UnknownJob
from penstock.jobs import Delivery, Job, JobKey
from penstock.storage.redis.fields import MICRO, fields, seconds, us
from penstock.storage.redis.record import job_of, readable
from penstock.storage.redis.scripts import Arg, Command, query

#: Concurrent tries to one receiver, and to all receivers of one tenant.
PER_RECEIVER, PER_TENANT = 8, 24
#: Age at which a delivery is given up, even if its receiver rested too long for all tries. Longer than the schedule of
#: the tries.
GIVE_UP_S = 4 * 86_400
_STOPPED = {
    "endpoint_deleted": "the delivery's endpoint was deleted",
    "endpoint_disabled": "the delivery's endpoint is disabled: enable it first",
}
#: Seconds for which the delivery of an event of no job is kept; it is tried for three days.
KEPT_S = 14 * 86_400
#: Seconds for which Redis knows the deliveries that were answered before it was lost: longer than a recovery.
ANSWERED_S = 86_400


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a delivery, for its log. `status` is the receiver's HTTP status, None without an answer."""

    number: int
    at_s: float
    status: int | None
    note: str
    #: Milliseconds until the receiver's answer or error; None where no request was sent.
    latency_ms: float | None = None
    #: The beginning of the answer's body.
    answer: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """A webhook delivery: one event to one receiver."""

    id: str
    #: The job; its id is empty for an event of no job.
    key: JobKey
    event: str
    url: str
    created_s: float
    tries: int
    state: Delivery
    log: tuple[Attempt, ...]
    #: Body of every try, byte for byte; None before the first try.
    body: str | None
    #: Time of the next try; None while a try is under way and after the last.
    due_s: float | None = None
    #: The endpoint that receives the event; None for a job's own webhook.
    endpoint: str | None = None
    #: Number of the attempt that began, for `job.started`.
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A leased delivery, with its job (None for an event of no job) and the revision of its endpoint."""

    delivery: DeliveryRecord
    job: Job | None
    #: Revision of its endpoint, which determines the secrets; None without an endpoint.
    revision: int | None


@dataclass(frozen=True, slots=True)
class Due:
    """Leased deliveries; `more` where others may be due."""

    tasks: tuple[Task, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """A page of deliveries, latest first, and the cursor of the next page."""

    deliveries: tuple[DeliveryRecord, ...]
    next_cursor: str | None


def deliveries(key: JobKey) -> Command[tuple[DeliveryRecord, ...]]:
    """Return a job's webhook deliveries; `UnknownJob` or `JobGone` without a record."""
    return query("deliveries", _rows, tenant=key.tenant, id=key.id)


def delivery(tenant: str, delivery_id: str) -> Command[DeliveryRecord]:
    """Return one delivery; `UnknownDelivery` without it."""
    return query("delivery", _one, tenant=tenant, delivery=delivery_id)


def endpoint_deliveries(tenant: str, endpoint: str, *, cursor: str | None, limit: int) -> Command[DeliveryPage]:
    """Return a page of an endpoint's deliveries, latest first; `cursor` is that of the previous page."""
    args: dict[str, Arg] = {"tenant": tenant, "endpoint": endpoint, "limit": limit}
    if cursor is not None:
        args["before_us"], _, args["before_id"] = cursor.partition("-")
    return Command("endpoint_deliveries", args, _page)


def dead_deliveries(
    tenant: str, *, endpoint: str | None, limit: int
) -> Command[tuple[tuple[DeliveryRecord, ...], bool]]:
    """Return the deliveries that failed for good, latest first, and True where there are more."""
    args: dict[str, Arg] = {"tenant": tenant, "endpoint": endpoint, "limit": limit}
    return Command("dead_deliveries", args, lambda reply: (tuple(map(_delivery, reply[0])), bool(reply[1])))


def due(n: int, lease_s: float) -> Command[Due]:
    """Lease up to `n` due deliveries whose receivers may be called: tenants in turn, and their receivers in turn."""
    args: dict[str, Arg] = {
        "n": n, "lease_us": us(lease_s), "per_receiver": PER_RECEIVER, "per_tenant": PER_TENANT,
        "give_up_us": us(GIVE_UP_S), "version": formats.RUNS,
    }  # fmt: skip
    return Command("deliver", args, lambda reply: Due(readable(reply[0], _task), bool(reply[1])))


def fix_body(delivery: DeliveryRecord, body: str) -> Command[str | None]:
    """Set the body of every try, unless it is set, and return it; None for an unknown delivery."""
    return Command(
        "note",
        {"op": "delivery_body", "tenant": delivery.key.tenant, "delivery": delivery.id, "body": body},
        lambda reply: reply,
    )


def redeliver(tenant: str, delivery_id: str, *, job_id: str | None = None) -> Command[DeliveryRecord]:
    """Have a delivery tried now, settled or not.

    With `job_id` it must be that job's. Raises `UnknownJob`, `JobGone`, `UnknownDelivery`, or `StateConflict` where its
    endpoint is deleted or disabled.
    """
    return Command(
        "redeliver", {"tenant": tenant, "id": job_id, "delivery": delivery_id, "give_up_us": us(GIVE_UP_S)}, _one
    )


def settle(delivery: DeliveryRecord, outcome: Delivery, attempt: Attempt, *, delay_s: float = 0) -> Command[str]:
    """Write the result of a try: DELIVERED, FAILED for good, or PENDING and due again after `delay_s`."""
    args: dict[str, Arg] = {
        "tenant": delivery.key.tenant, "delivery": delivery.id, "try": delivery.tries, "outcome": outcome.value,
        "delay_us": us(delay_s), "note": json.dumps(asdict(attempt)),
    }  # fmt: skip
    return Command("settle", args, str)


def note_answered(tenant: str, ids: Sequence[str]) -> Command[bool]:
    """Note deliveries that were answered before Redis was lost: made again, they count as delivered."""
    return Command("note", {"op": "answered", "tenant": tenant, "ids": list(ids), "keep_s": ANSWERED_S}, bool)


def send_test(tenant: str, endpoint: str, *, url: str, delivery_id: str, body: str) -> Command[DeliveryRecord]:
    """Send a test event to an endpoint, once."""
    return Command(
        "endpoint_test",
        {"tenant": tenant, "endpoint": endpoint, "delivery": delivery_id, "url": url, "body": body},
        _one,
    )


def send_event(tenant: str, delivery_id: str, event: str, *, url: str, body: str) -> Command[bool]:
    """Make the delivery of an event of no job, once: its id names the event. `tenant_webhook_secret` signs it."""
    args: dict[str, Arg] = {"delivery": delivery_id, "event": event, "url": url, "body": body}
    return Command("send_event", {"tenant": tenant, **args, "keep_s": KEPT_S}, bool)


def announce_again(limit: int) -> Command[int]:
    """Make the deliveries of events that happened while an emptied Redis knew no endpoints; return their number."""
    return Command("announce_again", {"limit": limit}, int)


def _rows(reply: Any) -> tuple[DeliveryRecord, ...]:
    if reply == 0:
        raise UnknownJob
    if reply == 1:
        raise JobGone
    return tuple(_delivery(row) for row in reply[0])


def _one(reply: Any) -> DeliveryRecord:
    if reply == 2:
        raise UnknownDelivery
    if isinstance(reply, str):
        raise StateConflict(_STOPPED[reply])
    return _rows(reply)[0]


def _page(reply: Any) -> DeliveryPage:
    rows, next_us, next_id = reply
    return DeliveryPage(tuple(map(_delivery, rows)), f"{next_us}-{next_id}" if next_us else None)


def _task(reply: Any) -> Task:
    row, job, revision = reply
    return Task(_delivery(row), job_of(job) if job else None, revision)


def _delivery(flat: Sequence[str]) -> DeliveryRecord:
    row: Mapping[str, str] = fields(flat)
    return DeliveryRecord(
        id=row["id"],
        key=JobKey(row["tenant"], row["job"]),
        event=row["event"],
        url=row["url"],
        created_s=int(row["created_us"]) / MICRO,
        tries=int(row["tries"]),
        state=Delivery.read(row["state"]),
        log=tuple(Attempt(**formats.known(Attempt, entry)) for entry in json.loads(row["log"])),
        due_s=seconds(row.get("due_us")),
        body=row.get("body"),
        endpoint=row.get("endpoint"),
        attempt=int(row["attempt"]) if row.get("attempt") else None,
    )
