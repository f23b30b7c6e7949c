"""Times in requests: date, time and zone by ISO 8601. Numbers are rejected, although pydantic would accept them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

#: Used in the JSON Schema too, where `format` alone is not binding.
_PATTERN = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]{1,9})?)?([Zz]|[+-][0-9]{2}:?[0-9]{2})$"
)
_WHOLE = re.compile(_PATTERN)
_WITHOUT_ZONE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt][0-9:.,]+)?")
_NO_ZONE = "must have a time zone, such as Z"
_NO_TIME = "must be a time such as 2026-01-31T12:00:00Z"


def wrong_with(given: Any) -> str | None:
    """Return what is wrong with the text of a time; None if its format is right."""
    if not isinstance(given, str):
        return _NO_TIME
    if _WITHOUT_ZONE.fullmatch(given):
        return _NO_ZONE
    return None if _WHOLE.fullmatch(given) else _NO_TIME


def _written(given: Any) -> Any:
    if isinstance(given, datetime):
        return given
    if (wrong := wrong_with(given)) is not None:
        raise PydanticCustomError("time", wrong)  # a constant of this module
    return given


def _in_utc(time: datetime) -> datetime:
    try:
        time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("must lie in the years 1 to 9999 of UTC") from error
    return time


Time = Annotated[
    AwareDatetime,
    BeforeValidator(_written),
    AfterValidator(_in_utc),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": _PATTERN}),
]
