"""Searches in a STAC API over HTTP: pages, filters, and catalogues that fail or lie."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from penstock.config import Settings
from penstock.errors import FetchFailed, MediaNotFound, MediaRefused, MediaUnreadable
from penstock.intake.guard import GuardedClient
from penstock.intake.stac_search import StacSearch, StacSearches, together
from tests.support import stac_server
from tests.support.stac_api import FAULTS, Fault, StacApi, square, stac_api, stac_item

NOON_S = 1_700_049_600.0


@pytest.fixture
def api() -> Iterator[StacApi]:
    with stac_api(page_items=2) as api:
        api.put(*(stac_item(f"i{number}", NOON_S + number) for number in range(5)))
        yield api


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def search(api: StacApi, **more: object) -> StacSearch:
    span = {"begin": at(NOON_S), "end": at(NOON_S + 3)}
    return StacSearch(**{"url": api.url, "collections": ["scenes"], **span, **more})  # type: ignore[arg-type]


def names(api: StacApi, **more: object) -> list[str]:
    guard = GuardedClient(Settings(allowed_hosts=(f"127.0.0.1:{api.port}",)))
    return [item["id"] for item in StacSearches(guard, "acme", lambda _: None).items(search(api, **more))]


def test_all_pages_of_a_range_are_read(api: StacApi) -> None:
    assert names(api) == ["i0", "i1", "i2", "i3"]
    assert names(api, url=f"{api.url}/search", end=at(NOON_S + 9)) == ["i0", "i1", "i2", "i3", "i4"]
    assert names(api, collections=["others"]) == []


def test_the_query_of_an_address_belongs_to_the_landing_page_and_the_search(api: StacApi) -> None:
    real, asked = api.answer, list[str]()

    def answer(path: str) -> tuple[int, bytes]:
        asked.append(path)
        return real(path) if path.startswith("/search") else (200, b'{"conformsTo": [], "links": []}')

    api.answer = answer  # type: ignore[method-assign]
    for place in ("?key=1", "/search?key=1"):
        asked.clear()
        assert names(api, url=f"{api.url}{place}", end=at(NOON_S)) == ["i0"]
        assert asked[0] == "/?key=1"
        assert asked[1].startswith("/search?key=1&")


def test_the_box_is_sent_and_the_filter_only_to_a_server_that_knows_it(api: StacApi) -> None:
    api.put(stac_item("far", NOON_S, footprint=square(40, 40, 1)), stac_item("cloudy", NOON_S, cloud=90))
    wanted = {"geometry": together([square(0.2, 0.2, 0.1)]), "filter": "eo:cloud_cover < 20"}
    assert set(names(api, **wanted)) == {"i0", "i1", "i2", "i3", "cloudy"}
    assert "filter" not in api.requests[-1]
    api.filters = True
    assert set(names(api, **wanted)) == {"i0", "i1", "i2", "i3"}
    assert (api.requests[-1]["filter"], api.requests[-1]["filter-lang"]) == ("eo:cloud_cover < 20", "cql2-text")


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{status}-{body[:12]!r}" for status, body in FAULTS])
def test_a_fault_is_tried_again_and_then_reported(api: StacApi, fault: Fault) -> None:
    faults = iter([None, fault, fault])
    api.fault = lambda: next(faults, None)
    assert names(api) == ["i0", "i1", "i2", "i3"]
    api.fault = lambda: fault
    with pytest.raises((FetchFailed, MediaUnreadable), match=rf"STAC API at 127|answer of 127.0.0.1:{api.port} is not"):
        names(api)


def test_a_page_that_is_no_list_of_items_does_not_end_the_search(api: StacApi) -> None:
    """A page taken for the end would be missed items."""
    faults = iter([None, None, *[(200, b'{"message": "busy"}')] * 9])
    api.fault = lambda: next(faults, None)
    with pytest.raises(MediaUnreadable, match="no list of items"):
        names(api)


def test_pages_that_do_not_end_are_an_error(api: StacApi) -> None:
    real = api.answer
    link = f'"href": "{api.url}/search?turn'.encode()
    api.answer = lambda path: (  # type: ignore[method-assign]
        (200, b'{"type": "FeatureCollection", "features": [{}], "links": [{"rel": "next", ' + link + b'"}]}')
        if path.startswith("/search")
        else real(path)
    )
    with pytest.raises(FetchFailed, match="do not end"):
        names(api)


def test_an_address_that_is_not_allowed_is_not_asked(api: StacApi) -> None:
    with pytest.raises(MediaRefused):
        StacSearches(GuardedClient(Settings()), "acme").items(search(api))
    real = api.answer
    away = (
        b'{"type": "FeatureCollection", "features": [{}], "links": [{"rel": "next", "href": "http://127.0.0.1:9/x"}]}'
    )
    api.answer = lambda path: (200, away) if path.startswith("/search") else real(path)  # type: ignore[method-assign]
    with pytest.raises(MediaRefused):
        names(api)


def test_the_access_profiles_of_the_tenant_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_KEY", "s3cr3t")
    with stac_server.StacApi(needs=("X-Key", "s3cr3t")).serve() as api:
        api.items = [stac_item("a", NOON_S)]
        profile = {
            "name": "theirs", "kind": "header", "header": "X-Key", "hosts": [api.host], "secret": {"env": "THEIR_KEY"},
            "tenants": ["acme"],
        }  # fmt: skip
        guard = GuardedClient(Settings(allowed_hosts=(api.host,), access_profiles=[profile]))
        wanted = StacSearch(api.url, ["scenes"])
        assert [item["id"] for item in StacSearches(guard, "acme").items(wanted)] == ["a"]
        with pytest.raises(MediaNotFound, match="status 401"):
            StacSearches(guard, "other").items(wanted)
