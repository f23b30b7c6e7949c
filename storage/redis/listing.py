"""Lists of a tenant's jobs. Commands, as in `records.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from penstock.jobs import Job, State, Status
from penstock.storage.redis.fields import us
from penstock.storage.redis.record import readable
from penstock.storage.redis.scripts import Arg, Command
from penstock.storage.redis.views import view_of

_STATES: Mapping[Status, tuple[State, ...]] = MappingProxyType(
    {
        Status.QUEUED: (State.QUEUED, State.DELAYED),  # a reservation is no job yet
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
    """A page of jobs, newest first, and the cursor of the next page: `<created_us>-<id>` of the last job read."""

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

    `status` may be several statuses. A page reads at most 1,000 jobs: even an empty page may have a cursor.
    """
    states, canceling = _states(status)
    oldest = "-inf" if created_after_s is None else f"({us(created_after_s)}"
    newest = _newest(cursor, created_before_s)
    args: dict[str, Arg] = {
        "tenant": tenant, "newest": newest, "oldest": oldest, "cursor": cursor, "limit": limit, "states": states,
        "statuses": _names(status), "canceling": canceling, "model": model,
        "metadata": metadata or {}, "batch": batch_id,
    }  # fmt: skip
    return Command("list", args, _page)


def _states(status: Status | Collection[Status] | None) -> tuple[list[str], bool | None]:
    """Return the states of jobs of these statuses; of running jobs: True canceling, False not, None all."""
    wanted = {status} if isinstance(status, Status) else set(Status if status is None else status)
    states = [state.value for each in Status if each in wanted for state in _STATES[each]]
    running = {Status.RUNNING: False, Status.CANCELING: True}
    flags = [flag for each, flag in running.items() if each in wanted]
    return list(dict.fromkeys(states)), flags[0] if len(flags) == 1 else None


def _names(status: Status | Collection[Status] | None) -> list[str]:
    """Return the names of the wanted statuses, for the jobs of states that only newer releases know."""
    return list(Status if status is None else [status] if isinstance(status, Status) else status)


def _newest(cursor: str | None, created_before_s: float | None) -> str:
    """Return the upper end of a page's times, including the cursor's time: another job may have the same."""
    before_us = None if created_before_s is None else us(created_before_s)
    if cursor is not None and (before_us is None or int(cursor.partition("-")[0]) < before_us):
        return cursor.partition("-")[0]
    return "+inf" if before_us is None else f"({before_us}"


def _page(reply: list[Any]) -> Page:
    rows, now_us, following = reply
    return Page(readable(rows, lambda row: view_of(row[0], now_us, *row[1:])), following or None)
