"""Files beside a scene (`.msk`, `.aux.xml`, world files) count as in GDAL, but only if the request names them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from penstock.errors import InputError, InvalidInput, MediaUnreadable
from penstock.models import Limits
from penstock.processors.geo.read.beside import read_beside, with_beside
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.read.raster import FileRows, Scene, read_scene
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.tiling.plan import Box
from tests.support.geo.scenes import GREY, NORTH_UP, Files, by_value, make_model, pattern, read, segment, write_scene

#: Written by `gdal_edit.py -a_nodata 7 -scale 2 -offset 3` on a file that it may not change, and by rasterio.
AUX = """<PAMDataset>
  <SRS dataAxisToSRSAxisMapping="1,2">{srs}</SRS>
  <GeoTransform>  4.0e+05,  1.0e+01,  0.0e+00,  5.1e+06,  0.0e+00, -1.0e+01</GeoTransform>
  <Metadata><MDI key="AREA_OR_POINT">Area</MDI></Metadata>
  <PAMRasterBand band="1">
    <Description>grey</Description>
    <NoDataValue>7</NoDataValue>
    <Offset>3</Offset>
    <Scale>2</Scale>
    <Histograms><HistItem><HistMin>0</HistMin></HistItem></Histograms>
    <Metadata><MDI key="STATISTICS_MEAN">5</MDI></Metadata>
  </PAMRasterBand>
</PAMDataset>
"""
SEEN = """
import json, sys, rasterio
with rasterio.open(sys.argv[1]) as file:
    print(json.dumps({"crs": file.crs and file.crs.to_epsg(), "transform": tuple(file.transform)[:6],
        "scales": file.scales, "offsets": file.offsets, "nodata": file.nodatavals, "names": file.descriptions,
        "valid": int((file.dataset_mask() != 0).sum())}))
"""


def as_gdal_does(path: Path) -> dict[str, Any]:
    """Return what GDAL reads of a scene with the files beside it, in a process with its own settings."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("GDAL_", "CPL_", "VRT_"))}
    run = subprocess.run([sys.executable, "-c", SEEN, path], env=plain, capture_output=True, text=True, check=True)
    seen: dict[str, Any] = json.loads(run.stdout)
    return seen


def ours(path: Path, *beside: Path) -> Scene:
    return with_beside(read_scene(path, Limits()), read_beside([(path.name, path) for path in beside], Limits()))[0]


def write_mask(path: Path, valid: Any, **profile: Any) -> Path:
    """Write (bands, rows, columns) as `gdaladdo` and `CreateMaskBand` write a `.msk` file."""
    flags = {f"INTERNAL_MASK_FLAGS_{band}": "2" for band in range(1, len(valid) + 1)}
    count, height, width = valid.shape
    size = {"count": count, "height": height, "width": width}
    with without_georeference(), rasterio.open(path, "w", driver="GTiff", dtype="uint8", **size, **profile) as file:
        file.write(np.where(valid, 255, 0).astype(np.uint8))
        file.update_tags(**flags)
    return path


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene(tmp_path / "scene.tif", pattern(64, 80))


@pytest.mark.parametrize("own", [{}, {"nodata": 9, "scales": (5.0,), "descriptions": ("red",)}])
def test_metadata_beside_a_scene_are_read_as_gdal_reads_them(own: dict[str, Any], tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(64, 80), **own)
    aux = scene.with_name("scene.tif.aux.xml")
    aux.write_text(AUX.format(srs=rasterio.crs.CRS.from_epsg(32632).to_wkt()))
    found, seen = ours(scene, aux), as_gdal_does(scene)
    assert found.crs.to_epsg() == seen["crs"] == 32632
    assert list(found.transform)[:6] == seen["transform"] == [10, 0, 400_000, 0, -10, 5_100_000]
    assert list(found.scales) == seen["scales"] == [2]
    assert list(found.offsets) == seen["offsets"] == [3]
    assert list(found.nodata) == seen["nodata"] == [7]
    assert [band.name for band in found.bands] == seen["names"] == ["grey"]


def test_a_world_file_places_a_scene_that_has_no_place_of_its_own(tmp_path: Path) -> None:
    bare = write_scene(tmp_path / "bare.tif", pattern(64, 80), transform=None, crs=None)
    world = bare.with_name("bare.tfw")
    world.write_text("30\n0.5\n-0.25\n-30\n500015\n4999985\n")
    assert list(ours(bare, world).transform)[:6] == as_gdal_does(bare)["transform"]


def test_a_world_file_without_a_crs_is_noted(tmp_path: Path) -> None:
    bare = write_scene(tmp_path / "bare.tif", pattern(64, 80), transform=None, crs=None)
    world = bare.with_name("bare.tfw")
    world.write_text("30\n0\n0\n-30\n500015\n4999985\n")
    sink, result = segment(bare, tmp_path / "out", beside=[str(world)], outputs=("classes", "stats"))
    with rasterio.open(sink.artifacts["classes.tif"]) as file:
        assert (file.crs, file.transform) == (None, NORTH_UP)
    assert result.data is not None
    [note] = result.data["notes"]
    assert note.startswith("The scene has a place but no CRS, and a world file gives none: the results have no CRS.")


def test_a_world_file_does_not_move_a_scene_with_a_place_of_its_own(scene: Path) -> None:
    world = scene.with_name("scene.tfw")
    world.write_text("30\n0\n0\n-30\n500045\n4999985\n")
    found, notes = with_beside(read_scene(scene, Limits()), read_beside([(world.name, world)], Limits()))
    assert list(found.transform)[:6] == as_gdal_does(scene)["transform"] == list(NORTH_UP)[:6]
    assert notes == ("The world file beside the scene has another place than the scene's own. It was not used.",)
    world.write_text("30\n0\n0\n-30\n500015\n4999985\n")
    assert with_beside(read_scene(scene, Limits()), read_beside([(world.name, world)], Limits()))[1] == ()


@pytest.mark.parametrize("profile", [{}, {"tiled": True, "blockxsize": 16, "blockysize": 16}, {"nbits": 1}])
def test_pixels_that_the_mask_beside_a_scene_hides_have_no_data(profile: dict[str, Any], tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(200, 150))
    valid = np.ones((1, 200, 150), bool)
    valid[:, 30:120, 40:90] = False
    mask = write_mask(tmp_path / "scene.tif.msk", valid, **profile)
    bare, _ = segment(path, tmp_path / "bare")
    sink, result = segment(path, tmp_path / "out", beside=[str(mask)])
    expected = np.where(valid, read(bare.artifacts["classes.tif"]), 255)
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"]), expected)
    assert as_gdal_does(path)["valid"] == valid.sum() == (read(sink.artifacts["classes.tif"]) != 255).sum()
    assert result.data is not None
    assert result.data["radiometry"]["mask"] == "external mask"
    assert (read(bare.artifacts["classes.tif"]) != 255).all()  # GDAL's own search for files beside it is off


def test_a_mask_for_each_band_hides_a_pixel_in_any_of_them(tmp_path: Path) -> None:
    numbers = np.repeat(pattern(64, 64), 2, axis=0)
    path = write_scene(tmp_path / "scene.tif", numbers, descriptions=("red", "nir"))
    valid = np.ones((2, 64, 64), bool)
    valid[0, :10], valid[1, :, :10] = False, False
    mask = write_mask(tmp_path / "scene.tif.msk", valid)
    model = make_model(bands=[{**GREY[0], "name": name} for name in ("red", "nir")])
    sink, _ = segment(path, tmp_path / "out", model=model, beside=[str(mask)])
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"])[0] != 255, valid.all(axis=0))


def test_each_of_several_files_has_its_own_files_beside_it(tmp_path: Path) -> None:
    model = make_model(bands=[{**GREY[0], "name": name} for name in ("red", "nir")])
    valid = np.ones((1, 64, 64), bool)
    valid[:, 20:] = False
    files: list[dict[str, Any]] = [
        {"media": str(write_scene(tmp_path / f"{name}.tif", pattern(64, 64), descriptions=[name]))}
        for name in ("red", "nir")
    ]
    files[1]["beside"] = [str(write_mask(tmp_path / "nir.tif.msk", valid))]
    sink, _ = segment(None, tmp_path / "out", model=model, files=files)
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"]) != 255, valid)


def test_scale_and_offset_in_the_metadata_make_the_values(scene: Path, tmp_path: Path) -> None:
    aux = scene.with_name("scene.tif.aux.xml")
    aux.write_text(AUX.format(srs=""))
    sink, result = segment(scene, tmp_path / "out", beside=[str(aux)])
    values = pattern(64, 80).astype(np.int64)
    expected = np.where(values == 7, 255, (2 * values + 3) % 5)
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"]), expected)
    assert result.data is not None
    assert result.data["radiometry"] | {"mask": ""} == {
        "scale": 2, "offset": 3, "source": "file", "nodata": 7, "nodata_source": "file", "mask": "",
    }  # fmt: skip


def test_a_georeference_in_the_metadata_that_is_not_read_is_noted(scene: Path, tmp_path: Path) -> None:
    aux = scene.with_name("scene.tif.aux.xml")
    aux.write_text('<PAMDataset><Metadata domain="xml:ESRI"><GeodataXform/></Metadata></PAMDataset>')
    _, result = segment(scene, tmp_path / "out", beside=[str(aux)])
    assert result.data is not None
    assert result.data["notes"] == ["The .aux.xml beside the scene has transformations of ArcGIS, which were not used."]


@pytest.mark.parametrize(
    ("name", "contents", "error", "said"),
    [
        ("scene.tfw", "1 2 3", MediaUnreadable, "3 words; it must be a world file"),
        ("scene.tfw", "1 0 0 nan 0 0", InvalidInput, "six numbers must be finite"),
        (
            "scene.tif.msk",
            "II",
            MediaUnreadable,
            '^scene.tif.msk, beside .* damaged .* not a TIFF.* "beside": \\[\\] reads',
        ),
        (
            "scene.aux.xml",
            "<PAMData",
            MediaUnreadable,
            '^scene.aux.xml, beside .* is not XML: .* "beside": \\[\\] reads',
        ),
        ("scene.aux.xml", "", MediaUnreadable, "^scene.aux.xml, beside .* is not XML: "),
        (
            "scene.aux.xml",
            "<PAMDataset><SRS>EPSG:0</SRS></PAMDataset>",
            MediaUnreadable,
            "SRS is 'EPSG:0', .* neither",
        ),
        ("scene.aux.xml", "<PAMDataset><SRS>+proj</SRS></PAMDataset>", MediaUnreadable, "SRS is .* neither WKT nor"),
        ("scene.aux.xml", "<a/>", MediaUnreadable, "must be GDAL's .aux.xml, a PAMDataset"),
        ("scene.aux.xml", "<!DOCTYPE a><PAMDataset/>", MediaUnreadable, "document type declaration"),
        ("scene.aux.xml", "<PAMDataset><GeoTransform>1</GeoTransform></PAMDataset>", MediaUnreadable, "six usable"),
    ],
)
def test_files_beside_a_scene_that_cannot_be_read_are_refused(
    name: str, contents: str, error: type[InputError], said: str, scene: Path, tmp_path: Path
) -> None:
    scene.with_name(name).write_text(contents)
    with pytest.raises(error, match=said):
        segment(scene, tmp_path / "out", beside=[str(scene.with_name(name))])


def test_a_mask_whose_pixels_are_damaged_is_named(scene: Path, tmp_path: Path) -> None:
    valid = np.random.default_rng(0).integers(0, 2, (1, 64, 80)).astype(bool)
    mask = write_mask(tmp_path / "scene.tif.msk", valid, compress="deflate")
    with mask.open("r+b") as file:
        file.seek(100)
        file.write(bytes(200))
    with pytest.raises(MediaUnreadable, match=r'the mask beside it cannot be read \("beside": \[\] reads it without\)'):
        segment(scene, tmp_path / "out", beside=[str(mask)])


@pytest.mark.parametrize("srs", ["EPSG:32638", " epsg:32638 ", "urn:ogc:def:crs:EPSG::32638"])
def test_a_crs_may_be_a_code(srs: str, scene: Path) -> None:
    aux = scene.with_name(f"{scene.name}.aux.xml")
    aux.write_text(AUX.format(srs=srs))
    assert ours(scene, aux).crs.to_epsg() == as_gdal_does(scene)["crs"] == 32638


def test_a_mask_of_another_size_is_refused(scene: Path, tmp_path: Path) -> None:
    mask = write_mask(tmp_path / "scene.tif.msk", np.ones((1, 64, 64), bool))
    with pytest.raises(InvalidInput, match=r"has 64 x 64 pixels \(1 band\); the scene has 80 x 64 \(1 band\)"):
        segment(scene, tmp_path / "out", beside=[str(mask)])


@pytest.mark.parametrize("beside", [["media://1/a.tif.msk"], []])
def test_files_beside_belong_to_a_file(beside: list[str]) -> None:
    schema = Draft202012Validator(SegmentationRequest.model_json_schema())
    one = {"media": "media://1/a.tif"}
    assert schema.is_valid({"scene": "media://1/a.tif", "beside": beside})
    assert schema.is_valid({"files": [one | {"beside": beside}]})
    assert not schema.is_valid({"files": [one], "beside": beside})
    with pytest.raises(ValidationError, match="beside belongs to scene, or inside each of files"):
        SegmentationRequest(files=[one], beside=beside)


def test_saved_strips_depend_on_the_files_beside_a_scene(scene: Path, tmp_path: Path) -> None:
    processor, valid = RasterSegmentation(make_model(tile_px=32)), np.ones((1, 64, 80), bool)
    mask = write_mask(tmp_path / "scene.tif.msk", valid)
    request = {"scene": str(scene)}
    digests = [
        processor.pre_process(processor.request(**given), Files()).context.digest
        for given in (request, {**request, "beside": [str(mask)]})
    ]
    assert digests[0] != digests[1]


def test_the_map_is_the_same_in_one_tile_and_in_many(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(200, 150), tiled=True, blockxsize=16, blockysize=16)
    valid = np.random.default_rng(0).random((1, 200, 150)) < 0.7
    mask = write_mask(tmp_path / "scene.tif.msk", valid)
    found = [
        read(segment(path, tmp_path / str(tile), network=by_value, model=make_model(tile_px=tile), beside=[str(mask)])[
            0
        ].artifacts["classes.tif"])
        for tile in (32, 256)
    ]  # fmt: skip
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(found[0] != 255, valid)


def test_a_reading_with_a_mask_may_be_ended_by_another_thread(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(200, 150), tiled=True, blockxsize=16, blockysize=16)
    mask = write_mask(tmp_path / "scene.tif.msk", np.ones((1, 200, 150), bool))
    scene, dataset = ours(path, mask), rasterio.open(path)
    chunks = FileRows(lambda _: dataset, scene, [1], [None]).read(Box(0, 0, 200, 150))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(next, chunks).result()[0] == 0
    chunks.close()  # type: ignore[attr-defined]  # it is a generator
    dataset.close()
