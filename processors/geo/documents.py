"""Small documents that come beside a scene, read with care: they are as foreign as the scene itself."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.processors import documents

#: Real ones are below 1 MB.
_MAX_BYTES = 16 * 2**20


def read_text(path: Path, what: str) -> str:
    """Return a document's text. Raises `MediaTooLarge`, or `MediaUnreadable` for what is no UTF-8."""
    if path.stat().st_size > _MAX_BYTES:
        raise MediaTooLarge(f"The {what} has {path.stat().st_size:,} bytes; at most {_MAX_BYTES:,} are read.")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MediaUnreadable(f"The {what} is not UTF-8 text.") from error


def parse_json(text: str, what: str) -> dict[str, Any]:
    """Return a JSON object; raise `MediaUnreadable` for anything else."""
    value = documents.parse_json(text, what)
    if not isinstance(value, dict):
        raise MediaUnreadable(f"The {what} is not a JSON object.")
    return value


def parse_xml(text: str, what: str) -> ElementTree.Element:
    """Return the root of an XML document without a DTD; raise `MediaUnreadable` for anything else."""
    if "<!DOCTYPE" in text:  # where entities come from: to name files, and to grow without end
        raise MediaUnreadable(f"The {what} has a document type declaration, which is not read.")
    try:
        return ElementTree.fromstring(text)  # noqa: S314  (what the rule fears needs a DTD)
    except (ElementTree.ParseError, ValueError) as error:
        raise MediaUnreadable(f"The {what} is not XML: {error}.") from error


def moment(text: Any) -> datetime | None:
    """Return an ISO 8601 time with its zone; None for anything else: results can do without it."""
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def number(value: Any, what: str) -> float:
    """Return a number, which may stand as text (`"0.1"`, `"nan"`); raise `MediaUnreadable` naming what is none."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise MediaUnreadable(f"The {what} is {str(value)[:40]!r}, not a number.") from None
    return math.nan if math.isnan(found) else found  # one NaN, so that equal words are equal
