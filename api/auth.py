"""Authentication: the API key alone determines the tenant. In open mode every request is of the tenant `default`.

Every route requires a key unless `access.py` declares it `OPEN`. Routes use these dependencies: `Tenant`, `Key` (the
key of one of the tenant's jobs), and `Caller` for answers that must check the API key again, such as streams.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from typing import Annotated

import structlog
from fastapi import Depends, Request
from starlette.datastructures import Headers

from penstock.api.access import ANY_KEY, OPEN, accepts_basic, is_declared, scope_of
from penstock.api.keyring import KeyRing
from penstock.api.services import Api, Services
from penstock.api_keys import KeyRecord, Scope
from penstock.config import Settings, require_safe_access
from penstock.config_tables import DEFAULT_TENANT
from penstock.errors import (
    InsufficientScope,
    ObjectStoreUnavailable,
    Unauthorized,
    UnknownJob,
)
from penstock.jobs import JobKey
from penstock.storage.objects.base import ObjectStore

#: The same text for every invalid key, so that a caller learns nothing about existing keys.
_UNAUTHORIZED = (
    "the API key is missing or invalid; send a valid one as `Authorization: Bearer KEY` (command line: set "
    "PENSTOCK_API_KEY). `penstock keys` creates and lists keys"
)

log = structlog.get_logger(__name__)

# Dependencies are `async def` although they await nothing: FastAPI sends a plain `def` through a pool of threads.


def open_keyring(settings: Settings, objects: ObjectStore) -> KeyRing | None:
    """Return the key ring; log a warning and return None in open mode.

    Raises `ConfigError` where an API without keys would be reachable from other machines.
    """
    require_safe_access(settings)
    if settings.with_keys:
        return KeyRing(objects, settings.signing_secret)
    log.warning("api.open_mode", tenant=DEFAULT_TENANT, host=settings.host, meaning="no API keys: loopback only")
    return None


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller."""

    tenant: str
    #: The API key as sent; None in open mode.
    key_text: str | None = None
    #: True if the caller may look at other tenants: a key with the scope `admin`, or open mode.
    is_admin: bool = False

    async def is_valid(self, api: Services) -> bool:
        """Return True while the key is valid. Long answers check again."""
        return api.keys is None or (self.key_text is not None and await api.keys.find(self.key_text) is not None)


async def authenticate(request: Request, api: Api) -> Principal | None:
    """Return the caller of a request, None where the route needs no key.

    Raises `Unauthorized` for an invalid key, or `InsufficientScope`.
    """
    verb, path = request.method, request.scope["route"].path_format
    if is_declared(verb, path) and scope_of(verb, path) is OPEN:
        return None
    if api.keys is None:
        return _stored(request, Principal(DEFAULT_TENANT, is_admin=True))
    headers = request.headers
    text = _password(headers) if accepts_basic(verb, path) and _scheme(headers) == "basic" else _bearer(headers)
    record = await api.keys.find(text)
    if record is None:
        raise Unauthorized(_UNAUTHORIZED)
    _require_scope(record, verb, path)
    return _stored(request, Principal(record.tenant, text, Scope.ADMIN in record.scopes))


async def submitting_tenant(api: Services, headers: Headers) -> str | None:
    """Return the tenant of a submission; None where the key is not valid for it, which `authenticate` rejects."""
    if api.keys is None:
        return DEFAULT_TENANT
    try:
        record = await api.keys.find(_bearer(headers))
    except ObjectStoreUnavailable:
        return None
    return record.tenant if record is not None and Scope.SUBMIT in record.scopes else None


def _scheme(headers: Headers) -> str:
    return headers.get("authorization", "").partition(" ")[0].lower()


def _bearer(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _password(headers: Headers) -> str:
    """Return the password of basic authentication, for any user name; empty for an invalid header."""
    try:
        pair = b64decode(headers["authorization"].partition(" ")[2], validate=True).decode()
    except ValueError:
        return ""
    return pair.partition(":")[2]


def _require_scope(record: KeyRecord, verb: str, path: str) -> None:
    if not is_declared(verb, path):  # fail closed
        log.error("route.undeclared", verb=verb, path=path)
        raise InsufficientScope("no scope is declared for this route")
    needed = scope_of(verb, path)
    if needed != ANY_KEY and needed not in record.scopes:
        raise InsufficientScope(f"the route needs the scope {needed}; the key has {', '.join(record.scopes)}")


def _stored(request: Request, principal: Principal) -> Principal:
    request.state.tenant = principal.tenant
    return principal


async def _principal(found: Annotated[Principal | None, Depends(authenticate)]) -> Principal:
    if found is None:  # an `OPEN` route uses `Caller`
        raise Unauthorized(_UNAUTHORIZED)
    return found


def tenant_of(request: Request) -> str:
    """Return the tenant of an authenticated request."""
    return str(getattr(request.state, "tenant", DEFAULT_TENANT))


Caller = Annotated[Principal, Depends(_principal)]


async def _tenant(caller: Caller) -> str:
    return caller.tenant


Tenant = Annotated[str, Depends(_tenant)]


def job_key(tenant: str, job_id: str) -> JobKey:
    """Return the key of a job id in a path; raise `UnknownJob` for an id that is no UUID."""
    if not is_job_id(job_id):
        raise UnknownJob
    return JobKey(tenant, job_id.lower())


def is_job_id(text: str) -> bool:
    """Return True for a UUID in the form 8-4-4-4-12."""
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(set(p) <= _HEX for p in parts)


async def _key(job_id: str, tenant: Tenant) -> JobKey:
    return job_key(tenant, job_id)


_HEX = frozenset("0123456789abcdefABCDEF")
Key = Annotated[JobKey, Depends(_key)]
