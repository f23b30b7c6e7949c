"""Searches of servers with different abilities, and of servers that are no STAC API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from penstock.config import Settings
from penstock.errors import FetchFailed, InvalidInput, MediaNotFound, MediaRefused, MediaUnreadable, Unreached
from penstock.intake.guard import GuardedClient
from penstock.intake.item_filter import why_not
from penstock.intake.stac_search import StacSearch, StacSearches, together
from tests.support.stac_server import FILTER, TEXT, StacApi, item

BEGIN = datetime(2026, 5, 1, tzinfo=UTC)
SQUARE = {"type": "Polygon", "coordinates": [[[10.2, 45.2], [10.4, 45.2], [10.4, 45.4], [10.2, 45.4], [10.2, 45.2]]]}


def days(count: int, collection: str = "s2", east: float = 0) -> list[dict[str, Any]]:
    """Return items of one day after the other, with 0, 10, 20 ... percent of cloud, newest first as servers do."""
    made = [
        item(f"{collection}-{day}", collection, BEGIN + timedelta(days=day), (10 + east, 45, 11 + east, 46), {},
             cloud=10 * day)
        for day in range(count)
    ]  # fmt: skip
    return made[::-1]


def found(api: StacApi, collection: str = "s2", *, allowed: bool = True, **wanted: Any) -> list[str]:
    settings, most = Settings(allowed_hosts=(api.host,) if allowed else ()), wanted.pop("most", None)
    text = wanted.get("filter")
    listed = StacSearches(GuardedClient(settings), "acme").items(
        StacSearch(api.url, [collection], **wanted), lambda item: text is None or why_not(text, item) is None, most
    )
    return sorted(each["id"] for each in listed)


def test_all_pages_are_read() -> None:
    with StacApi([*days(7), *days(3, "other")], page_items=3).serve() as api:
        assert found(api) == [f"s2-{day}" for day in range(7)]
        assert found(api, "other") == ["other-0", "other-1", "other-2"]
        searches = [path for method, path, _ in api.requests if path.startswith("/search")]
    assert len(searches) == 3 + 1


@pytest.mark.parametrize("posts", [True, False])
def test_area_and_times_limit_the_search(posts: bool) -> None:
    with StacApi([*days(5), *days(5, "s2", east=20)], posts=posts, page_items=2).serve() as api:
        assert len(found(api)) == 10
        assert found(api, geometry=SQUARE) == [f"s2-{day}" for day in range(5)]
        between = {"begin": BEGIN + timedelta(days=1), "end": BEGIN + timedelta(days=3)}
        assert found(api, geometry=SQUARE, **between) == ["s2-1", "s2-2", "s2-3"]
        assert found(api, geometry=SQUARE, begin=between["end"]) == ["s2-3", "s2-4"]


@pytest.mark.parametrize(
    ("claims", "posts", "sent"),
    [((FILTER,), True, True), ((), True, False), ((FILTER,), False, False), ((FILTER, TEXT), False, True)],
)
def test_a_filter_holds_whatever_the_server_knows(claims: tuple[str, ...], posts: bool, sent: bool) -> None:
    with StacApi(days(6), claims=claims, posts=posts).serve() as api:
        assert found(api, filter="eo:cloud_cover < 20") == ["s2-0", "s2-1"]
        _, path, body = api.requests[-1]
    assert (body is not None) is posts
    assert ("filter" in (body or parse_qs(urlsplit(path).query))) is sent


def test_a_limit_counts_items_that_fulfil_the_conditions() -> None:
    with StacApi(days(6), claims=(), page_items=2).serve() as api:
        assert found(api, filter="eo:cloud_cover < 40", most=2) == ["s2-2", "s2-3"]


def test_an_unknown_collection_is_named_with_the_nearest_ones() -> None:
    with StacApi(days(1), collections=["sentinel-2-l2a", "landsat"]).serve() as api:
        with pytest.raises(MediaNotFound, match="no collection 'sentinel-2'; it has 3, such as sentinel-2-l2a"):
            found(api, "sentinel-2")
        assert found(api, "landsat") == []


def test_a_host_that_is_not_allowed_is_never_asked() -> None:
    with StacApi(days(1)).serve() as api:
        with pytest.raises(MediaRefused):
            found(api, allowed=False)
        assert api.requests == []


def test_a_page_on_another_host_is_not_asked() -> None:
    with StacApi(days(1)).serve() as other, StacApi(days(5), page_items=2).serve() as api:
        real = api.search

        def lured(asked: Any, *, posted: bool) -> dict[str, Any]:
            page = real(asked, posted=posted)
            return {**page, "links": [{**link, "href": f"{other.url}/search"} for link in page["links"]]}

        api.search = lured  # type: ignore[method-assign]
        with pytest.raises(MediaRefused):
            found(api)
        assert other.requests == []


@pytest.mark.parametrize("href", ["/etc/passwd", "file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_no_link_of_a_server_leads_to_a_local_file(href: str) -> None:
    with StacApi(days(1)).serve() as api:
        real = api.landing
        links = [{"rel": "self", "href": api.url}, {"rel": "search", "type": "application/geo+json", "href": href}]
        api.landing = lambda: {**real(), "links": links}  # type: ignore[method-assign]
        with pytest.raises((MediaRefused, MediaNotFound, MediaUnreadable)):
            found(api)


def test_nobody_there_says_so() -> None:
    with StacApi().serve() as api:
        pass
    with pytest.raises(Unreached, match="refused"):
        found(api)


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ((404, {}, b"no"), MediaNotFound, "STAC API"),
        ((500, {}, b"no"), FetchFailed, "500"),
        ((200, {}, b"<html>"), MediaUnreadable, "STAC API"),
        ((200, {}, b"[]"), MediaUnreadable, "STAC API"),
        ((200, {}, b'{"type": "Catalog"}'), MediaUnreadable, "STAC API"),
    ],
)
def test_another_server_is_no_stac_api(fault: Any, error: type[Exception], text: str) -> None:
    with StacApi(days(1)).serve() as api:
        api.faults.append(fault)
        with pytest.raises(error, match=text):
            found(api)


def test_a_server_that_throttles_says_for_how_long() -> None:
    with StacApi(days(1)).serve() as api:
        api.faults.append((429, {"Retry-After": "17"}, b""))
        with pytest.raises(FetchFailed) as refused:
            found(api)
    assert refused.value.retry_after_s == 17


@pytest.mark.parametrize("page", [b'{"features": []}', b'{"type": "FeatureColl", "features": []}'])
def test_a_page_that_is_no_collection_of_items_is_not_the_end_of_the_pages(page: bytes) -> None:
    with StacApi(days(2)).serve() as api:
        real = api.search

        def answer(asked: Any, *, posted: bool) -> dict[str, Any]:
            api.faults.append((200, {}, page))
            return real(asked, posted=posted)

        api.page_items = 1
        api.search = answer  # type: ignore[method-assign]
        with pytest.raises(MediaUnreadable, match="no list of items"):
            found(api)


def test_a_rejected_search_shows_the_servers_reason() -> None:
    with StacApi(days(1)).serve() as api:
        real = api.search

        def reject(asked: Any, *, posted: bool) -> dict[str, Any]:
            api.faults.append((400, {}, b'{"description": "too large \\u001b[31man area"}'))
            return real(asked, posted=posted)

        api.page_items, api.items = 1, days(2)
        api.search = reject  # type: ignore[method-assign]
        with pytest.raises(InvalidInput, match=r"too large \?\[31man area"):
            found(api)


def test_a_catalogue_without_search_is_refused() -> None:
    with StacApi(days(1)).serve() as api:
        real = api.landing
        static = {name: value for name, value in real().items() if name not in ("links", "conformsTo")}
        api.landing = lambda: static  # type: ignore[method-assign]
        with pytest.raises(MediaUnreadable, match="without a search"):
            found(api)


def test_areas_are_one_geometry() -> None:
    several = {"type": "MultiPolygon", "coordinates": [SQUARE["coordinates"]] * 2}
    assert together([]) is None
    assert together([SQUARE]) == SQUARE
    assert together([SQUARE, SQUARE]) == several
    assert together([several, SQUARE]) == {"type": "MultiPolygon", "coordinates": [SQUARE["coordinates"]] * 3}
