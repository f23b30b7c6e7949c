"""Query parameters: rejects repeated ones, and describes the filters of `GET /v1/jobs`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import Request
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from penstock.errors import InvalidRequest, Issue
from penstock.jobs import Status
from penstock.requests import MetadataValue
from penstock.times import Time, wrong_with

#: Prefix of metadata filters: `metadata.KEY=VALUE`.
METADATA = "metadata."
#: Characters of a parameter's name that an error message shows.
NAME_CHARS = 80
#: A cursor of `penstock.storage.redis.listing.Page`: microsecond and id of the last job read.
CURSOR = r"^[0-9]{1,16}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"

#: OpenAPI description of the metadata filters.
_METADATA = {
    "name": "metadata.*",
    "in": "query",
    "description": "`metadata.KEY=VALUE`: only jobs with this metadata. Several filters must all match.",
    "style": "form",
    "explode": True,
    "schema": {
        "type": "object",
        "propertyNames": {"pattern": r"^metadata\..{1,64}$"},
        "additionalProperties": {"type": "string", "maxLength": 512},
    },
}
FILTERS: dict[str, Any] = {"parameters": [_METADATA]}


async def unique_parameters(request: Request) -> None:
    """Raise `InvalidRequest` for repeated parameters: no parameter has several values."""
    counts = Counter(name for name, _ in request.query_params.multi_items())
    twice = [name[:NAME_CHARS] for name, count in counts.items() if count > 1]
    if twice:
        raise InvalidRequest(errors=[Issue("", f"query parameter {name} is given more than once") for name in twice])


def _time(text: str) -> str:
    if wrong_with(text) is not None:
        raise PydanticCustomError("time", "must be a time such as 2026-01-31T12:00:00Z (write + as %2B)")
    return text


def _metadata_name(name: str) -> str:
    if not (name.startswith(METADATA) and 0 < len(name) - len(METADATA) <= 64):
        raise PydanticCustomError("extra_forbidden", "is not known")
    return name


_Time = Annotated[Time, BeforeValidator(_time)]


class JobQuery(BaseModel):
    """The filters of a list of jobs. Further parameters are `metadata.KEY=VALUE`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[Annotated[str, AfterValidator(_metadata_name)], MetadataValue] = Field(init=False)

    cursor: Annotated[str, StringConstraints(pattern=CURSOR)] | None = Field(
        default=None, description="The `next_cursor` of the previous page."
    )
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    status: Status | None = None
    model: str | None = None
    batch_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F-]{36}$", to_lower=True)] | None = None
    created_after: _Time | None = Field(default=None, description="Only jobs created later than this time.")
    created_before: _Time | None = Field(default=None, description="Only jobs created earlier than this time.")

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata that jobs must have."""
        return {name.removeprefix(METADATA): value for name, value in (self.model_extra or {}).items()}

    @property
    def after_s(self) -> float | None:
        """`created_after` in seconds since the epoch."""
        return None if self.created_after is None else self.created_after.timestamp()

    @property
    def before_s(self) -> float | None:
        """`created_before` in seconds since the epoch."""
        return None if self.created_before is None else self.created_before.timestamp()
