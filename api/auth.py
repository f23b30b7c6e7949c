"""Whose request it is: the API key says so, and nothing else. In open mode everybody is the tenant `default`.

Every route asks for a key unless `access.py` says that it does not. Routes take what they need as dependencies:
`Tenant`, `Key` (of a job of the tenant), and `Caller` where they outlast a request's beginning.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import structlog
from fastapi import Depends, Request
from starlette.datastructures import Headers

from penstock.api.access import OPEN, is_declared, scope_of, takes_basic
from penstock.api.keyring import KeyRing
from penstock.api.services import Api, Services
from penstock.api_keys import KeyRecord, Scope
from penstock.config import DEFAULT_TENANT, Settings, is_loopback, require_safe_access
from penstock.errors import (
    HostRefused,
    InsufficientScope,
    ObjectStoreUnavailable,
    OriginRefused,
    Unauthorized,
    UnknownJob,
)
from penstock.jobs import JobKey
from penstock.storage.base import ObjectStore

#: The one answer to whatever is wrong with a key.
_UNAUTHORIZED = (
    "send a valid API key as `Authorization: Bearer KEY` (PENSTOCK_API_KEY for the command line); "
    "`penstock keys` makes and lists them"
)

#: Change nothing.
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

log = structlog.get_logger(__name__)

# Dependencies are `async def` although they await nothing: FastAPI sends a plain `def` through a pool of threads.


def keyring(settings: Settings, objects: ObjectStore) -> KeyRing | None:
    """Return what looks keys up, None in open mode, which is said.

    Raises `ConfigError` where an open API could be reached by more than this machine.
    """
    require_safe_access(settings)
    if settings.with_keys:
        return KeyRing(objects, settings.signing_secret)
    log.warning("api.open_mode", tenant=DEFAULT_TENANT, host=settings.host, meaning="no API keys: loopback only")
    return None


async def served_host(request: Request, api: Api) -> None:
    """Refuse a Host that is not ours, and what another origin's page would change.

    A page in a browser could reach an open loopback service by a name of its own, and send it forms.
    """
    host = request.url.hostname or ""
    if api.keys is None and not is_loopback(host) and host != urlsplit(api.settings.base_url).hostname:
        raise HostRefused(f"set public_url if {host!r} leads here")
    if api.keys is None and request.method not in _SAFE and _is_of_another_page(request.headers):
        raise OriginRefused("without API keys, only pages of this service may do that")


def _is_of_another_page(headers: Headers) -> bool:
    """Whether a browser sends this for a page of another origin, as far as it says so: programs say neither."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


@dataclass(frozen=True, slots=True)
class Admission:
    """Who asks, and by which key."""

    tenant: str
    #: As it was sent; None in open mode.
    text: str | None = None

    async def lasts(self, api: Services) -> bool:
        """Whether the key is still valid: for answers that go on for long."""
        return api.keys is None or (self.text is not None and await api.keys.find(self.text) is not None)


async def admitted(request: Request, api: Api) -> Admission | None:
    """Return whose request it is, None where the route asks nobody.

    Raises `Unauthorized`, the same for whatever is wrong with the key, or `InsufficientScope`.
    """
    verb, path = request.method, request.scope["route"].path_format
    if is_declared(verb, path) and scope_of(verb, path) is OPEN:
        return None
    if api.keys is None:
        return _remembered(request, Admission(DEFAULT_TENANT))
    headers = request.headers
    text = _password(headers) if takes_basic(verb, path) and _scheme(headers) == "basic" else _bearer(headers)
    record = await api.keys.find(text)
    if record is None:
        raise Unauthorized(_UNAUTHORIZED)
    _require_scope(record, verb, path)
    return _remembered(request, Admission(record.tenant, text))


async def submitter(api: Services, headers: Headers) -> str | None:
    """Return whose submission this is; None where it is to be refused, which `admitted` does."""
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
    return headers["authorization"].partition(" ")[2].strip() if _scheme(headers) == "bearer" else ""


def _password(headers: Headers) -> str:
    """Return the password of basic authentication, whatever the user is called; empty for what is none."""
    try:
        pair = b64decode(headers["authorization"].partition(" ")[2], validate=True).decode()
    except ValueError:
        return ""
    return pair.partition(":")[2]


def _require_scope(record: KeyRecord, verb: str, path: str) -> None:
    if not is_declared(verb, path):  # nobody decided who may: nobody may
        log.error("route.undeclared", verb=verb, path=path)
        raise InsufficientScope("no scope is declared for this")
    needed = scope_of(verb, path)
    if needed not in record.scopes:
        raise InsufficientScope(f"this needs the scope {needed}; the key has {', '.join(record.scopes)}")


def _remembered(request: Request, admission: Admission) -> Admission:
    request.state.tenant = admission.tenant
    return admission


async def _admission(found: Annotated[Admission | None, Depends(admitted)]) -> Admission:
    if found is None:  # a route that is open to anybody asks whose it is
        raise Unauthorized(_UNAUTHORIZED)
    return found


def tenant_of(request: Request) -> str:
    """Return the tenant that an admitted request is of."""
    return str(getattr(request.state, "tenant", DEFAULT_TENANT))


Caller = Annotated[Admission, Depends(_admission)]


async def _tenant(caller: Caller) -> str:
    return caller.tenant


Tenant = Annotated[str, Depends(_tenant)]


def job_key(tenant: str, job_id: str) -> JobKey:
    """Return the key of a job in a path; raise `UnknownJob` for what cannot be one."""
    if not is_job_id(job_id):
        raise UnknownJob
    return JobKey(tenant, job_id.lower())


def is_job_id(text: str) -> bool:
    """Whether this is a UUID in its usual form."""
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(set(p) <= _HEX for p in parts)


async def _key(job_id: str, tenant: Tenant) -> JobKey:
    return job_key(tenant, job_id)


_HEX = frozenset("0123456789abcdefABCDEF")
Key = Annotated[JobKey, Depends(_key)]
