"""Batches: many requests in one submission. Each request becomes one job, as there is room."""

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

from penstock.api.auth import Tenant, is_job_id
from penstock.api.batch_intake import StoredLines, store_array, store_file
from penstock.api.body import json_body, read_model
from penstock.api.errors import problems
from penstock.api.idempotency import id_from
from penstock.api.isolation import ThreadIsolation
from penstock.api.routes.artifacts import find_artifact, send_artifact
from penstock.api.routes.jobs import wait_until
from penstock.api.schemas.batches import BatchList, BatchQuery, BatchRequest, BatchView, batch_view
from penstock.api.services import Api, Services
from penstock.api.tracing import traceparent
from penstock.batches import Batch, BatchKey, BatchManifest
from penstock.errors import BatchGone, IdempotencyMismatch, UnknownBatch
from penstock.intake.submissions import Origin, check_receiver, servable
from penstock.jobs import trace_of
from penstock.storage.journal import batch_journal
from penstock.storage.redis import batches

log = structlog.get_logger(__name__)

#: Seconds of `Retry-After` while a batch is not over.
RETRY_AFTER_S = 5
#: UUIDv5 namespace of batch ids from an Idempotency-Key and the tenant.
_NAMESPACE = uuid.UUID("0d0f6a1c-54b1-5a0e-8f0e-6a3f2b9c7e55")

#: Stores a batch's requests, in a thread.
StoreLines = Callable[[ThreadIsolation], StoredLines]

router = APIRouter(prefix="/v1/batches", tags=["batches"], responses=problems(503))


@dataclass(frozen=True, slots=True)
class SubmittedBatch:
    """A batch; `created` is False where an earlier request created the batch."""

    batch: Batch
    created: bool


async def _key(batch_id: str, tenant: Tenant) -> BatchKey:
    if not is_job_id(batch_id):
        raise UnknownBatch
    return BatchKey(tenant, batch_id.lower())


Key = Annotated[BatchKey, Depends(_key)]


@router.post(
    "", status_code=202, openapi_extra=json_body(BatchRequest), responses=problems(400, 408, 410, 413, 415, 422)
)
async def submit_batch(
    request: Request,
    response: Response,
    api: Api,
    tenant: Tenant,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> BatchView:
    """Submit many requests at once, inline or as a JSONL file. With an `Idempotency-Key`, safe to repeat.

    An invalid request becomes a line of `errors.jsonl`; the others run.
    """
    body = await read_model(request, api, BatchRequest)
    key, origin = new_key(tenant, idempotency_key), Origin(traceparent(request.headers), idempotency_key)
    submitted = await submit(api, key, body.value, body.fingerprint, origin, partial(_store, api, key, body.value))
    response.headers["Location"] = f"{api.settings.base_url}/v1/batches/{key.id}"
    if not submitted.created:
        response.headers["Idempotency-Replayed"] = "true"
    return _view(api, submitted.batch, response)


@router.get("/{batch_id}", responses=problems(404, 410, 422))
async def read_batch(
    key: Key,
    response: Response,
    api: Api,
    wait: Annotated[float, Query(ge=0, description="Seconds to wait for the end of the batch (55 at most).")] = 0,
) -> BatchView:
    """Return a batch; with `wait`, when the batch has ended."""

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
    """Cancel a batch: 200 when it is over, 202 while its jobs are being canceled. Safe to repeat.

    The results then hold the requests that succeeded before.
    """
    batch = await api.journal.run(batch_journal.cancel(key))
    response.status_code = 200 if batch.end is not None else 202
    return _view(api, batch, response)


@router.delete("/{batch_id}", status_code=204, responses=problems(404) | {202: {"model": BatchView}})
async def delete_batch(key: Key, api: Api) -> Response:
    """Delete a batch with its jobs and results: 204. A running batch is canceled (202) and deleted when it ends."""
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
    """Return `results.jsonl` or `errors.jsonl`, or redirect (302) to a link to the object store."""
    batch = await api.journal.run(batch_journal.read(key))
    found = find_artifact(() if batch.end is None else batch.end.artifacts, name, "batch")
    return await send_artifact(api, found, request)


def new_key(tenant: str, idempotency_key: str | None) -> BatchKey:
    """Return the key of a request's batch: the same for each repetition under an `Idempotency-Key`."""
    given = idempotency_key
    return BatchKey(tenant, str(uuid_utils.uuid7()) if given is None else id_from(_NAMESPACE, tenant, given))


async def submit(
    api: Services, key: BatchKey, wanted: BatchRequest, fingerprint: str, origin: Origin, store: StoreLines
) -> SubmittedBatch:
    """Submit a batch. `store` is called in a thread.

    A repeated request with an idempotency key finds its batch, or raises `IdempotencyMismatch`.
    """
    repeatable = origin.idempotency_key is not None
    if repeatable and (batch := await _existing(api, key, fingerprint)) is not None:
        return SubmittedBatch(batch, created=False)
    manifest = await _manifest(api, key, wanted, fingerprint, origin, store)
    done = await api.journal.run(batch_journal.submit(manifest))
    if done.created:
        log.info("batch.submitted", batch=str(key), lines=manifest.total, **trace_of(manifest.traceparent))
    return SubmittedBatch(done.batch, done.created or not repeatable)


async def _manifest(
    api: Services, key: BatchKey, wanted: BatchRequest, fingerprint: str, origin: Origin, store: StoreLines
) -> BatchManifest:
    if wanted.model is not None:
        catalogue = await api.models.read(wanted.model)
        servable(wanted.model, catalogue)
    if wanted.webhook is not None:
        check_receiver(wanted.webhook.url, api.settings, "/webhook/url")
    async with api.batch_concurrency.acquire(key.tenant):
        lines = await asyncio.to_thread(store, api.file_isolation.in_thread(key.tenant))
    return BatchManifest(
        key=key,
        fingerprint=fingerprint,
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
        webhook=None if wanted.webhook is None else wanted.webhook.url,
    )


def _store(api: Services, key: BatchKey, wanted: BatchRequest, isolation: ThreadIsolation) -> StoredLines:
    if wanted.file is not None:
        return store_file(api.objects, api.settings, key, wanted.file, isolation, model=wanted.model)
    return store_array(api.objects, api.settings, key, wanted.requests or [], model=wanted.model)


async def _existing(api: Services, key: BatchKey, fingerprint: str) -> Batch | None:
    # Before all other checks: a repeated request finds its batch even after its upload has expired.
    try:
        batch = await api.journal.run(batch_journal.read(key))
    except UnknownBatch:
        return None
    if batch.manifest.fingerprint != fingerprint:
        raise IdempotencyMismatch("the Idempotency-Key was used before, by a request with another body; send a new key")
    return None if batch.reserved else batch


def _view(api: Services, batch: Batch, response: Response | None = None) -> BatchView:
    if response is not None and batch.end is None:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return batch_view(batch, base_url=api.settings.base_url, uri=api.uri)
