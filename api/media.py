"""Checks of a request's media, run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock.api.services import Services
from penstock.intake.references import check_reference
from penstock.models import CatalogueEntry


async def check_media(api: Services, tenant: str, entry: CatalogueEntry, media: Iterable[tuple[str, str]]) -> None:
    """Raise an `InputError` that points to the medium that is not usable, among (place, reference) pairs."""
    for place, reference in media:
        await asyncio.to_thread(check_reference, api.objects, api.settings, tenant, entry, place, reference)
