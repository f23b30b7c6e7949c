"""Uploads: a client asks for a link, sends its file to the object store, and names the file in a job."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Annotated

import uuid_utils
from fastapi import APIRouter, Header, Request

from penstock.api.auth import Tenant
from penstock.api.body import documented, read_json
from penstock.api.errors import problems
from penstock.api.idempotency import id_from
from penstock.api.schemas import moment
from penstock.api.services import Api
from penstock.api.upload_parts import parts_view
from penstock.api.upload_schemas import PartsView, UploadRequest, UploadView
from penstock.documents import fingerprint, validated
from penstock.errors import ObjectNotFound, PayloadTooLarge
from penstock.reports import Issue
from penstock.storage.base import ObjectStore
from penstock.storage.media import safe_name, upload_key

#: Upload ids made from an Idempotency-Key are UUIDv5 under this, the tenant's name and the request.
_NAMESPACE = uuid.UUID("3b7a2a57-7f5c-5d0b-9a35-0c5f1a2c9e44")

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])


@router.post(
    "",
    status_code=201,
    openapi_extra=documented(UploadRequest),
    responses=problems(400, 408, 413, 415, 422, 503),
)
async def create_upload(
    request: Request, api: Api, tenant: Tenant, idempotency_key: Annotated[str | None, Header()] = None
) -> UploadView | PartsView:
    """Return a link that takes one file of this size and type, and the reference by which jobs name it.

    With `multipart` there is no link yet: ask for one for each part. The same `Idempotency-Key` with the same body
    names the same upload, with a fresh link or the parts that have arrived: for one file under each key.
    """
    body = await read_json(request, settings=api.settings)
    wanted, named = validated(UploadRequest, body), idempotency_key
    limit = api.settings.upload_limit_bytes(tenant)
    if wanted.size_bytes > limit:
        raise PayloadTooLarge(f"an upload may have {limit} bytes", errors=[Issue("/size_bytes", "too large")])
    name = safe_name(wanted.filename)
    upload_id = str(uuid_utils.uuid7()) if named is None else id_from(_NAMESPACE, tenant, named, fingerprint(body))
    key = upload_key(tenant, upload_id, name)
    if wanted.multipart:
        if not await asyncio.to_thread(_is_there, api.objects, key):
            await asyncio.to_thread(api.objects.begin_parts, key, content_type=wanted.content_type)
        return await asyncio.to_thread(parts_view, api, tenant, key)
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
        expires_at=moment(time.time() + put.expires_s),
        uploaded=named is not None and await asyncio.to_thread(_is_there, api.objects, key),
    )


def _is_there(objects: ObjectStore, key: str) -> bool:
    try:
        objects.head(key)
    except ObjectNotFound:
        return False
    return True
