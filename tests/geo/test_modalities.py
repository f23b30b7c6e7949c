"""Scenes of several sensors on one grid: the numbers of each are those of numpy, wherever its pixels lie."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import ValidationError
from pyproj import Transformer

from penstock.errors import ConfigError, InvalidInput, MissingBands
from penstock.models import Limits, Model
from penstock.processors.base import Output, Prompt
from penstock.processors.geo.options import SegmentationOptions
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.regression import RasterRegression
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.write.mlm import stac_mlm
from penstock.processors.numbers import as_floats
from penstock.processors.testing import check_processor
from tests.geo.test_parts import parts_of, run_part
from tests.geo.test_ranges import PartialFiles
from tests.geo.test_resume import Job, Killed, contents
from tests.support.geo.scenes import NORTH_UP, Files, Folder, make_model, read, write_scene

SIDE = 150
VV = {"name": "vv", "mean": -12.0, "std": 5.0}
VH = {"name": "vh", "mean": -20.0, "std": 6.0}
HEIGHT = {"name": "elevation", "synonyms": ["DEM"], "mean": 670.0, "std": 950.0}
FLOATS = [{"dtypes": ["float32"], "scale": 1.0}]
RADAR = {"name": "S1GRD", "bands": [VV, VH], "default_radiometry": FLOATS, "decibels": True}
DEM = {"name": "DEM", "bands": [HEIGHT], "default_radiometry": [{"dtypes": ["int16"], "scale": 1.0}]}
MODALITIES = {"modality": "S2L2A", "modalities": [RADAR, DEM]}
#: A grid in degrees around the scene, whose pixels are not square on the ground.
DEGREES = rasterio.Affine(0.0004, 0, 14.995, 0, -0.00031, 45.18)


def model(**options: Any) -> Model:
    """Return a model of four bands of three sensors, each of which is a quantity."""
    base = make_model(**{"tile_px": 64, **MODALITIES, **options})
    own = {name: value for name, value in base.options.items() if name != "classes"}
    named = [{"name": name} for name in ("grey", "vv", "vh", "elevation")]
    return base.model_copy(update={"processor": "raster-regression", "options": {**own, "quantities": named}})


def answers(prompts: Iterator[Prompt]) -> Iterator[Output]:
    """Return each tile's normalised bands as the answer."""
    return (Output({"values": as_floats(prompt).data["pixels"]}) for prompt in prompts)


def estimate(folder: Path, used: Model | None = None, media: Files | None = None, **request: Any) -> Any:
    processor, sink = RasterRegression(used or model()), Folder(folder)
    prepared = processor.pre_process(processor.request(**request), media or Files())
    result = processor.post_process(answers(prepared.prompts), prepared.context, sink)
    assert result.data is not None
    return read(sink.artifacts["values.tif"]) if "values.tif" in sink.artifacts else None, result.data, sink


def grey(folder: Path) -> tuple[Path, npt.NDArray[np.uint8]]:
    numbers = np.random.default_rng(1).integers(1, 250, (1, SIDE, SIDE), np.uint8)
    return write_scene(folder / "s2.tif", numbers), numbers


def backscatter(height: int, width: int, seed: int = 2) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-25, -1, (2, height, width)).astype(np.float32)


def radar(path: Path, numbers: npt.NDArray[Any], **profile: Any) -> dict[str, Any]:
    return {"name": "S1GRD", "scene": str(write_scene(path, numbers, descriptions=("VV", "VH"), **profile))}


def elevation(path: Path, numbers: npt.NDArray[Any], **profile: Any) -> dict[str, Any]:
    return {"name": "DEM", "scene": str(write_scene(path, numbers, descriptions=("DEM",), **profile))}


def heights(height: int, width: int) -> npt.NDArray[np.int16]:
    return np.random.default_rng(3).integers(0, 3000, (1, height, width), np.int16)


def nearest(numbers: npt.NDArray[Any], transform: Any, crs: str) -> npt.NDArray[np.float64]:
    """Return a raster's pixels at the centres of the scene's; NaN beside it, infinite at the edge of two pixels."""
    columns, rows = np.meshgrid(np.arange(SIDE) + 0.5, np.arange(SIDE) + 0.5)
    x, y = NORTH_UP @ (columns, rows)
    x, y = Transformer.from_crs("EPSG:32633", crs, always_xy=True).transform(x, y)
    places = ~transform @ (x, y)
    across, down = (np.floor(each).astype(int) for each in places)
    inside = (across >= 0) & (across < numbers.shape[2]) & (down >= 0) & (down < numbers.shape[1])
    found = np.where(inside, numbers[:, np.where(inside, down, 0), np.where(inside, across, 0)], np.nan)
    return np.where(np.max([abs(each - np.rint(each)) < 1e-3 for each in places], axis=0), np.inf, found)


def normalised(numbers: npt.NDArray[Any], *bands: dict[str, Any]) -> npt.NDArray[np.float32]:
    pairs = zip(numbers.astype(np.float64), bands, strict=True)
    return np.stack([(band - about["mean"]) / about["std"] for band, about in pairs]).astype(np.float32)


@pytest.mark.parametrize("cut", [{}, {"overlap": "hann", "tile_px": 48}], ids=["halo", "hann"])
def test_each_sensor_has_its_own_grid_radiometry_and_statistics(cut: dict[str, Any], tmp_path: Path) -> None:
    scene, numbers = grey(tmp_path)
    power = 10 ** (backscatter(SIDE, SIDE) / 10)
    power[:, 40:50, 60:80] = 0
    ground = heights(500, 140)
    given = [
        elevation(tmp_path / "dem.tif", ground, crs="EPSG:4326", transform=DEGREES, nodata=-32768),
        radar(tmp_path / "s1.tif", power) | {"radiometry": {"scale": 1, "to_decibels": True}},
    ]
    got, data, _ = estimate(tmp_path / "out", model(**cut), scene=str(scene), modalities=given)
    there = nearest(ground, DEGREES, "EPSG:4326")
    known = (power > 0).all(axis=0) & ~np.isnan(there[0])
    assert 0.5 < known.mean() < 0.99, "the elevation must end inside the scene"
    decibels = 10 * np.log10(np.where(power > 0, power, 1).astype(np.float64))
    expected = np.concatenate(
        [numbers.astype(np.float32), normalised(decibels.astype(np.float32), VV, VH), normalised(there, HEIGHT)]
    )
    sure = np.isfinite(there[0]) | np.isnan(there[0])
    assert sure.mean() > 0.99
    np.testing.assert_array_equal(np.isnan(got)[:, sure], np.broadcast_to(~known, got.shape)[:, sure])
    np.testing.assert_allclose(got[:, known & sure], expected[:, known & sure], rtol=1e-6, atol=1e-6)
    assert data["modalities"] == [
        {"name": "S2L2A", "time": None, "resampling": "none"},
        {"name": "S1GRD", "time": None, "resampling": "none"},
        {"name": "DEM", "time": None, "resampling": "nearest"},
    ]
    assert [(band["name"], band["modality"], band["file"]) for band in data["bands"]] == [
        ("grey", "S2L2A", 1), ("vv", "S1GRD", 2), ("vh", "S1GRD", 2), ("elevation", "DEM", 3),
    ]  # fmt: skip
    assert data["radiometry"]["power"] == [None, (1.0, 0.0), (1.0, 0.0), None]
    assert "date" not in data["bands"][1]


def test_coarser_pixels_that_nest_are_those_of_a_scene_of_several_files(tmp_path: Path) -> None:
    scene, _ = grey(tmp_path)
    coarse = NORTH_UP @ rasterio.Affine.scale(3)
    given = [
        radar(tmp_path / "s1.tif", backscatter(50, 50), transform=coarse),
        elevation(tmp_path / "dem.tif", heights(75, 75), transform=NORTH_UP @ rasterio.Affine.scale(2)),
    ]
    got, data, _ = estimate(tmp_path / "out", scene=str(scene), modalities=given)
    flat = model(modality="", modalities=[], bands=[{"name": "grey", "mean": 0.0, "std": 1.0}, VV, VH, HEIGHT])
    write_scene(tmp_path / "named.tif", read(scene), descriptions=("grey",))
    files = [{"media": str(tmp_path / "named.tif")}, *({"media": one["scene"]} for one in given)]
    expected, _, _ = estimate(tmp_path / "flat", flat, files=files)
    np.testing.assert_array_equal(got, expected)
    assert [one["resampling"] for one in data["modalities"]] == ["none", "bilinear", "bilinear"]


def test_a_mosaic_and_a_shifted_scene_of_a_sensor_come_to_the_scene(tmp_path: Path) -> None:
    scene, _ = grey(tmp_path)
    whole = backscatter(SIDE, SIDE)
    halves = []
    for at, (start, stop) in enumerate(((0, 90), (60, SIDE))):
        moved = NORTH_UP @ rasterio.Affine.translation(start, 0)
        halves.append({"scene": radar(tmp_path / f"{at}.tif", whole[:, :, start:stop], transform=moved)["scene"]})
    wide = heights(SIDE + 20, SIDE + 30)
    around = NORTH_UP @ rasterio.Affine.translation(-10, -5)
    given = [{"name": "S1GRD", "mosaic": {"scenes": halves}}, elevation(tmp_path / "dem.tif", wide, transform=around)]
    got, _, _ = estimate(tmp_path / "out", scene=str(scene), modalities=given)
    np.testing.assert_allclose(got[1:3], normalised(whole, VV, VH), rtol=1e-6)
    np.testing.assert_allclose(got[3:], normalised(wide[:, 5:155, 10:160], HEIGHT), rtol=1e-6)


def three(folder: Path) -> dict[str, Any]:
    """Return a request of three sensors on grids of their own."""
    scene, _ = grey(folder)
    return {
        "scene": str(scene),
        "modalities": [
            radar(folder / "s1.tif", backscatter(400, 500), crs="EPSG:4326", transform=DEGREES),
            elevation(folder / "dem.tif", heights(500, 500), crs="EPSG:4326", transform=DEGREES),
        ],
    }


def test_an_area_is_the_whole_result_cut(tmp_path: Path) -> None:
    request = three(tmp_path)
    whole, _, _ = estimate(tmp_path / "whole", **request)
    (left, top), (right, bottom) = NORTH_UP @ (31, 40), NORTH_UP @ (90, 101)
    area = {"bbox": [left, bottom, right, top], "crs": "EPSG:32633"}
    part, _, _ = estimate(tmp_path / "part", **request, area=area)
    np.testing.assert_array_equal(part, whole[:, 40:101, 31:90])


def test_of_files_at_addresses_only_the_part_below_an_area_is_fetched(tmp_path: Path) -> None:
    profile = {"tiled": True, "blockxsize": 128, "blockysize": 128, "crs": "EPSG:4326", "transform": DEGREES}
    request = three(tmp_path)
    large = radar(tmp_path / "large.tif", backscatter(2000, 1500), **profile)
    request["modalities"][0] = large
    expected, _, _ = estimate(tmp_path / "whole", **request)
    (left, top), (right, bottom) = NORTH_UP @ (64, 64), NORTH_UP @ (128, 128)
    area = {"bbox": [left, bottom, right, top], "crs": "EPSG:32633"}
    media = PartialFiles(tmp_path / "partial")
    got, _, _ = estimate(tmp_path / "part", model(halo_exact=True), media, **request, area=area)
    np.testing.assert_array_equal(got, expected[:, 64:128, 64:128])
    assert media.filled_bytes < Path(large["scene"]).stat().st_size / 4


@pytest.mark.parametrize(
    "cut", [{"tile_px": 32}, {"overlap": "hann", "tile_px": 48, "halo_px": 0}], ids=["halo", "hann"]
)
def test_killed_or_shared_it_ends_with_the_same_bytes(cut: dict[str, Any], tmp_path: Path) -> None:
    request, used = three(tmp_path), make_model(**MODALITIES, **cut)
    more = {"modalities": request["modalities"], "uncertainty": "flips"}

    def job(name: str) -> Job:
        return Job(Path(request["scene"]), tmp_path / name, used, **more)

    whole = job("whole")
    expected = contents(whole.attempt())
    assert len(whole.saved) > 3
    killed = job("killed")
    with pytest.raises(Killed):
        killed.attempt(3)
    assert contents(killed.attempt()) == expected
    assert killed.announced[-1][1] > 0
    shared = job("shared")
    for part in parts_of(shared, 2):
        run_part(shared, part)
    assert contents(shared.attempt()) == expected
    assert shared.sent[-1] == 0


def test_linear_power_is_refused_where_decibels_are_needed_and_the_reverse(tmp_path: Path) -> None:
    request = three(tmp_path)
    power = 10 ** (backscatter(SIDE, SIDE) / 10)
    linear = radar(tmp_path / "power.tif", power)
    with pytest.raises(InvalidInput, match=r"S1GRD: .*look like linear power.*to_decibels"):
        estimate(tmp_path / "1", **{**request, "modalities": [linear, request["modalities"][1]]})
    trusted = linear | {"radiometry": {"scale": 1, "trust": True}}
    got, _, _ = estimate(tmp_path / "2", **{**request, "modalities": [trusted, request["modalities"][1]]})
    np.testing.assert_allclose(got[1:3], normalised(power, VV, VH), rtol=1e-6)
    dem = request["modalities"][1] | {"radiometry": {"scale": 1, "to_decibels": True}}
    with pytest.raises(InvalidInput, match="does not take decibels here"):
        estimate(tmp_path / "3", **{**request, "modalities": [request["modalities"][0], dem]})


def test_each_sensor_is_compared_with_its_own_training(tmp_path: Path) -> None:
    request = three(tmp_path)
    bands = [{"name": "grey", "mean": 0.2, "std": 0.1}]
    optical = model(bands=bands, reflectance=1.0)
    with pytest.raises(InvalidInput, match="S2L2A: With scale 1"):
        estimate(tmp_path / "1", optical, **request)
    got, data, _ = estimate(tmp_path / "2", optical, **request, radiometry={"scale": 0.001})
    assert not np.isnan(got[:, 50:60, 50:60]).all()
    assert not any("DEM" in note or "S1GRD" in note for note in data["notes"])


def test_the_request_has_each_sensor_once(tmp_path: Path) -> None:
    request = three(tmp_path)
    s1, dem = request["modalities"]
    for at, given in enumerate((None, [], [s1], [s1, dem, dem], [s1, dem | {"name": "LULC"}])):
        with pytest.raises(InvalidInput, match="takes the modalities S1GRD, DEM beside the scene, each once") as caught:
            estimate(tmp_path / str(at), **{**request, "modalities": given})
        assert caught.value.errors[0].pointer == "/input/modalities"
    with pytest.raises(InvalidInput, match="takes no modalities beside the scene"):
        RasterSegmentation(make_model()).pre_process(SegmentationRequest(**request), Files())


def test_errors_name_the_sensor_and_its_place(tmp_path: Path) -> None:
    request = three(tmp_path)
    s1, dem = request["modalities"]
    one = s1 | {"scene": str(write_scene(tmp_path / "one.tif", backscatter(9, 9)[:1], descriptions=("VV",)))}
    with pytest.raises(MissingBands, match=r"S1GRD: The model needs 2 bands \(vv, vh\)"):
        estimate(tmp_path / "1", **{**request, "modalities": [one, dem]})
    far = radar(tmp_path / "far.tif", backscatter(9, 9), transform=NORTH_UP @ rasterio.Affine.translation(9000, 0))
    with pytest.raises(InvalidInput, match="S1GRD: It does not overlap the scene"):
        estimate(tmp_path / "2", **{**request, "modalities": [dem, far]})
    bare = radar(tmp_path / "bare.tif", backscatter(9, 9), crs=None, transform=None)
    with pytest.raises(InvalidInput, match="S1GRD: It is on another grid than the scene"):
        estimate(tmp_path / "3", **{**request, "modalities": [bare, dem]})
    filled = backscatter(SIDE, SIDE)
    filled[:, 10:60, 10:60] = -9999
    with pytest.raises(InvalidInput, match="-9999 in band vv of S1GRD, which looks like undeclared nodata"):
        estimate(tmp_path / "4", **{**request, "modalities": [radar(tmp_path / "f.tif", filled), dem]})


@pytest.mark.parametrize("field", ["series", "change"])
def test_series_and_changes_are_of_one_sensor(field: str, tmp_path: Path) -> None:
    request = three(tmp_path)
    dates = [{"scene": request["scene"]}] * 2
    several: dict[str, Any] = {"of": ["class 1"], "ignore": []}
    given = (
        {"dates": dates, "series": several, "modalities": request["modalities"]}
        if field == "series"
        else {**request, "change": {**several, "before": {"scene": request["scene"]}}}
    )
    processor = RasterSegmentation(make_model(**MODALITIES))
    with pytest.raises(InvalidInput, match=f"`{field}` is for models of one sensor"):
        processor.pre_process(processor.request(**given), Files())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"modalities": [RADAR]}, "modality and the name of each"),
        ({"modality": "S1GRD", "modalities": [RADAR]}, "modality and the name of each"),
        ({"modality": "S2L2A", "modalities": [RADAR, RADAR]}, "modality and the name of each"),
        ({**MODALITIES, "dates": 2}, "models of one date"),
        ({**MODALITIES, "plausible_mean": 1.0}, "without plausible_mean"),
    ],
)
def test_records_that_fit_nothing_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        RasterSegmentation(make_model(**options))


def test_the_processor_keeps_the_contract_and_its_dummy_has_every_sensor(tmp_path: Path) -> None:
    request = three(tmp_path)
    names = {"media://s2": Path(request["scene"])}
    for one in request["modalities"]:
        names[f"media://{one['name']}"] = Path(one["scene"])
    given = {
        "scene": "media://s2",
        "modalities": [{"name": one["name"], "scene": f"media://{one['name']}"} for one in request["modalities"]],
    }
    used = model(tile_px=32, limits=Limits(max_pixels=300_000))
    done = check_processor(
        RasterRegression(used), given, names, engine=answers, other={**given, "outputs": ["values"]},
        limits=used.limits, count_is_a_bound=True,
    )  # fmt: skip
    assert done.saved


def test_the_models_item_has_an_input_of_each_sensor() -> None:
    used = make_model(**MODALITIES)
    assert len(SegmentationOptions.model_validate(used.options).sensors) == 3
    inputs = stac_mlm(used)["properties"]["mlm:input"]
    assert [(one["name"], one["bands"], one["input"]["shape"][1]) for one in inputs] == [
        ("S2L2A", ["grey"], 1), ("S1GRD", ["vv", "vh"], 2), ("DEM", ["elevation"], 1),
    ]  # fmt: skip
    assert [one["description"].partition(",")[0] for one in inputs] == ["values", "decibels", "values"]
    assert inputs[1]["value_scaling"][0] == {"type": "z-score", "mean": -12.0, "stddev": 5.0}
    assert json.dumps(inputs)


def test_every_modality_has_a_name() -> None:
    with pytest.raises(ValidationError, match=r"0\.name\n  Field required"):
        SegmentationRequest(scene="media://1", modalities=[{"scene": "media://2"}])  # type: ignore[list-item]
