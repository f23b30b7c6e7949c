"""Files of requests, inline or in forms: stored as uploads, which the request's job names."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

import uuid_utils
from starlette.datastructures import UploadFile

from penstock.api.facades.calls import Call
from penstock.api.forms import path_of
from penstock.api.media import require_room
from penstock.api.services import Services
from penstock.errors import MediaTooLarge
from penstock.intake.local_media import safe_name
from penstock.intake.media import upload_key
from penstock.storage.objects.base import CHUNK_BYTES, DEFAULT_CONTENT_TYPE


async def store_upload(api: Services, tenant: str, data: bytes, name: str, content_type: str) -> str:
    """Store bytes as an upload and return its reference.

    Raises `MediaTooLarge` past the tenant's limit, and `StorageQuotaExceeded` where there is no room.
    """
    upload_id = await _new_upload(api, tenant, len(data), "medium")
    key = upload_key(tenant, upload_id, name)
    await asyncio.to_thread(api.objects.put_bytes, key, data, content_type=content_type)
    return f"media://{upload_id}/{name}"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A form's file after it was stored."""

    #: Its media reference.
    reference: str
    #: Its SHA-256 in hexadecimal.
    digest: str


async def store_file(call: Call, file: UploadFile, usual_name: str) -> StoredFile:
    """Store a form's file; raise `MediaTooLarge` beyond the tenant's limit, or `StorageQuotaExceeded`."""
    upload_id = await _new_upload(call.api, call.tenant, file.size or 0, "file")
    return await asyncio.to_thread(_store, call.api, call.tenant, upload_id, file, usual_name)


async def _new_upload(api: Services, tenant: str, size_bytes: int, what: str) -> str:
    """Return the id of a new upload; raise `MediaTooLarge` or `StorageQuotaExceeded` where it does not fit."""
    limit_bytes = api.settings.upload_limit_bytes(tenant)
    if size_bytes > limit_bytes:
        raise MediaTooLarge(f"the {what} exceeds the limit of {limit_bytes} bytes")
    upload_id = str(uuid_utils.uuid7())
    await require_room(api, tenant, upload_id, size_bytes)
    return upload_id


def _store(api: Services, tenant: str, upload_id: str, file: UploadFile, usual_name: str) -> StoredFile:
    name, digest = safe_name(file.filename or usual_name), hashlib.sha256()
    while chunk := file.file.read(CHUNK_BYTES):
        digest.update(chunk)
    kind = file.content_type or DEFAULT_CONTENT_TYPE
    api.objects.put_file(upload_key(tenant, upload_id, name), path_of(file), content_type=kind)
    return StoredFile(f"media://{upload_id}/{name}", digest.hexdigest())
