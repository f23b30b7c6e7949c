"""The API's answers about batches as values: see `penstock.client.answers`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from penstock.batches import BatchStatus, Counts
from penstock.client.answers import Artifact, read_artifact, read_error
from penstock.client.notebook import batch_card
from penstock.reports import ErrorReport


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of requests. The parts of `counts` add up to its `total`."""

    id: str
    status: BatchStatus
    counts: Counts
    #: Requests that were expanded into jobs, or rejected, so far.
    expanded: int
    created_at: datetime
    deadline_at: datetime
    completed_at: datetime | None
    #: `results.jsonl` and `errors.jsonl`, once the batch is over.
    artifacts: tuple[Artifact, ...]
    metadata: Mapping[str, str]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def over(self) -> bool:
        """True once the batch has ended, with or without results."""
        return self.status.terminal

    def _repr_html_(self) -> str:
        """Return the batch as a notebook shows it."""
        return batch_card(self)


@dataclass(frozen=True, slots=True)
class BatchPage:
    """A page of batches, the newest first; `next_cursor` is None on the last page."""

    batches: tuple[Batch, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """The outcome of a line of a batch. `error` is None for a success, `job_id` for a line that never became a job."""

    line: int
    custom_id: str | None
    job_id: str | None
    #: `succeeded`, `failed`, `canceled`, `expired` or `invalid`.
    status: str
    text: str | None
    data: Mapping[str, Any] | None
    artifacts: tuple[Artifact, ...]
    error: ErrorReport | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def succeeded(self) -> bool:
        """True where the line has a result."""
        return self.error is None


def read_batch(data: Mapping[str, Any]) -> Batch:
    """Read a batch from the API's JSON."""
    known = {part.name for part in fields(Counts)}
    return Batch(
        id=data["id"],
        status=BatchStatus(data["status"]),
        counts=Counts(**{name: count for name, count in data["counts"].items() if name in known}),
        expanded=int(data.get("expanded") or 0),
        created_at=datetime.fromisoformat(data["created_at"]),
        deadline_at=datetime.fromisoformat(data["deadline_at"]),
        completed_at=None if data.get("completed_at") is None else datetime.fromisoformat(data["completed_at"]),
        artifacts=tuple(read_artifact(a) for a in data.get("artifacts") or ()),
        metadata=data.get("metadata") or {},
        raw=data,
    )


def read_batch_page(data: Mapping[str, Any]) -> BatchPage:
    """Read a page of batches."""
    return BatchPage(tuple(read_batch(batch) for batch in data.get("batches") or ()), data.get("next_cursor"))


def read_outcome(text: str | bytes) -> LineOutcome:
    """Read a line of `results.jsonl` or `errors.jsonl`."""
    data = json.loads(text)
    output, error = data.get("output") or {}, data.get("error")
    return LineOutcome(
        line=int(data["line"]),
        custom_id=data.get("custom_id"),
        job_id=data.get("job_id"),
        status=data["status"],
        text=output.get("text"),
        data=output.get("json"),
        artifacts=tuple(read_artifact(a) for a in data.get("artifacts") or ()),
        error=read_error(error) if error else None,
        raw=data,
    )
