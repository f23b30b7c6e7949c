"""The webhook outbox: rows are written by the script that ends a job, and leased to the keeper for each try."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import JobGone, UnknownDelivery, UnknownJob
from penstock.jobs import Delivery, Job, JobKey
from penstock.storage.fields import MICRO, fields, job_of, us
from penstock.storage.scripts import Command


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a delivery, for its log. `status` is the receiver's HTTP status, None where there was none."""

    number: int
    at_s: float
    status: int | None
    note: str


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """A webhook delivery: one event of one job to one receiver."""

    id: str
    key: JobKey
    event: str
    url: str
    created_s: float
    tries: int
    state: Delivery
    log: tuple[Attempt, ...]
    #: What every try sends, byte for byte; None before the first try ended.
    body: str | None


def deliveries(key: JobKey) -> Command[tuple[DeliveryRecord, ...]]:
    """Return a job's webhook deliveries; `UnknownJob` or `JobGone` without a record."""
    return Command("deliveries", (key.tenant, key.id), _rows)


def due(n: int, lease_s: float) -> Command[tuple[tuple[DeliveryRecord, Job], ...]]:
    """Lease up to `n` deliveries whose time has come, each with its job as it is now."""
    args = (n, us(lease_s))
    return Command("deliver", args, lambda rows: tuple((_delivery(row), job_of(fields(job))) for row, job in rows))


def redeliver(key: JobKey, delivery_id: str) -> Command[DeliveryRecord]:
    """Have a settled delivery made once more, or raise `UnknownJob`, `JobGone` or `UnknownDelivery`."""
    return Command("redeliver", (key.tenant, key.id, delivery_id), _redelivered)


def settle(
    delivery: DeliveryRecord, outcome: Delivery, attempt: Attempt, body: str, *, delay_s: float = 0
) -> Command[str]:
    """Write down how a try ended: DELIVERED, FAILED for good, or PENDING and due again after `delay_s`."""
    note = {"number": attempt.number, "at_s": attempt.at_s, "status": attempt.status, "note": attempt.note}
    args = (
        delivery.key.tenant,
        delivery.id,
        delivery.tries,
        outcome.value,
        us(delay_s),
        json.dumps(note),
        body,
    )
    return Command("settle", args, str)


def _rows(reply: Any) -> tuple[DeliveryRecord, ...]:
    if reply == 0:
        raise UnknownJob
    if reply == 1:
        raise JobGone
    return tuple(_delivery(row) for row in reply[0])


def _redelivered(reply: Any) -> DeliveryRecord:
    if reply == 2:
        raise UnknownDelivery
    return _rows(reply)[0]


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
        body=row.get("body"),
    )
