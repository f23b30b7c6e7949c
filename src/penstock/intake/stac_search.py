"""Searches in STAC APIs through the guard: all items of a time range, page by page."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin

from penstock.errors import FetchFailed, InputError, MediaRefused
from penstock.intake.connections import no_check
from penstock.intake.guard import GuardedClient
from penstock.processors.links import collection_items

#: Items of a page, bytes of a page, pages of a search, and items of a search, at most.
PAGE_ITEMS, PAGE_BYTES, MAX_PAGES, MAX_ITEMS = 100, 16 << 20, 400, 20_000
#: Tries of each page.
TRIES = 3
#: Ends of the conformance classes of a server that applies filters in CQL2 text.
_FILTER, _TEXT = "item-search#filter", "/cql2-text"


@dataclass(frozen=True, slots=True)
class Search:
    """A search: collections, a closed range of times in seconds since the epoch, a bounding box, a filter."""

    url: str
    collections: Sequence[str]
    start_s: float
    end_s: float
    #: West, south, east, north in degrees; None = everywhere.
    bbox: Sequence[float] | None = None
    #: CQL2 text, sent to servers that know it.
    filter: str | None = None


@dataclass(frozen=True)
class StacSearches:
    """Searches through a guard.

    `folder` is for the pages; `pause` is called with the number of each failed try. `check` is called again and again
    while a page is fetched; any error that it raises ends the search.
    """

    guard: GuardedClient
    folder: Path
    pause: Callable[[int], object] = field(default=lambda _: None)
    check: Callable[[], None] = no_check

    def items(self, search: Search) -> Iterator[Mapping[str, Any]]:
        """Yield all items of a search, as the catalogue gives them: it may repeat some, and give others.

        One page at a time is held in memory.

        Raises `FetchFailed` for a catalogue that does not answer, or not with items, or with too many of them, and
        `MediaRefused` for an address that is not allowed.
        """
        count = 0
        for page, address in self._pages(search):
            found = collection_items(page, address) or ()
            count += len(found)
            if count > MAX_ITEMS:
                raise FetchFailed(f"the catalogue has more than {MAX_ITEMS} items for one look: narrow the search")
            yield from found

    def _pages(self, search: Search) -> Iterator[tuple[Mapping[str, Any], str]]:
        address: str | None = self._first(search)
        seen = set[str]()
        while address is not None:
            if address in seen or len(seen) >= MAX_PAGES:
                raise FetchFailed("the catalogue's pages do not end")
            seen.add(address)
            page = self._document(address)
            if page.get("type") != "FeatureCollection" or not isinstance(page.get("features"), list):
                raise FetchFailed("the catalogue's answer is no list of items")
            yield page, address
            address = _next(page, address) if page["features"] else None

    def _first(self, search: Search) -> str:
        """Return the address of the first page. The search's URL is that of the API, or that of its search."""
        filters = False
        place = search.url.rstrip("/")
        if not place.endswith("/search"):
            landing = self._document(search.url)
            classes = [text for text in _list(landing.get("conformsTo")) if isinstance(text, str)]
            filters = any(_FILTER in text for text in classes) and any(text.endswith(_TEXT) for text in classes)
            named = _link(landing, "search")
            place = f"{place}/search" if named is None else urljoin(f"{place}/", named)
        query = {
            "collections": ",".join(search.collections),
            "datetime": f"{_text(search.start_s)}/{_text(search.end_s)}",
            "limit": str(PAGE_ITEMS),
        }
        if search.bbox is not None:
            query["bbox"] = ",".join(f"{number:.7g}" for number in search.bbox)
        if search.filter is not None and filters:
            query |= {"filter": search.filter, "filter-lang": "cql2-text"}
        return f"{place}?{urlencode(query)}"

    def _document(self, address: str) -> Mapping[str, Any]:
        for number in range(1, TRIES + 1):
            try:
                return self._fetched(address)
            except MediaRefused:
                raise
            except (FetchFailed, InputError) as error:
                if number == TRIES:
                    raise FetchFailed(f"the catalogue at {address.partition('?')[0]}: {error.detail}") from error
            self.pause(number)
        raise AssertionError(TRIES)

    def _fetched(self, address: str) -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            path = Path(folder, "page.json")
            self.guard.fetch(address, path, PAGE_BYTES, check=self.check)
            try:
                document = json.loads(path.read_bytes())
            except (ValueError, RecursionError) as error:
                raise FetchFailed("the answer is no JSON") from error
        if not isinstance(document, Mapping):
            raise FetchFailed("the answer is no JSON object")
        return document


def bounding_box(geometries: Sequence[Mapping[str, Any]]) -> tuple[float, float, float, float] | None:
    """Return west, south, east, north of GeoJSON polygons; None without any."""
    positions = [position for geometry in geometries for position in _positions(geometry["coordinates"])]
    if not positions:
        return None
    xs, ys = [position[0] for position in positions], [position[1] for position in positions]
    return min(xs), min(ys), max(xs), max(ys)


def _positions(coordinates: Any) -> Iterator[Sequence[float]]:
    if coordinates and isinstance(coordinates[0], int | float):
        yield coordinates
        return
    for each in coordinates:
        yield from _positions(each)


def _next(page: Mapping[str, Any], address: str) -> str | None:
    named = _link(page, "next")
    return None if named is None else urljoin(address, named)


def _link(document: Mapping[str, Any], relation: str) -> str | None:
    """Return the address of a link that is followed by GET; None without one."""
    for link in _list(document.get("links")):
        if not isinstance(link, Mapping) or link.get("rel") != relation or not isinstance(link.get("href"), str):
            continue
        if str(link.get("method", "GET")).upper() == "GET":
            return str(link["href"])
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
