"""Searches of STAC APIs by pystac-client, whose requests go through the guard with the tenant's access profiles."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from http import HTTPStatus
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import pystac
from pystac_client import Client
from pystac_client.conformance import ConformanceClasses
from pystac_client.errors import ClientTypeError
from pystac_client.exceptions import APIError
from pystac_client.stac_api_io import StacApiIO
from pystac_client.warnings import PystacClientWarning

from penstock.errors import FetchFailed, InvalidInput, MediaNotFound, MediaUnreadable
from penstock.intake.credentials import is_passing
from penstock.intake.guard import GuardedClient
from penstock.intake.item_filter import expression, why_not
from penstock.processors.geo.area_request import AreaRequest

#: Bytes of one answer of a STAC API, at most.
MAX_ANSWER_BYTES = 64 << 20
#: Items that one search looks at, at most, and items of one page.
MAX_ITEMS, PAGE_ITEMS = 10_000, 100
_NAMED_COLLECTIONS = 500
#: Errors that the libraries raise for an answer that is not of a STAC API.
_MALFORMED: Final = (
    ValueError, KeyError, TypeError, AttributeError, RecursionError, pystac.STACError, ClientTypeError,
)  # fmt: skip
#: Conformance class of a server that takes filters as text.
_TEXT: Final = "/cql2-text"
_WORLD: Final = ("EPSG:4326", "OGC:CRS84")


@dataclass(frozen=True, slots=True)
class StacSearch:
    """A search for the items of a collection of a STAC API."""

    #: Address of the API's landing page.
    url: str
    collection: str
    #: The items' footprints meet this area, which is in longitude and latitude; None = anywhere.
    area: AreaRequest | None = None
    #: Times of the items, both included, with a time zone; None = open.
    begin: datetime | None = None
    end: datetime | None = None
    #: Filter that each item passes, in CQL2 text (`item_filter`).
    filter: str | None = None
    #: Items, at most: the first ones in the order of the server.
    limit: int = MAX_ITEMS


def search_items(wanted: StacSearch, guard: GuardedClient, tenant: str) -> list[dict[str, Any]]:
    """Return the matching items as documents, earliest first; those of the same time by id.

    Raises `MediaNotFound` for an unknown collection, `InvalidInput` for an area with another CRS or a search that the
    server rejects, `MediaUnreadable` for a server that is no STAC API with search, and the errors of the guard:
    `MediaRefused`, and the retryable `FetchFailed`.
    """
    host = urlsplit(wanted.url).netloc.rpartition("@")[2]
    geometry = None if wanted.area is None else area_geometry(wanted.area)
    with _translated(host):
        client = Client.open(wanted.url, stac_io=_GuardedIO(guard, tenant))
        links = [link for link in client.links if link.rel == "search"]
        if not links:
            raise MediaUnreadable(f"{host} is a STAC catalogue without a search: give the address of a STAC API")
        _require_collection(client, wanted.collection, host)
        posts = any(link.extra_fields.get("method") == "POST" for link in links)
        found = client.search(
            method="POST" if posts else "GET",
            collections=[wanted.collection],
            datetime=_span(wanted),
            limit=min(PAGE_ITEMS, wanted.limit),
            max_items=MAX_ITEMS,
            **_place(geometry, posts=posts),
            **_filter(client, wanted.filter, posts=posts),
        ).items_as_dicts()
        matching = (item for item in found if wanted.filter is None or why_not(wanted.filter, item) is None)
        items = list(islice(matching, wanted.limit))
    return sorted(items, key=lambda item: (item_time(item) or "", str(item.get("id"))))


def item_time(item: Mapping[str, Any]) -> str | None:
    """Return the time of an item as it is written, or the start of its interval; None if it has none."""
    properties = item.get("properties")
    named = properties if isinstance(properties, Mapping) else {}
    found = named.get("datetime") or named.get("start_datetime")
    return found if isinstance(found, str) else None


def area_geometry(area: AreaRequest) -> dict[str, Any]:
    """Return an area as one GeoJSON geometry in longitude and latitude; raise `InvalidInput` for another CRS."""
    if area.crs.upper() not in _WORLD:
        raise InvalidInput(f"The area of a search must be in EPSG:4326, longitude first; this one is in {area.crs}.")
    if area.bbox is not None:
        west, south, east, north = area.bbox
        halves = [(west, east)] if west < east else [(west, 180.0), (-180.0, east)]
        rings = [[[[w, south], [e, south], [e, north], [w, north], [w, south]]] for w, e in halves]
    else:
        rings = [polygon for each in area.geometries for polygon in _polygons(each.model_dump())]
    if len(rings) == 1:
        return {"type": "Polygon", "coordinates": rings[0]}
    return {"type": "MultiPolygon", "coordinates": rings}


def _polygons(geometry: Mapping[str, Any]) -> list[Any]:
    coordinates: list[Any] = geometry["coordinates"]
    return [coordinates] if geometry["type"] == "Polygon" else coordinates


def _place(geometry: Mapping[str, Any] | None, *, posts: bool) -> dict[str, Any]:
    """Return the place of a search: by GET, whose addresses are short, the rectangle around the area."""
    if geometry is None:
        return {}
    if posts:
        return {"intersects": geometry}
    points = [point for polygon in _polygons(geometry) for point in polygon[0]]
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    return {"bbox": [min(xs), min(ys), max(xs), max(ys)]}


def _span(wanted: StacSearch) -> tuple[datetime | str | None, datetime | str | None] | None:
    return None if wanted.begin is None and wanted.end is None else (wanted.begin, wanted.end)


def _filter(client: Client, text: str | None, *, posts: bool) -> dict[str, Any]:
    """Return the filter in the form that a server knows; nothing for a server that knows none."""
    if text is None or not client.conforms_to(ConformanceClasses.FILTER):
        return {}
    if posts:
        return {"filter": expression(text), "filter_lang": "cql2-json"}
    classes = client.get_conforms_to()
    return {"filter": text, "filter_lang": "cql2-text"} if any(_TEXT in each for each in classes) else {}


def _require_collection(client: Client, name: str, host: str) -> None:
    if client.get_collection(name) is not None:
        return
    known = [each.id for each in islice(client.get_collections(), _NAMED_COLLECTIONS)]
    near = get_close_matches(name, known, n=5, cutoff=0.3) or known[:5]
    raise MediaNotFound(f"{host} has no collection {name!r}; it has {len(known)}, such as {', '.join(near) or 'none'}")


class _GuardedIO(StacApiIO):
    """Requests through the guard: neither `requests` nor a local file is ever used."""

    def __init__(self, guard: GuardedClient, tenant: str) -> None:
        super().__init__(max_retries=None)
        self._guard = guard
        self._tenant = tenant

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
        answer = self._guard.ask(href, MAX_ANSWER_BYTES, tenant=self._tenant, body=body)
        if is_passing(answer.status):
            raise FetchFailed(f"the STAC API answered with status {answer.status}", retry_after_s=answer.retry_after_s)
        text = answer.body.decode("utf-8", "replace")
        if answer.status != HTTPStatus.OK:
            refused = APIError(_description(text) or f"status {answer.status}")
            refused.status_code = answer.status
            raise refused
        return text


def _description(text: str) -> str | None:
    """Return the reason in an error document of a STAC API."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    reason = (found.get("description") or found.get("detail")) if isinstance(found, dict) else None
    return None if reason is None else str(reason)[:300]


@contextmanager
def _translated(host: str) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PystacClientWarning)
            yield
    except APIError as error:
        status = getattr(error, "status_code", None)
        if status == HTTPStatus.NOT_FOUND:
            raise MediaNotFound(f"{host} answered with status 404: is this the address of a STAC API?") from error
        raise InvalidInput(f"{host} rejected the search: {error}") from error
    except _MALFORMED as error:
        raise MediaUnreadable(f"the answer of {host} is not that of a STAC API") from error
