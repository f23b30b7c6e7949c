"""OpenAI's batches: a file of requests in, files of responses out. Each is an ordinary batch of Penstock.

An invalid file is rejected on creation, with the number of the invalid line, so no batch ends as `failed`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import StringConstraints, field_validator

from penstock.api.batch_intake import StoredLines, store_rows, write_rows
from penstock.api.facades.calls import CurrentCall
from penstock.api.facades.capabilities import require_capability
from penstock.api.facades.openai.files import find_upload, result_file_ids
from penstock.api.facades.openai.lines import METADATA_PREFIX, Endpoint, endpoint_of, job_lines
from penstock.api.facades.openai.requests import Body, Metadata
from penstock.api.isolation import ThreadIsolation
from penstock.api.routes import batches
from penstock.api.schemas.batches import BatchRequest
from penstock.api.services import Services
from penstock.batches import Batch, BatchKey, BatchStatus
from penstock.errors import UnknownBatch
from penstock.json_body import validated
from penstock.models import CatalogueEntry
from penstock.storage.journal import batch_journal
from penstock.storage.redis import batches as records

HOUR_S = 3600
MAX_LISTED = 100
MAX_HOURS = 720
_WINDOW = re.compile(r"([1-9][0-9]{0,2})h")

_ID = re.compile(r"batch_([0-9a-f]{32})")
_STATUS: Mapping[BatchStatus, str] = MappingProxyType(
    {
        BatchStatus.RUNNING: "in_progress",
        BatchStatus.CANCELING: "cancelling",
        BatchStatus.EXPIRING: "finalizing",
        BatchStatus.COMPLETED: "completed",
        BatchStatus.CANCELED: "cancelled",
        BatchStatus.EXPIRED: "expired",
    }
)

router = APIRouter(prefix="/openai/v1/batches", tags=["facades"], include_in_schema=False)


class CreateBatch(Body):
    """`POST /v1/batches`."""

    input_file_id: Annotated[str, StringConstraints(max_length=64)]
    endpoint: Endpoint
    #: Hours until unfinished requests are ended: `24h`, or any number up to 720 (30 days).
    completion_window: str
    metadata: Metadata | None = None

    @field_validator("completion_window")
    @classmethod
    def _in_hours(cls, given: str) -> str:
        hours = _WINDOW.fullmatch(given)
        if hours is None or int(hours[1]) > MAX_HOURS:
            raise ValueError(f"must be a number of hours from 1h to {MAX_HOURS}h, such as 24h")
        return given


@router.post("")
async def create_openai_batch(call: CurrentCall) -> dict[str, Any]:
    """Create a batch from an uploaded file."""
    body = await call.read(partial(validated, CreateBatch))
    wanted = body.value
    source = (await find_upload(call, wanted.input_file_id)).key
    key = batches.new_key(call.tenant, call.idempotency_key)
    catalogue = await call.api.models.read()
    store = partial(_store, call.api, key, wanted.endpoint, source, catalogue)
    submitted = await batches.submit(call.api, key, _request(wanted), body.fingerprint, call.origin, store)
    return _view(submitted.batch)


@router.get("/{batch_id}")
async def read_openai_batch(batch_id: str, call: CurrentCall) -> dict[str, Any]:
    """Return a batch."""
    return _view(await call.api.journal.run(batch_journal.read(_key(call.tenant, batch_id))))


@router.get("")
async def list_openai_batches(
    call: CurrentCall, after: str | None = None, limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20
) -> dict[str, Any]:
    """List the batches created through this interface, newest first."""
    cursor = None
    if after is not None:
        last = await call.api.journal.run(batch_journal.read(_key(call.tenant, after)))
        cursor = str(last.manifest.created_us)
    found: list[Batch] = []
    while len(found) <= limit:
        page = await call.api.jobs.run(records.list_batches(call.tenant, cursor=cursor, limit=MAX_LISTED))
        found += [batch for batch in page.batches if endpoint_of(batch) is not None]
        cursor = page.next_cursor
        if cursor is None:
            break
    views = [_view(batch) for batch in found[:limit]]
    ends = {"first_id": views[0]["id"], "last_id": views[-1]["id"]} if views else {"first_id": None, "last_id": None}
    return {"object": "list", "data": views, **ends, "has_more": len(found) > limit}


@router.post("/{batch_id}/cancel")
async def cancel_openai_batch(batch_id: str, call: CurrentCall) -> dict[str, Any]:
    """Cancel a batch. Its output holds the requests that succeeded before."""
    return _view(await call.api.journal.run(batch_journal.cancel(_key(call.tenant, batch_id))))


def _key(tenant: str, batch_id: str) -> BatchKey:
    found = _ID.fullmatch(batch_id)
    if found is None:
        raise UnknownBatch(f"there is no batch {batch_id!r}")
    return BatchKey(tenant, str(uuid.UUID(found[1])))


def _request(wanted: CreateBatch) -> BatchRequest:
    """Return the batch request. `_store` reads the lines of its file."""
    own_metadata = {
        f"{METADATA_PREFIX}endpoint": wanted.endpoint,
        f"{METADATA_PREFIX}input_file_id": wanted.input_file_id,
        f"{METADATA_PREFIX}completion_window": wanted.completion_window,
    }
    ttl_s = int(wanted.completion_window.removesuffix("h")) * HOUR_S
    return BatchRequest(file=wanted.input_file_id, ttl=ttl_s, metadata={**(wanted.metadata or {}), **own_metadata})


def _store(
    api: Services,
    key: BatchKey,
    endpoint: Endpoint,
    source: str,
    catalogue: Mapping[str, CatalogueEntry],
    isolation: ThreadIsolation,
) -> StoredLines:
    limits = _Limits(api.settings.body_limit_bytes(key.tenant), api.settings.max_batch_bytes)
    write = partial(_write, endpoint, dict(catalogue), limits)
    return store_rows(api.objects, api.settings, key, source, isolation, write)


@dataclass(frozen=True, slots=True)
class _Limits:
    """Bytes of a line and of a batch, at most."""

    line_bytes: int
    batch_bytes: int


def _write(
    endpoint: Endpoint, catalogue: Mapping[str, CatalogueEntry], limits: _Limits, source: Path, target: Path
) -> tuple[str, int]:
    """Write a file's requests as Penstock's batch lines; return the SHA-256 and the size."""
    models = cache(partial(require_capability, catalogue))
    with source.open("rb") as file:
        chunks = iter(lambda: file.read(1 << 20), b"")
        return write_rows(
            target, job_lines(chunks, endpoint, models, limit_bytes=limits.line_bytes), limits.batch_bytes
        )


def _view(batch: Batch) -> dict[str, Any]:
    endpoint = endpoint_of(batch)
    if endpoint is None:
        raise UnknownBatch(f"the batch was not created through this interface; use GET /v1/batches/{batch.key.id}")
    manifest, end, counts = batch.manifest, batch.end, batch.counts
    metadata, status = manifest.metadata, _STATUS[batch.status]
    output_id, errors_id = result_file_ids(batch)
    ended = {f"{status}_at": int(end.completed_s)} if end is not None else {}
    failed = counts.failed + counts.canceled + counts.expired + counts.invalid
    created = int(manifest.created_us / 1e6)
    return {
        "id": f"batch_{batch.key.id.replace('-', '')}",
        "object": "batch",
        "endpoint": endpoint,
        "errors": None,
        "input_file_id": metadata.get(f"{METADATA_PREFIX}input_file_id", ""),
        "completion_window": metadata.get(f"{METADATA_PREFIX}completion_window", ""),
        "status": status,
        "output_file_id": output_id,
        "error_file_id": errors_id,
        "created_at": created,
        "in_progress_at": created,
        "expires_at": int(manifest.deadline_s),
        "request_counts": {"total": counts.total, "completed": counts.succeeded, "failed": failed},
        "metadata": {name: value for name, value in metadata.items() if not name.startswith(METADATA_PREFIX)},
        **ended,
    }
