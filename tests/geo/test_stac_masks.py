"""Kinds of masks: QA_PIXEL, cloud probability, and the classes that a STAC item describes; and their assets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import ValidationError

from penstock.errors import InvalidInput
from penstock.processors.geo.read.stac_item import read_stac_item
from penstock.processors.geo.read.stac_masks import described_kind, find_mask
from penstock.processors.geo.scene_request import MaskRequest
from tests.support.geo.metadata import item
from tests.support.geo.scenes import pattern, read, segment, write_scene

#: Values of QA_PIXEL (Landsat 8-9 Collection 2 Level 2 Science Product Guide, table 6-3), and True for the hidden ones.
QA_PIXEL = {
    1: True,  # fill
    21824: False,  # clear with low confidences
    21890: False,  # dilated cloud
    22280: True,  # high confidence cloud
    23888: True,  # high confidence cloud shadow
    54596: True,  # high confidence cirrus
    30048: False,  # high confidence snow or ice
    21952: False,  # water
}
#: The scene, as an asset.
GREY = {"href": "https://e.example/scene.tif"}
#: `qa_pixel` of Planetary Computer's and Earth Search's `landsat-c2-l2`, as their collections publish it.
BITFIELDS = [
    {
        "name": name,
        "offset": at,
        "length": 1,
        "classes": [{"name": f"not_{name}", "value": 0}, {"name": name, "value": 1}],
    }
    for at, name in enumerate(("fill", "dilated_cloud", "cirrus", "cloud", "cloud_shadow"))
] + [
    {
        "name": "cloud_confidence",
        "offset": 8,
        "length": 2,
        "classes": [{"name": name, "value": value} for value, name in enumerate(("not_set", "low", "medium", "high"))],
    }
]


def hidden(
    tmp_path: Path, values: npt.NDArray[Any], stac: dict[str, Any] | None = None, **mask: Any
) -> npt.NDArray[Any]:
    """Return the pixels of a map that a mask hides, of the mask's shape."""
    _, height, width = values.shape
    scene = write_scene(tmp_path / "scene.tif", pattern(height, width))
    profile = dict(mask.pop("profile", {}))
    media = str(write_scene(tmp_path / mask.pop("name", "mask.tif"), values, **profile))
    more = {} if stac is None else {"stac": stac}
    sink, result = segment(scene, tmp_path / "out", mask={"media": media, **mask}, outputs=("classes", "stats"), **more)
    found = read(sink.artifacts["classes.tif"])[0] == 255
    assert result.data is not None
    assert result.data["masked"][0]["pixels"] == found.sum()
    return np.asarray(found)


def spread(values: list[int], dtype: str) -> npt.NDArray[Any]:
    return np.random.default_rng(2).choice(values, (1, 40, 50)).astype(dtype)


def test_each_bit_of_qa_pixel_is_a_class(tmp_path: Path) -> None:
    values = spread(list(QA_PIXEL), "uint16")
    expected = np.isin(values[0], [value for value, is_hidden in QA_PIXEL.items() if is_hidden])
    np.testing.assert_array_equal(hidden(tmp_path, values, kind="qa_pixel", profile={"nodata": 1}), expected)


def test_other_classes_of_qa_pixel_can_be_named(tmp_path: Path) -> None:
    values = spread(list(QA_PIXEL), "uint16")
    found = hidden(tmp_path, values, kind="qa_pixel", classes=["snow", "dilated cloud"])
    np.testing.assert_array_equal(found, np.isin(values[0], [1, 21890, 30048]))


@pytest.mark.parametrize(("threshold", "cloudy"), [(0, [1, 40, 41, 100]), (40, [41, 100]), (99.5, [100])])
@pytest.mark.parametrize("nodata", [None, 0, 255])
def test_a_pixel_is_cloud_above_the_threshold(
    tmp_path: Path, threshold: float, cloudy: list[int], nodata: int | None
) -> None:
    values = spread([0, 1, 40, 41, 100] + ([255] if nodata == 255 else []), "uint8")
    profile = {} if nodata is None else {"nodata": nodata}
    found = hidden(tmp_path, values, kind="cloud_probability", threshold=threshold, profile=profile)
    np.testing.assert_array_equal(found, np.isin(values[0], [*cloudy, 255]))


def test_a_probability_needs_a_threshold_and_nothing_else_has_one() -> None:
    with pytest.raises(ValidationError, match="cloud_probability requires threshold"):
        MaskRequest(kind="cloud_probability")
    with pytest.raises(ValidationError, match="threshold requires kind cloud_probability"):
        MaskRequest(kind="scl", threshold=3)


@pytest.mark.parametrize("place", ["asset", "raster:bands", "bands"])
def test_the_bit_fields_of_a_stac_item_are_classes(tmp_path: Path, place: str) -> None:
    values = spread([0, 0b1, 0b1000, 0b10000, 0b11_0000_1000, 0b10_0000_0000], "uint16")
    fields: dict[str, Any] = {"classification:bitfields": BITFIELDS}
    asset = {"href": "https://e.example/mask.tif", **(fields if place == "asset" else {place: [fields]})}
    found = hidden(
        tmp_path,
        values,
        item({"grey": GREY, "qa": asset}),
        kind="classification",
        classes=["cloud", "cloud confidence medium"],
    )
    np.testing.assert_array_equal(found, np.isin(values[0], [0b1, 0b1000, 0b11_0000_1000, 0b10_0000_0000]))


def test_the_classes_of_a_stac_item_are_classes_and_the_files_nodata_is_one(tmp_path: Path) -> None:
    values = spread([0, 1, 2, 9], "uint8")
    classes = [{"value": value, "name": name} for value, name in enumerate(("Clear_Sky", "Thick-Cloud", "water"))]
    asset = {"href": "https://e.example/mask.tif", "classification:classes": classes}
    given: dict[str, Any] = {"kind": "classification", "profile": {"nodata": 9}}
    found = hidden(tmp_path, values, item({"grey": GREY, "clouds": asset}), classes=["thick cloud"], **given)
    np.testing.assert_array_equal(found, np.isin(values[0], [1, 9]))
    (tmp_path / "more").mkdir()
    said = r"Name the classes .* the mask has clear sky, thick cloud, water, no data\."
    with pytest.raises(InvalidInput, match=said):
        hidden(tmp_path / "more", values, item({"grey": GREY, "clouds": asset}), **given)


def test_the_values_of_one_name_are_one_class(tmp_path: Path) -> None:
    classes = [{"value": value, "name": name} for value, name in enumerate(("clear", "cloud", "water", "Cloud"))]
    asset = {"href": "https://e.example/mask.tif", "classification:classes": classes}
    values = spread([0, 1, 2, 3], "uint8")
    found = hidden(tmp_path, values, item({"grey": GREY, "qa": asset}), kind="classification", classes=["cloud"])
    np.testing.assert_array_equal(found, np.isin(values[0], [1, 3]))
    bits = [{"offset": at, "length": 1, "classes": [{"value": 1, "name": "cloud"}]} for at in (0, 1)]
    described = described_kind({"classification:bitfields": bits})
    assert described is not None
    assert (described.classes["cloud"].offset, described.classes["cloud"].values) == (0, (1,))


def test_classes_that_nobody_describes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="kind classification needs the asset of its file in the scene's STAC item"):
        hidden(tmp_path, spread([0, 1], "uint8"), kind="classification", classes=["cloud"])


def test_broken_descriptions_give_no_classes() -> None:
    wrong = [{"value": -1, "name": "a"}, {"value": "1", "name": "b"}, {"value": 1}, 7]
    bits = [{"name": "c", "offset": 14, "length": 3, "classes": wrong}, {"name": "d", "classes": 5}]
    assert described_kind({"classification:classes": wrong, "classification:bitfields": bits}) is None
    assert described_kind({"classification:classes": "no", "bands": [3], "raster:bands": None}) is None


#: Keys of masks: Earth Search 0 and 1, Planetary Computer, CDSE, LP DAAC, USGS before and since STAC 1.0.
KEYS = {
    "SCL": "scl",
    "scl": "scl",
    "scl-jp2": "scl",
    "SCL_20m": "scl",
    "SCL_60m": "scl",
    "Fmask": "fmask",
    "s3_Fmask": "fmask",
    "qa_pixel": "qa_pixel",
    "QA_PIXEL.TIF": "qa_pixel",
    "CLD_20m": "cloud_probability",
    "cloud": "cloud_probability",
    "MSK_CLDPRB_20m": "cloud_probability",
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("named", [True, False])
def test_the_asset_of_a_kind_is_found_under_every_catalogue_s_key(key: str, named: bool) -> None:
    title = {"title": "Cloud Probabilities"} if key == "cloud" else {}
    assets = {"B04": {"href": "https://e.example/B04.tif"}, key: {"href": "https://e.example/m.tif", **title}}
    limit = {"threshold": 40} if KEYS[key] == "cloud_probability" else {}
    request = MaskRequest.model_validate({**limit, **({"kind": KEYS[key]} if named else {})})
    assert find_mask(read_stac_item(item(assets)), request) == (KEYS[key], key)


def test_the_finest_geotiff_at_an_https_address_is_chosen() -> None:
    tif = "image/tiff; application=geotiff"
    for others in (
        {
            "s3_Fmask": {"href": "s3://lp-prod-protected/F.tif", "type": tif},
            "Fmask": {"href": "https://h/F.tif", "type": tif},
        },
        {"scl-jp2": {"href": "s3://b/SCL.jp2", "type": "image/jp2"}, "scl": {"href": "https://h/SCL.tif", "type": tif}},
        {"SCL_60m": {"href": "s3://eodata/S60.jp2"}, "SCL_20m": {"href": "s3://eodata/S20.jp2"}},
    ):
        assert find_mask(read_stac_item(item(others)), MaskRequest())[1] == list(others)[1]


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (("clear", "cloudy", "cloud_shadow", "cloud_free"), '"classes": ["cloudy", "cloud shadow"]}.'),
        (("ice", "smoke"), "The asset usable describes the classes ice, smoke. Name those that hide the ground"),
        (("ice", "smoke"), '"mask": {"kind": "classification", "classes": ["?"]}.'),
    ],
)
def test_a_mask_without_a_kind_points_to_the_classes_that_an_asset_describes(
    classes: tuple[str, ...], said: str
) -> None:
    described = [{"value": at, "name": name} for at, name in enumerate(classes)]
    document = read_stac_item(item({"usable": {"href": "https://h/u.tif", "classification:classes": described}}))
    with pytest.raises(InvalidInput) as refused:
        find_mask(document, MaskRequest())
    assert said in refused.value.detail
    with pytest.raises(InvalidInput) as refused:
        find_mask(document, MaskRequest(kind="fmask"))
    assert refused.value.detail == "The STAC item has no asset fmask; it has usable."


def test_an_asset_called_cloud_that_is_no_probability_is_not_taken_for_one() -> None:
    document = read_stac_item(item({"cloud": {"href": "https://e.example/m.tif", "title": "Cloud mask"}}))
    with pytest.raises(InvalidInput, match="has no asset cloud_probability; it has cloud"):
        find_mask(document, MaskRequest(threshold=40))


@pytest.mark.parametrize("kind", [None, "classification"])
def test_the_asset_with_the_requested_classes_is_chosen_of_several_that_describe_classes(kind: str | None) -> None:
    def described(name: str, *names: str) -> dict[str, Any]:
        classes = [{"value": value, "name": each} for value, each in enumerate(names)]
        return {"href": f"https://e.example/{name}.tif", "classification:classes": classes}

    land = described("land", "forest", "water", "cloud")
    quality = described("quality", "clear", "cloud", "cloud shadow")
    document = read_stac_item(item({"land": land, "quality": quality}))
    for classes, key in ((["cloud", "cloud shadow"], "quality"), (["water"], "land"), (["cloud"], "land")):
        request = MaskRequest.model_validate({"kind": kind, "classes": classes})
        assert find_mask(document, request) == ("classification", key)
