"""Times of CF: `days since 2000-01-01`, in the calendar that clocks have. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_SECONDS: Final[Mapping[str, float]] = {
    "d": 86_400, "day": 86_400, "h": 3600, "hr": 3600, "hour": 3600, "min": 60, "minute": 60,
    "s": 1, "sec": 1, "second": 1, "ms": 1e-3, "millisecond": 1e-3, "microsecond": 1e-6, "nanosecond": 1e-9,
}  # fmt: skip
#: Calendars whose dates are those of `datetime`, for times after 1582.
_CALENDARS: Final = ("", "standard", "gregorian", "proleptic_gregorian", "utc")
_SINCE: Final = re.compile(r"\s*(\w+?)s?\s+since\s+(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[T\s]+(\S.*))?", re.IGNORECASE)


def is_time(units: str) -> bool:
    """Return True for units of a time."""
    return _SINCE.fullmatch(units) is not None


def decode_time(number: Any, units: str, calendar: str) -> datetime | None:
    """Return a time; None for units or a calendar that are not understood, and for numbers that are no time."""
    if isinstance(number, np.datetime64):
        return _of_numpy(number)
    found = _SINCE.fullmatch(units)
    seconds = _SECONDS.get(found[1].lower(), _SECONDS.get(found[1].lower() + "s")) if found else None
    if found is None or seconds is None or calendar.lower() not in _CALENDARS:
        return None
    try:
        day = datetime(int(found[2]), int(found[3]), int(found[4]), tzinfo=UTC)
        return day + _clock(found[5] or "") + timedelta(seconds=float(number) * seconds)
    except (ValueError, OverflowError):
        return None


def _clock(text: str) -> timedelta:
    """Return the time of a day: `12:30:01.5`, with or without a time zone. Raises `ValueError`."""
    plain = re.sub(r"\s*(?:UTC|GMT|Z)$", "+00:00", text.strip(), flags=re.IGNORECASE)
    clock = re.match(r"(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2})(\.\d+)?)?\s*([+-]\d{1,2}:?\d{2})?$", plain or "0")
    if clock is None:
        raise ValueError(text)
    hours, minutes, seconds, part, zone = clock.groups()
    away = timedelta()
    if zone:
        sign, digits = zone[0], zone[1:].replace(":", "").zfill(4)
        away = timedelta(hours=int(digits[:2]), minutes=int(digits[2:])) * (1 if sign == "+" else -1)
    at = timedelta(hours=int(hours), minutes=int(minutes or 0), seconds=int(seconds or 0) + float(part or 0))
    return at - away


def _of_numpy(number: np.datetime64) -> datetime | None:
    if np.isnat(number):
        return None
    try:
        found = number.astype("datetime64[us]").item()
    except (ValueError, OverflowError):
        return None
    return found.replace(tzinfo=UTC) if isinstance(found, datetime) else None


def decode_times(numbers: npt.NDArray[Any], units: str, calendar: str) -> list[datetime | None]:
    """Return the first and the last of several times."""
    ends = [numbers[0], numbers[-1]] if numbers.size else []
    return [decode_time(end, units, calendar) for end in ends]
