"""Batches in Redis: commands as in `records.py`.

What must outlive Redis lies in the object store (`batch_manifests.py`): a batch is made anew from there, and its
members count themselves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.batches import BEGINNING, Batch, BatchEnd, BatchKey, BatchManifest, Cursor
from penstock.errors import BatchGone, UnknownBatch
from penstock.jobs import JobKey, State
from penstock.storage.fields import MICRO, dump, fields, us
from penstock.storage.records import GONE_S, SWEEP_LIMIT
from penstock.storage.scripts import Arg, Command

#: Open batches that a keeper looks at.
MAX_OPEN = 1000


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Some batches, newest first, and where the next page begins."""

    batches: tuple[Batch, ...]
    next_cursor: str | None


def clock() -> Command[int]:
    """Return the time in microseconds by the only clock of jobs and batches."""
    return Command("clock", (), int)


def open_batch(
    manifest: BatchManifest,
    *,
    reserved: bool = False,
    cursor: Cursor = BEGINNING,
    cancel: bool = False,
) -> Command[Batch]:
    """Make a batch known, or return the one that is known under its key; `BatchGone` where it was purged."""
    args = (
        *_names(manifest.key),
        dump(manifest.to_json()),
        manifest.created_us,
        us(manifest.retention_s),
        int(reserved),
        cursor.line,
        cursor.offset,
        cursor.requests,
        cursor.invalid,
        int(cancel),
    )
    return Command("batch_open", args, _batch)


def read(key: BatchKey) -> Command[Batch]:
    """Return a batch; `UnknownBatch` or `BatchGone` without one."""
    return Command("batch_read", _names(key), _batch)


def confirm(key: BatchKey) -> Command[Batch]:
    """Note that a batch's manifest is stored."""
    return _note(key, reserved=0)


def request_cancel(key: BatchKey) -> Command[Batch]:
    """Note that a batch's end was asked for."""
    return _note(key, cancel=1)


def close(key: BatchKey) -> Command[Batch]:
    """Let no further line of a batch become a job: from here on its members are those that there are."""
    return _note(key, closed=1)


def move_on(key: BatchKey, cursor: Cursor) -> Command[Batch]:
    """Note how far a batch's lines had their turn."""
    return _note(key, line=cursor.line, offset=cursor.offset, requests=cursor.requests, invalid=cursor.invalid)


def end(key: BatchKey, ended: BatchEnd, *, deleted: bool = False) -> Command[bool]:
    """Note how a batch ended, as its stored outcome says; a `deleted` one is gone. False for an unknown one."""
    return Command("batch_end", (*_names(key), dump(ended.to_json()), us(ended.completed_s), int(deleted)), bool)


def list_batches(tenant: str, *, cursor: str | None = None, limit: int = 50) -> Command[BatchPage]:
    """Return a page of a tenant's batches, newest first."""
    return Command("batch_list", (tenant, f"({cursor}" if cursor else "+inf", limit), _page)


def open_batches() -> Command[tuple[BatchKey, ...]]:
    """Return the batches that are not over, the oldest first."""
    return Command("batches_open", (MAX_OPEN,), _keys)


def retired() -> Command[tuple[BatchKey, ...]]:
    """Return the batches that are to be purged."""
    return Command("batches_retired", (SWEEP_LIMIT,), _keys)


def live(key: BatchKey, cursor: str = "0") -> Command[tuple[str, tuple[JobKey, ...]]]:
    """Return some members that are not over, and the cursor to go on with: `0` at the end."""
    args = (*_names(key), cursor, SWEEP_LIMIT)
    return Command("batch_live", args, lambda reply: (str(reply[0]), _members(key, reply[1])))


def members(key: BatchKey) -> Command[tuple[JobKey, ...]]:
    """Return the oldest members that have a record."""
    return Command("batch_jobs", (*_names(key), SWEEP_LIMIT), lambda reply: _members(key, reply))


def forget(key: BatchKey, *, purged: bool) -> Command[bool]:
    """Forget a batch; a `purged` one is answered as gone, another one as if it had never been."""
    return Command("batch_forget", (*_names(key), GONE_S if purged else 0), bool)


def _note(key: BatchKey, **values: int) -> Command[Batch]:
    args: list[Arg] = [part for pair in values.items() for part in pair]
    return Command("batch_note", (*_names(key), *args), _batch)


def _names(key: BatchKey) -> tuple[Arg, Arg]:
    return key.tenant, key.id


def _batch(reply: Any) -> Batch:
    if reply == 0:
        raise UnknownBatch
    if reply == 1:
        raise BatchGone
    return _view(reply)


def _view(reply: Sequence[Any]) -> Batch:
    record, states = fields(reply[0]), fields(reply[1])
    return Batch(
        manifest=BatchManifest.from_json(json.loads(record["manifest"])),
        cursor=Cursor(*(int(record[name]) for name in ("line", "offset", "requests", "invalid"))),
        states={State(state): int(count) for state, count in states.items()},
        cancel_requested=record["cancel"] == "1",
        reserved=record["reserved"] == "1",
        at_s=int(reply[2]) / MICRO,
        end=BatchEnd.from_json(json.loads(record["end"])) if "end" in record else None,
        revision=int(record.get("revision") or 0),
    )


def _page(reply: Sequence[Any]) -> BatchPage:
    return BatchPage(tuple(map(_view, reply[0])), reply[1].removeprefix("(") or None)


def _keys(names: Sequence[str]) -> tuple[BatchKey, ...]:
    return tuple(map(BatchKey.parse, names))


def _members(key: BatchKey, ids: Sequence[str]) -> tuple[JobKey, ...]:
    return tuple(JobKey(key.tenant, job_id) for job_id in ids)
