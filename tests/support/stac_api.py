"""A STAC API for tests: searches by GET over a catalogue that changes, and answers that go wrong on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from penstock.intake.item_filter import why_not
from tests.support.web_server import in_thread

CORE = "https://api.stacspec.org/v1.0.0/core"
FILTERS = (
    "https://api.stacspec.org/v1.0.0/item-search#filter",
    "http://www.opengis.net/spec/cql2/1.0/conf/cql2-text",
)
#: A fault of one answer: its status and body.
Fault = tuple[int, bytes]
#: Faults of real catalogues.
FAULTS: Sequence[Fault] = (
    (429, b'{"code": "TooManyRequests"}'), (500, b"oops"), (503, b""), (200, b"<html>Bad Gateway</html>"),
    (200, b'{"type": "FeatureColl'), (200, b'{"type": "FeatureCollection"}'), (200, b"[1, 2]"),
)  # fmt: skip


def time_text(seconds: float) -> str:
    """Return seconds since the epoch as a STAC time."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def seconds(text: str) -> float:
    """Return a STAC time as seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def square(west: float, south: float, side: float) -> dict[str, Any]:
    """Return a GeoJSON square."""
    east, north = west + side, south + side
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {"type": "Polygon", "coordinates": [ring]}


def stac_item(
    name: str, time_s: float, *, collection: str = "scenes", updated_s: float | None = None, cloud: float = 5,
    footprint: dict[str, Any] | None = None, assets: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return a STAC item."""
    shape = footprint or square(0, 0, 1)
    properties: dict[str, Any] = {"datetime": time_text(time_s), "eo:cloud_cover": cloud}
    if updated_s is not None:
        properties["updated"] = time_text(updated_s)
    return {
        "type": "Feature", "stac_version": "1.0.0", "id": name, "collection": collection, "geometry": shape,
        "bbox": _bbox(shape), "properties": properties,
        "assets": {"data": {"href": f"https://data.example/{name}.tif"}} if assets is None else assets, "links": [],
    }  # fmt: skip


@dataclass
class StacApi:
    """A catalogue and its server. Change `items` at any time."""

    url: str
    port: int
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    page_items: int = 100
    filters: bool = False
    #: Returns the fault of the next answer, or None.
    fault: Callable[[], Fault | None] = lambda: None
    #: Changes the items of an answer: repeats or reorders them.
    arrange: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda found: found
    requests: list[dict[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, *items: dict[str, Any]) -> None:
        """Publish items, or new versions of them."""
        with self.lock:
            for item in items:
                self.items[item["id"]] = item

    def withdraw(self, name: str) -> None:
        """Remove an item."""
        with self.lock:
            self.items.pop(name, None)

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        fault = self.fault()
        if fault is not None:
            return fault
        place, query = urlsplit(path), {name: one[0] for name, one in parse_qs(urlsplit(path).query).items()}
        if place.path.rstrip("/") == "":
            return 200, json.dumps(self._landing()).encode()
        if place.path != "/search":
            return 404, b"{}"
        self.requests.append(query)
        return 200, json.dumps(self._page(query)).encode()

    def _landing(self) -> dict[str, Any]:
        conforms = [CORE, *(FILTERS if self.filters else ())]
        link = {"rel": "search", "href": f"{self.url}/search", "type": "application/geo+json", "method": "GET"}
        return {"type": "Catalog", "id": "test", "conformsTo": conforms, "links": [link]}

    def _page(self, query: dict[str, str]) -> dict[str, Any]:
        start, end = map(seconds, query["datetime"].split("/"))
        wanted, offset = query["collections"].split(","), int(query.get("token", "0"))
        with self.lock:
            found = [
                item for item in self.items.values()
                if item["collection"] in wanted and start <= seconds(item["properties"]["datetime"]) <= end
                and ("bbox" not in query or _meets(item["bbox"], [float(n) for n in query["bbox"].split(",")]))
                and ("filter" not in query or why_not(query["filter"], item) is None)
            ]  # fmt: skip
        page = self.arrange(found)[offset : offset + self.page_items]
        links = []
        if offset + self.page_items < len(found):
            href = f"{self.url}/search?{urlencode({**query, 'token': offset + self.page_items})}"
            links = [{"rel": "next", "href": href, "method": "GET"}]
        return {"type": "FeatureCollection", "features": page, "links": links}


@contextmanager
def stac_api(**options: Any) -> Iterator[StacApi]:
    """Serve a catalogue on a free port of this machine."""
    api: StacApi

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = api.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = int(server.server_address[1])
    api = StacApi(f"http://127.0.0.1:{port}", port, **options)
    with in_thread(server):
        yield api


def _bbox(shape: dict[str, Any]) -> list[float]:
    ring = shape["coordinates"][0]
    xs, ys = [point[0] for point in ring], [point[1] for point in ring]
    return [min(xs), min(ys), max(xs), max(ys)]


def _meets(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]
