"""The API key of a request: its tenant, scopes and limits."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from penstock.api.auth import Caller
from penstock.api.errors import problems
from penstock.api.schemas.jobs import Outgoing, Time
from penstock.api.services import Api
from penstock.api_keys import Scope
from penstock.config import Settings


class LimitsView(Outgoing):
    """The limits of a tenant."""

    #: Jobs that may wait or run at once.
    jobs: int
    submissions_per_s: float | None = Field(description="Submissions per second to one API process; null: no limit.")
    #: Bytes of a request.
    body_bytes: int
    #: Bytes of a file.
    upload_bytes: int
    device_seconds_per_day: float | None = Field(
        description="Device seconds that the jobs which end on one day (UTC) may use; null: no limit."
    )
    kept_bytes: int | None = Field(description="Bytes of objects that the tenant may keep; null: no limit.")


class KeyView(Outgoing):
    """The API key of the request, without its text."""

    #: The tenant of the key.
    tenant: str
    name: str | None = Field(description="The name that the key was given; null without API keys.")
    #: The permissions of the key.
    scopes: list[Scope]
    expires_at: Time | None = Field(description="Null for a key that does not expire.")
    #: True where the service needs no API keys.
    open: bool
    #: The limits of the tenant.
    limits: LimitsView


router = APIRouter(prefix="/v1/key", tags=["key"], responses=problems(503))


@router.get("")
async def read_key(api: Api, caller: Caller) -> KeyView:
    """Return the tenant, scopes and limits of the request's API key; any valid key may ask.

    Without API keys, every request has all scopes of the tenant `default`.
    """
    record = None if api.keys is None or caller.key_text is None else await api.keys.find(caller.key_text)
    return KeyView(
        tenant=caller.tenant,
        name=None if record is None else record.name,
        scopes=[scope for scope in Scope if record is None or scope in record.scopes],
        expires_at=None if record is None else record.expires_s,
        open=api.keys is None,
        limits=limits_view(api.settings, caller.tenant),
    )


def limits_view(settings: Settings, tenant: str) -> LimitsView:
    """Return the limits and quotas of a tenant."""
    return LimitsView(
        jobs=settings.max_jobs(tenant),
        submissions_per_s=settings.max_submissions_per_s(tenant),
        body_bytes=settings.body_limit_bytes(tenant),
        upload_bytes=settings.upload_limit_bytes(tenant),
        device_seconds_per_day=settings.device_s_per_day(tenant),
        kept_bytes=settings.kept_limit_bytes(tenant),
    )
