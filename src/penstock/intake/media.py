"""Media references: the inputs that a job may name, and how they are fetched to local files.

* `media://<upload id>/<name>`    an upload of the same tenant
* `s3://bucket/key[#etag=...]`    an object in a bucket that the operator opened for inputs, or under a drop rule or
                                  access profile of the tenant
* `http(s)://host/path`           a file on the web, fetched through the guard
* `job://<job id>/<artifact>`     a file of the result of another job of the same tenant, which succeeds before

The API imports this module, so it must not import numpy or rasterio.
"""

from __future__ import annotations

import re
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from penstock.config import Settings
from penstock.config_tables import S3
from penstock.errors import FetchFailed, MediaNotFound, MediaRefused, ObjectNotFound
from penstock.intake.access import bucket_profile, profile_for
from penstock.intake.addresses import WebAddress, check_url
from penstock.intake.connections import no_check
from penstock.intake.credentials import secret_of
from penstock.intake.guard import GuardedClient
from penstock.intake.local_media import FOLDER_PREFIX, LocalMedia, safe_name
from penstock.intake.partial import PartialFile, Source, StoreSource, WebSource, begin_partial, refusing
from penstock.jobs import Artifact
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_bucket, open_store

#: A suffix that a local file keeps from its reference, as a hint at the file's format.
_SUFFIX = re.compile(r"\.[a-z0-9]{1,8}")
_UPLOAD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_ARTIFACT = re.compile(r"(?i:job)://(?P<job>[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})/(?P<name>[^\0]+)")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class UploadReference:
    """An upload of the tenant, or an artifact of one of its jobs: `key` in the service's own store."""

    key: str


@dataclass(frozen=True, slots=True)
class S3Object:
    """An object that the tenant may name; with an etag, only that version of it."""

    bucket: str
    key: str
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class JobArtifact:
    """An artifact of another job of the tenant."""

    job: str
    name: str


#: The same text for every reason, so that an error reveals nothing about other buckets.
_NO_BUCKET = "this object may not be used: the operator opens buckets for input by the setting s3_input_buckets"

#: A reference whose place is known without the results of other jobs.
Located = UploadReference | S3Object | WebAddress
Reference = Located | JobArtifact
#: The artifacts of upstreams by the ids of their jobs.
Upstreams = Mapping[str, Sequence[Artifact]]
NO_UPSTREAMS: Upstreams = MappingProxyType({})


def upload_key(tenant: str, upload_id: str, name: str) -> str:
    """Return an upload's key in the object store. `name` is a result of `safe_name`."""
    return f"tenants/{tenant}/uploads/{upload_id}/{name}"


def parse_reference(reference: str, *, tenant: str, settings: Settings) -> Reference:
    """Return the object that a reference names, without network requests.

    Raises `MediaNotFound` for an invalid upload, `MediaRefused` for a bucket or URL that is not allowed.
    """
    scheme = reference.partition("://")[0].lower()
    if scheme == "media":
        return _upload(reference, tenant)
    if scheme == "s3":
        return _s3_object(reference, tenant, settings)
    if scheme == "job":
        if (artifact := artifact_in(reference)) is None:
            raise MediaNotFound("no artifact: write job://ID/NAME with the id of a job and the name of a file")
        return artifact
    if "://" not in reference:
        raise MediaRefused(
            "no reference: use media://UPLOAD/NAME (upload a local file first), s3://BUCKET/KEY, an http(s) URL, "
            "or job://ID/NAME (a file of another job)"
        )
    return web_address(reference, tenant=tenant, settings=settings)


def artifact_in(reference: str) -> JobArtifact | None:
    """Return the artifact that a reference names; None for any other reference."""
    found = _ARTIFACT.fullmatch(reference)
    return None if found is None else JobArtifact(found["job"].lower(), found["name"])


def web_address(url: str, *, tenant: str, settings: Settings) -> WebAddress:
    """Return the parsed URL; raise `MediaRefused` for one that the tenant may not name."""
    return check_url(
        url, settings.allowed_hosts, settings.fetch_any_public_host,
        lambda address: profile_for(settings.access_profiles, address, tenant) is not None,
    )  # fmt: skip


def readable(addresses: Sequence[str], *, tenant: str, settings: Settings) -> list[str]:
    """Return the addresses of one file that a tenant may name, those with an access profile first; all if none is.

    Addresses that are equal in this keep their order.
    """
    found: list[tuple[bool, str]] = []
    for address in addresses:
        try:
            media = parse_reference(address, tenant=tenant, settings=settings)
        except (MediaRefused, MediaNotFound):
            continue
        match media:
            case S3Object(bucket):
                profile = bucket_profile(settings.access_profiles, bucket, tenant)
            case WebAddress():
                profile = profile_for(settings.access_profiles, media, tenant)
            case _:
                profile = None
        found.append((profile is None, address))
    return [address for _, address in sorted(found, key=itemgetter(0))] or list(addresses)


def fetch_media(
    reference: str,
    folder: Path,
    *,
    store: ObjectStore,
    tenant: str,
    settings: Settings,
    guard: GuardedClient,
    limit_bytes: int,
    check: Callable[[], None] = no_check,
    memory_bytes: int = -1,
    upstreams: Upstreams = NO_UPSTREAMS,
) -> LocalMedia:
    """Fetch a reference's bytes into a new folder under `folder`.

    An upload or S3 object of at most `memory_bytes` stays in memory instead; with -1, every medium is a file.

    `check` may raise to end a slow download from the web; uploads and S3 objects do not call `check`. `upstreams` has
    the artifacts of other jobs that a reference may name.
    Raises `MediaNotFound`, `MediaRefused`, `MediaTooLarge`, `MediaChanged`, `MediaUnreadable`, and the retryable
    `FetchFailed` or `ObjectStoreUnavailable`.
    """
    media = _located(reference, tenant, settings, upstreams)
    if isinstance(media, WebAddress):
        path = _new_path(media, folder)
        return LocalMedia(path, guard.fetch(reference, path, limit_bytes, tenant=tenant, check=check).etag)
    profile = None
    if isinstance(media, S3Object):
        store, profile = media_bucket(media.bucket, tenant, settings)
    etag = media.etag if isinstance(media, S3Object) else None
    try:
        with refusing(profile):
            found = store.fetch(
                media.key, lambda: _new_path(media, folder), limit_bytes=limit_bytes, memory_bytes=memory_bytes,
                etag=etag,
            )  # fmt: skip
    except ObjectNotFound as error:
        raise MediaNotFound from error
    if isinstance(found.contents, Path):
        return LocalMedia(found.contents, found.etag)
    path = folder / f"{FOLDER_PREFIX}{uuid.uuid4().hex}" / _name(media)
    return LocalMedia(path, found.etag, data=found.contents)


def fetch_for_job(
    reference: str, folder: Path, *, by_range: bool, store: ObjectStore, tenant: str, settings: Settings,
    guard: GuardedClient, limit_bytes: int, check: Callable[[], None] = no_check, memory_bytes: int = -1,
    upstreams: Upstreams = NO_UPSTREAMS,
) -> tuple[LocalMedia, PartialFile | None]:  # fmt: skip
    """Fetch a reference as `fetch_media` does; with `by_range`, fetch only the beginning of a large TIFF file.

    Return the file, and its partial file where further ranges are still to be fetched.
    """
    if by_range:
        media = _located(reference, tenant, settings, upstreams)
        path = _new_path(media, folder)
        source = _source(media, reference, store, tenant, settings, guard, limit_bytes, check)
        try:
            found, etag = begin_partial(path, source, limit_bytes)
        except ObjectNotFound as error:
            raise MediaNotFound from error
        if path.exists():  # a source without a strong etag is fetched whole: its ranges could be of two versions
            return LocalMedia(path, etag, found is not None), found
    whole = fetch_media(
        reference, folder, store=store, tenant=tenant, settings=settings, guard=guard, limit_bytes=limit_bytes,
        check=check, memory_bytes=memory_bytes, upstreams=upstreams,
    )  # fmt: skip
    return whole, None


def _located(reference: str, tenant: str, settings: Settings, upstreams: Upstreams) -> Located:
    """Return a reference with the place of another job's artifact; `MediaNotFound` where the job has no such one."""
    media = parse_reference(reference, tenant=tenant, settings=settings)
    if not isinstance(media, JobArtifact):
        return media
    keys = {artifact.name: artifact.key for artifact in upstreams.get(media.job, ())}
    if media.name not in keys:
        has = f"its artifacts are: {', '.join(sorted(keys)[:20])}" if keys else "it has no artifacts"
        raise MediaNotFound(f"job {media.job} has no artifact {media.name[:200]!r}; {has}")
    return UploadReference(keys[media.name])


def _source(
    media: Located, reference: str, store: ObjectStore, tenant: str, settings: Settings, guard: GuardedClient,
    limit_bytes: int, check: Callable[[], None],
) -> Source:  # fmt: skip
    match media:
        case UploadReference(key):
            return StoreSource(store, key)
        case S3Object(bucket, key, etag):
            found, profile = media_bucket(bucket, tenant, settings)
            return StoreSource(found, key, etag, profile)
        case _:
            return WebSource(guard, reference, limit_bytes, tenant, check, guard.least_rate())


def media_bucket(bucket: str, tenant: str, settings: Settings) -> tuple[ObjectStore, str | None]:
    """Return the store of a bucket that a tenant names, and the name of its access profile if there is one.

    Raises `FetchFailed` for a profile without its secret.
    """
    profile = bucket_profile(settings.access_profiles, bucket, tenant)
    if profile is None:
        return open_store(f"s3://{bucket}", settings), None
    keys: dict[str, Any] = {}
    if profile.secret is not None:
        keys = {"access_key_id": profile.access_key_id, "secret_access_key": SecretStr(secret_of(profile))}
    s3 = S3(endpoint_url=profile.service_url, region=profile.region, **keys)
    store = open_bucket(bucket, s3, requester_pays=profile.requester_pays, unsigned=profile.unsigned)
    return store, profile.name


def _new_path(media: Located, folder: Path) -> Path:
    """Return the path of a new file, alone in a new folder; an `OSError` is `FetchFailed`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=folder)) / _name(media)
    except OSError as error:
        raise FetchFailed(f"could not write the media to the disk: {error.strerror}") from error


def _name(media: Located) -> str:
    name = media.target.partition("?")[0] if isinstance(media, WebAddress) else media.key
    suffix = Path(name.rpartition("/")[2]).suffix.lower()
    return f"media{suffix}" if _SUFFIX.fullmatch(suffix) else "media"


def _upload(reference: str, tenant: str) -> UploadReference:
    upload_id, _, name = reference.partition("://")[2].partition("/")
    if not _UPLOAD_ID.fullmatch(upload_id) or safe_name(name) != name:
        raise MediaNotFound
    return UploadReference(upload_key(tenant, upload_id, name))


def _s3_object(reference: str, tenant: str, settings: Settings) -> S3Object:
    bucket, _, rest = reference.partition("://")[2].partition("/")
    key, _, etag = rest.rpartition("#etag=") if "#etag=" in rest else (rest, "", "")
    if not _BUCKET.fullmatch(bucket) or not key or "\0" in key or not _s3_allowed(bucket, key, tenant, settings):
        raise MediaRefused(_NO_BUCKET)
    return S3Object(bucket, key, etag or None)


def _s3_allowed(bucket: str, key: str, tenant: str, settings: Settings) -> bool:
    own = urlsplit(settings.store_url)
    if own.scheme == "s3" and own.netloc == bucket:
        prefix = own.path.strip("/")
        # Objects of all tenants lie under `tenants/`: media:// references reach the tenant's own objects only.
        if key.startswith(f"{prefix}/tenants/".lstrip("/")):
            return False
    dropped = any(
        rule.tenant == tenant and f"s3://{bucket}/{key}".startswith(f"{rule.bucket.rstrip('/')}/{rule.prefix}")
        for rule in settings.drops
    )
    profiled = bucket_profile(settings.access_profiles, bucket, tenant) is not None
    return dropped or profiled or bucket in settings.s3_input_buckets
