"""A tenant's jobs, page by page. Commands, as in `records.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from penstock.jobs import Job, State, Status
from penstock.storage.fields import dump, us, view_of
from penstock.storage.scripts import Command

_STATES: Mapping[Status, tuple[State, ...]] = MappingProxyType(
    {
        Status.QUEUED: (State.RESERVED, State.QUEUED, State.DELAYED),
        Status.RUNNING: (State.RUNNING,),
        Status.CANCELING: (State.RUNNING,),
        Status.SUCCEEDED: (State.SUCCEEDED,),
        Status.FAILED: (State.FAILED,),
        Status.CANCELED: (State.CANCELED,),
        Status.EXPIRED: (State.EXPIRED,),
    }
)


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest first, and where the next page begins: `<created_us>-<id>` of the last job looked at."""

    jobs: tuple[Job, ...]
    next_cursor: str | None


def list_jobs(
    tenant: str,
    *,
    cursor: str | None = None,
    limit: int = 50,
    status: Status | Collection[Status] | None = None,
    model: str | None = None,
    created_after_s: float | None = None,
    created_before_s: float | None = None,
    metadata: Mapping[str, str] | None = None,
    batch_id: str | None = None,
) -> Command[Page]:
    """Return a page of a tenant's jobs, newest first, between two times (exclusive) and with all of this metadata.

    `status` may be several, of which a job has one.

    1,000 jobs are looked at: a short page, even an empty one, may have a cursor.
    """
    states, canceling = _states(status)
    oldest = "-inf" if created_after_s is None else f"({us(created_after_s)}"
    newest = _newest(cursor, created_before_s)
    args = (
        tenant, newest, oldest, cursor or "", limit, dump(states), canceling, model or "", dump(dict(metadata or {})),
        batch_id or "",
    )  # fmt: skip
    return Command("list", args, _page)


def _states(status: Status | Collection[Status] | None) -> tuple[list[str], str]:
    """Return the states of jobs of these statuses, and which of those that run: '1' canceling, '0' not, '' all."""
    wanted = {status} if isinstance(status, Status) else set(Status if status is None else status)
    states = [state.value for each in Status if each in wanted for state in _STATES[each]]
    running = {Status.RUNNING: "0", Status.CANCELING: "1"}
    flags = [flag for each, flag in running.items() if each in wanted]
    return list(dict.fromkeys(states)), flags[0] if len(flags) == 1 else ""


def _newest(cursor: str | None, created_before_s: float | None) -> str:
    """Return the upper end of a list's times: the cursor's is in, because another job may have the same."""
    before_us = None if created_before_s is None else us(created_before_s)
    if cursor is not None and (before_us is None or int(cursor.partition("-")[0]) < before_us):
        return cursor.partition("-")[0]
    return "+inf" if before_us is None else f"({before_us}"


def _page(reply: list[Any]) -> Page:
    rows, now_us, following = reply
    return Page(tuple(view_of(flat, now_us, *rest) for flat, *rest in rows), following or None)
