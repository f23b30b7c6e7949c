"""Signed addresses of the map tiles that `penstock tiles` draws of a job's rasters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from penstock.config import Settings
from penstock.jobs import JobKey
from penstock.storage.signing import SignedLink, sign_link

#: An artifact of the job, or an upload that its input names.
Kind = Literal["artifact", "input"]
#: Seconds for which the addresses stay the same, so that the caches of browsers serve a map that is opened again.
_SAME_S = 3600
_RASTERS = re.compile(r"\.tiff?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TileLinks:
    """The addresses of a raster's tiles. They need no API key."""

    tilejson: str
    #: With the placeholders `{z}`, `{x}` and `{y}`.
    xyz: str


def signed_path(key: JobKey, kind: str, name: str) -> str:
    """Return the text that a link signs. `name`: an artifact's name, or an upload's JSON pointer without its `/`."""
    return f"{key.tenant}/{key.id}/{kind}/{name}"


def tiles_expire_s(settings: Settings, *, at: float) -> int:
    """Return the time at which links made now expire, in seconds since the epoch."""
    return (int(at) // _SAME_S + 1) * _SAME_S + settings.tile_link_expires_s


def tile_links(settings: Settings, key: JobKey, kind: Kind, name: str, filename: str, *, at: float) -> TileLinks | None:
    """Return the addresses of a file's tiles; None for a file that is no GeoTIFF, and without `tiles_url`."""
    if settings.tiles_url is None or not _RASTERS.search(filename):
        return None
    return addresses(settings, SignedLink("TILES", signed_path(key, kind, name), tiles_expire_s(settings, at=at)))


def addresses(settings: Settings, link: SignedLink) -> TileLinks:
    """Return the addresses with the signature of a link."""
    base = f"{(settings.tiles_url or '').rstrip('/')}/{quote(link.key)}"
    query = sign_link(settings.signing_secret, link)
    return TileLinks(f"{base}/tilejson.json?{query}", f"{base}/{{z}}/{{x}}/{{y}}.png?{query}")
