"""The raster of a signed tile link: `penstock tiles` holds no secret, and asks here which file a link is for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from fastapi import APIRouter, Request

from penstock.api.errors import problems
from penstock.api.routes.artifacts import find_artifact
from penstock.api.routes.links import uploads
from penstock.api.schemas.jobs import Outgoing
from penstock.api.services import Api, Services
from penstock.api.tile_links import addresses, signed_path
from penstock.errors import LinkRefused, UnknownArtifact
from penstock.jobs import Job, JobKey
from penstock.storage.journal import journal
from penstock.storage.signing import verify_link

_COLOURS: Final = ("red", "green", "blue")

router = APIRouter(prefix="/v1/tiles", include_in_schema=False, responses=problems(403, 404, 410, 503))


class TileSource(Outgoing):
    """A raster to draw: a short-lived link to its file, and the parts of the job's statistics that a map needs."""

    #: Link to the file. It supports ranges.
    url: str
    #: Tag of the file's bytes, which never change.
    etag: str
    #: File name, and the model that was applied.
    title: str
    model: str
    #: Time at which the tile link expires, in seconds since the epoch, and the address of the tiles.
    expires_s: int
    xyz: str
    #: Numbers of an input's red, green and blue bands, from 1; null for a result.
    bands: tuple[int, int, int] | None
    #: Nodata number of an input, where all its bands have the same; null for the file's own.
    nodata: float | None


@router.get("/{tenant}/{job_id}/{kind}/{name:path}")
async def read_tile_source(
    tenant: str, job_id: str, kind: str, name: str, request: Request, api: Api
) -> TileSource:  # fmt: skip
    """Return the raster of a signed link; `link_refused` if the signature is wrong or the link has expired."""
    if api.settings.tiles_url is None:
        raise LinkRefused
    key = JobKey(tenant, job_id)
    query, secret = request.query_params, api.settings.signing_secret
    link = verify_link(secret, "TILES", signed_path(key, kind, name), query, at=time.time())
    job = await api.journal.run(journal.read(key))
    bands: tuple[int, int, int] | None = None
    nodata: float | None = None
    if kind == "artifact":
        artifact = find_artifact(job.artifacts, name, "job")
        place, etag = artifact.key, artifact.sha256
    else:
        place = _upload(api, job, f"/{name}")
        etag = sha256(place.encode()).hexdigest()  # nothing is ever uploaded twice to one place
        stats = (await api.journal.run(journal.whole(job))).data or {}
        bands, nodata = _bands(stats), _nodata(stats)
    filename, expires_s = place.rpartition("/")[2], api.settings.link_expires_s
    return TileSource(
        url=await asyncio.to_thread(api.objects.presign_get, place, filename=filename, expires_s=expires_s),
        etag=etag, title=name if kind == "artifact" else filename, model=job.submission.model,
        expires_s=link.expires_s, xyz=addresses(api.settings, link).xyz, bands=bands, nodata=nodata,
    )  # fmt: skip


def _upload(api: Services, job: Job, pointer: str) -> str:
    """Return the object key of the upload that the input names at a JSON pointer."""
    for at, key in uploads(api, job):
        if at == pointer:
            return key
    raise UnknownArtifact(f"the job's input names no upload at {pointer}")


def _bands(stats: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the numbers of a scene's red, green and blue bands by the statistics; 1 for one that they do not name."""
    numbers = {band.get("name"): band.get("index") for band in stats.get("bands") or ()}
    red, green, blue = (numbers.get(colour) or 1 for colour in _COLOURS)
    return red, green, blue


def _nodata(stats: Mapping[str, Any]) -> float | None:
    nodata = (stats.get("radiometry") or {}).get("nodata")
    return float(nodata) if isinstance(nodata, int | float) else None
