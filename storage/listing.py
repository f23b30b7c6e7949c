"""A tenant's jobs, page by page. Commands, as in `records.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.jobs import Job, State, Status
from penstock.storage.fields import dump, us, view_of
from penstock.storage.scripts import Command


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
    status: Status | None = None,
    model: str | None = None,
    created_after_s: float | None = None,
    created_before_s: float | None = None,
    metadata: Mapping[str, str] | None = None,
    batch_id: str | None = None,
) -> Command[Page]:
    """Return a page of a tenant's jobs, newest first, between two times (exclusive) and with all of this metadata.

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


def _states(status: Status | None) -> tuple[list[str], str]:
    match status:
        case None:
            return [state.value for state in State], ""
        case Status.QUEUED:
            return [State.RESERVED.value, State.QUEUED.value, State.DELAYED.value], ""
        case Status.RUNNING:
            return [State.RUNNING.value], "0"
        case Status.CANCELING:
            return [State.RUNNING.value], "1"
        case _:
            return [status.value], ""


def _newest(cursor: str | None, created_before_s: float | None) -> str:
    """Return the upper end of a list's times: the cursor's is in, because another job may have the same."""
    before_us = None if created_before_s is None else us(created_before_s)
    if cursor is not None and (before_us is None or int(cursor.partition("-")[0]) < before_us):
        return cursor.partition("-")[0]
    return "+inf" if before_us is None else f"({before_us}"


def _page(reply: list[Any]) -> Page:
    rows, now_us, following = reply
    return Page(tuple(view_of(flat, now_us, *rest) for flat, *rest in rows), following or None)
