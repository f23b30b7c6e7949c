"""Queries: no parameter is given twice, and which jobs `GET /v1/jobs` is to hold."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import Request
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from penstock.errors import InvalidRequest
from penstock.jobs import Status
from penstock.reports import Issue
from penstock.requests import MetadataValue
from penstock.times import Time, wrong_with

#: Of a list's filters: `metadata.KEY=VALUE`.
METADATA = "metadata."
#: Of a parameter's name, in a sentence.
NAME_CHARS = 80
#: `penstock.storage.listing.Page`: the microsecond and the id of the last job looked at.
CURSOR = r"^[0-9]{1,16}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"

#: What OpenAPI says of the filters whose names are the caller's.
_METADATA = {
    "name": "metadata.*",
    "in": "query",
    "description": "`metadata.KEY=VALUE`: only jobs with this metadata. Several are all asked for.",
    "style": "form",
    "explode": True,
    "schema": {
        "type": "object",
        "propertyNames": {"pattern": r"^metadata\..{1,64}$"},
        "additionalProperties": {"type": "string", "maxLength": 512},
    },
}
FILTERS: dict[str, Any] = {"parameters": [_METADATA]}


async def each_once(request: Request) -> None:
    """Raise `InvalidRequest` for parameters that are given more than once: no route takes several values."""
    counts = Counter(name for name, _ in request.query_params.multi_items())
    twice = [name[:NAME_CHARS] for name, count in counts.items() if count > 1]
    if twice:
        raise InvalidRequest(errors=[Issue("", f"query parameter {name} is given more than once") for name in twice])


def _time(text: str) -> str:
    if wrong_with(text) is not None:
        raise PydanticCustomError("time", "must be a time as 2026-01-31T12:00:00Z (a + in a query is written %2B)")
    return text


def _metadata_name(name: str) -> str:
    if not (name.startswith(METADATA) and 0 < len(name) - len(METADATA) <= 64):
        raise PydanticCustomError("extra_forbidden", "is not known")
    return name


_Time = Annotated[Time, BeforeValidator(_time)]


class JobQuery(BaseModel):
    """Which jobs a list is to hold. Further parameters are `metadata.KEY=VALUE`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[Annotated[str, AfterValidator(_metadata_name)], MetadataValue] = Field(init=False)

    cursor: Annotated[str, StringConstraints(pattern=CURSOR)] | None = Field(
        default=None, description="`next_cursor` of the page before."
    )
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    status: Status | None = None
    model: str | None = None
    batch_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F-]{36}$", to_lower=True)] | None = None
    created_after: _Time | None = Field(default=None, description="Only jobs made later than this.")
    created_before: _Time | None = Field(default=None, description="Only jobs made earlier than this.")

    @property
    def metadata(self) -> dict[str, str]:
        """What jobs must carry."""
        return {name.removeprefix(METADATA): value for name, value in (self.model_extra or {}).items()}

    @property
    def after_s(self) -> float | None:
        """`created_after` in seconds since the epoch."""
        return None if self.created_after is None else self.created_after.timestamp()

    @property
    def before_s(self) -> float | None:
        """`created_before` in seconds since the epoch."""
        return None if self.created_before is None else self.created_before.timestamp()
