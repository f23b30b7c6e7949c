"""Opening object stores, and the webhook secrets of tenants in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from penstock.config import Settings
from penstock.config_tables import S3
from penstock.errors import ConfigError, ObjectExists, ObjectNotFound, ObjectStoreUnavailable
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.local import LocalStore
from penstock.storage.signing import new_webhook_secret

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_SECRET_LIMIT_BYTES = 10_000


def open_store(url: str, settings: Settings, *, passed_over: Callable[[str], None] = lambda _key: None) -> ObjectStore:
    """Return the store at `file:///folder` or `s3://bucket/optional-prefix`; sends no request.

    Stores of the same S3 service share one client, with its connections. `passed_over` is called with the names of
    files that listings of a folder skip.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        secret = settings.secret.get_secret_value() if settings.secret else None
        return LocalStore(
            Path(unquote(parts.path)),
            base_url=settings.base_url,
            secret=secret,
            passed_over=passed_over,
            private=url == settings.store_url,
        )
    if parts.scheme == "s3" and parts.netloc:
        from penstock.storage.objects.s3 import S3Store  # here, because it loads boto3: a tenth of the API's start

        client, presigner = _clients(settings.s3)
        return S3Store(client, presigner, parts.netloc, f"{parts.path.strip('/')}/".lstrip("/"))
    raise ConfigError(f"{url!r} is neither s3://bucket nor file:///folder")


def open_bucket(bucket: str, s3: S3, *, requester_pays: bool = False, unsigned: bool = False) -> ObjectStore:
    """Return the store of a bucket at an S3 service with credentials of its own; sends no request."""
    from penstock.storage.objects.s3 import S3Store

    client, presigner = _clients(s3, requester_pays, unsigned)
    return S3Store(client, presigner, bucket)


def open_own_store(settings: Settings) -> ObjectStore:
    """Return the service's object store, for a process of the service.

    The folder of a local store is made now. A folder that is missing later is therefore an unmounted disk, not an empty
    store.
    """
    store = open_store(settings.store_url, settings)
    if isinstance(store, LocalStore):
        with suppress(ObjectStoreUnavailable):  # every later call raises it, too
            store.ping()
    return store


def tenant_webhook_secret(store: ObjectStore, tenant: str) -> str:
    """Return the tenant's `whsec_...` secret; the first call makes it, and it never changes."""
    return known_or_new_webhook_secret(store, tenant)[0]


def known_or_new_webhook_secret(store: ObjectStore, tenant: str) -> tuple[str, bool]:
    """Return the tenant's secret, and True where this call made it."""
    key = f"tenants/{tenant}/webhook-secret.json"
    try:
        return _read_secret(store, key), False
    except ObjectNotFound:
        secret = new_webhook_secret()
    try:
        body = json.dumps({"secret": secret}).encode()
        store.put_bytes(key, body, content_type="application/json", if_absent=True)
    except ObjectExists:
        return _read_secret(store, key), False
    return secret, True


def _read_secret(store: ObjectStore, key: str) -> str:
    return str(json.loads(store.get_bytes(key, limit_bytes=_SECRET_LIMIT_BYTES))["secret"])


@lru_cache(maxsize=32)
def _clients(s3: S3, requester_pays: bool = False, unsigned: bool = False) -> tuple[S3Client, S3Client]:
    from penstock.storage.objects.s3 import s3_client

    return (
        s3_client(s3, requester_pays=requester_pays, unsigned=unsigned),
        s3_client(s3, checksums=False, requester_pays=requester_pays, unsigned=unsigned),
    )
