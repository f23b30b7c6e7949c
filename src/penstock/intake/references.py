"""A request's media, checked before the job is created: they exist, are allowed, and are within the limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.config import Settings
from penstock.errors import (
    FetchFailed,
    InputError,
    InvalidRequest,
    Issue,
    MediaChanged,
    MediaNotFound,
    MediaTooLarge,
    ObjectNotFound,
    ObjectStoreUnavailable,
)
from penstock.intake.access import bucket_profile
from penstock.intake.media import S3Object, UploadReference, parse_reference
from penstock.models import CatalogueEntry, media_references
from penstock.storage.objects.base import ObjectInfo, ObjectStore
from penstock.storage.objects.opening import open_store

MAX_REFERENCES = 1000


def references(entry: CatalogueEntry, value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the media that an input names, each with its place; raise `InvalidRequest` for too many."""
    found = list(dict.fromkeys(media_references(entry.input_schema, value)))
    limit = min(entry.limits.max_items or MAX_REFERENCES, MAX_REFERENCES)
    if len(found) > limit:
        place, _ = found[limit]
        few = "one medium" if limit == 1 else f"{limit} media"
        raise InvalidRequest(
            f"a job of {entry.name} may name {few}; this job names {len(found)}",
            errors=[Issue(f"/input{place}", f"is more than the {few} that a job may name")],
        )
    return found


def check_reference(
    objects: ObjectStore, settings: Settings, tenant: str, entry: CatalogueEntry, place: str, reference: str,
    *, by_range: bool = False, size_bytes: int | None = None,
) -> int | None:  # fmt: skip
    """Return the size of a medium in bytes; None where only the worker learns the size.

    `size_bytes` is that of a medium in the request, which is not stored.

    `by_range` is True for a medium of which only ranges are read (`media_by_range`): the worker then applies the
    model's limit to these ranges. Raises an `InputError` that points to a missing, forbidden or too large medium.
    """
    with pointing_to(place):
        if size_bytes is None:
            size_bytes = _size(objects, settings, tenant, reference)
        limit = None if by_range else entry.limits.max_bytes
        if size_bytes is not None and limit is not None and size_bytes > limit:
            raise MediaTooLarge(f"{entry.name} accepts {limit} bytes; the file has {size_bytes}")
        return size_bytes


def total_bytes(sizes: Iterable[int | None]) -> int | None:
    """Return the sum of the sizes of a job's media; None without media, and if one size is unknown."""
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total or None


@contextmanager
def pointing_to(place: str) -> Iterator[None]:
    """Add the place of a medium in the input to errors about it."""
    try:
        yield
    except (InputError, FetchFailed) as error:
        issue = Issue(f"/input{place}", error.detail)
        raise type(error)(error.detail, errors=[issue], retry_after_s=error.retry_after_s) from error


def _size(objects: ObjectStore, settings: Settings, tenant: str, reference: str) -> int | None:
    parsed = parse_reference(reference, tenant=tenant, settings=settings)
    info: ObjectInfo | None
    match parsed:
        case UploadReference(key):
            info = _upload(objects, key)
        case S3Object():
            info = _object(settings, tenant, parsed)
        case _:
            return None  # only workers connect to foreign hosts
    return None if info is None else info.size_bytes


def _upload(objects: ObjectStore, key: str) -> ObjectInfo:
    try:
        return objects.head(key)
    except ObjectNotFound as error:
        raise MediaNotFound("there is no such upload, or its file has not been sent yet") from error


def _object(settings: Settings, tenant: str, wanted: S3Object) -> ObjectInfo | None:
    """Return the metadata of an object; None if its bucket does not respond: the worker tries for longer.

    None, too, for the bucket of an access profile: the secrets are the workers' alone.
    """
    if bucket_profile(settings.access_profiles, wanted.bucket, tenant) is not None:
        return None
    try:
        info = open_store(f"s3://{wanted.bucket}", settings).head(wanted.key)
    except ObjectNotFound as error:
        raise MediaNotFound(f"there is no object {wanted.key!r} in the bucket {wanted.bucket!r}") from error
    except ObjectStoreUnavailable:
        return None
    if wanted.etag is not None and info.etag.strip('"') != wanted.etag.strip('"'):
        raise MediaChanged("the object's etag differs from the etag in the reference")
    return info
