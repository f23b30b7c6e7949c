"""Whose request it is. In open mode, the only one yet, everybody on this machine is the tenant `default`."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import structlog
from fastapi import Depends, Request

from penstock.api.services import Api
from penstock.config import DEFAULT_TENANT, Settings, is_loopback, require_loopback
from penstock.errors import HostRefused, UnknownJob
from penstock.jobs import JobKey

log = structlog.get_logger(__name__)

# Dependencies are `async def` although they await nothing: FastAPI sends a plain `def` through a pool of threads.


def open_mode(settings: Settings) -> None:
    """Say that anybody who reaches the port may use it; raise `ConfigError` where that is not this machine alone."""
    require_loopback(settings)
    log.warning("api.open_mode", tenant=DEFAULT_TENANT, host=settings.host, meaning="no API keys: loopback only")


async def served_host(request: Request, api: Api) -> None:
    """Refuse a Host that is not ours: a page in a browser could reach a loopback service by a name of its own."""
    host = request.url.hostname or ""
    if not is_loopback(host) and host != urlsplit(api.settings.base_url).hostname:
        raise HostRefused(f"set public_url if {host!r} leads here")


async def _tenant() -> str:
    return DEFAULT_TENANT


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
