"""Batches: many requests at once. Each becomes a job of its own, as there is room."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import structlog
import uuid_utils
from fastapi import APIRouter, Depends, Header, Query, Request, Response

from penstock.api.artifacts import find_artifact, send_artifact
from penstock.api.auth import Tenant, is_job_id
from penstock.api.batch_intake import TakenIn, take_in_array, take_in_file
from penstock.api.batch_schemas import BatchList, BatchQuery, BatchRequest, BatchView, batch_view
from penstock.api.body import documented, read_json
from penstock.api.errors import problems
from penstock.api.idempotency import id_from
from penstock.api.jobs import wait_until
from penstock.api.services import Api, Services
from penstock.api.tracing import traceparent
from penstock.batches import Batch, BatchKey, BatchManifest
from penstock.documents import fingerprint, validated
from penstock.errors import BatchGone, IdempotencyMismatch, UnknownBatch
from penstock.jobs import trace_of
from penstock.storage import batch_journal, batches, catalogues
from penstock.storage.submissions import Origin, servable

log = structlog.get_logger(__name__)

#: What `Retry-After` says of a batch that is not over.
RETRY_AFTER_S = 5
#: Batch ids made from an Idempotency-Key are UUIDv5 under this and the tenant's name.
_NAMESPACE = uuid.UUID("0d0f6a1c-54b1-5a0e-8f0e-6a3f2b9c7e55")

router = APIRouter(prefix="/v1/batches", tags=["batches"], responses=problems(503))


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch, and whether this request made it."""

    batch: Batch
    created: bool


async def _key(batch_id: str, tenant: Tenant) -> BatchKey:
    if not is_job_id(batch_id):
        raise UnknownBatch
    return BatchKey(tenant, batch_id.lower())


Key = Annotated[BatchKey, Depends(_key)]


@router.post(
    "", status_code=202, openapi_extra=documented(BatchRequest), responses=problems(400, 408, 410, 413, 415, 422)
)
async def submit_batch(
    request: Request,
    response: Response,
    api: Api,
    tenant: Tenant,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> BatchView:
    """Submit many requests at once, inline or as a JSONL file. With an `Idempotency-Key`, safe to repeat.

    A request that cannot be a job is a line of `errors.jsonl`; the others run.
    """
    body = await read_json(request, settings=api.settings)
    wanted, mark = validated(BatchRequest, body), fingerprint(body)
    key, origin = new_key(tenant, idempotency_key), Origin(traceparent(request.headers), idempotency_key)
    accepted = await accept(api, key, wanted, mark, origin, partial(_take_in, api, key, wanted))
    response.headers["Location"] = f"{api.settings.base_url}/v1/batches/{key.id}"
    if not accepted.created:
        response.headers["Idempotency-Replayed"] = "true"
    return _view(api, accepted.batch, response)


@router.get("/{batch_id}", responses=problems(404, 410, 422))
async def read_batch(
    key: Key,
    response: Response,
    api: Api,
    wait: Annotated[float, Query(ge=0, description="Seconds to wait for the batch's end (60 at most).")] = 0,
) -> BatchView:
    """Return a batch, at once or when it ended."""

    async def read() -> tuple[Batch, bool]:
        batch = await api.journal.run(batch_journal.read(key))
        return batch, batch.end is not None

    return _view(api, await wait_until(api, str(key), wait, read), response)


@router.get("", responses=problems(422))
async def list_batches(api: Api, tenant: Tenant, wanted: Annotated[BatchQuery, Query()]) -> BatchList:
    """List batches, newest first."""
    page = await api.jobs.run(batches.list_batches(tenant, cursor=wanted.cursor, limit=wanted.limit))
    return BatchList(batches=[_view(api, batch) for batch in page.batches], next_cursor=page.next_cursor)


@router.post("/{batch_id}/cancel", responses=problems(404, 410) | {202: {"model": BatchView}})
async def cancel_batch(key: Key, response: Response, api: Api) -> BatchView:
    """Ask for a batch's end: 200 when it is over, 202 while its jobs are stopped. Safe to repeat.

    Its results then hold what succeeded before.
    """
    batch = await api.journal.run(batch_journal.cancel(key))
    response.status_code = 200 if batch.end is not None else 202
    return _view(api, batch, response)


@router.delete("/{batch_id}", status_code=204, responses=problems(404) | {202: {"model": BatchView}})
async def delete_batch(key: Key, api: Api) -> Response:
    """Delete a batch with its jobs and results: 204. One that is not over is canceled: 202, and it goes by itself."""
    try:
        batch = await api.journal.run(batch_journal.delete(key))
    except BatchGone:
        batch = None
    if batch is None:
        return Response(status_code=204)
    return Response(_view(api, batch).model_dump_json(by_alias=True), 202, media_type="application/json")


@router.head("/{batch_id}/artifacts/{name:path}", include_in_schema=False)
@router.get("/{batch_id}/artifacts/{name:path}", response_class=Response, responses=problems(404, 410, 416))
async def read_batch_artifact(key: Key, name: str, request: Request, api: Api) -> Response:
    """Return `results.jsonl` or `errors.jsonl`, ranges included, or redirect (302) to a link of the object store."""
    batch = await api.journal.run(batch_journal.read(key))
    found = find_artifact(() if batch.end is None else batch.end.artifacts, name, "batch")
    return await send_artifact(api, found, request)


def new_key(tenant: str, idempotency_key: str | None) -> BatchKey:
    """Return the key of a batch that a request makes: the same for each repetition under an `Idempotency-Key`."""
    named = idempotency_key
    return BatchKey(tenant, str(uuid_utils.uuid7()) if named is None else id_from(_NAMESPACE, tenant, named))


async def accept(
    api: Services, key: BatchKey, wanted: BatchRequest, mark: str, origin: Origin, take_in: Callable[[], TakenIn]
) -> Accepted:
    """Make a request a batch. `take_in`, called in a thread, stores its lines.

    A request with an idempotency key finds the batch that it made before, or raises `IdempotencyMismatch`.
    """
    named = origin.idempotency_key is not None
    if named and (batch := await _made_before(api, key, mark)) is not None:
        return Accepted(batch, created=False)
    manifest = await _manifest(api, key, wanted, mark, origin, take_in)
    done = await api.journal.run(batch_journal.accept(manifest))
    if done.created:
        log.info("batch.submitted", batch=str(key), lines=manifest.total, **trace_of(manifest.traceparent))
    return Accepted(done.batch, done.created or not named)


async def _manifest(
    api: Services, key: BatchKey, wanted: BatchRequest, mark: str, origin: Origin, take_in: Callable[[], TakenIn]
) -> BatchManifest:
    if wanted.model is not None:
        catalogue = await api.jobs.run(catalogues.catalogue())
        servable(wanted.model, catalogue)
    async with api.batch_turns.taken(key.tenant):
        lines = await asyncio.to_thread(take_in)
    return BatchManifest(
        key=key,
        fingerprint=mark,
        lines_key=lines.key,
        size_bytes=lines.size_bytes,
        total=lines.total,
        created_us=await api.jobs.run(batches.clock()),
        ttl_s=wanted.ttl,
        retention_s=api.limits.retention_s,
        model=wanted.model,
        priority=wanted.priority,
        metadata=wanted.metadata,
        traceparent=origin.traceparent,
        idempotency_key=origin.idempotency_key,
    )


def _take_in(api: Services, key: BatchKey, wanted: BatchRequest) -> TakenIn:
    if wanted.file is not None:
        return take_in_file(api.objects, api.settings, key, wanted.file, model=wanted.model)
    return take_in_array(api.objects, api.settings, key, wanted.requests or [], model=wanted.model)


async def _made_before(api: Services, key: BatchKey, mark: str) -> Batch | None:
    # Before anything else is checked: a repeated request finds its batch even if its upload is gone by now.
    try:
        batch = await api.journal.run(batch_journal.read(key))
    except UnknownBatch:
        return None
    if batch.manifest.fingerprint != mark:
        raise IdempotencyMismatch("the Idempotency-Key was used before, by a request with another body")
    return None if batch.reserved else batch


def _view(api: Services, batch: Batch, response: Response | None = None) -> BatchView:
    if response is not None and batch.end is None:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return batch_view(batch, base_url=api.settings.base_url, uri=api.uri)
