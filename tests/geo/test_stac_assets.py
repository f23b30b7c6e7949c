"""The asset of a band is the finest one, by what the item states and not by the order of its keys."""

from __future__ import annotations

import json
import re
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import InvalidInput, MissingBands
from penstock.processors.geo.options import Band
from penstock.processors.geo.read.stac_assets import choose_assets
from penstock.processors.geo.read.stac_item import read_stac_item
from tests.support.geo.metadata import item
from tests.support.geo.scenes import make_model, pattern, read, segment, write_scene

NIR = [Band(name="nir", synonyms=("B08",), mean=0, std=1)]
RED = [Band(name="red", mean=0, std=1)]


def chosen(assets: dict[str, Any], needed: list[Band], **properties: Any) -> list[str]:
    named = {key: {"href": f"https://x.example/{key}.tif", "type": "image/tiff", **own} for key, own in assets.items()}
    addresses = choose_assets(read_stac_item(item(named, **properties)), None, needed, None)
    return [address.removeprefix("https://x.example/").removesuffix(".tif") for address in addresses]


@pytest.mark.parametrize(
    "stated",
    [
        lambda px: {"gsd": px},
        lambda px: {"raster:bands": [{"spatial_resolution": px}], "eo:bands": [{"name": "B04"}]},
        lambda px: {"bands": [{"name": "B04", "gsd": px}]},
        lambda px: {"raster:spatial_resolution": px},
        lambda px: {"proj:transform": [px, 0, 300_000, 0, -px, 5_000_040]},
        lambda _: {},  # the key alone, as CDSE names its assets
    ],
)
def test_the_finest_resolution_of_a_band_is_taken_in_any_order_of_keys(stated: Any) -> None:
    for order in permutations((10, 20, 60)):
        assets = {f"B04_{px}m": {"eo:bands": [{"name": "B04", "common_name": "red"}], **stated(px)} for px in order}
        assets = {key: {**own, "bands": own.get("bands", own["eo:bands"])} for key, own in assets.items()}
        assert chosen(assets, [Band(name="red", synonyms=("B04",), mean=0, std=1)]) == ["B04_10m"]


def test_a_stated_resolution_is_better_than_none_and_a_geotiff_than_a_jpeg_2000_of_the_same() -> None:
    band = {"eo:bands": [{"name": "red", "common_name": "red"}]}
    jp2 = {**band, "gsd": 10, "type": "image/jp2"}
    assert chosen({"red-jp2": jp2, "red": {**band, "gsd": 10}}, RED) == ["red"]
    assert chosen({"coarse": {**band, "gsd": 60}, "red-jp2": jp2}, RED) == ["red-jp2"]
    assert chosen({"some": band, "red": {**band, "gsd": 20}}, RED) == ["red"]


def test_codes_of_an_item_are_those_of_its_sensor() -> None:
    # https://cmr.earthdata.nasa.gov/stac/LPCLOUD: assets of HLS have no bands, and the keys are codes
    l30 = {key: {} for key in ("B02", "B03", "B04", "B05", "B06", "B07", "B09", "B10", "B11")}
    needed = [*NIR, Band(name="swir16", synonyms=("B11",), mean=0, std=1)]
    assert chosen(l30, needed, platform="landsat-8") == ["B05", "B06"]
    with pytest.raises(MissingBands, match="No asset of the STAC item has the band nir"):
        chosen({key: {} for key in ("B05", "B06", "B11")}, NIR, platform="sentinel-2a")


@pytest.mark.parametrize("keys", [("B08", "B8A"), ("0_B08", "0_B8A"), ("nir", "nir08")])
def test_the_near_infrared_of_an_item_is_that_of_the_record_s_first_code(keys: tuple[str, str]) -> None:
    for codes, expected in ((("B8A", "B08"), keys[1]), (("B08", "B8A"), keys[0])):
        needed = [Band(name="nir", synonyms=codes, mean=0, std=1)]
        assert chosen({key: {} for key in keys}, needed, platform="sentinel-2a") == [expected]


def test_the_error_about_local_assets_has_the_files_to_list(tmp_path: Path) -> None:
    declared = {"raster:bands": [{"scale": 2, "offset": 10}]}
    for name in ("B02", "B08"):
        write_scene(tmp_path / f"{name}.tif", pattern(40, 40))
    bands = [{"name": "blue", "mean": 0.0, "std": 1.0}, {"name": "nir", "mean": 0.0, "std": 1.0}]
    model = make_model(bands=bands, default_radiometry=[])
    for folder, words in (("", "has the relative address 'B02.tif'"), (f"{tmp_path}/", "names the local file '/")):
        assets = {
            key: {"href": f"{folder}{code}.tif", "eo:bands": [{"name": code, "common_name": key}], **declared}
            for key, code in (("blue", "B02"), ("nir", "B08"))
        }
        with pytest.raises(InvalidInput, match=words) as caught:
            segment(None, tmp_path / "none", model=model, stac=item(assets))
        [line] = re.findall(r'("files": \[.*?\])\.', caught.value.detail)
        files = json.loads(f"{{{line}}}")["files"]
        assert files == [{"media": f"{folder}{code}.tif"} for code in ("B02", "B08")]
    sink, result = segment(None, tmp_path / "out", model=model, stac=item(assets), files=files)
    assert set(np.unique(read(sink.artifacts["classes.tif"]) - (2 * pattern(40, 40).astype(int) + 10) % 5)) == {0}
    assert result.data is not None
    assert result.data["radiometry"]["source"] == "stac"
