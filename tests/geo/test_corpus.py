"""Every raster of the shared data has a hand-written outcome: the right result, or a named error.

The files are not part of the project; without them these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InputError, InvalidInput, MediaTooLarge, MediaUnreadable, MissingBands
from penstock.models import read_catalogue
from penstock.processors.geo.gdal import rasterio, without_georeference
from tests.geo.scenes import make_model, segment

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data beside the checkout, ../shared/data")


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        ("edge/all_nodata_4band.tif", MissingBands, "has 4: it has 1 'blue', 2 'green', 3 'red', 4 'nir'"),
        ("edge/big_120MP.tif", MissingBands, "the scene has 1"),
        ("edge/big_palette_62MP.tif", MissingBands, "the scene has 1"),
        ("edge/complex_int16_gcps.tif", InvalidInput, "numbers are complex_int16"),
        ("edge/corrupt_tiles.tif", MissingBands, "the scene has 3"),
        ("edge/extreme_nodata.tif", MissingBands, "the scene has 1"),
        ("edge/gcps_only.tif", MissingBands, "the scene has 1"),
        ("edge/no_crs_nan.tif", MissingBands, "the scene has 1"),
        ("edge/palette.tif", MissingBands, "the scene has 1: it has 1 'Layer_1'"),
        ("edge/rgba_jpeg_alpha.tif", MissingBands, "the scene has 3"),
        ("edge/rgba_uint16.tif", MissingBands, "the scene has 3"),
        ("edge/rotated_nocrs.tif", MissingBands, "the scene has 1"),
        ("edge/scale_offset_int16.tif", MissingBands, "the scene has 2"),
        ("edge/south_up.tif", MissingBands, "the scene has 1"),
        ("geo/dsm_2m.tif", MissingBands, "the scene has 1"),
        ("geo/hls_burnscar_mask.tif", MissingBands, "the scene has 1"),
        ("geo/hls_tx_10b_float32.tif", MissingBands, "cannot be found by name"),
        ("geo/l7_olinda_6b_uint8.tif", InvalidInput, "what the scene's uint8 numbers mean"),
        ("geo/naip_aerial_rgbn.tif", MissingBands, "the scene has 4"),
        ("geo/s1_gamma0_vv_nodata0.tif", MissingBands, "the scene has 1: it has 1 'Gamma0_VV'"),
        ("photo/gray16.tif", MissingBands, "the scene has 1"),
        ("photo/chelsea.png", MediaUnreadable, "begins with the bytes 89 50"),
        ("photo/rocket.jpg", MediaUnreadable, "begins with the bytes ff d8"),
    ],
)
def test_the_demo_model_refuses(name: str, error: type[InputError], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=sentence):
        segment(DATA / name, tmp_path / "out", model=read_catalogue()["csmask"])


@pytest.mark.parametrize(
    ("name", "error", "request_"),
    [
        ("edge/big_120MP.tif", MediaTooLarge, {}),
        ("edge/big_palette_62MP.tif", MediaTooLarge, {}),
        ("edge/corrupt_tiles.tif", MediaUnreadable, {"bands": [1]}),
    ],
)
def test_a_model_of_one_band_refuses(
    name: str, error: type[InputError], request_: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(error):
        segment(DATA / name, tmp_path / "out", model=make_model(max_pixels=50_000_000), **request_)


@pytest.mark.parametrize(
    ("name", "valid", "nodata", "used"),
    [
        ("edge/all_nodata_4band.tif", 0, 175_725, {"nodata": 0, "nodata_source": "file"}),
        ("edge/extreme_nodata.tif", 98, 518, {"nodata": -3.3999999521443642e38}),
        ("edge/gcps_only.tif", 1_071_360, 0, {"nodata": 0}),
        ("edge/no_crs_nan.tif", 5, 1, {"nodata": "NaN"}),
        ("edge/palette.tif", 3864, 0, {"nodata": None}),
        ("edge/rgba_jpeg_alpha.tif", 23_188, 1_472_541, {"nodata": None, "nodata_source": "none"}),
        ("edge/rgba_uint16.tif", 127_316, 133_258, {"nodata": None}),
        ("edge/rotated_nocrs.tif", 150, 0, {"nodata": None}),
        ("edge/scale_offset_int16.tif", 65_530, 6, {"scale": 1e-4, "offset": 1000, "source": "file"}),
        ("edge/south_up.tif", 0, 259_200, {"nodata": -9999}),
        ("geo/dsm_2m.tif", 73_297, 0, {"nodata": -9999}),
        ("geo/hls_burnscar_mask.tif", 262_144, 0, {"nodata": -1}),
        ("geo/naip_aerial_rgbn.tif", 675_282, 0, {"nodata": 0}),
        ("geo/s1_gamma0_vv_nodata0.tif", 147_316, 154_085, {"nodata": 0}),
        ("photo/gray16.tif", 4096, 0, {"nodata": None}),
    ],
)
def test_a_model_of_one_band_maps(name: str, valid: int, nodata: int, used: dict[str, Any], tmp_path: Path) -> None:
    sink, result = segment(DATA / name, tmp_path / "out", model=make_model(tile_px=512), bands=[1])
    assert result.data is not None
    assert (result.data["valid_pixels"], result.data["nodata_pixels"]) == (valid, nodata)
    assert {key: result.data["radiometry"][key] for key in used} == used
    with (
        without_georeference(),
        rasterio.open(DATA / name) as scene,
        rasterio.open(sink.artifacts["classes.tif"]) as file,
    ):
        assert (tuple(file.transform), file.crs, file.shape) == (tuple(scene.transform), scene.crs, scene.shape)
        assert len(file.gcps[0]) == len(scene.gcps[0])
