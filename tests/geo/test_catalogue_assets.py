"""Assets as catalogues publish them: LP DAAC's twins and keys without bands, and USGS' own metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import InvalidInput
from penstock.processors.geo.options import Band, DefaultRadiometry
from penstock.processors.geo.read.inputs import Inputs, read_inputs
from penstock.processors.geo.request import SceneRequest
from tests.support.geo.metadata import item, landsat
from tests.support.geo.scenes import Files, pattern, write_scene

BANDS = [
    Band(name="green", synonyms=("B03",), mean=0, std=1),
    Band(name="red", synonyms=("B04",), mean=0, std=1),
]
DEFAULTS = [DefaultRadiometry(dtypes=("uint8", "int16", "uint16"), scale=1e-4)]
HLS = "HLS.S30.T33TVG.2024096T100601.v2.0"
LANDSAT = "LC08_L2SP_191029_20240405_20240411_02_T1"


class Web(Files):
    """Files at addresses; only those that were fetched are there."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        super().__init__()
        self.files, self.fetched = dict(files), list[str]()

    def fetch(self, reference: str, *, by_range: bool = False) -> None:  # noqa: ARG002  (the protocol names it)
        self.fetched.append(reference)

    def path(self, reference: str) -> Path:
        assert reference in self.fetched
        return self.files[reference]


def opened(document: dict[str, Any], web: Web, **fields: Any) -> Inputs:
    request = SceneRequest.model_validate({"stac": document, **fields})
    return read_inputs(request, web, BANDS, defaults=DEFAULTS)


# LP DAAC, https://cmr.earthdata.nasa.gov/stac/LPCLOUD/collections/HLSS30_2.0: no bands, each file twice.
@pytest.mark.parametrize("s3_first", [True, False])
def test_each_file_of_lp_daac_is_read_once_from_its_https_address(tmp_path: Path, s3_first: bool) -> None:
    assets, files = {}, {}
    for name, scale in (("B03", 1e-4), ("B04", 1e-4)):
        https = f"https://data.lpdaac.earthdatacloud.nasa.gov/lp-prod-protected/HLSS30.020/{HLS}/{HLS}.{name}.tif"
        twins = [(f"s3_{name}", f"s3://lp-prod-protected/HLSS30.020/{HLS}/{HLS}.{name}.tif"), (name, https)]
        assets |= {key: {"href": href} for key, href in (twins if s3_first else twins[::-1])}
        files[https] = write_scene(tmp_path / f"{name}.tif", pattern(20, 30).astype(np.int16), scales=(scale,))
    assets |= {
        "browse": {"href": f"https://h/{HLS}.jpg", "type": "image/jpeg"},
        "metadata": {"href": "https://h/m.xml"},
    }
    found = opened(item(assets), web := Web(files))
    assert web.fetched == list(files)
    assert [band.file.reference for band in found.bands] == list(files)
    assert (found.radiometry.scale, found.radiometry.source) == ((1e-4, 1e-4), "file")


def test_an_item_with_s3_addresses_alone_has_the_same_bands(tmp_path: Path) -> None:
    files = {f"s3://lp/{name}.tif": write_scene(tmp_path / f"{name}.tif", pattern(20, 30)) for name in ("B03", "B04")}
    assets = {f"s3_{Path(address).stem}": {"href": address} for address in files}
    assert [band.file.reference for band in opened(item(assets), Web(files)).bands] == list(files)


def usgs(*, scaled: bool = False, metadata: str | None = "MTL.json") -> tuple[dict[str, Any], str, dict[str, str]]:
    """Return an item of https://landsatlook.usgs.gov/stac-server, its metadata's address, and its bands' addresses."""
    base = f"https://landsatlook.usgs.gov/data/collection02/level-2/standard/oli-tirs/2024/191/029/{LANDSAT}/{LANDSAT}"
    assets: dict[str, Any] = (
        {} if metadata is None else {metadata: {"href": f"{base}_MTL.json", "type": "application/json"}}
    )
    bands = {}
    for key, number in (("green", 3), ("red", 4)):
        bands[key] = f"{base}_SR_B{number}.TIF"
        assets[key] = {
            "href": bands[key],
            "type": "image/vnd.stac.geotiff; cloud-optimized=true",
            "eo:bands": [{"name": f"B{number}", "common_name": key, "center_wavelength": 0.56}],
        } | ({"raster:bands": [{"scale": 2.75e-05, "offset": -0.2, "nodata": 0}]} if scaled else {})
    return item(assets), f"{base}_MTL.json", bands


def landsat_files(tmp_path: Path, mtl: str, bands: dict[str, str], level: str = "L2SP") -> Web:
    document = landsat(level, {3: ("2.75e-05", "-0.2"), 4: ("2.8e-05", "-0.3")})
    (tmp_path / "mtl.json").write_text(json.dumps(document))
    files = {address: write_scene(tmp_path / f"{key}.tif", pattern(20, 30)) for key, address in bands.items()}
    return Web({mtl: tmp_path / "mtl.json", **files})


@pytest.mark.parametrize("key", ["MTL.json", "mtl.json", "product_metadata"])
def test_the_metadata_that_an_item_of_usgs_names_is_read(tmp_path: Path, key: str) -> None:
    document, mtl, bands = usgs(metadata=key)
    web = landsat_files(tmp_path, mtl, bands)
    found = opened(document, web)
    assert web.fetched == [*bands.values(), mtl]
    assert (found.radiometry.scale, found.radiometry.offset) == ((2.75e-05, 2.8e-05), (-0.2, -0.3))
    assert found.radiometry.nodata == (0, 0)
    assert found.radiometry.source == "sidecar"


def test_an_item_with_scales_needs_no_metadata(tmp_path: Path) -> None:
    document, mtl, bands = usgs(scaled=True)
    web = landsat_files(tmp_path, mtl, bands)
    found = opened(document, web)
    assert mtl not in web.fetched
    assert (found.radiometry.scale, found.radiometry.source) == ((2.75e-05, 2.75e-05), "stac")


def test_without_metadata_the_model_s_default_is_used(tmp_path: Path) -> None:
    document, mtl, bands = usgs(metadata=None)
    assert opened(document, landsat_files(tmp_path, mtl, bands)).radiometry.source == "model default"


# USGS before STAC 1.0, as in stactools-packages/landsat, tests/data-files: assets have the index of a band.
def test_bands_by_index_of_older_items_have_the_names_in_the_properties(tmp_path: Path) -> None:
    _, mtl, bands = usgs()
    assets = {
        f"SR_B{number}.TIF": {"href": address, "type": "image/vnd.stac.geotiff; cloud-optimized=true", "eo:bands": [at]}
        for at, (number, address) in enumerate(zip((3, 4), bands.values(), strict=True))
    }
    assets["MTL.json"] = {"href": mtl, "type": "application/json", "eo:bands": [9]}
    names = [{"name": "SR_B3", "common_name": "green"}, {"name": "SR_B4", "common_name": "red"}]
    found = opened(item(assets, **{"eo:bands": names}), landsat_files(tmp_path, mtl, bands))
    assert [band.file.reference for band in found.bands] == list(bands.values())
    assert found.radiometry.scale == (2.75e-05, 2.8e-05)


def test_metadata_that_is_broken_is_named(tmp_path: Path) -> None:
    document, mtl, bands = usgs()
    web = landsat_files(tmp_path, mtl, bands)
    (tmp_path / "mtl.json").write_text(json.dumps(landsat("L1TP", {3: ("1e-5", "0")}, sun="-3")))
    with pytest.raises(InvalidInput, match="The sidecar's sun elevation is below the horizon"):
        opened(document, web)


SETTLED = {"scale": 2e-4, "offset": -0.1}
TWO = [{"name": "B03"}, {"name": "B04"}]
ENTRY = {"scale": 1e-4, "offset": -0.1, "nodata": 0}


def test_a_request_settles_what_the_assets_of_an_item_leave_unclear(tmp_path: Path) -> None:
    address = "https://e.example/stack.tif"
    files = {address: write_scene(tmp_path / "stack.tif", np.repeat(pattern(20, 30), 2, axis=0))}
    document = item({"all": {"href": address, "eo:bands": TWO, "raster:bands": [ENTRY]}})
    found = opened(document, Web(files), radiometry=SETTLED).radiometry
    assert (found.scale, found.offset, found.source) == ((2e-4, 2e-4), (-0.1, -0.1), "request")
    with pytest.raises(InvalidInput, match=r"has 2 bands in `eo:bands`, but 1 in `raster:bands`"):
        opened(document, Web(files))


def stack(href: str, scale: float) -> dict[str, Any]:
    return {"href": href, "eo:bands": TWO, "raster:bands": [{"scale": scale}] * 2}


@pytest.mark.parametrize(
    ("assets", "said"),
    [
        (
            {"fine": stack("https://e.example/R10m/stack.tif", 1e-4), "coarse": stack("R20m/stack.tif", 3e-4)},
            "several assets named stack.tif with different radiometry",
        ),
        ({"B04": {"href": "B04.tif", "raster:bands": [ENTRY]}}, "has no radiometry for the band named B03"),
        (
            {
                "B04": {"href": "B04.tif", "raster:bands": [ENTRY]},
                "B03": {"href": "B03.tif", "raster:bands": [ENTRY]},
                "B03_20m": {"href": "C.tif", "eo:bands": [{"name": "B03"}], "raster:bands": [{"scale": 3e-4}]},
            },
            "has different radiometry for the band named B03",
        ),
    ],
)
def test_a_request_settles_what_an_item_leaves_unclear_for_a_file(
    tmp_path: Path, assets: dict[str, Any], said: str
) -> None:
    path = write_scene(tmp_path / "stack.tif", np.repeat(pattern(20, 30), 2, axis=0), descriptions=("B03", "B04"))
    request = {"scene": str(path), "stac": item(assets)}
    given = SceneRequest.model_validate({**request, "radiometry": SETTLED})
    found = read_inputs(given, Files(), BANDS, defaults=DEFAULTS).radiometry
    assert (found.scale, found.offset, found.source) == ((2e-4, 2e-4), (-0.1, -0.1), "request")
    with pytest.raises(InvalidInput, match=said):
        read_inputs(SceneRequest.model_validate(request), Files(), BANDS, defaults=DEFAULTS)


@pytest.mark.parametrize(
    ("fields", "tags", "properties", "fetched"),
    [
        ({"radiometry": {**SETTLED, "nodata": 0}}, {}, {}, False),
        ({"radiometry": SETTLED}, {"nodata": 0}, {}, False),
        ({"radiometry": SETTLED}, {}, {}, True),  # the metadata have the nodata number 0
        ({"radiometry": SETTLED}, {"nodata": 0}, {"datetime": None}, True),
        ({"radiometry": SETTLED, "datetime": "2024-04-05T10:00:00Z"}, {"nodata": 0}, {"datetime": None}, False),
    ],
)
def test_metadata_that_add_nothing_to_the_request_are_not_fetched(
    tmp_path: Path, fields: dict[str, Any], tags: dict[str, Any], properties: dict[str, Any], fetched: bool
) -> None:
    document, mtl, bands = usgs()
    document["properties"] |= properties
    web = landsat_files(tmp_path, mtl, bands)
    for key in bands:
        write_scene(tmp_path / f"{key}.tif", pattern(20, 30), **tags)
    found = opened(document, web, **fields)
    assert (mtl in web.fetched) == fetched
    assert (found.radiometry.scale, found.radiometry.nodata) == ((2e-4, 2e-4), (0, 0))
    assert found.times[-1].at is not None


#: One of two bands of an asset has a scale: in STAC 1.1, and in 1.0 with complete lists.
HALVES = [
    {"bands": [{"name": "B03", "raster:scale": 1e-4, "raster:offset": -0.1}, {"name": "B04"}]},
    {"eo:bands": TWO, "raster:bands": [{"scale": 1e-4, "offset": -0.1}, {"nodata": 7}]},
]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ["stack.tif", "mine.tif"])
def test_a_scale_of_some_bands_of_an_asset_is_not_completed_with_the_model_s(
    tmp_path: Path, half: dict[str, Any], name: str
) -> None:
    numbers = np.repeat(pattern(20, 30), 2, axis=0)
    path = write_scene(tmp_path / name, numbers, descriptions=("B03", "B04"))
    request = {"scene": str(path), "stac": item({"all": {"href": "https://e.example/stack.tif", **half}})}

    def found(**fields: Any) -> Any:
        return read_inputs(SceneRequest.model_validate({**request, **fields}), Files(), BANDS, defaults=DEFAULTS)

    with pytest.raises(
        InvalidInput, match=r'asset all of the STAC item gives a scale for 1 of its 2 bands, .*"scale": 0.0001'
    ):
        found()
    settled = found(radiometry=SETTLED).radiometry
    empty = 7 if "raster:bands" in half else 0  # 0 is the model's
    assert (settled.scale, settled.source, settled.nodata[1]) == ((2e-4, 2e-4), "request", empty or None)
    write_scene(path, numbers, descriptions=("B03", "B04"), scales=(3e-4, 3e-4))
    tagged = found().radiometry
    assert (tagged.scale, tagged.source) == ((1e-4, 3e-4), "stac, file")


def test_the_band_with_a_scale_can_be_read_alone(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "stack.tif", np.repeat(pattern(20, 30), 2, axis=0))
    for half in HALVES:
        document = item({"all": {"href": "https://e.example/stack.tif", **half}})
        request = SceneRequest.model_validate({"scene": str(path), "stac": document})
        found = read_inputs(request, Files(), BANDS[:1], defaults=DEFAULTS).radiometry
        assert (found.scale, found.offset, found.source) == ((1e-4,), (-0.1,), "stac")
