"""Facade calls: submit a job, wait for its end, and cancel the job when the client disconnects.

A job whose request has an `Idempotency-Key` is not canceled, because a repeated request finds the job again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import structlog
import uuid_utils
from fastapi import Depends, Header, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import UploadFile

from penstock.api.auth import Caller, Principal
from penstock.api.body import read_json
from penstock.api.connection import while_connected
from penstock.api.errors import error_of
from penstock.api.facades.capabilities import Capability, require_capability
from penstock.api.forms import path_of
from penstock.api.routes import jobs
from penstock.api.services import Api, Services
from penstock.api.submissions import require_room
from penstock.api.tracing import traceparent
from penstock.errors import ClientLeft, MediaTooLarge, NotReady, StateConflict, Unauthorized, WaitOver
from penstock.intake.local_media import safe_name
from penstock.intake.media import upload_key
from penstock.intake.submissions import Origin
from penstock.jobs import Job, JobKey, State
from penstock.json_body import Document
from penstock.models import CatalogueEntry
from penstock.requests import JobRequest
from penstock.storage.journal import journal
from penstock.storage.objects.base import CHUNK_BYTES, DEFAULT_CONTENT_TYPE

T = TypeVar("T")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a facade, with its services and caller."""

    request: Request
    api: Services
    caller: Principal
    idempotency_key: str | None
    #: The key of the job that the request makes.
    key: JobKey

    @property
    def tenant(self) -> str:
        """The tenant of the caller."""
        return self.caller.tenant

    @property
    def origin(self) -> Origin:
        """The trace context and idempotency key from the headers."""
        return Origin(traceparent(self.request.headers), self.idempotency_key)

    async def read(self, read: Callable[[Any], T]) -> Document[T]:
        """Return the JSON body as `read` returns it; raise the errors of `read_json`. The fingerprint is the call's."""
        return await read_json(self.request, self.api, read, path=self.request.url.path)

    async def model(self, name: str, *wanted: Capability) -> CatalogueEntry:
        """Return the requested model; raise the errors of `require_capability`."""
        return (await self.models(name))(name, *wanted)

    async def models(self, name: str) -> Callable[..., CatalogueEntry]:
        """Return `require_capability` with the models as of now, this name's included."""
        return partial(require_capability, await self.api.models.read(name), job=self.key.id)

    async def submit(self, identity: str, wanted: JobRequest) -> Job:
        """Submit the call's job. A different identity under the same idempotency key is rejected."""
        repeatable = self.idempotency_key is not None
        submitted = await jobs.submit(
            self.request, self.api, self.key, wanted, identity, repeatable=repeatable, origin=self.origin
        )
        return submitted.job

    async def wait_for_end(self, job: Job) -> Job:
        """Return the job when it has ended or after `facade_wait_s`.

        Raises `ClientLeft`, and `Unauthorized` when the API key becomes invalid.
        """
        return await self.while_connected(job, self._wait(job))

    async def wait_for_result(self, job: Job) -> Job:
        """Return the job when it has succeeded.

        Raises the job's error, `StateConflict` where the job was canceled, `WaitOver` after `facade_wait_s`, and the
        errors of `wait_for_end`.
        """
        return require_success(await self.wait_for_end(job))

    async def while_connected(self, job: Job, work: Awaitable[T]) -> T:
        """Return the result of `work`; when the client disconnects first, cancel the job and raise `ClientLeft`."""
        try:
            return await while_connected(self.request, work)
        except asyncio.CancelledError as error:  # the server stops and cancels open requests
            raise NotReady("the service is stopping", retry_after_s=1) from error
        except ClientLeft:
            await self.abandon(job)
            raise

    async def abandon(self, job: Job) -> None:
        """Cancel the job of a disconnected client, unless the request has an idempotency key."""
        if self.idempotency_key is None:
            log.info("call.disconnected", job=str(job.key))
            await self.api.journal.run(journal.cancel(job.key))

    async def _wait(self, job: Job) -> Job:
        deadline = time.monotonic() + self.api.settings.facade_wait_s
        while not job.status.terminal and (left_s := deadline - time.monotonic()) > 0:
            if not await self.caller.is_valid(self.api):
                raise Unauthorized("the API key is no longer valid")
            job = await jobs.wait_for_end(self.api, job.key, left_s)
        return await self.api.whole(job)


async def _call(
    request: Request, api: Api, caller: Caller, idempotency_key: Annotated[str | None, Header()] = None
) -> Call:
    return Call(request, api, caller, idempotency_key, jobs.new_key(caller.tenant, idempotency_key))


CurrentCall = Annotated[Call, Depends(_call)]


def json_answer(job: Job, content: Mapping[str, Any]) -> JSONResponse:
    """Return the answer of a facade about a job; its header names the job."""
    return JSONResponse(content, headers={"x-request-id": job.key.id})


def require_success(job: Job) -> Job:
    """Return a succeeded job; otherwise raise its error, `StateConflict` or `WaitOver`."""
    if job.state is State.SUCCEEDED:
        return job
    if not job.status.terminal:
        raise WaitOver(f"the job {job.key.id} is still running; read its result with GET /v1/jobs/{job.key.id}")
    if job.error is None:
        raise StateConflict(f"the job {job.key.id} was {job.status}")
    raise error_of(job.error)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A form's file after it was stored."""

    #: Its media reference.
    reference: str
    #: Its SHA-256 in hexadecimal.
    digest: str


async def store_file(call: Call, file: UploadFile, usual_name: str) -> StoredFile:
    """Store a form's file; raise `MediaTooLarge` beyond the tenant's limit, or `StorageQuotaExceeded`."""
    size_bytes, limit_bytes = file.size or 0, call.api.settings.upload_limit_bytes(call.tenant)
    if size_bytes > limit_bytes:
        raise MediaTooLarge(f"the file exceeds the limit of {limit_bytes} bytes")
    upload_id = str(uuid_utils.uuid7())
    await require_room(call.api, call.tenant, upload_id, size_bytes)
    return await asyncio.to_thread(_store, call.api, call.tenant, upload_id, file, usual_name)


def _store(api: Services, tenant: str, upload_id: str, file: UploadFile, usual_name: str) -> StoredFile:
    name, digest = safe_name(file.filename or usual_name), hashlib.sha256()
    while chunk := file.file.read(CHUNK_BYTES):
        digest.update(chunk)
    kind = file.content_type or DEFAULT_CONTENT_TYPE
    api.objects.put_file(upload_key(tenant, upload_id, name), path_of(file), content_type=kind)
    return StoredFile(f"media://{upload_id}/{name}", digest.hexdigest())
