"""Options of the client's calls, the callbacks, and their form in requests."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias, TypedDict
from urllib.parse import quote

from penstock.client.answers import Batch, ClientError, Job, PenstockAPIError, Unreachable
from penstock.jobs import Priority

#: Local files for the media fields of a model's input.
Files: TypeAlias = Mapping[str, str | Path | Sequence[str | Path]]
#: Called with (bytes done, total bytes).
OnBytes: TypeAlias = Callable[[int, int], None]
#: Called with the failure of a request and the seconds until the request is sent again.
OnRetry: TypeAlias = Callable[[Unreachable | PenstockAPIError, float], None]
#: Called with the job while it is waited for.
OnJob: TypeAlias = Callable[[Job], None]
#: Called with the batch while it is waited for.
OnBatch: TypeAlias = Callable[[Batch], None]
#: Called with (lines whose files are saved, lines with files).
OnLine: TypeAlias = Callable[[int, int], None]

#: Options with another name in requests: the API leaves the unit out.
_NAMES = {
    "queue_ttl_s": "queue_ttl", "execution_timeout_s": "execution_timeout", "ttl_s": "ttl", "every_s": "every",
    "look_back_s": "look_back",
}  # fmt: skip
#: Options that are no field of a request's body.
_NO_FIELDS = frozenset({"idempotency_key", "job_id"})


class JobOptions(TypedDict, total=False):
    """Options of a job beside its input."""

    metadata: Mapping[str, str] | None
    #: A URL that gets the job's end, or the API's object with `url` and `events`.
    webhook: str | Mapping[str, Any] | None
    priority: Priority | None
    #: Ids of jobs that must succeed first; the jobs of inputs such as `job://ID/mask.tif` need not be named.
    after: Sequence[str] | None
    #: Seconds that the job may wait.
    queue_ttl_s: float | None
    #: Seconds that the job may run.
    execution_timeout_s: float | None
    #: Submissions with the same key are one job; by default each call has a key of its own.
    idempotency_key: str | None
    #: The job's id, a UUID of your choice: the same request again finds the job.
    job_id: str | None


class JobFilters(TypedDict, total=False):
    """Filters of a list of jobs; None is no filter."""

    status: str | None
    model: str | None
    #: Jobs of the page, at most.
    limit: int | None
    #: The `next_cursor` of the page before.
    cursor: str | None
    #: Times of submission; a time without a zone is local time.
    created_after: datetime | None
    created_before: datetime | None
    #: Metadata that the jobs have.
    metadata: Mapping[str, str] | None


class BatchOptions(TypedDict, total=False):
    """Options of a batch beside its requests."""

    #: The model of requests that name none.
    model: str | None
    priority: Priority | None
    #: Seconds the batch may take; unfinished jobs are then ended.
    ttl_s: float | None
    metadata: Mapping[str, str] | None
    #: A URL that is told the end of the batch.
    webhook: str | None
    #: Submissions with the same key are one batch; by default each call has a key of its own.
    idempotency_key: str | None


class EndpointOptions(TypedDict, total=False):
    """Options of an endpoint beside its URL; None is left out."""

    events: list[str] | None
    #: Models whose jobs are reported; empty = all.
    models: list[str] | None
    description: str | None
    #: Form of the bodies: `webhook` (default) or `cloudevents`.
    format: str | None
    enabled: bool | None


class SubscriptionOptions(TypedDict, total=False):
    """Options of a subscription; None is left out."""

    #: GeoJSON in degrees, longitude first.
    area: Mapping[str, Any] | None
    #: CQL2 text, such as `eo:cloud_cover < 20`.
    filter: str | None
    #: The rest of each job's input.
    input: Mapping[str, Any] | None
    priority: Priority | None
    #: Seconds between two looks at the catalogue.
    every_s: float | None
    #: Seconds before the last look at which late items are still found.
    look_back_s: float | None
    #: Items from this time on become jobs; a time without a zone is local time. Default: the creation.
    since: datetime | None
    max_jobs_a_day: int | None
    #: A URL that gets the ends of the jobs, or the results for which a condition holds.
    webhook: str | None
    condition: str | None


def check_options(options: Mapping[str, Any], shape: type) -> None:
    """Raise `TypeError` for an unknown option: Python does not check typed dicts."""
    for name in options.keys() - shape.__annotations__.keys():
        near = difflib.get_close_matches(name, shape.__annotations__, n=1)
        raise TypeError(f"unexpected option {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))


def body_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as fields of a request's body, without those that are None: the service has defaults."""
    body = {_NAMES.get(name, name): value for name, value in options.items() if name not in _NO_FIELDS}
    body["metadata"] = dict(body.get("metadata") or {}) or None
    if isinstance(body.get("webhook"), str):
        body["webhook"] = {"url": body["webhook"]}
    if isinstance(body.get("since"), datetime):
        body["since"] = body["since"].astimezone(UTC).isoformat()
    return {name: value for name, value in body.items() if value is not None}


def query_of(filters: Mapping[str, object]) -> dict[str, str]:
    """Return filters as a request's query: None is left out, a time is in UTC, `metadata` has a parameter per key."""
    query: dict[str, str] = {}
    for name, value in filters.items():
        if isinstance(value, Mapping):
            query |= {f"{name}.{key}": str(text) for key, text in value.items()}
        elif isinstance(value, datetime):
            query[name] = value.astimezone(UTC).isoformat()
        elif value is not None:
            query[name] = str(value)
    return query


def key_header(text: str | None) -> dict[str, str]:
    """Return the header with an idempotency key, empty for None; raise `ClientError` for one that it cannot carry."""
    if text is None:
        return {}
    if not re.fullmatch(r"[!-~]([ -~]{0,253}[!-~])?", text):
        raise ClientError("an idempotency key has 1 to 255 characters, all of them ASCII")
    return {"Idempotency-Key": text}


def segment(name: str) -> str:
    """Return an id or a name as a path segment; raise `ClientError` for an impossible one."""
    if not isinstance(name, str):
        raise TypeError(f"an id or a name must be a string, not {type(name).__name__}")
    if name in {"", ".", ".."}:
        raise ClientError(f"{name!r} is not an id")
    return quote(name, safe="")
