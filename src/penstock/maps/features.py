"""OGC API - Features 1.0 (OGC 17-069r4), read only, over the polygons of a service's jobs.

Each file of polygons (FlatGeobuf) of a job is a collection. A request is answered with the key of its sender, which the
API judges; this process keeps none.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import httpx2
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

from penstock.api import errors
from penstock.cores import cores
from penstock.errors import RequestError, ServiceError, UnknownArtifact
from penstock.maps import polygons
from penstock.maps.polygons import MOST_FEATURES, USUAL_FEATURES, Box
from penstock.maps.relay import Relay

#: Requests that wait or are answered at once; uvicorn answers 503 to more.
MOST_REQUESTS: Final = 128
_SPEC = "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/"
CONFORMANCE: Final = (_SPEC + "core", _SPEC + "geojson")
CRS84: Final = "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
GEOJSON: Final = "application/geo+json"
#: Jobs that a page of collections looks at, at most as many as the API lists at once.
_JOBS = 200
_FILES = ".fgb"
#: Bytes of a job's STAC item that are read for its time.
_ITEM, _ITEM_BYTES = "item.json", 5_000_000

P = ParamSpec("P")
T = TypeVar("T")

#: First and last time of a scene, or of a filter, where None is open.
Interval = tuple[datetime | None, datetime | None]


@dataclass(frozen=True, slots=True)
class Filters:
    """The parameters of a request for features."""

    limit: int
    offset: int
    box: Box | None
    interval: Interval | None


def read_filters(query: Mapping[str, str]) -> Filters:
    """Return the parameters of a request for features; raise `RequestError` for a wrong or an unknown one."""
    if unknown := query.keys() - {"limit", "offset", "bbox", "datetime", "f"}:
        raise RequestError(f"there is no parameter {min(unknown)!r}; known: limit, offset, bbox, datetime")
    limit = min(_whole(query, "limit", USUAL_FEATURES, least=1), MOST_FEATURES)
    box = _box(query["bbox"]) if "bbox" in query else None
    interval = _interval(query["datetime"]) if "datetime" in query else None
    return Filters(limit, _whole(query, "offset", 0, least=0), box, interval)


def _whole(query: Mapping[str, str], name: str, usual: int, *, least: int) -> int:
    text = query.get(name, str(usual))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        raise RequestError(f"{name} is no whole number of at least {least}")
    return int(text)


def _box(text: str) -> Box:
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError as error:
        raise RequestError("bbox is not four or six numbers") from error
    if len(numbers) == 6:
        numbers = [*numbers[:2], *numbers[3:5]]  # heights: the polygons have none
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        raise RequestError("bbox is not four or six numbers")
    west, south, east, north = numbers
    if south > north or max(abs(south), abs(north)) > 90 or max(abs(west), abs(east)) > 180:
        raise RequestError("bbox is not west, south, east and north in degrees")
    return west, south, east, north


def _interval(text: str) -> Interval:
    first, slash, last = text.partition("/")
    try:
        start, end = (None if each in ("", "..") else _time(each) for each in (first, last if slash else first))
    except ValueError as error:
        raise RequestError(
            "datetime is no time and no interval of RFC 3339, such as 2026-01-31T00:00:00Z/.."
        ) from error
    if (start is None and end is None) or (start and end and start > end):
        raise RequestError("datetime has no end, or its end is before its start")
    return start, end


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text if "T" in text.upper() else "")  # a date is no time
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def meet(scene: Interval | None, wanted: Interval | None) -> bool:
    """Return True if a scene's time meets a filter. A scene whose time nobody knows meets all."""
    if scene is None or wanted is None:
        return True
    (first, last), (start, end) = scene, wanted
    return not ((end and first and first > end) or (start and last and last < start))


class Readers:
    """Processes that read polygons: pyogrio holds Python's lock while it waits for the store."""

    def __init__(self) -> None:
        self._pool = self._new()

    def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function of `polygons` returns; `ServiceError` where its process ended."""
        pool = self._pool
        try:
            return pool.submit(function, *args, **kwargs).result()
        except BrokenProcessPool as error:
            if pool is self._pool:
                self._pool = self._new()
            raise ServiceError("the process that read the polygons ended") from error

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _new() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(2 * cores(), multiprocessing.get_context("spawn"), _begin)


def _begin() -> None:
    """Prepare a reader. It ends with its parent, however that ends."""
    parent = multiprocessing.parent_process()

    def end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end, daemon=True).start()
    polygons.prepare()


class Features:
    """The collections of a service."""

    def __init__(self, api: str, readers: Readers) -> None:
        """Ask the API at an address."""
        self._relay, self._readers = Relay(api), readers

    def collections(self, root: str, key: str | None, cursor: str | None) -> dict[str, Any]:
        """Return a page of collections, those of the newest jobs first."""
        query = {"status": "succeeded", "limit": _JOBS} | ({"cursor": cursor} if cursor else {})
        answer = self._relay.ask(f"/v1/jobs?{urlencode(query)}", key=key)
        here = f"{root}/collections"
        links = [_link(here, "self")]
        if answer["next_cursor"]:
            links.append(_link(f"{here}?{urlencode({'cursor': answer['next_cursor']})}", "next"))
        jobs = [(job, [each["name"] for each in job["artifacts"]]) for job in answer["jobs"]]
        found = [_collection(root, job, name) for job, names in jobs for name in names if name.endswith(_FILES)]
        return {"links": links, "collections": found}

    def collection(self, root: str, key: str | None, name: str) -> dict[str, Any]:
        """Return a collection with its extent."""
        job_id, _, _ = name.partition(":")
        file, links = self._file(key, name)
        job = self._relay.ask(f"/v1/jobs/{quote(job_id, safe='')}", key=key)
        extent: dict[str, Any] = {}
        if bounds := self._readers.read(polygons.about, links[file]).bounds:
            extent["spatial"] = {"bbox": [list(bounds)], "crs": CRS84}
        if times := _scene_time(links):
            extent["temporal"] = {"interval": [[each and each.isoformat() for each in times]]}
        return _collection(root, job, file) | {"extent": extent}

    def items(self, root: str, key: str | None, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of features."""
        filters = read_filters(query)
        file, links = self._file(key, name)
        url, here = links[file], f"{root}/collections/{quote(name)}"
        shown = filters.interval is None or meet(_scene_time(links), filters.interval)
        found = polygons.Page([], more=False)
        if shown:
            found = self._readers.read(polygons.page, url, offset=filters.offset, limit=filters.limit, box=filters.box)
        asked = f"{here}/items" + (f"?{urlencode(query)}" if query else "")
        more = [_link(asked, "self", GEOJSON), _link(here, "collection")]
        if found.more:
            following = {**query, "limit": filters.limit, "offset": filters.offset + filters.limit}
            more.append(_link(f"{here}/items?{urlencode(following)}", "next", GEOJSON))
        count = self._readers.read(polygons.about, url).count if shown and filters.box is None else 0
        counted = {} if filters.box else {"numberMatched": count}
        stamp = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        about = {"timeStamp": stamp, "numberReturned": len(found.features), **counted}
        return {"type": "FeatureCollection", "features": found.features, "links": more, **about}

    def item(self, root: str, key: str | None, name: str, number: str) -> dict[str, Any]:
        """Return a feature; raise `UnknownArtifact` without one."""
        file, links = self._file(key, name)
        known = number.isascii() and number.isdigit() and len(number) < 10
        feature = self._readers.read(polygons.one, links[file], int(number)) if known else None
        if feature is None:
            raise UnknownArtifact(f"the collection has no feature {number[:20]!r}")
        here = f"{root}/collections/{quote(name)}"
        return feature | {"links": [_link(f"{here}/items/{number}", "self", GEOJSON), _link(here, "collection")]}

    def _file(self, key: str | None, name: str) -> tuple[str, dict[str, str]]:
        """Return the file of a collection, and links to all files of its job by their names."""
        job_id, _, _ = name.partition(":")
        answer = self._relay.ask(f"/v1/jobs/{quote(job_id, safe='')}/links", key=key)
        links = {link["name"]: link["url"] for link in answer["links"] if link["kind"] == "artifact"}
        for file in links:
            if file.endswith(_FILES) and _id(job_id, file) == name:
                return file, links
        raise UnknownArtifact(f"there is no collection {name[:100]!r}")


def _id(job_id: str, file: str) -> str:
    return f"{job_id}:{file.removesuffix(_FILES).replace('/', '~')}"


def _collection(root: str, job: Mapping[str, Any], file: str) -> dict[str, Any]:
    name = _id(job["id"], file)
    here = f"{root}/collections/{quote(name)}"
    labels = ", ".join(f"{key}={value}" for key, value in job["metadata"].items())
    return {
        "id": name,
        "title": f"{job['model']} {job['created_at'][:16]} {file.removesuffix(_FILES)}",
        "description": f"Polygons of the job {job['id']} of {job['model']}" + (f" ({labels})" if labels else ""),
        "itemType": "feature",
        "crs": [CRS84],
        "links": [_link(here, "self"), _link(f"{here}/items", "items", GEOJSON)],
    }


def _scene_time(links: Mapping[str, str]) -> Interval | None:
    """Return the time of a job's scenes by its STAC item; None without one."""
    if _ITEM not in links:
        return None
    try:
        answer = httpx2.get(links[_ITEM], headers={"Range": f"bytes=0-{_ITEM_BYTES - 1}"}, timeout=20)
        about = answer.json()["properties"]
        one = about.get("datetime")
        return _time(one or about["start_datetime"]), _time(one or about["end_datetime"])
    except (httpx2.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _link(href: str, rel: str, kind: str = "application/json") -> dict[str, str]:
    return {"href": href, "rel": rel, "type": kind}


def _key(request: Request) -> str | None:
    """Return the API key of a request: a bearer, or the password of basic authentication, as QGIS sends it."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return text.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return b64decode(text, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def feature_app(api: str, public_url: str, hosts: Sequence[str]) -> FastAPI:
    """Return the app for the API at an address. `public_url` begins its links; it answers to the names in `hosts`."""
    readers, root = Readers(), public_url.rstrip("/")
    features = Features(api, readers)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        readers.close()

    title = "Polygons of results"
    app = FastAPI(title=title, version="1", openapi_url="/api", docs_url=None, redoc_url=None, lifespan=lifespan)
    errors.install(app)
    # Without keys, a page of another site must not reach this process by a name that it made point here.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts, urlsplit(root).hostname or "", "localhost"])

    @app.get("/")
    def landing() -> dict[str, Any]:
        """Return the links of the service."""
        links = [
            _link(f"{root}/", "self"),
            _link(f"{root}/api", "service-desc", "application/vnd.oai.openapi+json;version=3.1"),
            _link(f"{root}/conformance", "conformance"),
            _link(f"{root}/collections", "data"),
        ]
        return {"title": app.title, "description": "OGC API - Features of Penstock's results.", "links": links}

    @app.get("/conformance")
    def conformance() -> dict[str, Any]:
        """Return the conformance classes."""
        return {"conformsTo": CONFORMANCE}

    @app.get("/collections")
    def collections(request: Request) -> dict[str, Any]:
        """Return the collections: each file of polygons of a job that has succeeded, the newest first."""
        return features.collections(root, _key(request), request.query_params.get("cursor"))

    @app.get("/collections/{name}")
    def collection(name: str, request: Request) -> dict[str, Any]:
        """Return a collection with its extent."""
        return features.collection(root, _key(request), name)

    @app.get("/collections/{name}/items")
    def items(name: str, request: Request) -> JSONResponse:
        """Return a page of features: `limit`, `offset`, `bbox` (CRS84) and `datetime`."""
        found = features.items(root, _key(request), name, dict(request.query_params))
        return JSONResponse(found, media_type=GEOJSON)

    @app.get("/collections/{name}/items/{number}")
    def item(name: str, number: str, request: Request) -> JSONResponse:
        """Return a feature."""
        return JSONResponse(features.item(root, _key(request), name, number), media_type=GEOJSON)

    return app
