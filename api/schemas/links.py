"""Schemas of links to files."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from penstock.api.schemas.jobs import Outgoing


class FileLinkView(Outgoing):
    """A signed link to a file."""

    #: `artifact`: a file of the result; `input`: an upload that the input names.
    kind: Literal["artifact", "input"]
    #: The file's name.
    name: str
    pointer: str | None = Field(description="JSON pointer of the reference in the input; null for an artifact.")
    url: str


class LinkList(Outgoing):
    """Links to the files of a job, all valid until `expires_at`."""

    links: list[FileLinkView]
    expires_at: datetime
