"""Uploads: a client requests a link, sends its file to the object store, and names the upload in a job.

A multipart upload has a link for each part; the object store holds all of its state. The upload `media://ID/NAME` has
the path `/v1/uploads/ID/NAME`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Annotated

import uuid_utils
from fastapi import APIRouter, Depends, Header, Request
from pydantic import Field, StringConstraints

from penstock.api.auth import Tenant
from penstock.api.body import json_body, read_model
from penstock.api.errors import problems
from penstock.api.idempotency import id_from
from penstock.api.schemas.jobs import Outgoing, Time
from penstock.api.services import Api, Services
from penstock.api.submissions import require_room
from penstock.errors import (
    InvalidRequest,
    Issue,
    MediaNotFound,
    ObjectExists,
    ObjectNotFound,
    PayloadTooLarge,
    StateConflict,
    UnknownUpload,
)
from penstock.intake.local_media import safe_name
from penstock.intake.media import UploadReference, parse_reference, upload_key
from penstock.multipart import MAX_PARTS, MIN_PART_BYTES, joined_etag, part_bytes_for
from penstock.requests import Incoming
from penstock.storage.objects.base import ObjectStore, StoredPart


class UploadRequest(Incoming):
    """A file to upload."""

    filename: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    content_type: Annotated[
        str, StringConstraints(max_length=255, pattern=r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+$")
    ] = "application/octet-stream"
    #: The size in bytes; JSON integers have at most 64 bits.
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    #: True for a multipart upload: parts are sent in parallel, and an interrupted upload can be resumed.
    multipart: bool = False


class PartRequest(Incoming):
    """A part of a multipart upload to send."""

    number: Annotated[int, Field(ge=1, le=MAX_PARTS)]
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]


class CompleteRequest(Incoming):
    """The completion of a multipart upload. `etag` is the MD5 of the parts' MD5s and the number of parts (`...-3`)."""

    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    etag: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}-[0-9]{1,5}$")] | None = None


class UploadView(Outgoing):
    """Send the file as `method` `url` with exactly these `headers`, then name `media` in a job's input."""

    id: str
    media: str
    method: str
    url: str
    headers: dict[str, str]
    expires_at: Time
    #: True where the file already arrived under the same `Idempotency-Key` and need not be sent.
    uploaded: bool


class PartView(Outgoing):
    """An arrived part."""

    number: int
    size_bytes: int
    etag: str


class MultipartView(Outgoing):
    """A multipart upload: parts of `part_bytes` each, except the last. Request a link per part, then complete it."""

    id: str
    media: str
    part_bytes: int
    #: The arrived parts.
    parts: list[PartView]
    #: True where the upload is complete.
    uploaded: bool


class PartLinkView(Outgoing):
    """Send the part as `method` `url` with exactly these `headers`. An additional `Content-MD5` is checked."""

    number: int
    method: str
    url: str
    headers: dict[str, str]
    expires_at: Time


#: UUIDv5 namespace of upload ids from an Idempotency-Key, the tenant and the request.
_NAMESPACE = uuid.UUID("3b7a2a57-7f5c-5d0b-9a35-0c5f1a2c9e44")

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])


@router.post(
    "",
    status_code=201,
    openapi_extra=json_body(UploadRequest),
    responses=problems(400, 403, 408, 413, 415, 422, 503),
)
async def create_upload(
    request: Request, api: Api, tenant: Tenant, idempotency_key: Annotated[str | None, Header()] = None
) -> UploadView | MultipartView:
    """Create an upload: return a link for one file of this size and type, and the reference for jobs.

    With `multipart`, request a link for each part instead. The same `Idempotency-Key` with the same body returns the
    same upload, with a fresh link or its arrived parts. Use one key per file.
    """
    body = await read_model(request, api, UploadRequest)
    wanted, given = body.value, idempotency_key
    limit = api.settings.upload_limit_bytes(tenant)
    if wanted.size_bytes > limit:
        raise PayloadTooLarge(f"the file exceeds {limit} bytes", errors=[Issue("/size_bytes", "too large")])
    name = safe_name(wanted.filename)
    upload_id = str(uuid_utils.uuid7()) if given is None else id_from(_NAMESPACE, tenant, given, body.fingerprint)
    key = upload_key(tenant, upload_id, name)
    uploaded = given is not None and await asyncio.to_thread(_exists, api.objects, key)
    if not uploaded:
        await require_room(api, tenant, upload_id, wanted.size_bytes)
    if wanted.multipart:
        if not uploaded:
            await asyncio.to_thread(api.objects.begin_multipart, key, content_type=wanted.content_type)
        return await asyncio.to_thread(multipart_view, api, tenant, key)
    put = await asyncio.to_thread(
        api.objects.presign_put,
        key,
        content_type=wanted.content_type,
        size_bytes=wanted.size_bytes,
        expires_s=api.settings.upload_expires_s,
    )
    return UploadView(
        id=upload_id,
        media=f"media://{upload_id}/{name}",
        method=put.method,
        url=put.url,
        headers=dict(put.headers),
        expires_at=time.time() + put.expires_s,
        uploaded=uploaded,
    )


def _exists(objects: ObjectStore, key: str) -> bool:
    try:
        objects.head(key)
    except ObjectNotFound:
        return False
    return True


parts_router = APIRouter(prefix="/v1/uploads/{upload_id}/{name}", tags=["uploads"], responses=problems(404, 503))


async def _key(upload_id: str, name: str, tenant: Tenant, api: Api) -> str:
    try:
        found = parse_reference(f"media://{upload_id}/{name}", tenant=tenant, settings=api.settings)
    except MediaNotFound as error:
        raise UnknownUpload from error
    assert isinstance(found, UploadReference)  # noqa: S101  (media:// always gives an UploadReference)
    return found.key


Key = Annotated[str, Depends(_key)]


@parts_router.get("")
async def read_upload(api: Api, tenant: Tenant, key: Key) -> MultipartView:
    """Return a multipart upload: its arrived parts, and `uploaded` once it is complete."""
    return await asyncio.to_thread(multipart_view, api, tenant, key)


@parts_router.post(
    "/parts", status_code=201, openapi_extra=json_body(PartRequest), responses=problems(400, 408, 413, 415, 422)
)
async def create_part_link(request: Request, api: Api, tenant: Tenant, key: Key) -> PartLinkView:
    """Return a link for one part of this size. Sending a part again replaces it."""
    wanted = (await read_model(request, api, PartRequest)).value
    limit = part_bytes(api, tenant)
    if wanted.size_bytes > limit:
        raise PayloadTooLarge(f"the part exceeds {limit} bytes", errors=[Issue("/size_bytes", "too large")])
    try:
        put = await asyncio.to_thread(
            api.objects.presign_part,
            key,
            wanted.number,
            size_bytes=wanted.size_bytes,
            expires_s=api.settings.upload_expires_s,
        )
    except ObjectNotFound as error:
        raise UnknownUpload from error
    return PartLinkView(
        number=wanted.number,
        method=put.method,
        url=put.url,
        headers=dict(put.headers),
        expires_at=time.time() + put.expires_s,
    )


@parts_router.post(
    "/complete", openapi_extra=json_body(CompleteRequest), responses=problems(400, 408, 409, 413, 415, 422)
)
async def complete_upload(request: Request, api: Api, tenant: Tenant, key: Key) -> MultipartView:
    """Complete an upload: check the size and join the parts. Then jobs may name the upload. Safe to repeat."""
    wanted = (await read_model(request, api, CompleteRequest)).value
    await asyncio.to_thread(_complete, api.objects, key, wanted, api.settings.upload_limit_bytes(tenant))
    return await asyncio.to_thread(multipart_view, api, tenant, key)


@parts_router.delete("", status_code=204, responses=problems(409))
async def abort_upload(api: Api, tenant: Tenant, key: Key) -> None:
    """Abort an upload that is not complete and delete its parts. The service itself aborts it after a day."""
    if (await asyncio.to_thread(multipart_view, api, tenant, key)).uploaded:
        raise StateConflict("the upload is complete and cannot be aborted; it is deleted when its retention ends")
    await asyncio.to_thread(api.objects.abort_multipart, key)


def part_bytes(api: Services, tenant: str) -> int:
    """Return the size of the parts of a tenant's uploads, except the last part."""
    return part_bytes_for(api.settings.upload_limit_bytes(tenant), wanted_bytes=api.settings.upload_part_bytes)


def multipart_view(api: Services, tenant: str, key: str) -> MultipartView:
    """Return the state of a multipart upload from the object store; raise `UnknownUpload` where there is none."""
    upload_id, name = key.split("/")[-2:]
    try:
        found, uploaded = api.objects.parts(key), False
    except ObjectNotFound:
        found, uploaded = (), True
        _require_object(api.objects, key)
    return MultipartView(
        id=upload_id,
        media=f"media://{upload_id}/{name}",
        part_bytes=part_bytes(api, tenant),
        parts=[PartView(number=part.number, size_bytes=part.size_bytes, etag=part.etag) for part in found],
        uploaded=uploaded,
    )


def _complete(objects: ObjectStore, key: str, wanted: CompleteRequest, limit_bytes: int) -> None:
    try:
        parts = objects.parts(key)
    except ObjectNotFound:  # a retry after a lost response
        _require_object(objects, key)
        return
    _check(parts, wanted, limit_bytes)
    try:
        objects.complete_multipart(key, parts)
    except ObjectExists as error:
        objects.abort_multipart(key)
        if objects.head(key).size_bytes != wanted.size_bytes:
            raise ObjectExists("another file was already sent as this upload; create a new upload") from error


def _check(parts: Sequence[StoredPart], wanted: CompleteRequest, limit_bytes: int) -> None:
    """Raise `InvalidRequest` unless the parts form the requested file."""
    arrived = sum(part.size_bytes for part in parts)
    if arrived > limit_bytes:
        raise PayloadTooLarge(f"the upload exceeds the limit of {limit_bytes} bytes")
    if [part.number for part in parts] != list(range(1, len(parts) + 1)) or arrived != wanted.size_bytes:
        numbers = ", ".join(_ranges([part.number for part in parts])) or "none"
        raise InvalidRequest(errors=[Issue("/size_bytes", f"parts {numbers} with {arrived} bytes have arrived")])
    if any(part.size_bytes < MIN_PART_BYTES for part in parts[:-1]):
        raise InvalidRequest(f"a part is too small; each part except the last has at least {MIN_PART_BYTES} bytes")
    etag = joined_etag(part.etag for part in parts)
    if None not in (etag, wanted.etag) and etag != wanted.etag:
        raise InvalidRequest(errors=[Issue("/etag", f"the arrived parts have the etag {etag}")])


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Return sorted numbers as ranges: `1-3`, `5`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ["-".join(map(str, each)) for each in ranges]


def _require_object(objects: ObjectStore, key: str) -> None:
    if not _exists(objects, key):
        raise UnknownUpload
