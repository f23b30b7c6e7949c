"""Searches in a STAC API over HTTP: pages, filters, and catalogues that fail or lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config import Settings
from penstock.errors import FetchFailed, MediaRefused
from penstock.intake.guard import GuardedClient
from penstock.intake.stac_search import Search, StacSearches, bounding_box
from tests.support.stac_api import FAULTS, Fault, StacApi, square, stac_api, stac_item

NOON_S = 1_700_049_600.0


@pytest.fixture
def api() -> Iterator[StacApi]:
    with stac_api(page_items=2) as api:
        api.put(*(stac_item(f"i{number}", NOON_S + number) for number in range(5)))
        yield api


def searches(api: StacApi, folder: Path) -> StacSearches:
    return StacSearches(GuardedClient(Settings(allowed_hosts=(f"127.0.0.1:{api.port}",))), folder)


def search(api: StacApi, **more: object) -> Search:
    return Search(**{"url": api.url, "collections": ["scenes"], "start_s": NOON_S, "end_s": NOON_S + 3, **more})  # type: ignore[arg-type]


def names(api: StacApi, folder: Path, **more: object) -> list[str]:
    return [item.get("id", "") for item in searches(api, folder).items(search(api, **more))]


def test_all_pages_of_a_range_are_read(api: StacApi, tmp_path: Path) -> None:
    assert names(api, tmp_path) == ["i0", "i1", "i2", "i3"]
    assert names(api, tmp_path, url=f"{api.url}/search", end_s=NOON_S + 9) == ["i0", "i1", "i2", "i3", "i4"]
    assert names(api, tmp_path, collections=["others"]) == []
    assert list(tmp_path.iterdir()) == []


def test_the_box_is_sent_and_the_filter_only_to_a_server_that_knows_it(api: StacApi, tmp_path: Path) -> None:
    api.put(stac_item("far", NOON_S, footprint=square(40, 40, 1)), stac_item("cloudy", NOON_S, cloud=90))
    box = bounding_box([square(0.2, 0.2, 0.1)])
    wanted = {"bbox": box, "filter": "eo:cloud_cover < 20"}
    assert set(names(api, tmp_path, **wanted)) == {"i0", "i1", "i2", "i3", "cloudy"}
    assert "filter" not in api.requests[-1]
    api.filters = True
    assert set(names(api, tmp_path, **wanted)) == {"i0", "i1", "i2", "i3"}
    assert (api.requests[-1]["filter"], api.requests[-1]["filter-lang"]) == ("eo:cloud_cover < 20", "cql2-text")


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{status}-{body[:12]!r}" for status, body in FAULTS])
def test_a_fault_is_tried_again_and_then_reported(api: StacApi, tmp_path: Path, fault: Fault) -> None:
    faults = iter([None, fault, fault])
    api.fault = lambda: next(faults, None)
    if fault[1].startswith(b'{"type": "FeatureCollection"'):  # JSON of another kind is no passing trouble
        with pytest.raises(FetchFailed, match="no list of items"):
            names(api, tmp_path)
        return
    assert names(api, tmp_path) == ["i0", "i1", "i2", "i3"]
    api.fault = lambda: fault
    with pytest.raises(FetchFailed, match="the catalogue at"):
        names(api, tmp_path)


def test_pages_that_do_not_end_are_an_error(api: StacApi, tmp_path: Path) -> None:
    real = api.answer
    link = f'"href": "{api.url}/search?turn'.encode()
    api.answer = lambda path: (  # type: ignore[method-assign]
        (200, b'{"type": "FeatureCollection", "features": [{}], "links": [{"rel": "next", ' + link + b'"}]}')
        if path.startswith("/search")
        else real(path)
    )
    with pytest.raises(FetchFailed, match="do not end"):
        names(api, tmp_path)


def test_an_address_that_is_not_allowed_is_not_asked(api: StacApi, tmp_path: Path) -> None:
    with pytest.raises(MediaRefused):
        StacSearches(GuardedClient(Settings()), tmp_path).items(search(api)).__next__()
    real = api.answer
    away = (
        b'{"type": "FeatureCollection", "features": [{}], "links": [{"rel": "next", "href": "http://127.0.0.1:9/x"}]}'
    )
    api.answer = lambda path: (200, away) if path.startswith("/search") else real(path)  # type: ignore[method-assign]
    with pytest.raises(MediaRefused):
        names(api, tmp_path)
