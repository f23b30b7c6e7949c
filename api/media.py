"""A request's media: checks, the room for new ones, and inline media stored as uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from penstock.api.services import Services
from penstock.errors import StorageQuotaExceeded
from penstock.intake.inline_media import InlineUpload
from penstock.intake.references import check_reference, total_bytes
from penstock.models import CatalogueEntry
from penstock.storage.redis.usage import keep_upload


async def check_media(
    api: Services,
    tenant: str,
    entry: CatalogueEntry,
    media: Iterable[tuple[str, str]],
    by_range: Collection[str] = (),
) -> int | None:
    """Return the bytes of media, (place, reference) pairs, as `total_bytes`; those `by_range` may exceed the limit.

    Raises an `InputError` that points to a medium that is not usable.
    """
    sizes = {
        reference: await asyncio.to_thread(
            check_reference, api.objects, api.settings, tenant, entry, place, reference, by_range=reference in by_range
        )
        for place, reference in media
    }
    return total_bytes(sizes.values())


async def require_room(api: Services, tenant: str, upload_id: str, size_bytes: int) -> None:
    """Count an upload among the bytes that the tenant keeps; `StorageQuotaExceeded` where there is no room."""
    limit = api.settings.kept_limit_bytes(tenant)
    if limit is None:
        return
    kept = await api.jobs.run(keep_upload(tenant, upload_id, size_bytes, limit))
    if kept is not None:
        raise StorageQuotaExceeded(f"the tenant keeps {kept} of {limit} bytes, and the upload has {size_bytes}")


async def store_inline(api: Services, tenant: str, uploads: Sequence[InlineUpload]) -> None:
    """Store the uploads of inline media; raise `StorageQuotaExceeded` where there is no room."""
    for upload in uploads:
        await require_room(api, tenant, upload.upload_id, len(upload.medium.data))
        await asyncio.to_thread(upload.put, api.objects, tenant)
