"""Metadata files of a scene (JSON, XML): size-limited, safe parsing of untrusted documents."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.processors import documents

#: Size limit of a metadata file; real files are below 1 MB.
_MAX_BYTES = 16 * 2**20


def read_text(path: Path, what: str) -> str:
    """Return a document's text. Raises `MediaTooLarge`, or `MediaUnreadable` for text that is not UTF-8."""
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
    if "<!DOCTYPE" in text:  # a DTD can define entities that read files or expand without limit
        raise MediaUnreadable(f"The {what} has a document type declaration, which is not allowed.")
    try:
        return ElementTree.fromstring(text)  # noqa: S314  (the attacks behind this rule need a DTD)
    except (ElementTree.ParseError, ValueError) as error:
        raise MediaUnreadable(f"The {what} is not XML: {error}.") from error


def parse_time(text: Any) -> datetime | None:
    """Return an ISO 8601 time with a time zone; None for anything else, because the time is optional."""
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def parse_number(value: Any, what: str) -> float:
    """Return a number, also from text (`"0.1"`, `"nan"`). Raises `MediaUnreadable` that names the field."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise MediaUnreadable(f"The {what} is {str(value)[:40]!r}, not a number.") from None
    return math.nan if math.isnan(found) else found  # one NaN object, so that equal declarations compare as equal
