"""Checks of a request's media, run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from penstock.api.services import Services
from penstock.intake.references import check_reference, total_bytes
from penstock.models import CatalogueEntry


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
