"""OpenAI's batches over ours: a file of requests in, files of answers out.

A file that cannot be a batch is refused when the batch is made, with the line that is wrong: here no batch ends as
`failed`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import StringConstraints, field_validator

from penstock.api import batches
from penstock.api.batch_intake import TakenIn, take_in_rows
from penstock.api.batch_schemas import BatchRequest
from penstock.api.facades.abilities import able
from penstock.api.facades.calls import TheCall
from penstock.api.facades.openai.files import find_sent, made_ids
from penstock.api.facades.openai.lines import MARK, Endpoint, endpoint_of, job_lines
from penstock.api.facades.openai.requests import Body, Metadata
from penstock.api.services import Services
from penstock.batches import Batch, BatchKey, BatchStatus
from penstock.documents import fingerprint, validated
from penstock.errors import UnknownBatch
from penstock.models import CatalogueEntry
from penstock.storage import batch_journal, catalogues
from penstock.storage import batches as records

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
    #: `24h`, or another number of hours up to 30 days: then what is not over is ended.
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
async def create_openai_batch(call: TheCall) -> dict[str, Any]:
    """Make a batch of a file's lines."""
    body = await call.body()
    wanted = validated(CreateBatch, body)
    source = (await find_sent(call, wanted.input_file_id)).key
    key = batches.new_key(call.tenant, call.idempotency_key)
    catalogue = await call.api.jobs.run(catalogues.catalogue())
    mark = fingerprint({"path": call.request.url.path, "body": body})
    take_in = partial(_take_in, call.api, key, wanted.endpoint, source, catalogue)
    accepted = await batches.accept(call.api, key, _request(wanted), mark, call.origin, take_in)
    return _view(accepted.batch)


@router.get("/{batch_id}")
async def read_openai_batch(batch_id: str, call: TheCall) -> dict[str, Any]:
    """Return a batch."""
    return _view(await call.api.journal.run(batch_journal.read(_key(call.tenant, batch_id))))


@router.get("")
async def list_openai_batches(
    call: TheCall, after: str | None = None, limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20
) -> dict[str, Any]:
    """List the batches that were made here, newest first."""
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
async def cancel_openai_batch(batch_id: str, call: TheCall) -> dict[str, Any]:
    """Ask for a batch's end: its output then holds what succeeded before."""
    return _view(await call.api.journal.run(batch_journal.cancel(_key(call.tenant, batch_id))))


def _key(tenant: str, batch_id: str) -> BatchKey:
    found = _ID.fullmatch(batch_id)
    if found is None:
        raise UnknownBatch(f"there is no batch {batch_id!r}")
    return BatchKey(tenant, str(uuid.UUID(found[1])))


def _request(wanted: CreateBatch) -> BatchRequest:
    """Return the batch that is asked for; of its lines only that they come as a file."""
    marks = {
        f"{MARK}endpoint": wanted.endpoint,
        f"{MARK}input_file_id": wanted.input_file_id,
        f"{MARK}completion_window": wanted.completion_window,
    }
    ttl_s = int(wanted.completion_window.removesuffix("h")) * HOUR_S
    return BatchRequest(file=wanted.input_file_id, ttl=ttl_s, metadata={**(wanted.metadata or {}), **marks})


def _take_in(
    api: Services, key: BatchKey, endpoint: Endpoint, source: str, catalogue: Mapping[str, CatalogueEntry]
) -> TakenIn:
    limit_bytes = api.settings.body_limit_bytes(key.tenant)
    models = cache(partial(able, catalogue))
    rows = job_lines(api.objects.read(source), endpoint, models, limit_bytes=limit_bytes)
    return take_in_rows(api.objects, api.settings, key, rows)


def _view(batch: Batch) -> dict[str, Any]:
    endpoint = endpoint_of(batch)
    if endpoint is None:
        raise UnknownBatch(f"it was not made by this interface: GET /v1/batches/{batch.key.id}")
    manifest, end, counts = batch.manifest, batch.end, batch.counts
    marks, status = manifest.metadata, _STATUS[batch.status]
    output_id, errors_id = made_ids(batch)
    over = {f"{status}_at": int(end.completed_s)} if end is not None else {}
    failed = counts.failed + counts.canceled + counts.expired + counts.invalid
    created = int(manifest.created_us / 1e6)
    return {
        "id": f"batch_{batch.key.id.replace('-', '')}",
        "object": "batch",
        "endpoint": endpoint,
        "errors": None,
        "input_file_id": marks.get(f"{MARK}input_file_id", ""),
        "completion_window": marks.get(f"{MARK}completion_window", ""),
        "status": status,
        "output_file_id": output_id,
        "error_file_id": errors_id,
        "created_at": created,
        "in_progress_at": created,
        "expires_at": int(manifest.deadline_s),
        "request_counts": {"total": counts.total, "completed": counts.succeeded, "failed": failed},
        "metadata": {name: value for name, value in marks.items() if not name.startswith(MARK)},
        **over,
    }
