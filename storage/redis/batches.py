"""Batches in Redis: commands as in `records.py`.

The data that must outlive Redis is in the object store (`batch_manifests.py`): a batch is created again from there, and
its members are counted as they are created again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.batches import BEGINNING, Batch, BatchEnd, BatchKey, BatchManifest, Cursor
from penstock.errors import BatchGone, UnknownBatch
from penstock.jobs import JobKey, State
from penstock.storage.redis.deliveries import send_event
from penstock.storage.redis.fields import MICRO, dump, fields, us
from penstock.storage.redis.record import readable, readable_version
from penstock.storage.redis.records import GONE_S, SWEEP_LIMIT
from penstock.storage.redis.scripts import Arg, Command, query

#: Most open batches that a keeper reads.
MAX_OPEN = 1000


@dataclass(frozen=True, slots=True)
class BatchPage:
    """A page of batches, newest first, and the cursor of the next page."""

    batches: tuple[Batch, ...]
    next_cursor: str | None


def clock() -> Command[int]:
    """Return the time of Redis in microseconds: the only clock of jobs and batches."""
    return query("clock", int)


def open_batch(
    manifest: BatchManifest,
    *,
    reserved: bool = False,
    cursor: Cursor = BEGINNING,
    cancel: bool = False,
) -> Command[Batch]:
    """Create a batch, or return the existing one; `BatchGone` for a purged one."""
    batch: dict[str, Arg] = {
        "manifest": dump(manifest.to_json()), "created_us": manifest.created_us, "reserved": int(reserved),
        "retention_us": us(manifest.retention_s), **asdict(cursor), "cancel": int(cancel), "closed": 0,
        "version": manifest.version, "more": dump(manifest.more) if manifest.more else None,
    }  # fmt: skip
    args = {**_names(manifest.key), "created_us": manifest.created_us, "fields": batch}
    return Command("batch_open", args, _batch)


def read(key: BatchKey) -> Command[Batch]:
    """Return a batch; `UnknownBatch` or `BatchGone` without one."""
    return query("batch", _batch, **_names(key))


def confirm(key: BatchKey) -> Command[Batch]:
    """Write that a batch's manifest is stored."""
    return _note(key, reserved=0)


def request_cancel(key: BatchKey) -> Command[Batch]:
    """Write that a batch's end was requested."""
    return _note(key, cancel=1)


def close(key: BatchKey) -> Command[Batch]:
    """Close a batch: no further line becomes a job."""
    return _note(key, closed=1)


def move_on(key: BatchKey, cursor: Cursor) -> Command[Batch]:
    """Write the progress of a batch's expansion."""
    return _note(key, **asdict(cursor))


def end(key: BatchKey, ended: BatchEnd, *, deleted: bool = False) -> Command[bool]:
    """Write the end of a batch as it is stored; a `deleted` batch is gone. False for an unknown batch."""
    return Command(
        "batch_end",
        {**_names(key), "result": dump(ended.to_json()), "completed_us": us(ended.completed_s), "deleted": deleted},
        bool,
    )


def announce(key: BatchKey, event: str, url: str, body: str) -> Command[bool]:
    """Make the webhook delivery of a batch's end, once."""
    return send_event(key.tenant, f"msg_{key.id}_{event}", event, url=url, body=body)


def list_batches(tenant: str, *, cursor: str | None = None, limit: int = 50) -> Command[BatchPage]:
    """Return a page of a tenant's batches, newest first."""
    return Command(
        "batch_list", {"tenant": tenant, "before": f"({cursor}" if cursor else "+inf", "limit": limit}, _page
    )


def open_batches() -> Command[tuple[BatchKey, ...]]:
    """Return the batches that are not over, oldest first."""
    return query("open_batches", _keys, limit=MAX_OPEN)


def retired() -> Command[tuple[BatchKey, ...]]:
    """Return the batches that are to be purged."""
    return query("retired_batches", _keys, limit=SWEEP_LIMIT)


def live(key: BatchKey, cursor: str = "0") -> Command[tuple[str, tuple[JobKey, ...]]]:
    """Return some members that are not over, and the next cursor: `0` at the end."""

    def page(reply: Sequence[Any]) -> tuple[str, tuple[JobKey, ...]]:
        return str(reply[0]), _members(key, reply[1])

    return query("live_members", page, **_names(key), cursor=cursor, limit=SWEEP_LIMIT)


def members(key: BatchKey, limit: int = SWEEP_LIMIT) -> Command[tuple[JobKey, ...]]:
    """Return the oldest members that have a record."""
    return query("batch_members", lambda reply: _members(key, reply), **_names(key), limit=limit)


def forget(key: BatchKey, *, purged: bool) -> Command[bool]:
    """Delete a batch; a `purged` batch is reported as gone, any other as unknown."""
    return Command("batch_forget", {**_names(key), "gone_s": GONE_S if purged else 0}, bool)


def _note(key: BatchKey, **values: int) -> Command[Batch]:
    return Command("batch_note", {**_names(key), "fields": values}, _batch)


def _names(key: BatchKey) -> dict[str, Arg]:
    return {"tenant": key.tenant, "id": key.id}


def _batch(reply: Any) -> Batch:
    if reply == 0:
        raise UnknownBatch
    if reply == 1:
        raise BatchGone
    return _view(reply)


def _view(reply: Sequence[Any]) -> Batch:
    record, states = fields(reply[0]), fields(reply[1])
    version = readable_version("the batch", record)
    return Batch(
        manifest=BatchManifest.from_json(
            json.loads(record["manifest"]), json.loads(record.get("more", "{}")), version=version
        ),
        cursor=Cursor(*(int(record[name]) for name in ("line", "offset", "requests", "invalid"))),
        states=_states(states),
        cancel_requested=record["cancel"] == "1",
        reserved=record["reserved"] == "1",
        at_s=int(reply[2]) / MICRO,
        end=BatchEnd.from_json(json.loads(record["end"])) if "end" in record else None,
        revision=int(record.get("revision") or 0),
    )


def _states(counted: Mapping[str, str]) -> dict[State, int]:
    found: Counter[State] = Counter()
    for state, count in counted.items():
        found[State.read(state)] += int(count)
    return dict(found)


def _page(reply: Sequence[Any]) -> BatchPage:
    return BatchPage(readable(reply[0], _view), reply[1].removeprefix("(") or None)


def _keys(names: Sequence[str]) -> tuple[BatchKey, ...]:
    return tuple(map(BatchKey.parse, names))


def _members(key: BatchKey, ids: Sequence[str]) -> tuple[JobKey, ...]:
    return tuple(JobKey(key.tenant, job_id) for job_id in ids)
