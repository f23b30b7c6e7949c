"""Signed links to the files of a job: its artifacts, and the uploads that its input names."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from penstock.api.auth import Key
from penstock.api.errors import problems
from penstock.api.schemas.jobs import Outgoing, Time
from penstock.api.services import Api, Services
from penstock.api.tile_links import Kind, tile_links, tiles_expire_s
from penstock.errors import MediaNotFound
from penstock.intake.media import UploadReference, parse_reference
from penstock.jobs import Job
from penstock.storage.journal import journal

#: Inputs of one answer.
MAX_INPUTS = 200

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(503))


class FileLinkView(Outgoing):
    """A signed link to a file."""

    #: `artifact`: a file of the result; `input`: an upload that the input names.
    kind: Kind
    #: The file's name.
    name: str
    pointer: str | None = Field(description="JSON pointer of the reference in the input; null for an artifact.")
    url: str
    #: Address of the TileJSON of a GeoTIFF's map tiles; null for other files, and where no `tiles_url` is set.
    tilejson: str | None
    #: Address of the tiles, with the placeholders {z}, {x} and {y}.
    xyz: str | None


class LinkList(Outgoing):
    """Links to the files of a job, all valid until `expires_at`; those of tiles until `tiles_expire_at`."""

    links: list[FileLinkView]
    expires_at: Time
    #: Null without tiles.
    tiles_expire_at: Time | None


@router.get("/{job_id}/links", responses=problems(404, 410))
async def list_links(key: Key, api: Api) -> LinkList:
    """Return short-lived links to a job's artifacts and uploaded inputs: they need no API key, and support ranges.

    Inputs in other buckets or on the web have no link. A file that was deleted meanwhile has one that answers 404.
    """
    job = await api.journal.run(journal.read(key))
    expires_s, now_s = api.settings.link_expires_s, time.time()
    links = await asyncio.to_thread(lambda: list(_links(api, job, expires_s, at=now_s)))
    tiled = any(link.tilejson for link in links)
    return LinkList(
        links=links,
        expires_at=now_s + expires_s,
        tiles_expire_at=tiles_expire_s(api.settings, at=now_s) if tiled else None,
    )


def _links(api: Services, job: Job, expires_s: int, *, at: float) -> Iterator[FileLinkView]:
    def link(kind: Kind, name: str, pointer: str | None, key: str) -> FileLinkView:
        filename = key.rpartition("/")[2]
        url = api.objects.presign_get(key, filename=filename, expires_s=expires_s)
        tiles = tile_links(api.settings, job.key, kind, name if pointer is None else pointer[1:], filename, at=at)
        return FileLinkView(
            kind=kind, name=name, pointer=pointer, url=url, tilejson=tiles and tiles.tilejson, xyz=tiles and tiles.xyz
        )

    for artifact in job.artifacts:
        yield link("artifact", artifact.name, None, artifact.key)
    for pointer, key in uploads(api, job):
        yield link("input", key.rpartition("/")[2], pointer, key)


def uploads(api: Services, job: Job) -> list[tuple[str, str]]:
    """Return the JSON pointer and the object key of each upload that the input names."""
    found: list[tuple[str, str]] = []
    for pointer, text in _references(job.submission.input, ""):
        try:
            media = parse_reference(text, tenant=job.key.tenant, settings=api.settings)
        except MediaNotFound:
            continue
        if isinstance(media, UploadReference):
            found.append((pointer, media.key))
        if len(found) == MAX_INPUTS:
            break
    return found


def _references(value: Any, pointer: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of an input that look like a reference to an upload, with their JSON pointers."""
    waiting = deque([(pointer, value)])
    while waiting:
        here, one = waiting.popleft()
        if isinstance(one, str) and one.startswith("media://"):
            yield here, one
        elif isinstance(one, dict):
            waiting += [(f"{here}/{name.replace('~', '~0').replace('/', '~1')}", each) for name, each in one.items()]
        elif isinstance(one, list):
            waiting += [(f"{here}/{index}", each) for index, each in enumerate(one)]
