"""A request's media, looked at beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from penstock.api.services import Services
from penstock.models import CatalogueEntry
from penstock.storage.references import check_reference, references


async def check_media(api: Services, tenant: str, entry: CatalogueEntry, value: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for too many media, or an `InputError` that points to the one that cannot be taken."""
    for place, reference in references(entry, value):
        await asyncio.to_thread(check_reference, api.objects, api.settings, tenant, entry, place, reference)
