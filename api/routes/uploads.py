"""Uploads: a client requests a link, sends its file to the object store, and names the upload in a job."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Annotated

import uuid_utils
from fastapi import APIRouter, Header, Request

from penstock.api.auth import Tenant
from penstock.api.body import json_body, read_model
from penstock.api.errors import problems
from penstock.api.idempotency import id_from
from penstock.api.media import require_room
from penstock.api.routes.upload_parts import multipart_view
from penstock.api.schemas.uploads import MultipartView, UploadRequest, UploadView
from penstock.api.services import Api
from penstock.errors import Issue, ObjectNotFound, PayloadTooLarge
from penstock.intake.local_media import safe_name
from penstock.intake.media import upload_key
from penstock.storage.objects.base import ObjectStore

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
