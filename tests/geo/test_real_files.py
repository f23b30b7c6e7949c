"""Every file of the shared data has a hand-written outcome: the right result, or a named error.

The files are not part of the project; without them these tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.catalogue.records import read_catalogue
from penstock.errors import InputError, InvalidInput, MediaTooLarge, MediaUnreadable, MissingBands
from penstock.models import Model
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from tests.support.geo.scenes import make_model, one_hot, segment

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data beside the checkout, ../shared/data")


@dataclass(frozen=True)
class Right:
    """The expected result of a file: size, number of valid pixels, and radiometry."""

    width: int
    height: int
    valid: int
    used: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Wrong:
    """The expected error of a file."""

    error: type[InputError]
    sentence: str


Outcome = Right | Wrong


def lacks(found: str) -> Wrong:
    return Wrong(MissingBands, found)


PNG = Wrong(MediaUnreadable, "neither a GeoTIFF nor a JPEG 2000 file: it is a PNG picture")
#: (with the shipped six-band model, with a model of one band given `"bands": [1]`). Sizes are from other GDAL
#: programs. Valid pixels were counted in the whole file with the file's mask, and for floats with the finite values.
OUTCOMES: dict[str, tuple[Outcome, Outcome]] = {
    "edge/all_nodata_4band.tif": (
        lacks("has 4: 1 'blue', 2 'green', 3 'red', 4 'nir'"),
        Right(71, 2475, 0, {"nodata": 0, "nodata_source": "file"}),
    ),
    "edge/big_120MP.tif": (lacks("the scene has 1"), Right(10_980, 10_980, 120_560_400)),
    "edge/big_palette_62MP.tif": (lacks("the scene has 1"), Right(7168, 8704, 34_648_688)),
    "edge/complex_int16_gcps.tif": (
        Wrong(InvalidInput, "data type is complex_int16"),
        Wrong(InvalidInput, "data type is complex_int16"),
    ),
    "edge/corrupt_tiles.tif": (
        lacks("the scene has 3"),
        Wrong(MediaUnreadable, "The scene's rows 512 to 1023 cannot be read; it is damaged or incomplete"),
    ),
    "edge/extreme_nodata.tif": (lacks("the scene has 1"), Right(28, 22, 98, {"nodata": -3.3999999521443642e38})),
    "edge/gcps_only.tif": (lacks("the scene has 1"), Right(1280, 837, 1_071_360, {"nodata": 0})),
    "edge/no_crs_nan.tif": (lacks("the scene has 1"), Right(3, 2, 5, {"nodata": "NaN"})),
    "edge/palette.tif": (lacks("the scene has 1: 1 'Layer_1'"), Right(84, 46, 3864, {"nodata": None})),
    "edge/rgba_jpeg_alpha.tif": (
        lacks("the scene has 3"),
        Right(1223, 1223, 23_188, {"nodata": None, "nodata_source": "none"}),
    ),
    "edge/rgba_uint16.tif": (lacks("the scene has 3"), Right(634, 411, 127_316, {"nodata": None})),
    "edge/rotated_nocrs.tif": (lacks("the scene has 1"), Right(10, 15, 150, {"nodata": None})),
    "edge/scale_offset_int16.tif": (
        lacks("the scene has 2"),
        Right(256, 256, 65_530, {"scale": 1e-4, "offset": 1000, "source": "file"}),
    ),
    "edge/south_up.tif": (lacks("the scene has 1"), Right(720, 360, 0, {"nodata": -9999})),
    "geo/dsm_2m.tif": (lacks("the scene has 1"), Right(283, 259, 73_297, {"nodata": -9999})),
    "geo/hls_burnscar_mask.tif": (lacks("the scene has 1"), Right(512, 512, 262_144, {"nodata": -1})),
    "geo/hls_tx_10b_float32.tif": (
        lacks("No band matches the name"),
        Right(224, 224, 50_176, {"nodata": -9999, "source": "model default"}),
    ),
    "geo/l7_olinda_6b_uint8.tif": (
        Wrong(InvalidInput, "radiometry of the scene's uint8 numbers is unknown"),
        Right(349, 352, 122_848, {"nodata": None}),
    ),
    "geo/l8_betsiboka_20170118_6b.tif": (
        Right(512, 512, 260_310, {"scale": 1 / 65_535, "offset": 0, "source": "file", "nodata": 0}),
        Right(512, 512, 260_311, {"source": "file"}),
    ),
    "geo/l8_betsiboka_20200127_6b.tif": (
        Right(512, 512, 260_309, {"scale": 1 / 65_535, "offset": 0, "source": "file", "nodata": 0}),
        Right(512, 512, 260_311, {"source": "file"}),
    ),
    "geo/naip_aerial_rgbn.tif": (lacks("the scene has 4"), Right(934, 723, 675_282, {"nodata": 0})),
    "geo/s1_gamma0_vv_nodata0.tif": (
        lacks("the scene has 1: 1 'Gamma0_VV'"),
        Right(549, 549, 147_316, {"nodata": 0}),
    ),
    "geo/s2_l2a_aquileia_20190416_6b.tif": (
        Right(640, 512, 321_220, {"scale": 1 / 65_535, "source": "file", "nodata": 0, "nodata_source": "file"}),
        Right(640, 512, 321_220, {"source": "file"}),
    ),
    "geo/s2cloudless_l1c_13b_with_expected.npz": (
        Wrong(MediaUnreadable, "neither a Sentinel-2 product in SAFE nor a Zarr store"),
        Wrong(MediaUnreadable, "neither a Sentinel-2 product in SAFE nor a Zarr store"),
    ),
    "photo/chelsea.png": (PNG, PNG),
    "photo/coffee.png": (PNG, PNG),
    "photo/gray16.tif": (lacks("the scene has 1"), Right(64, 64, 4096, {"nodata": None})),
    "photo/page.png": (PNG, PNG),
    "photo/rocket.jpg": (Wrong(MediaUnreadable, "it is a JPEG picture"),) * 2,
    "photo/transparent_rgba.png": (PNG, PNG),
    "photo/truncated.png": (PNG, PNG),
}
BIG = ("edge/big_palette_62MP.tif", "edge/big_120MP.tif")
#: One file of each rule of reading.
CORE = (
    *("edge/complex_int16_gcps.tif", "edge/corrupt_tiles.tif", "edge/extreme_nodata.tif", "edge/gcps_only.tif"),
    *("edge/no_crs_nan.tif", "edge/palette.tif", "edge/rgba_jpeg_alpha.tif", "edge/rotated_nocrs.tif"),
    *("edge/scale_offset_int16.tif", "geo/s2_l2a_aquileia_20190416_6b.tif", "photo/page.png", "photo/rocket.jpg"),
)


def test_the_table_has_every_file() -> None:
    files = {str(path.relative_to(DATA)) for kind in ("edge", "geo", "photo") for path in (DATA / kind).iterdir()}
    assert set(OUTCOMES) == files


def check(name: str, model: Model, outcome: Outcome, folder: Path, **request: Any) -> None:
    """Process a file and compare with the expected outcome."""
    if isinstance(outcome, Wrong):
        with pytest.raises(outcome.error, match=outcome.sentence) as refused:
            segment(DATA / name, folder, model=model, **request)
        assert str(DATA) not in refused.value.detail
        return
    sink, result = segment(DATA / name, folder, model=model, network=certain, **request)
    assert result.data is not None
    size = outcome.width, outcome.height
    assert (result.data["scene"]["width"], result.data["scene"]["height"]) == size
    assert result.data["valid_pixels"] == outcome.valid
    assert result.data["nodata_pixels"] == outcome.width * outcome.height - outcome.valid
    used = result.data["radiometry"]
    assert {key: used[key] for key in outcome.used} == {key: pytest.approx(v) for key, v in outcome.used.items()}
    with (
        without_georeference(),
        rasterio.open(DATA / name) as scene,
        rasterio.open(sink.artifacts["classes.tif"]) as file,
    ):
        assert (tuple(file.transform), file.crs, file.shape) == (tuple(scene.transform), scene.crs, scene.shape)
        assert len(file.gcps[0]) == len(scene.gcps[0])
        assert np.count_nonzero(file.read_masks(1)) == outcome.valid


def certain(pixels: np.ndarray) -> np.ndarray:
    """Assign class 1 everywhere."""
    return one_hot(np.ones(pixels.shape[1:], dtype=int))


@pytest.mark.parametrize("name", OUTCOMES)
def test_with_the_shipped_six_band_model(name: str, tmp_path: Path) -> None:
    check(name, read_catalogue()["csmask"], OUTCOMES[name][0], tmp_path / "out")


@pytest.mark.breadth(but=CORE)
@pytest.mark.parametrize("name", [name for name in OUTCOMES if name not in BIG])
def test_with_a_model_of_one_band(name: str, tmp_path: Path) -> None:
    check(name, make_model(tile_px=512), OUTCOMES[name][1], tmp_path / "out", bands=[1])


@pytest.mark.parametrize(
    ("name", "bands", "valid"),
    [
        ("edge/rgba_uint16.tif", [3, 2, 1], 127_316),
        ("geo/hls_tx_10b_float32.tif", [2, 3, 4, 5, 6, 7], 50_176),
        ("geo/l7_olinda_6b_uint8.tif", [1, 2, 3, 4, 5, 6], 122_848),
        ("geo/naip_aerial_rgbn.tif", ["4", 1], None),
        ("geo/naip_aerial_rgbn.tif", [1, 2, 3, 4], 672_445),
    ],
)
def test_pixels_need_data_in_every_band(name: str, bands: list[Any], valid: int | None, tmp_path: Path) -> None:
    needed = [{"name": f"band {i}", "mean": 0.0, "std": 1.0} for i in range(len(bands))]
    model = make_model(bands=needed, tile_px=512)
    if valid is None:
        with pytest.raises(MissingBands, match="names '4', which is not in the scene"):
            segment(DATA / name, tmp_path / "out", model=model, bands=bands)
        return
    _, result = segment(DATA / name, tmp_path / "out", model=model, network=certain, bands=bands, outputs=["stats"])
    assert result.data is not None
    assert result.data["valid_pixels"] == valid


@pytest.mark.parametrize("name", BIG)
def test_big_files_are_refused_before_a_pixel_is_read_where_the_model_takes_less(name: str, tmp_path: Path) -> None:
    with pytest.raises(MediaTooLarge, match="the model takes 50,000,000"):
        segment(DATA / name, tmp_path / "out", model=make_model(max_pixels=50_000_000), bands=[1])


def measure(name: str, folder: Path) -> tuple[int, int]:
    """Return a file's valid pixels, and the peak resident memory in MB of the process that counted them."""
    command = [sys.executable, "-m", "tests.support.geo.peak_of_file", str(DATA / name), str(folder / Path(name).stem)]
    environment = {**os.environ, "GDAL_CACHEMAX": "16"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    valid, peak_mb = done.stdout.split()
    return int(valid), int(peak_mb)


@pytest.mark.breadth
@pytest.mark.slow
def test_big_files_are_counted_in_memory_that_does_not_grow_with_them(tmp_path: Path) -> None:
    _, small_mb = measure("edge/palette.tif", tmp_path)
    peaks = []
    for name in BIG:
        valid, peak_mb = measure(name, tmp_path)
        right = OUTCOMES[name][1]
        assert isinstance(right, Right)
        assert valid == right.valid
        peaks.append(peak_mb)
    assert peaks[1] < peaks[0] + 30, "twice the pixels took more"
    # Rows held and read ahead. If held completely with their masks, the files would take 120 and 240 MB more.
    assert max(peaks) < small_mb + 150
