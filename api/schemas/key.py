"""Schemas of the request's API key."""

from __future__ import annotations

from pydantic import Field

from penstock.api.schemas.jobs import Outgoing, Time
from penstock.api_keys import Scope


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
