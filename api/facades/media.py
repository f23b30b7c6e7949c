"""Media that come inside a request, as base64: they become uploads, which a job then names."""

from __future__ import annotations

import asyncio
import base64
import binascii

import uuid_utils

from penstock.api.services import Services
from penstock.errors import InvalidRequest, MediaTooLarge
from penstock.reports import Issue
from penstock.storage.media import upload_key

_NO_BREAKS = str.maketrans("", "", "\r\n")


def decoded(text: str, place: str) -> bytes:
    """Return the bytes of base64, with or without line breaks, which `base64 FILE` writes.

    Raises `InvalidRequest` that points to the place where it is none, or is empty.
    """
    try:
        data = base64.b64decode(text.translate(_NO_BREAKS), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(errors=[Issue(place, "is not base64")]) from error
    if not data:
        raise InvalidRequest(errors=[Issue(place, "is empty")])
    return data


async def take_in(api: Services, tenant: str, data: bytes, name: str, content_type: str) -> str:
    """Store bytes as an upload and return its reference; raise `MediaTooLarge` past the tenant's limit."""
    limit_bytes = api.settings.upload_limit_bytes(tenant)
    if len(data) > limit_bytes:
        raise MediaTooLarge(f"an upload may have {limit_bytes} bytes")
    upload_id = str(uuid_utils.uuid7())
    key = upload_key(tenant, upload_id, name)
    await asyncio.to_thread(api.objects.put_bytes, key, data, content_type=content_type)
    return f"media://{upload_id}/{name}"
