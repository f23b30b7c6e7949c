"""The API key of a request: its tenant, scopes and limits."""

from __future__ import annotations

from fastapi import APIRouter

from penstock.api.auth import Caller
from penstock.api.errors import problems
from penstock.api.schemas.key import KeyView, LimitsView
from penstock.api.services import Api
from penstock.api_keys import Scope
from penstock.config import Settings

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
