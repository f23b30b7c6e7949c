"""Schemas of uploads, single and multipart."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from penstock.api.schemas.jobs import Outgoing, Time
from penstock.multipart import MAX_PARTS
from penstock.requests import Incoming


class UploadRequest(Incoming):
    """A file to upload."""

    filename: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    content_type: Annotated[
        str, StringConstraints(max_length=255, pattern=r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+$")
    ] = "application/octet-stream"
    #: The size in bytes; JSON integers have at most 64 bits.
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    #: True for a multipart upload: parts are sent in parallel, and an interrupted upload can be resumed.
    multipart: bool = False


class PartRequest(Incoming):
    """A part of a multipart upload to send."""

    number: Annotated[int, Field(ge=1, le=MAX_PARTS)]
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]


class CompleteRequest(Incoming):
    """The completion of a multipart upload. `etag` is the MD5 of the parts' MD5s and the number of parts (`...-3`)."""

    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    etag: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}-[0-9]{1,5}$")] | None = None


class UploadView(Outgoing):
    """Send the file as `method` `url` with exactly these `headers`, then name `media` in a job's input."""

    id: str
    media: str
    method: str
    url: str
    headers: dict[str, str]
    expires_at: Time
    #: True where the file already arrived under the same `Idempotency-Key` and need not be sent.
    uploaded: bool


class PartView(Outgoing):
    """An arrived part."""

    number: int
    size_bytes: int
    etag: str


class MultipartView(Outgoing):
    """A multipart upload: parts of `part_bytes` each, except the last. Request a link per part, then complete it."""

    id: str
    media: str
    part_bytes: int
    #: The arrived parts.
    parts: list[PartView]
    #: True where the upload is complete.
    uploaded: bool


class PartLinkView(Outgoing):
    """Send the part as `method` `url` with exactly these `headers`. An additional `Content-MD5` is checked."""

    number: int
    method: str
    url: str
    headers: dict[str, str]
    expires_at: Time
