"""A STAC collection of items is a mosaic of its items, in its order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import InvalidInput, MissingBands
from penstock.processors.geo.options import Band, DefaultRadiometry
from penstock.processors.geo.read.inputs import Inputs, read_inputs
from penstock.processors.geo.request import SceneRequest
from penstock.processors.links import asset_links, collection_items, has_further_pages
from tests.geo.test_mosaic import mosaic, part_of, pixels
from tests.support.geo.metadata import item
from tests.support.geo.scenes import Files, pattern

SITE = "https://stac.example.com/"
SEARCH = f"{SITE}search?bbox=1,2,3,4&limit=2"
GREY = [Band(name="grey", mean=0, std=1)]
DEFAULTS = [DefaultRadiometry(dtypes=("uint8", "uint16", "float32"), scale=1.0)]


class Site(Files):
    """Media at addresses of a site, whose files lie in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.fetched: list[str] = []

    def path(self, reference: str) -> Path:
        return self.folder / reference.removeprefix(SITE).partition("?")[0]

    def fetch(self, reference: str, *, by_range: bool = False) -> None:  # noqa: ARG002  (the protocol names it)
        self.fetched.append(reference)


def scene(name: str, *, time: str = "2024-05-01T10:00:00Z", **more: Any) -> dict[str, Any]:
    """Return an item of a scene with a relative address."""
    assets = {"grey": {"href": f"./{name}.tif", "eo:bands": [{"name": "grey"}]}} | more.pop("assets", {})
    return item(assets, datetime=time) | {"id": name, "links": []} | more


def collection(*items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "FeatureCollection", "features": list(items)} | more


def inputs(site: Site, request: dict[str, Any]) -> Inputs:
    return read_inputs(SceneRequest.model_validate(request), site, GREY, defaults=DEFAULTS)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a site with two overlapping scenes, and a mask of each."""
    numbers = pattern(40, 50)
    for at, (name, box) in enumerate({"a": (0, 0, 40, 30), "b": (5, 20, 40, 50)}.items()):
        part_of(tmp_path / f"{name}.tif", numbers + np.uint8(at), box)
        classes = np.full((1, *numbers.shape[1:]), 4, np.uint8)
        classes[:, :, 22:26] = 9 if at == 0 else 4  # a cloud over a part of the overlap, in the first scene
        part_of(tmp_path / f"{name}-scl.tif", classes, box)
    return Site(tmp_path)


def answer(site: Site, document: dict[str, Any]) -> str:
    """Store the answer of a search, and return its address."""
    (site.folder / "search").write_text(json.dumps(document))
    return SEARCH


def at_home(one: dict[str, Any]) -> dict[str, Any]:
    """Return an item with an address of its own."""
    return one | {"links": [{"rel": "self", "href": f"{SITE}{one['id']}.json"}]}


def assert_same(found: Inputs, expected: Inputs) -> None:
    for ours, theirs in zip(pixels(found), pixels(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert found.mosaics_json() == expected.mosaics_json()
    assert found.times == expected.times


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize("way", ["inline", "address"])
def test_its_items_are_the_scenes_of_a_mosaic_in_its_order(names: str, way: str, site: Site) -> None:
    items = [at_home(scene(name)) for name in names]
    expected = inputs(site, mosaic(*({"stac": one} for one in items)))
    document = collection(*items)
    found = inputs(site, {"stac": document if way == "inline" else answer(site, document)})
    assert_same(found, expected)
    assert [file.reference for file in found.files] == [f"{SITE}{name}.tif" for name in names]
    assert found.items == tuple(f"{SITE}{name}.json" for name in names)


def test_relative_addresses_are_those_of_the_item_else_of_the_collection(site: Site) -> None:
    here, there = scene("b"), scene("a") | {"links": [{"rel": "self", "href": f"{SITE}deep/a.json"}]}
    (site.folder / "deep").mkdir()
    (site.folder / "a.tif").rename(site.folder / "deep" / "a.tif")
    found = inputs(site, {"stac": answer(site, collection(there, here))})
    assert [file.reference for file in found.files] == [f"{SITE}deep/a.tif", f"{SITE}b.tif"]
    inline = collection(there, here, links=[{"rel": "self", "href": f"{SITE}search"}])
    assert [file.reference for file in inputs(site, {"stac": inline}).files] == [f"{SITE}deep/a.tif", f"{SITE}b.tif"]


def test_a_collection_inside_a_mosaic_is_merged_as_the_mosaic_says(site: Site) -> None:
    items = [at_home(scene(name)) for name in "ab"]
    options: dict[str, Any] = {"merge": "median", "grid": {"crs": "EPSG:32633", "resolution": 20}}
    expected = inputs(site, mosaic(*({"stac": one} for one in items), **options))
    assert_same(inputs(site, mosaic({"stac": collection(*items)}, **options)), expected)
    mixed = mosaic({"stac": collection(items[0])}, {"scene": f"{SITE}b.tif"}, **options)
    assert_same(inputs(site, mixed), expected)


def test_each_item_has_its_own_mask(site: Site) -> None:
    items = [at_home(scene(name, assets={"SCL": {"href": f"{name}-scl.tif"}})) for name in "ab"]
    expected = inputs(site, mosaic(*({"stac": one, "mask": {}} for one in items)))
    found = inputs(site, {"stac": collection(*items), "mask": {}})
    assert_same(found, expected)
    assert len(found.dates[0].masks) == 2
    numbers, _ = pixels(found)
    np.testing.assert_array_equal(numbers[0, 10, 22:26], pattern(40, 50)[0, 10, 22:26] + 1)


def test_a_collection_of_one_item_is_the_item(site: Site) -> None:
    only = at_home(scene("a"))
    found = inputs(site, {"stac": collection(only)})
    assert found.mosaics_json() == []
    assert_same(found, inputs(site, {"stac": only}))
    assert_same(inputs(site, {"stac": collection(only), "scene": f"{SITE}a.tif"}), found)


def test_each_date_may_be_a_collection(site: Site) -> None:
    dates = [
        {"stac": collection(*(at_home(scene(name, time=f"2024-05-0{day}T10:00:00Z")) for name in "ab"))}
        for day in (1, 4)
    ]
    request = SceneRequest.model_validate({"dates": dates})
    found = read_inputs(request, site, GREY, defaults=DEFAULTS, dates=2)
    assert [len(date.members) for date in found.dates] == [2, 2]
    assert [time.day for time in found.acquired] == [1, 4]


def test_a_pass_over_midnight_is_one_day(site: Site) -> None:
    late, early = scene("a", time="2024-05-01T23:59:50Z"), scene("b", time="2024-05-02T02:00:05+02:00")
    assert len(inputs(site, {"stac": collection(at_home(late), at_home(early))}).dates[0].members) == 2


TWO = [at_home(scene("a")), at_home(scene("b"))]
BANDLESS = at_home(scene("b")) | {"assets": {"nir": {"href": "b.tif", "eo:bands": [{"name": "nir"}]}}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "days": (
        {"stac": collection(TWO[0], at_home(scene("b", time="2024-05-03T10:00:00Z")))},
        r"of different days: a of 2024-05-01, b of 2024-05-03 \(UTC\)\. Narrow the search",
    ),
    "no day": ({"stac": collection(TWO[0], at_home(scene("b", time="soon")))}, "b of the STAC .* has no `datetime`"),
    "empty": ({"stac": collection()}, "The STAC collection has no items"),
    "none": ({"stac": {"type": "FeatureCollection"}}, "The STAC collection has no items"),
    "odd": ({"stac": collection(TWO[0], "b")}, "The STAC collection has invalid items"),
    "pages": (
        {"stac": collection(*TWO, links=[{"rel": "next", "href": f"{SITE}search?page=2"}])},
        "one page of 2 items, and there are others: raise the `limit`",
    ),
    "matched": ({"stac": collection(*TWO, numberMatched=12)}, "one page of 2 items"),
    "many": ({"stac": collection(*TWO * 51)}, "has 102 items; a mosaic has at most 100 scenes"),
    "many in all": (mosaic(*[{"stac": collection(*TWO)}] * 51), "has 102 items; a mosaic has at most 100 scenes"),
    "files": (
        {"stac": collection(*TWO), "scene": f"{SITE}a.tif"},
        "has 2 items, each with files of its own: remove scene, or give the scenes one by one",
    ),
    "mask": (
        {"stac": collection(*TWO), "mask": {"media": f"{SITE}a-scl.tif", "kind": "scl"}},
        "has 2 items, each with files of its own: remove mask.media",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_mosaic_is_refused_in_words_before_a_file_is_fetched(
    request_: dict[str, Any], words: str, site: Site
) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        inputs(site, request_)
    assert [issue.pointer for issue in refused.value.errors] == ["/input/stac"]
    assert site.fetched == []


def test_an_item_without_the_bands_is_named(site: Site) -> None:
    with pytest.raises(MissingBands, match=r"Scene 2 \(b\): No asset of the STAC item has the band grey; .* has nir"):
        inputs(site, {"stac": collection(TWO[0], BANDLESS)})


def test_the_files_of_all_items_are_counted(site: Site) -> None:
    needed = [Band(name=f"b{at}", mean=0, std=1) for at in range(5)]
    (site.folder / "a.tif").rename(site.folder / "b0.tif")
    for at in range(1, 5):
        (site.folder / f"b{at}.tif").write_bytes((site.folder / "b0.tif").read_bytes())
    one = at_home(item({band.name: {"href": f"{band.name}.tif"} for band in needed}) | {"id": "all"})
    request = SceneRequest.model_validate({"stac": collection(*[one] * 81)})
    with pytest.raises(InvalidInput, match="have 405 files; at most 400"):
        read_inputs(request, site, needed, defaults=DEFAULTS)


def test_the_last_page_of_a_search_is_whole() -> None:
    next_page = [{"rel": "next", "href": f"{SITE}search?page=2"}]
    assert not has_further_pages(collection(*TWO))
    assert not has_further_pages(collection(*TWO, links=next_page, numberMatched=2))
    assert not has_further_pages(collection(*TWO, links=next_page, context={"matched": 2}))
    assert has_further_pages(collection(*TWO, context={"matched": 3}))


def test_another_document_is_no_collection_and_an_odd_one_has_no_addresses() -> None:
    assert collection_items(TWO[0], SEARCH) is None
    assert collection_items(["FeatureCollection"], SEARCH) is None
    assert collection_items({"type": "FeatureCollection", "features": {}}, SEARCH) == []
    [odd] = (
        collection_items(collection({"links": [3, {"rel": "self", "href": "../x"}], "assets": {"a": 1}}), SEARCH) or ()
    )
    assert asset_links(odd, None) == {}
    assert odd["links"] == [{"rel": "self", "href": SEARCH}]
