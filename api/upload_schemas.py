"""Files that are sent to the service, whole or in parts, on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from penstock.api.schemas import Outgoing
from penstock.parts import MAX_PARTS
from penstock.requests import Incoming


class UploadRequest(Incoming):
    """A file that is about to be sent."""

    filename: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    content_type: Annotated[
        str, StringConstraints(max_length=255, pattern=r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+$")
    ] = "application/octet-stream"
    #: No number of a body has more bits.
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    #: Whether it is sent in parts, several at a time, which is for large files: it goes on where it broke off.
    multipart: bool = False


class PartRequest(Incoming):
    """A part of an upload that is about to be sent."""

    number: Annotated[int, Field(ge=1, le=MAX_PARTS)]
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]


class CompleteRequest(Incoming):
    """The file that the parts of an upload are: `etag` is the MD5 of the parts' MD5s, and their number (`...-3`)."""

    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    etag: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}-[0-9]{1,5}$")] | None = None


class UploadView(Outgoing):
    """Send the file as `method` `url` with exactly these `headers`, then name `media` in a job's input."""

    id: str
    media: str
    method: str
    url: str
    headers: dict[str, str]
    expires_at: datetime
    #: Whether the file came before, under the same `Idempotency-Key`: then it need not be sent.
    uploaded: bool


class PartView(Outgoing):
    """A part that has arrived."""

    number: int
    size_bytes: int
    etag: str


class PartsView(Outgoing):
    """An upload in parts of `part_bytes` each, but for the last: ask for a link for each, then complete it."""

    id: str
    media: str
    part_bytes: int
    #: Those that have arrived.
    parts: list[PartView]
    #: Whether it is complete.
    uploaded: bool


class PartLinkView(Outgoing):
    """Send the part as `method` `url` with exactly these `headers`; a `Content-MD5` beside them is checked."""

    number: int
    method: str
    url: str
    headers: dict[str, str]
    expires_at: datetime
