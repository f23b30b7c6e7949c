"""The addresses of map tiles: each carries a signed link, for which the API names the raster that may be read.

    /TENANT/JOB/artifact|input/NAME/tilejson.json?expires=...&signature=...
    /TENANT/JOB/artifact|input/NAME/Z/X/Y.png?expires=...&signature=...

This process holds no API key, no secret and no credentials of the store: it reads files of users.
"""

from __future__ import annotations

import json
import re
import time
import warnings
from functools import lru_cache
from typing import Annotated, Any, Final
from urllib.parse import quote

import anyio
from anyio import to_thread
from fastapi import FastAPI, Query, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

import penstock
from penstock.api import errors
from penstock.cores import cores
from penstock.errors import LinkRefused
from penstock.maps.drawing import MAX_ZOOM, Look, Source, draw, look_of
from penstock.maps.relay import Relay

#: Tiles that are drawn at once. Threads wait for the store most of the time.
THREADS: Final = 2 * cores()
#: Requests that wait or are answered at once; uvicorn answers 503 to more.
MOST_REQUESTS: Final = 256
#: Seconds for which the API's answer about a link is kept: so long is a deleted raster still drawn.
_KEPT_S = 300
_SOURCES, _LOOKS = 1024, 256
#: Zoom, column and row of a tile.
_TILE = re.compile(r"(?P<name>.+)/(?P<z>\d{1,2})/(?P<x>\d{1,8})/(?P<y>\d{1,8})\.png")
_TILEJSON = "/tilejson.json"


class Tiles:
    """The rasters of a service, by signed links."""

    def __init__(self, api: str) -> None:
        """Ask the API at an address."""
        self._relay = Relay(api)
        self._asked = lru_cache(_SOURCES)(self._ask)
        self._looks = lru_cache(_LOOKS)(look_of)

    def find(self, path: str, query: str, band: int) -> tuple[Source, Look, str]:
        """Return the raster of a signed link, its look, and the address of its tiles.

        Raises `LinkRefused`, or the error of the API or of the file.
        """
        source, xyz = self._asked(path, query, int(time.time() / _KEPT_S))
        if time.time() >= source.expires_s:
            raise LinkRefused
        return source, self._looks(source, band), xyz

    def _ask(self, path: str, query: str, _: int) -> tuple[Source, str]:
        body = self._relay.ask(f"/v1/tiles/{quote(path)}?{query}")
        xyz, bands = body.pop("xyz"), body.pop("bands")
        return Source(**body, bands=None if bands is None else tuple(bands)), xyz


def tile_app(api: str) -> FastAPI:
    """Return the app that draws tiles for the API at an address."""
    warnings.filterwarnings("ignore", module="rio_tiler")
    tiles, limiter = Tiles(api), anyio.CapacityLimiter(THREADS)
    app = FastAPI(openapi_url=None)
    errors.install(app)
    # Tiles need a signed link and no cookie: any page may show them.
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET"], expose_headers=["ETag"])

    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "ok"}

    @app.api_route("/{path:path}", methods=["GET", "HEAD"])
    async def answer(
        path: str, request: Request, expires: str = "", signature: str = "", band: Annotated[int, Query(ge=1)] = 1
    ) -> Response:  # fmt: skip
        query = f"expires={quote(expires)}&signature={quote(signature)}"
        if path.endswith(_TILEJSON):
            name = path.removesuffix(_TILEJSON)
            source, look, xyz = await to_thread.run_sync(tiles.find, name, query, band, limiter=limiter)
            return _answer(request, source, _tilejson(source, look, xyz, band), "application/json", str(band))
        z, x, y, name = _numbers(path)
        source, look, _ = await to_thread.run_sync(tiles.find, name, query, band, limiter=limiter)
        place = f"{band}-{z}-{x}-{y}"
        if _is_known(request, source, place):
            return _answer(request, source, b"", "image/png", place)
        png = await to_thread.run_sync(draw, source, look, z, x, y, limiter=limiter)
        return _answer(request, source, png, "image/png", place)

    return app


def _numbers(path: str) -> tuple[int, int, int, str]:
    """Return zoom, column, row and the raster's name; raise `HTTPException` (404) for a tile that no grid has."""
    found = _TILE.fullmatch(path)
    if found is None:
        raise HTTPException(404)
    z, x, y = int(found["z"]), int(found["x"]), int(found["y"])
    if z > MAX_ZOOM or max(x, y) >= 2**z:
        raise HTTPException(404)
    return z, x, y, found["name"]


def _tilejson(source: Source, look: Look, xyz: str, band: int) -> bytes:
    """Return the TileJSON 3.0.0 of a raster."""
    west, south, east, north = look.bounds
    document: dict[str, Any] = {
        "tilejson": "3.0.0",
        "name": source.title,
        "description": f"{source.title} of {source.model}",
        "attribution": f"{source.model}, Penstock {penstock.__version__}",
        "scheme": "xyz",
        "tiles": [xyz if band == 1 else f"{xyz}&band={band}"],
        "minzoom": look.minzoom,
        "maxzoom": look.maxzoom,
        "bounds": [west, south, east, north] if east <= 180 else [-180, south, 180, north],
        "center": [((west + east) / 2 + 180) % 360 - 180, (south + north) / 2, look.minzoom],
        "legend": "\n".join(look.legend),
        "bands": list(look.names),
    }
    return json.dumps(document).encode()


def _etag(source: Source, place: str) -> str:
    return f'"{source.etag[:32]}-{place}-{penstock.__version__}"'


def _is_known(request: Request, source: Source, place: str) -> bool:
    known = request.headers.get("if-none-match", "").split(",")
    return _etag(source, place) in [each.strip().removeprefix("W/") for each in known]


def _answer(request: Request, source: Source, content: bytes, kind: str, place: str) -> Response:
    left_s = max(0, int(source.expires_s - time.time()))
    headers = {
        "ETag": _etag(source, place),
        "Cache-Control": f"public, max-age={left_s}, immutable",
        "X-Content-Type-Options": "nosniff",
    }
    if _is_known(request, source, place):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=kind)
