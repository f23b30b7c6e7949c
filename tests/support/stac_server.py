"""A STAC API for tests, with search by GET and POST, pages, and the files of its items by range.

It filters by area, time, collection and, as far as it claims to, by `filter`. Its items are a
list that a test may change at any time.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from penstock.intake.item_filter import why_not
from tests.support.web_server import in_thread

_CORE = (
    "https://api.stacspec.org/v1.0.0/core", "https://api.stacspec.org/v1.0.0/collections",
    "https://api.stacspec.org/v1.0.0/ogcapi-features", "https://api.stacspec.org/v1.0.0/item-search",
)  # fmt: skip
FILTER = "https://api.stacspec.org/v1.0.0/item-search#filter"
TEXT = "http://www.opengis.net/spec/cql2/1.0/conf/cql2-text"
_OPERATORS = {
    "<": operator.lt, "<=": operator.le, "=": operator.eq, "<>": operator.ne, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class StacApi:
    """The items of a STAC API, its abilities, and the requests that it got."""

    #: Items of all collections, in the order in which the API returns them.
    items: list[dict[str, Any]] = field(default_factory=list)
    #: Collections, by id; those of the items are added.
    collections: Sequence[str] = ()
    #: Further conformance classes: `FILTER`, `TEXT`.
    claims: Sequence[str] = (FILTER,)
    #: True for an API whose search takes POST, too.
    posts: bool = True
    page_items: int = 100
    #: Folder of the files at `/files/`.
    folder: Path | None = None
    #: Header that every request needs, with its value.
    needs: tuple[str, str] | None = None
    #: Answers for the next requests instead of the right ones: status, headers, body.
    faults: list[tuple[int, Mapping[str, str], bytes]] = field(default_factory=list)
    #: Requests: method, path with query, JSON body.
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    url: str = ""

    @contextmanager
    def serve(self) -> Iterator[StacApi]:
        """Serve on a free port of this machine; `url` is the landing page."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        server.daemon_threads = True
        server.api = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{server.server_port}"
        with in_thread(server):
            yield self

    @property
    def host(self) -> str:
        """The host and port, for `allowed_hosts`."""
        return urlsplit(self.url).netloc

    def landing(self) -> dict[str, Any]:
        """Return the landing page."""
        methods = [{"method": "GET"}, {"method": "POST"}] if self.posts else [{}]
        links = [{"rel": "self", "href": self.url}, {"rel": "data", "href": f"{self.url}/collections"}]
        links += [{"rel": "search", "type": "application/geo+json", "href": f"{self.url}/search", **m} for m in methods]
        return {
            "type": "Catalog", "id": "double", "stac_version": "1.0.0", "description": "A test's", "links": links,
            "conformsTo": [*_CORE, *self.claims],
        }  # fmt: skip

    def names(self) -> list[str]:
        """Return the ids of the collections."""
        return sorted({*self.collections, *(item["collection"] for item in self.items)})

    def collection(self, name: str) -> dict[str, Any]:
        """Return a collection."""
        extent = {"spatial": {"bbox": [[-180, -90, 180, 90]]}, "temporal": {"interval": [[None, None]]}}
        return {
            "type": "Collection", "id": name, "stac_version": "1.0.0", "description": name, "license": "other",
            "extent": extent, "links": [{"rel": "root", "href": self.url}],
        }  # fmt: skip

    def search(self, asked: Mapping[str, Any], *, posted: bool) -> dict[str, Any]:
        """Return a page of the items that match."""
        found = [item for item in self.items if self._matches(item, asked)]
        first, count = int(asked.get("token", 0)), min(int(asked.get("limit", 100)), self.page_items)
        links = []
        if first + count < len(found):
            more = {**asked, "token": first + count}
            if posted:
                links = [{"rel": "next", "href": f"{self.url}/search", "method": "POST", "body": more}]
            else:
                query = urlencode(
                    {name: ",".join(map(str, v)) if isinstance(v, list) else v for name, v in more.items()}
                )
                links = [{"rel": "next", "href": f"{self.url}/search?{query}"}]
        return {"type": "FeatureCollection", "features": found[first : first + count], "links": links}

    def _matches(self, item: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
        properties = item["properties"]
        if asked.get("collections") and item["collection"] not in asked["collections"]:
            return False
        if asked.get("datetime"):
            first, _, last = asked["datetime"].partition("/")
            at = datetime.fromisoformat(properties["datetime"])
            if (first not in ("", "..") and at < datetime.fromisoformat(first)) or (
                last not in ("", "..") and at > datetime.fromisoformat(last)
            ):
                return False
        bbox = asked.get("bbox") or (_bounds(asked["intersects"]) if asked.get("intersects") else None)
        west, south, east, north = item["bbox"]
        if bbox and not (west <= bbox[2] and east >= bbox[0] and south <= bbox[3] and north >= bbox[1]):
            return False
        given = asked.get("filter")
        if isinstance(given, str):
            return why_not(given, item) is None
        conditions = _of_filter(given if FILTER in self.claims else None)
        return all(name in properties and _OPERATORS[op](properties[name], value) for op, name, value in conditions)


def item(
    name: str, collection: str, at: datetime, bbox: Sequence[float], assets: Mapping[str, Any],
    cloud: float | None = None, **properties: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a STAC item."""
    west, south, east, north = bbox
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    cloudy = {} if cloud is None else {"eo:cloud_cover": cloud}
    return {
        "type": "Feature", "stac_version": "1.0.0", "id": name, "collection": collection, "bbox": [*bbox],
        "geometry": {"type": "Polygon", "coordinates": [ring]}, "links": [], "assets": dict(assets),
        "properties": {"datetime": at.astimezone(UTC).isoformat().replace("+00:00", "Z"), **cloudy, **properties},
    }  # fmt: skip


def scene_item(
    api: StacApi, file: Path, name: str, collection: str, at: datetime, cloud: float, bands: Sequence[str],
    **of_asset: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the item of a GeoTIFF in the folder of an API that serves, with one asset of these bands."""
    import rasterio
    from rasterio.warp import transform_bounds

    with rasterio.open(file) as opened:
        bbox = transform_bounds(opened.crs, "EPSG:4326", *opened.bounds)
    asset = {
        "href": f"{api.url}/files/{file.name}", "type": "image/tiff; application=geotiff", "roles": ["data"],
        "eo:bands": [{"name": band, "common_name": band} for band in bands], **of_asset,
    }  # fmt: skip
    return item(name, collection, at, bbox, {"image": asset}, cloud)


def _bounds(geometry: Mapping[str, Any]) -> list[float]:
    points: list[Sequence[float]] = []
    left = [geometry["coordinates"]]
    while left:
        each = left.pop()
        if isinstance(each[0], int | float):
            points.append(each)
        else:
            left += each
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    return [min(xs), min(ys), max(xs), max(ys)]


def _of_filter(expression: Any) -> Iterator[tuple[str, str, Any]]:
    if not expression:
        return
    if expression["op"] == "and":
        for each in expression["args"]:
            yield from _of_filter(each)
    else:
        yield expression["op"], expression["args"][0]["property"], expression["args"][1]


def _asked(query: str) -> dict[str, Any]:
    asked: dict[str, Any] = {name: values[0] for name, values in parse_qs(query).items()}
    if "collections" in asked:
        asked["collections"] = asked["collections"].split(",")
    if "bbox" in asked:
        asked["bbox"] = [float(number) for number in asked["bbox"].split(",")]
    return asked


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _api(self) -> StacApi:
        return self.server.api  # type: ignore[attr-defined, no-any-return]

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, body: Any) -> None:
        api, parts = self._api, urlsplit(self.path)
        api.requests.append((self.command, self.path, body))
        if api.faults:
            status, headers, said = api.faults.pop(0)
            self._send(status, said, headers)
            return
        if api.needs is not None and self.headers.get(api.needs[0]) != api.needs[1]:
            self._json({"code": "Unauthorized", "description": "no credentials"}, 401)
            return
        self._page(parts.path, _asked(parts.query) if body is None else body, posted=body is not None)

    def _page(self, path: str, asked: Mapping[str, Any], *, posted: bool) -> None:
        api = self._api
        match path.strip("/").split("/"):
            case [""]:
                self._json(api.landing())
            case ["collections"]:
                self._json({"collections": [api.collection(name) for name in api.names()], "links": []})
            case ["collections", name] if name in api.names():
                self._json(api.collection(name))
            case ["collections", _, "items", name] if any(item["id"] == name for item in api.items):
                self._json(next(item for item in api.items if item["id"] == name))
            case ["search"] if api.posts or not posted:
                self._json(api.search(asked, posted=posted))
            case ["files", name] if api.folder is not None and (api.folder / name).is_file():
                self._file(api.folder / name)
            case _:
                self._json({"code": "NotFound", "description": "there is no such page"}, 404)

    def _file(self, path: Path) -> None:
        data, headers = path.read_bytes(), {"ETag": f'"{path.stat().st_size}"'}
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        if wanted is None:
            self._send(200, data, headers)
            return
        first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._send(206, data[first : last + 1], headers)

    def _json(self, document: Any, status: int = 200) -> None:
        self._send(status, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
