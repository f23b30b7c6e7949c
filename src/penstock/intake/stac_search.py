"""Searches of STAC APIs by pystac-client, whose requests go through the guard with the tenant's access profiles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from http import HTTPStatus
from itertools import islice
from typing import Any, Final
from urllib.parse import quote, urlencode, urljoin, urlsplit, urlunsplit

import pystac
from pystac_client import ItemSearch
from pystac_client.exceptions import APIError
from pystac_client.stac_api_io import StacApiIO

from penstock.errors import FetchFailed, InvalidInput, MediaNotFound, MediaUnreadable
from penstock.intake.connections import no_check
from penstock.intake.credentials import is_passing
from penstock.intake.guard import GuardedClient
from penstock.intake.item_area import polygons_of
from penstock.intake.item_filter import expression
from penstock.json_body import shown
from penstock.processors.links import collection_items

#: Bytes of one answer of a STAC API, items of a page, answers and items of one search, at most.
MAX_ANSWER_BYTES, PAGE_ITEMS, MAX_ANSWERS, MAX_ITEMS = 16 << 20, 100, 400, 20_000
#: Tries of each request of a search with pauses.
TRIES = 3
_NAMED_COLLECTIONS = 500
#: Errors that the libraries raise for an answer that is not of a STAC API.
_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError, pystac.STACError)


@dataclass(frozen=True, slots=True)
class StacSearch:
    """A search for the items of collections of a STAC API."""

    #: Address of the API's landing page, or of its search.
    url: str
    collections: Sequence[str]
    #: The items' footprints meet this GeoJSON polygon or multipolygon in longitude and latitude; None = anywhere.
    geometry: Mapping[str, Any] | None = None
    #: Times of the items, both included, with a time zone; None = open.
    begin: datetime | None = None
    end: datetime | None = None
    #: Filter in CQL2 text (`item_filter`), which only servers that know it apply.
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class StacSearches:
    """Searches through a guard, with the access profiles of a tenant."""

    guard: GuardedClient
    tenant: str
    #: Called with the number of each failed try before the next one; None = each request is tried once.
    pause: Callable[[int], object] | None = None
    #: Called again and again while an answer is awaited; any error that it raises ends the search.
    check: Callable[[], None] = no_check

    def items(
        self, wanted: StacSearch, passes: Callable[[Mapping[str, Any]], bool] = lambda _: True, most: int | None = None
    ) -> list[Mapping[str, Any]]:
        """Return the items that pass, as the server gives them: it may repeat some, and give others.

        Beside them, one page at a time is held in memory. The first `most` of them; None = all. An item without an
        address of its own gets that of the search. Raises `MediaNotFound` for an unknown collection, `InvalidInput` for
        a search that the server rejects, `MediaUnreadable` for a server that is no STAC API with search, `MediaRefused`
        for an address that is not allowed, and the retryable `FetchFailed`, also for more than `MAX_ITEMS` items.
        """
        host = urlsplit(wanted.url).netloc.rpartition("@")[2]
        io = _GuardedIO(self)
        with _translated(host):
            api = _Api(root := _moved(wanted.url, lambda path: path.removesuffix("/search")), io.read_json(root))
            for name in dict.fromkeys(wanted.collections):
                _require_collection(api, io, name, host)
            place, posts = api.search()
            io.search_at(place)
            pages = ItemSearch(
                place,
                method="POST" if posts else "GET",
                stac_io=io,
                collections=list(wanted.collections),
                datetime=(wanted.begin, wanted.end) if wanted.begin or wanted.end else None,
                limit=PAGE_ITEMS if most is None else min(PAGE_ITEMS, most),
                **_place(wanted.geometry, posts=posts),
                **_filter(api, wanted.filter, posts=posts),
            ).pages_as_dicts()
            found = (item for page in pages for item in collection_items(page, place) or ())
            return list(islice(filter(passes, _bounded(found)), most))


def _bounded(items: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for number, item in enumerate(items):
        if number == MAX_ITEMS:
            raise FetchFailed(f"the catalogue has more than {MAX_ITEMS} items for one look: narrow the search")
        yield item


def together(geometries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return GeoJSON polygons and multipolygons as one geometry; None without any."""
    polygons = [polygon for geometry in geometries for polygon in polygons_of(geometry)]
    if len(polygons) < 2:
        return {"type": "Polygon", "coordinates": polygons[0]} if polygons else None
    return {"type": "MultiPolygon", "coordinates": polygons}


def _place(geometry: Mapping[str, Any] | None, *, posts: bool) -> dict[str, Any]:
    """Return the place of a search: by GET, whose addresses are short, the rectangle around the area."""
    if geometry is None:
        return {}
    if posts:
        return {"intersects": geometry}
    points = [point for polygon in polygons_of(geometry) for point in polygon[0]]
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    return {"bbox": [min(xs), min(ys), max(xs), max(ys)]}


def _moved(address: str, move: Callable[[str], str]) -> str:
    """Return an address with another path, made of its own without a final slash; its query stays."""
    scheme, host, path, query, fragment = urlsplit(address)
    return urlunsplit((scheme, host, move(path.rstrip("/")), query, fragment))


@dataclass(frozen=True, slots=True)
class _Api:
    """The landing page of a STAC API, which may lack much that the specification asks for."""

    url: str
    landing: Mapping[str, Any]

    def knows(self, *names: str) -> bool:
        """Return True if the server conforms to a class that ends with one of the names."""
        classes = self.landing.get("conformsTo")
        return any(str(each).endswith(names) for each in (classes if isinstance(classes, list) else ()))

    def links(self, relation: str) -> list[Mapping[str, Any]]:
        """Return the links with a relation."""
        found = self.landing.get("links")
        listed = [link for link in (found if isinstance(found, list) else ()) if isinstance(link, Mapping)]
        return [link for link in listed if link.get("rel") == relation and isinstance(link.get("href"), str)]

    def place(self, link: Mapping[str, Any] | None, usual: str) -> str:
        """Return the address of a link; without one, the usual address below the landing page."""
        place = _moved(self.url, lambda path: f"{path}/{usual}")
        return place if link is None else urljoin(place, link["href"])

    def search(self) -> tuple[str, bool]:
        """Return the address of the search, and True if it takes POST.

        Raises `MediaUnreadable` for a catalogue without a search.
        """
        links = self.links("search")
        if not links and "conformsTo" not in self.landing:
            raise MediaUnreadable("it is a STAC catalogue without a search")
        posting = next((link for link in links if link.get("method") == "POST"), None)
        return self.place(posting or next(iter(links), None), "search"), posting is not None


def _filter(api: _Api, text: str | None, *, posts: bool) -> dict[str, Any]:
    """Return the filter in the form that a server knows; nothing for a server that knows none."""
    if text is None or not api.knows("item-search#filter"):
        return {}
    if posts:
        return {"filter": expression(text), "filter_lang": "cql2-json"}
    return {"filter": text, "filter_lang": "cql2-text"} if api.knows("/cql2-text") else {}


def _require_collection(api: _Api, io: StacApiIO, name: str, host: str) -> None:
    """Raise `MediaNotFound` for a collection that a server which lists its collections does not have."""
    if not api.knows("/collections", "/ogcapi-features"):
        return
    place = api.place(next(iter(api.links("data")), None), "collections")
    try:
        io.read_json(_moved(place, lambda path: f"{path}/{quote(name, safe='')}"))
    except APIError as error:
        if error.status_code != HTTPStatus.NOT_FOUND:
            raise
        listed = (each for page in io.get_pages(place) for each in page.get("collections", ()))
        known = [str(each["id"]) for each in islice(listed, _NAMED_COLLECTIONS)]
        near = get_close_matches(name, known, n=5, cutoff=0.3) or known[:5]
        raise MediaNotFound(
            f"{host} has no collection {name!r}; it has {len(known)}, such as {', '.join(near) or 'none'}"
        ) from error


class _GuardedIO(StacApiIO):
    """Requests through the guard: neither `requests` nor a local file is ever used."""

    def __init__(self, searches: StacSearches) -> None:
        super().__init__(max_retries=None)
        self._searches = searches
        self._asked = set[tuple[str, bytes | None]]()
        self._place: str | None = None

    def search_at(self, place: str) -> None:
        """Require a list of items of each further answer: another one would pass as the end of the pages."""
        self._place = place

    def read_text(self, source: pystac.link.HREF, *args: Any, **kwargs: Any) -> str:
        """Return the text at an address or behind a link."""
        if isinstance(source, pystac.Link):
            return super().read_text(source, *args, **kwargs)
        return self.request(str(source), *args, **kwargs)

    def request(
        self, href: str, method: str | None = None, headers: dict[str, str] | None = None,  # noqa: ARG002
        parameters: dict[str, Any] | None = None,
    ) -> str:  # fmt: skip
        """Return the text of an answer. The headers that a link of the server asks for are left out."""
        body = None
        if (method or "GET").upper() == "POST":
            body = json.dumps(parameters or {}).encode()
        elif parameters:
            href = f"{href}{'&' if '?' in href else '?'}{urlencode(parameters)}"
        href = href if self._place is None else urljoin(self._place, href)
        if (href, body) in self._asked or len(self._asked) >= MAX_ANSWERS:
            raise FetchFailed("the catalogue's pages do not end")
        self._asked.add((href, body))
        number = 1
        while True:
            try:
                return self._text(href, body)
            except (FetchFailed, MediaUnreadable):
                if self._searches.pause is None or number == TRIES:
                    raise
            self._searches.pause(number)
            number += 1

    def _text(self, href: str, body: bytes | None) -> str:
        by = self._searches
        answer = by.guard.ask(href, MAX_ANSWER_BYTES, tenant=by.tenant, body=body, check=by.check)
        if is_passing(answer.status):
            raise FetchFailed(f"it answered with status {answer.status}", retry_after_s=answer.retry_after_s)
        text = answer.body.decode("utf-8", "replace")
        if answer.status != HTTPStatus.OK:
            refused = APIError(_description(text) or f"status {answer.status}")
            refused.status_code = answer.status
            raise refused
        document = _document(text)
        if document is None:
            raise MediaUnreadable("it is no JSON object")
        if self._place and (document.get("type"), type(document.get("features"))) != ("FeatureCollection", list):
            raise MediaUnreadable("it is no list of items")
        return text


def _document(text: str) -> Mapping[str, Any] | None:
    """Return the object in a text of JSON; None for any other text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _description(text: str) -> str | None:
    """Return the reason in an error document of a STAC API."""
    found = _document(text) or {}
    reason = found.get("description") or found.get("detail")
    return None if reason is None else shown(reason, 300)


@contextmanager
def _translated(host: str) -> Iterator[None]:
    try:
        yield
    except APIError as error:
        status = getattr(error, "status_code", None)
        if status == HTTPStatus.NOT_FOUND:
            raise MediaNotFound(f"{host} answered with status 404: is this the address of a STAC API?") from error
        raise InvalidInput(f"{host} rejected the search: {error}") from error
    except FetchFailed as error:
        raise type(error)(f"the STAC API at {host}: {error.detail}", retry_after_s=error.retry_after_s) from error
    except MediaUnreadable as error:
        raise MediaUnreadable(f"the answer of {host} is not that of a STAC API: {error.detail}") from error
    except _MALFORMED as error:
        raise MediaUnreadable(f"the answer of {host} is not that of a STAC API") from error
