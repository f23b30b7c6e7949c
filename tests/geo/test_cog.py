"""The rasters are Cloud Optimized GeoTIFFs on the scene's own grid, and overviews contain only real classes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rasterio.control import GroundControlPoint
from rio_cogeo import cog_validate

from penstock.processors.geo.options import NODATA
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.write.cog import Overviews, write_cog
from tests.support.geo.scenes import COLOURS, NORTH_UP, RPCS, make_model, pattern, read, segment, write_scene

Affine = rasterio.Affine
SINUSOIDAL = "+proj=sinu +lon_0=0 +x_0=0 +y_0=0 +R=6371007.181 +units=m +no_defs"
PLACES: dict[str, dict[str, Any]] = {
    "utm": {"crs": "EPSG:32633", "transform": NORTH_UP},
    "geographic": {"crs": "EPSG:4326", "transform": Affine(5.393624e-4, 0, 47.0220494, 0, -5.197591e-4, -15.31)},
    "rotated": {"crs": "EPSG:32633", "transform": Affine(17.3, 5.1, 100.7, 10.3, -8.66, 200.9)},
    "south-up": {"crs": "EPSG:4326", "transform": Affine(0.5, 0, -180, 0, 0.5, -90)},
    "no crs": {"crs": None, "transform": NORTH_UP},
    "nothing": {"crs": None, "transform": None},
    "feet": {"crs": "EPSG:2263", "transform": Affine(1 / 3, 0, 987_654.1, 0, -1 / 3, 200_000.7)},
    "no code": {"crs": SINUSOIDAL, "transform": Affine(428.9, 0, 300_000, 0, -428.9, 4_200_000)},
}
RASTERS = ("classes", "probability", "probability_float32", "confidence")
FILES = tuple(f"{name}.tif" for name in RASTERS)
GCPS = [
    GroundControlPoint(r, c, 12 + c / 100, 47 - r / 90, 3, str(r + c)) for r, c in [(0, 0), (0, 90), (80, 0), (80, 90)]
]


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_crs_and_transform_are_the_inputs_bit_by_bit(place: dict[str, Any], tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(90, 95), **place)
    sink, _ = segment(path, tmp_path / "out", outputs=RASTERS)
    with without_georeference(), rasterio.open(path) as scene:
        for name in FILES:
            with rasterio.open(sink.artifacts[name]) as file:
                assert tuple(file.transform) == tuple(scene.transform)
                assert file.crs == scene.crs
                assert file.shape == scene.shape


def test_ground_control_points_are_the_inputs(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(90, 95), crs=rasterio.CRS.from_epsg(4326), gcps=GCPS, transform=None)
    sink, result = segment(path, tmp_path / "out")
    with without_georeference(), rasterio.open(sink.artifacts["classes.tif"]) as file:
        found, crs = file.gcps
        assert crs == rasterio.CRS.from_epsg(4326)
        assert [(p.row, p.col, p.x, p.y, p.z) for p in found] == [(p.row, p.col, p.x, p.y, p.z) for p in GCPS]
        assert file.transform.is_identity
    assert result.data is not None
    assert result.data["area_method"] is None
    assert {label["area_m2"] for label in result.data["classes"]} == {None}


@pytest.mark.parametrize("place", ["nothing", "geographic"])
def test_rational_polynomial_coefficients_are_the_inputs(place: str, tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(30, 40), **PLACES[place])
    with without_georeference(), rasterio.open(path, "r+") as scene:
        scene.rpcs = RPCS
    sink, _ = segment(path, tmp_path / "out", outputs=RASTERS)
    with without_georeference(), rasterio.open(path) as scene:
        for name in FILES:
            with rasterio.open(sink.artifacts[name]) as file:
                assert file.rpcs == scene.rpcs != None  # noqa: E711
                assert tuple(file.transform) == tuple(scene.transform)


@pytest.mark.breadth(but=("(1, 1)", "(513, 700)"))
@pytest.mark.parametrize("shape", [(1, 1), (100, 100), (513, 700), (1500, 1100)], ids=str)
def test_all_rasters_are_valid_cogs_with_blocks_of_512(shape: tuple[int, int], tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(*shape))
    sink, _ = segment(path, tmp_path / "out", model=make_model(tile_px=256), outputs=RASTERS)
    for name in FILES:
        valid, errors, warnings = cog_validate(sink.artifacts[name], strict=True)
        assert (valid, errors, warnings) == (True, [], [])
        with rasterio.open(sink.artifacts[name]) as file:
            assert set(file.block_shapes) == {(512, 512)}
            assert file.compression.name == "deflate"
            assert bool(file.overviews(1)) == (max(shape) > 512)
            predictor = file.tags(ns="IMAGE_STRUCTURE").get("PREDICTOR")
            assert (str(file.nodata), set(file.dtypes)) == (
                ("nan", {"float32"}) if "float32" in name else ("255.0", {"uint8"})
            )
            assert predictor == (None if "classes" in name else "3" if "float32" in name else "2")


def test_the_class_map_says_what_it_is(tmp_path: Path) -> None:
    sink, _ = segment(write_scene(tmp_path / "s.tif", pattern(90, 95)), tmp_path / "out")
    with rasterio.open(sink.artifacts["classes.tif"]) as file:
        colours = file.colormap(1)
        assert [colours[i][:3] for i in range(5)] == [tuple(bytes.fromhex(colour[1:])) for colour in COLOURS]
        assert file.descriptions == ("A toy",)
        assert [file.tags(1)[f"CLASS_{i}"] for i in range(5)] == [f"class {i}" for i in range(5)]
        tags = file.tags()
        assert (tags["MODEL"], tags["MODEL_REVISION"]) == ("toy", "1")
        assert tags["TIFFTAG_SOFTWARE"].startswith("penstock ")
        assert tags["RADIOMETRY"].startswith("scale 1.0, offset 0.0, source model default")


def test_probability_has_a_band_per_class_and_the_scale_that_makes_it_one(tmp_path: Path) -> None:
    def seventh(pixels: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.float32([1 / 7, 6 / 7])[:, None, None], (2, *pixels.shape[1:]))

    path = write_scene(tmp_path / "s.tif", pattern(90, 95))
    sink, _ = segment(path, tmp_path / "out", model=make_model(classes=2), network=seventh)
    with rasterio.open(sink.artifacts["probability.tif"]) as file:
        assert file.descriptions == ("probability of class 0", "probability of class 1")
        assert file.scales == (1 / 254, 1 / 254)
        values = file.read() * file.scales[0]
    assert np.abs(values - np.array([1 / 7, 6 / 7])[:, None, None]).max() <= 0.5 / 254


def test_confidence_is_the_largest_probability_and_float32_the_unrounded_one(tmp_path: Path) -> None:
    def probabilities(pixels: np.ndarray) -> np.ndarray:
        share = pixels[0] / 250
        return np.stack([share, 1 - share]).astype(np.float32)

    numbers = pattern(90, 95)
    numbers[:, :20] = 0
    path = write_scene(tmp_path / "s.tif", numbers, nodata=0)
    sink, _ = segment(path, tmp_path / "out", model=make_model(classes=2), network=probabilities, outputs=RASTERS)
    exact = read(sink.artifacts["probability_float32.tif"])
    assert exact.dtype == np.float32
    assert np.isnan(exact[:, :20]).all()
    np.testing.assert_array_equal(exact[:, 20:], probabilities(numbers.astype(np.float32))[:, 20:])
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"])[0, 20:], exact[:, 20:].argmax(axis=0))
    with rasterio.open(sink.artifacts["confidence.tif"]) as file:
        assert (file.count, file.dtypes, file.nodata, file.scales) == (1, ("uint8",), NODATA, (1 / 254,))
        confidence = file.read(1, masked=True)
    assert confidence.mask[:20].all()
    assert not confidence.mask[20:].any()
    assert np.abs(confidence[20:] / 254 - exact[:, 20:].max(axis=0)).max() <= 0.5 / 254


def test_class_0_is_data_and_only_what_was_no_data_is_masked(tmp_path: Path) -> None:
    numbers = np.full((1, 80, 90), 5, np.uint8)
    numbers[:, :, 40:] = 6
    numbers[:, 60:] = 0
    path = write_scene(tmp_path / "s.tif", numbers, nodata=0)
    sink, _ = segment(path, tmp_path / "out")
    with rasterio.open(sink.artifacts["classes.tif"]) as file:
        classes = file.read(1, masked=True)
    np.testing.assert_array_equal(classes.mask, numbers[0] == 0)
    assert (classes[:60, :40] == 0).all()
    assert (classes[:60, 40:] == 1).all()


def test_a_side_file_names_the_classes(tmp_path: Path) -> None:
    sink, _ = segment(write_scene(tmp_path / "s.tif", pattern(90, 95)), tmp_path / "out", outputs=("classes",))
    root = ElementTree.fromstring(sink.artifacts["classes.tif.aux.xml"].read_bytes())
    assert [(band.tag, band.attrib) for band in root] == [("PAMRasterBand", {"band": "1"})]
    assert [name.text for name in root.iter("Category")] == [f"class {i}" for i in range(5)]


def test_another_gdal_sees_names_colours_and_nodata(tmp_path: Path) -> None:
    sink, _ = segment(write_scene(tmp_path / "s.tif", pattern(90, 95)), tmp_path / "out", outputs=RASTERS)
    said = gdalinfo(sink.artifacts["classes.tif"])
    assert "LAYOUT=COG" in said
    assert "PREDICTOR" not in said
    assert "NoData Value=255" in said
    assert re.findall(r"^ +\d: class \d$", said, re.MULTILINE) == [f"      {i}: class {i}" for i in range(5)]
    table = said[said.index("Color Table") :]
    for i, colour in enumerate(COLOURS):
        red, green, blue = bytes.fromhex(colour[1:])
        assert f"    {i}: {red},{green},{blue},255\n" in table
    assert gdalinfo(sink.artifacts["probability.tif"]).count("Scale:0.00393700787401575") == 5
    assert gdalinfo(sink.artifacts["probability_float32.tif"]).count("NoData Value=nan") == 5


def gdalinfo(path: Path) -> str:
    if shutil.which("gdalinfo") is None:
        reason = "needs gdalinfo, another GDAL than ours (infra/apt.txt: gdal-bin)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GDAL")}
    return subprocess.run(["gdalinfo", path], env=environment, capture_output=True, text=True, check=True).stdout


def test_a_pixel_with_data_is_not_outvoted_by_those_without(tmp_path: Path) -> None:
    numbers = np.zeros((1, 1200, 1300), np.uint8)
    numbers[0, ::2, ::2] = 7
    numbers[0, ::2, 650::2] = 5
    path = write_scene(tmp_path / "s.tif", numbers, nodata=0)
    sink, _ = segment(path, tmp_path / "out", model=make_model(tile_px=512))
    with rasterio.open(sink.artifacts["classes.tif"], overview_level=0) as file:
        small = file.read(1)
    assert (small[:, :325] == 2).all()
    assert (small[:, 325:] == 0).all()


def test_overviews_hold_no_class_that_the_map_does_not_and_averages_respect_nodata(tmp_path: Path) -> None:
    numbers = np.where(np.indices((1200, 1300)).sum(axis=0) % 2 == 0, 5, 7).astype(np.uint8)[None]
    numbers[:, :400] = 0
    path = write_scene(tmp_path / "s.tif", numbers, nodata=0)
    sink, _ = segment(path, tmp_path / "out", model=make_model(tile_px=512))
    for level in range(2):
        with rasterio.open(sink.artifacts["classes.tif"], overview_level=level) as file:
            small = file.read(1)
            assert set(np.unique(small)) <= {0, 2, NODATA}
            assert (small[: 400 // 2 ** (level + 1) - 1] == NODATA).all()
        with rasterio.open(sink.artifacts["probability.tif"], overview_level=level) as file:
            assert set(np.unique(file.read(1))) <= {126, 127, 128, NODATA}


def test_a_second_run_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(520, 530))
    runs = [segment(path, tmp_path / name, outputs=(*RASTERS, "stats"))[0] for name in ("one", "two")]
    assert len(runs[0].artifacts) == 7
    for name in runs[0].artifacts:
        assert runs[0].artifacts[name].read_bytes() == runs[1].artifacts[name].read_bytes()
    assert runs[0].types["classes.tif"] == "image/tiff; application=geotiff; profile=cloud-optimized"
    assert (read(runs[0].artifacts["classes.tif"]) == pattern(520, 530) % 5).all()


@pytest.mark.parametrize(("overviews", "dtype"), [("MODE", np.uint8), ("AVERAGE", np.uint8), ("AVERAGE", np.float32)])
def test_the_bytes_do_not_depend_on_the_threads(overviews: Overviews, dtype: type, tmp_path: Path) -> None:
    numbers = np.random.default_rng(4).integers(0, 5, (1, 700, 1100)).astype(dtype)
    source = write_scene(tmp_path / "scratch.tif", numbers)
    files = [tmp_path / f"{threads}.tif" for threads in (1, 2, 5)]
    for threads, path in zip((1, 2, 5), files, strict=True):
        write_cog(source, path, overviews=overviews, threads=threads)
    assert len({path.read_bytes() for path in files}) == 1


def test_overviews_are_made_by_several_threads_whatever_decodes_scenes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = np.random.default_rng(4).integers(0, 5, (1, 2600, 2600)).astype(np.uint8)
    source = write_scene(tmp_path / "scratch.tif", classes)
    monkeypatch.setenv("GDAL_NUM_THREADS", "1")  # as in an IO process on two cores
    own_s, all_s = time.thread_time(), time.process_time()
    write_cog(source, tmp_path / "c.tif", overviews="MODE", threads=2)
    assert time.thread_time() - own_s < (time.process_time() - all_s) / 2
