"""Uploads: a client asks for a link, sends its file to the object store, and names the file in a job."""

from __future__ import annotations

import asyncio
import time

import uuid_utils
from fastapi import APIRouter, Request

from penstock.api.auth import Tenant
from penstock.api.body import documented, read_json, validated
from penstock.api.errors import problems
from penstock.api.schemas import UploadRequest, UploadView, moment
from penstock.api.services import Api
from penstock.errors import Issue, PayloadTooLarge
from penstock.storage.media import safe_name, upload_key

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])


@router.post(
    "",
    status_code=201,
    openapi_extra=documented(UploadRequest),
    responses=problems(400, 408, 413, 415, 422, 503),
)
async def create_upload(request: Request, api: Api, tenant: Tenant) -> UploadView:
    """Return a link that takes one file of this size and type, and the reference by which jobs name it."""
    wanted = validated(UploadRequest, await read_json(request, settings=api.settings))
    limit = api.settings.max_upload_bytes
    if wanted.size_bytes > limit:
        raise PayloadTooLarge(f"an upload may have {limit} bytes", errors=[Issue("/size_bytes", "too large")])
    upload_id, name = str(uuid_utils.uuid7()), safe_name(wanted.filename)
    put = await asyncio.to_thread(
        api.objects.presign_put,
        upload_key(tenant, upload_id, name),
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
    )
