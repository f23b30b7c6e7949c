"""Uploads in parts: links for the parts, which have arrived, and the joining. The object store holds all state.

An upload's address is that of its media: `media://ID/NAME` is `/v1/uploads/ID/NAME`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from penstock.api.auth import Tenant
from penstock.api.body import documented, read_json
from penstock.api.errors import problems
from penstock.api.schemas import moment
from penstock.api.services import Api, Services
from penstock.api.upload_schemas import CompleteRequest, PartLinkView, PartRequest, PartsView, PartView
from penstock.documents import validated
from penstock.errors import (
    InvalidRequest,
    MediaNotFound,
    ObjectExists,
    ObjectNotFound,
    PayloadTooLarge,
    StateConflict,
    UnknownUpload,
)
from penstock.parts import MIN_PART_BYTES, joined_etag, part_bytes_for
from penstock.reports import Issue
from penstock.storage.base import ObjectStore, StoredPart
from penstock.storage.media import Upload, parse_reference

router = APIRouter(prefix="/v1/uploads/{upload_id}/{name}", tags=["uploads"], responses=problems(404, 503))


async def _key(upload_id: str, name: str, tenant: Tenant, api: Api) -> str:
    try:
        found = parse_reference(f"media://{upload_id}/{name}", tenant=tenant, settings=api.settings)
    except MediaNotFound as error:
        raise UnknownUpload from error
    assert isinstance(found, Upload)  # noqa: S101  (what media:// is)
    return found.key


Key = Annotated[str, Depends(_key)]


@router.get("")
async def read_upload(api: Api, tenant: Tenant, key: Key) -> PartsView:
    """Return which parts of an upload have arrived, or that it is complete."""
    return await asyncio.to_thread(parts_view, api, tenant, key)


@router.post(
    "/parts", status_code=201, openapi_extra=documented(PartRequest), responses=problems(400, 408, 413, 415, 422)
)
async def create_part_link(request: Request, api: Api, tenant: Tenant, key: Key) -> PartLinkView:
    """Return a link that takes one part of this size. A part that is sent again replaces the one before."""
    wanted = validated(PartRequest, await read_json(request, settings=api.settings))
    limit = part_bytes(api, tenant)
    if wanted.size_bytes > limit:
        raise PayloadTooLarge(f"a part may have {limit} bytes", errors=[Issue("/size_bytes", "too large")])
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
        expires_at=moment(time.time() + put.expires_s),
    )


@router.post("/complete", openapi_extra=documented(CompleteRequest), responses=problems(400, 408, 409, 413, 415, 422))
async def complete_upload(request: Request, api: Api, tenant: Tenant, key: Key) -> PartsView:
    """Join the parts, if they are the file of this size; safe to repeat. Then jobs may name it."""
    wanted = validated(CompleteRequest, await read_json(request, settings=api.settings))
    await asyncio.to_thread(_complete, api.objects, key, wanted, api.settings.upload_limit_bytes(tenant))
    return await asyncio.to_thread(parts_view, api, tenant, key)


@router.delete("", status_code=204, responses=problems(409))
async def abort_upload(api: Api, tenant: Tenant, key: Key) -> None:
    """Forget the parts of an upload that was not completed. What is not completed in a day is forgotten by itself."""
    if (await asyncio.to_thread(parts_view, api, tenant, key)).uploaded:
        raise StateConflict("the upload is complete: it goes by itself when its time is over")
    await asyncio.to_thread(api.objects.drop_parts, key)


def part_bytes(api: Services, tenant: str) -> int:
    """Return how large the parts of a tenant's uploads are, but for the last."""
    return part_bytes_for(api.settings.upload_limit_bytes(tenant), wanted_bytes=api.settings.upload_part_bytes)


def parts_view(api: Services, tenant: str, key: str) -> PartsView:
    """Return how far an upload in parts is; raise `UnknownUpload` where nothing began. Asks the object store."""
    upload_id, name = key.split("/")[-2:]
    try:
        found, uploaded = api.objects.parts(key), False
    except ObjectNotFound:
        found, uploaded = (), True
        _require_object(api.objects, key)
    return PartsView(
        id=upload_id,
        media=f"media://{upload_id}/{name}",
        part_bytes=part_bytes(api, tenant),
        parts=[PartView(number=part.number, size_bytes=part.size_bytes, etag=part.etag) for part in found],
        uploaded=uploaded,
    )


def _complete(objects: ObjectStore, key: str, wanted: CompleteRequest, limit_bytes: int) -> None:
    try:
        parts = objects.parts(key)
    except ObjectNotFound:  # the repeat of a lost answer
        _require_object(objects, key)
        return
    _check(parts, wanted, limit_bytes)
    try:
        objects.join_parts(key, parts)
    except ObjectExists as error:
        objects.drop_parts(key)
        if objects.head(key).size_bytes != wanted.size_bytes:
            raise ObjectExists("another file was sent as this upload before: ask for a new one") from error


def _check(parts: Sequence[StoredPart], wanted: CompleteRequest, limit_bytes: int) -> None:
    """Raise `InvalidRequest` unless the parts are a file, and the one that is meant."""
    came = sum(part.size_bytes for part in parts)
    if came > limit_bytes:
        raise PayloadTooLarge(f"an upload may have {limit_bytes} bytes")
    if [part.number for part in parts] != list(range(1, len(parts) + 1)) or came != wanted.size_bytes:
        said = f"parts {', '.join(_ranges([part.number for part in parts])) or 'none'} with {came} bytes have arrived"
        raise InvalidRequest(errors=[Issue("/size_bytes", said)])
    if any(part.size_bytes < MIN_PART_BYTES for part in parts[:-1]):
        raise InvalidRequest(f"a part that is not the last has {MIN_PART_BYTES} bytes at least")
    etag = joined_etag(part.etag for part in parts)
    if None not in (etag, wanted.etag) and etag != wanted.etag:
        raise InvalidRequest(errors=[Issue("/etag", f"the parts that have arrived make {etag}")])


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Return numbers in order as people write them: `1-3`, `5`."""
    said: list[list[int]] = []
    for number in numbers:
        if said and number == said[-1][-1] + 1:
            said[-1][1:] = [number]
        else:
            said.append([number])
    return ["-".join(map(str, run)) for run in said]


def _require_object(objects: ObjectStore, key: str) -> None:
    try:
        objects.head(key)
    except ObjectNotFound as error:
        raise UnknownUpload from error
