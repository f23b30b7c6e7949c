"""Inline media: stores base64 from a request as an upload, which the job then names."""

from __future__ import annotations

import asyncio

import uuid_utils

from penstock.api.media import require_room
from penstock.api.services import Services
from penstock.errors import MediaTooLarge
from penstock.intake.media import upload_key


async def store_upload(api: Services, tenant: str, data: bytes, name: str, content_type: str) -> str:
    """Store bytes as an upload and return its reference.

    Raises `MediaTooLarge` past the tenant's limit, and `StorageQuotaExceeded` where there is no room.
    """
    limit_bytes = api.settings.upload_limit_bytes(tenant)
    if len(data) > limit_bytes:
        raise MediaTooLarge(f"the medium exceeds the limit of {limit_bytes} bytes")
    upload_id = str(uuid_utils.uuid7())
    key = upload_key(tenant, upload_id, name)
    await require_room(api, tenant, upload_id, len(data))
    await asyncio.to_thread(api.objects.put_bytes, key, data, content_type=content_type)
    return f"media://{upload_id}/{name}"
