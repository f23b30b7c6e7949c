"""The webhook outbox: rows are written by the script that tells of an event, and leased to the keeper for each try.

`lua/outbox.lua` has the model. Commands, as in `records.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import JobGone, StateConflict, UnknownDelivery, UnknownJob
from penstock.jobs import Delivery, Job, JobKey
from penstock.storage.fields import MICRO, fields, job_of, seconds, us
from penstock.storage.scripts import Command

#: How many tries one receiver, and the receivers of one tenant, may have under way at a time.
PER_RECEIVER, PER_TENANT = 8, 24
#: After this a delivery is given up although its receiver rested so long that not every try was made. Longer than the
#: schedule of the tries.
GIVE_UP_S = 4 * 86_400
_STOPPED = {
    "endpoint_deleted": "the delivery's endpoint was deleted",
    "endpoint_disabled": "the delivery's endpoint is disabled: enable it first",
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a delivery, for its log. `status` is the receiver's HTTP status, None where there was none."""

    number: int
    at_s: float
    status: int | None
    note: str
    #: How long the receiver took to answer, or not to; None where it was not asked.
    latency_ms: float | None = None
    #: The beginning of its answer's body.
    answer: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """A webhook delivery: one event to one receiver."""

    id: str
    #: The job; its id is empty where the event is of none.
    key: JobKey
    event: str
    url: str
    created_s: float
    tries: int
    state: Delivery
    log: tuple[Attempt, ...]
    #: What every try sends, byte for byte; None before the first try began.
    body: str | None
    #: When it is tried next; None while a try is under way and when it is settled.
    due_s: float | None = None
    #: The endpoint that asked for the event; None for a job's own webhook.
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A delivery that is to be tried, its job as it is now (None for an event of no job), and what signs it."""

    delivery: DeliveryRecord
    job: Job | None
    #: Of its endpoint, where it has one: which secrets are the latest.
    revision: int | None


@dataclass(frozen=True, slots=True)
class Due:
    """The deliveries that were leased, and whether more are due than were looked at."""

    tasks: tuple[Task, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """Some deliveries, the latest first, and where the next page begins."""

    deliveries: tuple[DeliveryRecord, ...]
    next_cursor: str | None


def deliveries(key: JobKey) -> Command[tuple[DeliveryRecord, ...]]:
    """Return a job's webhook deliveries; `UnknownJob` or `JobGone` without a record."""
    return Command("deliveries", (key.tenant, key.id), _rows)


def delivery(tenant: str, delivery_id: str) -> Command[DeliveryRecord]:
    """Return one delivery; `UnknownDelivery` without it."""
    return Command("delivery", (tenant, delivery_id), _one)


def endpoint_deliveries(tenant: str, endpoint: str, *, cursor: str | None, limit: int) -> Command[DeliveryPage]:
    """Return a page of an endpoint's deliveries, the latest first; `cursor` is what the page before said."""
    before_us, _, before_id = (cursor or "").partition("-")
    return Command("endpoint_deliveries", (tenant, endpoint, before_us, before_id, limit), _page)


def dead_deliveries(
    tenant: str, *, endpoint: str | None, limit: int
) -> Command[tuple[tuple[DeliveryRecord, ...], bool]]:
    """Return the deliveries that failed for good, the latest first, and whether there are more."""
    args = (tenant, endpoint or "", limit)
    return Command("dead_deliveries", args, lambda reply: (tuple(map(_delivery, reply[0])), bool(reply[1])))


def due(n: int, lease_s: float) -> Command[Due]:
    """Lease up to `n` deliveries whose time has come and whose receivers may be asked: tenants, receivers in turn."""
    args = (n, us(lease_s), PER_RECEIVER, PER_TENANT, us(GIVE_UP_S))
    return Command("deliver", args, lambda reply: Due(tuple(map(_task, reply[0])), bool(reply[1])))


def fix_body(delivery: DeliveryRecord, body: str) -> Command[str | None]:
    """Make this what every try sends, and return what was made so first; None for a delivery that is gone."""
    return Command("body", (delivery.key.tenant, delivery.id, body), lambda reply: reply)


def redeliver(tenant: str, delivery_id: str, *, job_id: str = "") -> Command[DeliveryRecord]:
    """Have a delivery made now, whether it is settled or waits for its next try.

    With `job_id` it must be that job's. Raises `UnknownJob`, `JobGone`, `UnknownDelivery`, or `StateConflict` where its
    endpoint is deleted or disabled.
    """
    return Command("redeliver", (tenant, job_id, delivery_id, us(GIVE_UP_S)), _one)


def settle(delivery: DeliveryRecord, outcome: Delivery, attempt: Attempt, *, delay_s: float = 0) -> Command[str]:
    """Write down how a try ended: DELIVERED, FAILED for good, or PENDING and due again after `delay_s`."""
    note = json.dumps(asdict(attempt))
    args = (delivery.key.tenant, delivery.id, delivery.tries, outcome.value, us(delay_s), note)
    return Command("settle", args, str)


def send_test(tenant: str, endpoint: str, *, url: str, delivery_id: str, body: str) -> Command[DeliveryRecord]:
    """Have an event of no job sent to an endpoint, once."""
    return Command("endpoint_test", (tenant, endpoint, delivery_id, url, body), _one)


def announce_again(limit: int) -> Command[int]:
    """Tell endpoints of what happened while an emptied Redis did not know them; return how much that was."""
    return Command("announce_again", (limit,), int)


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
    return Task(_delivery(row), job_of(fields(job)) if job else None, revision)


def _delivery(flat: Sequence[str]) -> DeliveryRecord:
    row: Mapping[str, str] = fields(flat)
    return DeliveryRecord(
        id=row["id"],
        key=JobKey(row["tenant"], row["job"]),
        event=row["event"],
        url=row["url"],
        created_s=int(row["created_us"]) / MICRO,
        tries=int(row["tries"]),
        state=Delivery(row["state"]),
        log=tuple(Attempt(**entry) for entry in json.loads(row["log"])),
        due_s=seconds(row.get("due_us")),
        body=row.get("body"),
        endpoint=row.get("endpoint"),
    )
