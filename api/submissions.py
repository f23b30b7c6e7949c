"""Submission checks: the model is served, the input fits its schema, the media exist and are allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from fastapi import Request

from penstock.api.connection import while_connected
from penstock.api.services import Services
from penstock.errors import InputError, ModelUnavailable, NotReady, PenstockError, RequestError, StorageQuotaExceeded
from penstock.intake.inline_media import InlineUpload, SeparatedInput, is_inline, separated
from penstock.intake.references import check_reference, total_bytes
from penstock.intake.submissions import (
    Findings,
    Origin,
    check_webhook,
    examine,
    refuse_tensors,
    servable,
    submission_to,
)
from penstock.jobs import JobKey, Submission
from penstock.json_body import is_small_value
from penstock.models import CatalogueEntry, media_by_range, media_references
from penstock.requests import JobRequest
from penstock.storage.redis.usage import keep_upload


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings in an input, or the error in it, by a model's entry in the catalogue."""

    entry: CatalogueEntry
    found: Findings | RequestError

    def findings(self) -> Findings:
        """Return the findings; raise the error."""
        if isinstance(self.found, RequestError):
            raise self.found
        return self.found


async def examine_large(request: Request, api: Services, key: JobKey, wanted: JobRequest) -> Examination | None:
    """Examine a large input in a process of its own; None for a small input, and for a model that cannot be used.

    Call it before the submission takes a place of the concurrency limit, which other tenants need meanwhile. Raises
    `ClientLeft` and the errors of `separated` and `Isolation.run`.
    """
    if is_small_value(wanted.input):
        return None
    try:
        catalogue = await api.models.read(wanted.model)
        entry = servable(wanted.model, catalogue, key.id)
    except PenstockError:
        return None  # `submission` raises it, unless the job exists
    value = (await _separated(api, entry, key, wanted)).value
    size_bytes = api.settings.body_limit_bytes(key.tenant)
    found = await while_connected(request, api.isolation.run(key.tenant, size_bytes, _examined, entry, value))
    return Examination(entry, found)


async def require_fitting(request: Request, api: Services, key: JobKey, wanted: JobRequest) -> None:
    """Raise the errors in a request that are found without its media."""
    examination = await examine_large(request, api, key, wanted)
    if examination is not None:
        examination.findings()
    else:
        entry = servable(wanted.model, await api.models.read(wanted.model), key.id)
        examine(entry, (await _separated(api, entry, key, wanted)).value)


async def submission(
    api: Services,
    key: JobKey,
    wanted: JobRequest,
    *,
    fingerprint: str,
    origin: Origin,
    examination: Examination | None = None,
    dry: bool = False,
) -> Submission:
    """Return a checked request as a submission. A `dry` run stores no media.

    Raises `ModelNotServed`, `ModelUnavailable`, `InvalidRequest` or an `InputError`; their issues point into the body.
    """
    if (recent := api.models.recent(wanted.model)) is not None:
        with suppress(RequestError, InputError, ModelUnavailable, NotReady):  # judge by the current models
            return await _submission(api, recent, key, wanted, fingerprint, origin, examination, dry=dry)
    current = await api.models.read(wanted.model)
    return await _submission(api, current, key, wanted, fingerprint, origin, examination, dry=dry)


async def _submission(
    api: Services,
    catalogue: Mapping[str, CatalogueEntry],
    key: JobKey,
    wanted: JobRequest,
    fingerprint: str,
    origin: Origin,
    examination: Examination | None,
    *,
    dry: bool,
) -> Submission:
    entry = servable(wanted.model, catalogue, key.id)
    is_current = examination is not None and examination.entry == entry
    inline = await _separated(api, entry, key, wanted)
    found = examination.findings() if examination and is_current else examine(entry, inline.value)
    refuse_tensors(found.tensors, tenant=key.tenant, settings=api.settings)
    check_webhook(wanted, api.settings)
    by_range = media_by_range(entry.input_schema, inline.value)
    if not dry:
        await store_inline(api, key.tenant, inline.uploads)
    here = {upload.reference: len(upload.medium.data) for upload in inline.uploads}
    media_bytes = await check_media(api, key.tenant, entry, found.media, by_range, here)
    wanted = wanted.model_copy(update={"input": inline.value})
    return submission_to(entry, key, wanted, fingerprint=fingerprint, origin=origin, media_bytes=media_bytes)


async def _separated(api: Services, entry: CatalogueEntry, key: JobKey, wanted: JobRequest) -> SeparatedInput:
    """Return a request's input without its inline media; raise the errors of `separated`.

    Media of megabytes take the processor for long, which a thread leaves to other requests every few milliseconds.
    """
    is_without = is_small_value(wanted.input) and not any(
        is_inline(text) for _, text in media_references(entry.input_schema, wanted.input)
    )
    if is_without:
        return SeparatedInput(wanted.input)
    return await asyncio.to_thread(separated, entry, key, wanted.input, settings=api.settings)


def _examined(entry: CatalogueEntry, value: Mapping[str, object]) -> Findings | RequestError:
    try:
        return examine(entry, value)
    except RequestError as error:
        return error


async def check_media(
    api: Services,
    tenant: str,
    entry: CatalogueEntry,
    media: Iterable[tuple[str, str]],
    by_range: Collection[str] = (),
    known: Mapping[str, int] = MappingProxyType({}),
) -> int | None:
    """Return the bytes of media, (place, reference) pairs, as `total_bytes`; those `by_range` may exceed the limit.

    `known` has the sizes of media that the request itself carries.
    Raises an `InputError` that points to a medium that is not usable.
    """
    sizes = {
        reference: await asyncio.to_thread(
            check_reference,
            api.objects,
            api.settings,
            tenant,
            entry,
            place,
            reference,
            by_range=reference in by_range,
            size_bytes=known.get(reference),
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
