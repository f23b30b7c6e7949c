"""A series of dates: each map is that of the date alone, and each sum is that of the maps."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import shapely
from pydantic import ValidationError

from penstock.errors import InvalidInput
from penstock.processors.geo.read.gdal import pyogrio, rasterio
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.workers.io import sandbox
from tests.geo.test_parts import keep_finding, parts_of, run_part
from tests.geo.test_resume import Job, Killed, contents
from tests.support.geo.scenes import NORTH_UP, Files, Folder, answers, make_model, read, segment, write_scene
from tests.support.geo.shares import zones

ROOT = Path(__file__).parents[2]
HEIGHT, WIDTH = 150, 133
SERIES = {"of": ["class 1", "class 3"], "name": "water", "ignore": ["class 4"]}
PER_DATE = ("classes", "probability", "confidence", "polygons", "preview")
ALL = (*PER_DATE, "stats", "item")
MODEL = make_model(tile_px=48, halo_px=8)


def write_dates(folder: Path, count: int, **profile: Any) -> list[dict[str, Any]]:
    """Write scenes of random blobs with nodata of their own, two dates a month; return them latest first."""
    folder.mkdir(exist_ok=True)
    rng, dates = np.random.default_rng(7), []
    for at in range(count):
        blobs = np.kron(rng.integers(1, 11, (22, 19)), np.ones((7, 7), int))[:HEIGHT, :WIDTH].astype(np.uint8)
        blobs[rng.random(blobs.shape) < 0.05] = 0
        blobs[20:30, 40:60] = 0  # on no date
        blobs[40:50, 40:60] = 4  # hidden on every date
        path = write_scene(folder / f"scene-{at}.tif", blobs[None], nodata=0, **profile)
        time = f"2020-{at // 2 + 1:02}-{1 + 14 * (at % 2):02}T07:00:00Z"
        dates.append({"scene": str(path), "datetime": time})
    return dates[::-1]


def alone(date: Mapping[str, Any], folder: Path, **request: Any) -> dict[str, Path]:
    """Return the artifacts of a job of one date."""
    sink, _ = segment(Path(date["scene"]), folder, model=MODEL, datetime=date["datetime"], **request)
    return sink.artifacts


def run(dates: list[dict[str, Any]], folder: Path, **request: Any) -> tuple[Folder, dict[str, Any]]:
    sink, result = segment(None, folder, **{"model": MODEL, "dates": dates, "series": SERIES, "outputs": ALL} | request)
    assert result.data is not None
    return sink, dict(result.data)


def test_the_files_of_each_date_are_those_of_a_job_of_this_date_alone(tmp_path: Path) -> None:
    dates = write_dates(tmp_path / "scenes", 3)
    sink, data = run(dates, tmp_path / "series")
    names = set[str]()
    for date, prefix in zip(dates[::-1], ("01-2020-01-01-", "02-2020-01-15-", "03-2020-02-01-"), strict=True):
        single = contents(Sink(alone(date, tmp_path / prefix, outputs=PER_DATE)))
        assert single.keys() >= {"classes.tif", "probability.tif", "confidence.tif", "polygons.fgb", "preview.png"}
        own = contents(
            Sink({name.removeprefix(prefix): path for name, path in sink.artifacts.items() if prefix in name})
        )
        assert own == single
        names |= {prefix + name for name in single}
    rasters = {"extent", "first-seen", "frequency", "clear"}
    assert {name for name in sink.artifacts if name.endswith(".tif")} - names == {f"{name}.tif" for name in rasters}
    assert [date["prefix"] for date in data["dates"]] == ["01-2020-01-01-", "02-2020-01-15-", "03-2020-02-01-"]
    assert [date["listed"] for date in data["dates"]] == [3, 2, 1]
    assert data["series"]["order"] == "time"
    left = {path.name for path in (tmp_path / "series").iterdir()}
    assert left == set(sink.artifacts), "scratch files are left"


class Sink:
    """Artifacts alone."""

    def __init__(self, artifacts: dict[str, Path]) -> None:
        self.artifacts = artifacts


def maps_of(dates: list[dict[str, Any]], folder: Path, **request: Any) -> npt.NDArray[np.uint8]:
    """Return the class maps of single jobs, earliest first: uint8 (dates, rows, columns)."""
    paths = [alone(date, folder / str(at), outputs=("classes",), **request) for at, date in enumerate(dates[::-1])]
    return np.stack([read(path["classes.tif"])[0] for path in paths])


def test_each_raster_is_the_sum_of_the_maps(tmp_path: Path) -> None:
    dates = write_dates(tmp_path / "scenes", 5)
    maps = maps_of(dates, tmp_path / "alone")
    sink, data = run(dates, tmp_path / "series", outputs=("polygons", "stats"))
    clear = (maps != 255) & (maps != 4)
    water = (maps == 1) | (maps == 3)
    known = clear.any(axis=0)
    assert not known[40:50, 40:60].any()
    np.testing.assert_array_equal(read(sink.artifacts["clear.tif"])[0], clear.sum(axis=0))
    first = np.where(water.any(axis=0), water.argmax(axis=0) + 1, 0)
    np.testing.assert_array_equal(read(sink.artifacts["first-seen.tif"])[0], np.where(known, first, 255))
    extent = np.where(known, water.any(axis=0), 255)
    np.testing.assert_array_equal(read(sink.artifacts["extent.tif"])[0], extent)
    frequency = np.full(known.shape, np.nan, np.float32)
    frequency[known] = (water.sum(axis=0)[known] / clear.sum(axis=0)[known]).astype(np.float32)
    np.testing.assert_array_equal(read(sink.artifacts["frequency.tif"])[0], frequency)
    assert set(np.unique(first)) == {0, 1, 2, 3, 4, 5}

    found = data["series"]
    assert (found["of"], found["ignored"]) == (["class 1", "class 3"], ["class 4"])
    assert [row["pixels"] for row in found["extent"]["classes"]] == [(extent == 0).sum(), (extent == 1).sum()]
    assert found["extent"]["nodata_pixels"] == (extent == 255).sum()
    _, _, shapes, _ = pyogrio.raw.read(sink.artifacts["extent.fgb"])
    pixels = sum(shape.area for shape in shapely.from_wkb(shapes)) / 900
    assert pixels == pytest.approx((extent == 1).sum())
    with rasterio.open(sink.artifacts["first-seen.tif"]) as file:
        assert file.tags(1)["CLASS_0"] == "never water"
        assert file.tags(1)["CLASS_5"] == "2020-03-01"
        assert (file.transform, file.nodata) == (NORTH_UP, 255)
        assert "RADIOMETRY" not in file.tags()


def test_zones_have_their_areas_on_each_date(tmp_path: Path) -> None:
    dates, wanted = write_dates(tmp_path / "scenes", 2), zones()
    sink, data = run(dates, tmp_path / "series", outputs=("stats",), zones=wanted)
    for date, own in zip(dates[::-1], data["dates"], strict=True):
        stats = alone(date, tmp_path / own["prefix"], outputs=("stats",), zones=wanted)["stats.json"]
        assert own["zones"] == json.loads(stats.read_text())["zones"]
        assert any(row["pixels"] for row in own["zones"][0]["classes"])
    with sink.artifacts["zones.csv"].open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["date"], row["zone"]) for row in rows[: len(own["zones"])]] == [
        ("1", each["name"]) for each in own["zones"]
    ]
    assert len(rows) == 2 * len(own["zones"])
    twice = {**wanted, "features": [wanted["features"][0]] * 2}
    with pytest.raises(InvalidInput, match=r"^Several zones have the same name"):
        run(dates, tmp_path / "twice", outputs=("stats",), zones=twice)


def test_the_area_of_each_class_on_each_date_is_in_the_statistics_and_in_a_table(tmp_path: Path) -> None:
    dates = write_dates(tmp_path / "scenes", 3)
    maps = maps_of(dates, tmp_path / "alone")
    sink, data = run(dates, tmp_path / "series", outputs=("stats",))
    with sink.artifacts["series.csv"].open() as file:
        rows = list(csv.DictReader(file))
    assert sink.types["series.csv"] == "text/csv"
    assert len(rows) == 3 * 5
    for at, classes in enumerate(maps):
        entry = data["dates"][at]
        single = segment(Path(dates[2 - at]["scene"]), tmp_path / f"stats-{at}", model=MODEL, outputs=("stats",))[
            1
        ].data
        assert single is not None
        assert {name: entry[name] for name in single.keys() - {"model", "scene", "notes"}} == {
            name: single[name] for name in single.keys() - {"model", "scene", "notes"}
        }
        for row, label in zip(rows[5 * at : 5 * at + 5], entry["classes"], strict=True):
            pixels = (classes == int(row["class_id"])).sum()
            assert (int(row["date"]), row["time"][:10]) == (at + 1, dates[2 - at]["datetime"][:10])
            assert (int(row["pixels"]), row["class"]) == (pixels, f"class {row['class_id']}")
            assert float(row["area_m2"]) == label["area_m2"] == pytest.approx(900 * pixels, rel=2e-3)
            assert float(row["percent"]) == pytest.approx(100 * pixels / (classes != 255).sum(), abs=1e-4)
            assert int(row["nodata_pixels"]) == (classes == 255).sum()
    assert json.loads(sink.artifacts["stats.json"].read_text()) == data
    assert data["scene"]["etags"] == [f"etag of scene-{at}.tif" for at in range(3)]


def test_the_item_lists_the_files_of_all_dates(tmp_path: Path) -> None:
    dates = write_dates(tmp_path / "scenes", 2)
    sink, _ = run(dates, tmp_path / "series")
    item = json.loads(sink.artifacts["item.json"].read_text())
    assert set(item["assets"]) == set(sink.artifacts) - {"item.json", "model.json"}
    assert item["assets"]["01-2020-01-01-classes.tif"]["title"] == "2020-01-01: classes"
    assert (item["properties"]["start_datetime"], item["properties"]["end_datetime"]) == (
        "2020-01-01T07:00:00Z", "2020-01-15T07:00:00Z",
    )  # fmt: skip
    assert item["properties"]["processing:lineage"].endswith(" applied to 2 files, as a series of 2 dates")


def test_dates_of_unknown_time_stay_as_they_are_listed(tmp_path: Path) -> None:
    dates = write_dates(tmp_path / "scenes", 3)
    del dates[1]["datetime"]
    sink, data = run(dates, tmp_path / "series", outputs=("classes", "stats"))
    assert [date["listed"] for date in data["dates"]] == [1, 2, 3]
    assert {"01-2020-02-01-classes.tif", "02-classes.tif", "03-2020-01-01-classes.tif"} <= sink.artifacts.keys()
    assert data["series"]["order"] == "listed"
    assert "The dates are in the order of the request, because the time of some is unknown." in data["notes"]
    assert data["dates"][1]["time"] is None


def truncated(path: Path) -> None:
    """Cut a file off in the middle of its pixels."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_dates_that_cannot_be_used_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    good = write_dates(tmp_path / "scenes", 3)
    maps = maps_of(good, tmp_path / "alone")
    (tmp_path / "text.tif").write_text("no scene")
    other = write_scene(tmp_path / "other.tif", np.ones((1, 10, 10), np.uint8), nodata=0)
    coarse = NORTH_UP @ rasterio.Affine.scale(2)
    half = write_scene(tmp_path / "half.tif", np.ones((1, 75, 67), np.uint8), nodata=0, transform=coarse)
    bands = write_scene(tmp_path / "bands.tif", np.ones((3, HEIGHT, WIDTH), np.uint8), nodata=0)
    broken = write_dates(tmp_path / "broken", 1, compress="deflate", blockysize=16)[0]
    truncated(Path(broken["scene"]))
    dates = [
        {"scene": str(other)},
        good[0],
        {"scene": str(tmp_path / "text.tif"), "datetime": "2020-01-09T00:00:00Z"},
        good[1],
        {"scene": str(half)},
        {**broken, "datetime": "2020-01-20T00:00:00Z"},
        good[2],
        {"scene": str(bands)},
    ]
    sink, data = run(dates, tmp_path / "series")
    failed = data["series"]["failed"]
    assert [(date["listed"], date["date"], date["time"]) for date in failed] == [
        (1, None, None),
        (3, None, "2020-01-09T00:00:00+00:00"),
        (5, None, None),
        (6, 3, "2020-01-20T00:00:00+00:00"),
        (8, None, None),
    ]
    said = ("different extent from the other dates", "neither a GeoTIFF", "another resolution", "read", "band")
    for date, word in zip(failed, said, strict=True):
        assert word in date["reason"]
    assert [date["date"] for date in data["dates"]] == [1, 2, 4]
    water = (maps == 1) | (maps == 3)
    numbers = np.array([1, 2, 4])[water.argmax(axis=0)]
    first = read(sink.artifacts["first-seen.tif"])[0]
    np.testing.assert_array_equal(first[first != 255], np.where(water.any(axis=0), numbers, 0)[first != 255])
    np.testing.assert_array_equal(read(sink.artifacts["clear.tif"])[0], ((maps != 255) & (maps != 4)).sum(axis=0))
    assert "5 of 8 dates could not be used: see `series.failed`." in data["notes"]
    assert not [name for name in sink.artifacts if name.startswith("03-")]
    assert len([name for name in sink.artifacts if name.endswith("-classes.tif")]) == 3


def test_the_job_fails_with_the_reasons_if_no_date_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "text.tif").write_text("no scene")
    broken = write_dates(tmp_path / "broken", 1, compress="deflate", blockysize=16)[0]
    truncated(Path(broken["scene"]))
    text = {"scene": str(tmp_path / "text.tif")}
    for at, dates in enumerate(([text, text], [text, broken])):
        with pytest.raises(InvalidInput, match=r"^No date of the series can be used[.] Date 1: .* Date 2: ") as caught:
            run(dates, tmp_path / str(at))
        assert [issue.pointer for issue in caught.value.errors] == ["/input/dates/0", "/input/dates/1"]


def test_scenes_of_other_extents_are_a_series_within_an_area_of_all(tmp_path: Path) -> None:
    dates = write_dates(tmp_path / "scenes", 3)
    with rasterio.open(dates[0]["scene"]) as file:
        part = file.read(window=((20, HEIGHT), (30, WIDTH)))
    moved = NORTH_UP @ rasterio.Affine.translation(30, 20)
    dates[0]["scene"] = str(write_scene(tmp_path / "moved.tif", part, nodata=0, transform=moved))
    _, data = run(dates, tmp_path / "whole")
    [failed] = data["series"]["failed"]
    assert failed["listed"] == 1
    assert failed["reason"].endswith("Or give an `area` that all dates have.")
    area = {"bbox": [*(NORTH_UP @ (50, 140)), *(NORTH_UP @ (120, 60))], "crs": "EPSG:32633"}
    maps = maps_of(dates, tmp_path / "alone", area=area)
    sink, data = run(dates, tmp_path / "area", area=area)
    assert data["series"]["failed"] == []
    assert [date["area"]["rows"] for date in data["dates"]] == [[60, 140], [60, 140], [40, 120]]
    said = json.loads(sink.artifacts["item.json"].read_text())["properties"]["processing:lineage"]
    assert said.endswith(", cut to an area, as a series of 3 dates")
    np.testing.assert_array_equal(read(sink.artifacts["clear.tif"])[0], ((maps != 255) & (maps != 4)).sum(axis=0))


def test_classes_that_nobody_decided_on_are_named_in_a_note(tmp_path: Path) -> None:
    dates = write_dates(tmp_path / "scenes", 2)
    notes = []
    for at, ignore in enumerate(({}, {"ignore": []})):
        series = {"of": ["class 1", "class 3"], "name": "water", **ignore}
        notes.append(run(dates, tmp_path / str(at), outputs=("stats",), series=series)[1]["notes"])
    assert notes[1] == []
    [note] = notes[0]
    assert note.startswith("These classes count as clear ground without water: class 0, class 2, class 4.")


@pytest.mark.parametrize("tile_px", [48, 256])
def test_killed_at_every_strip_it_ends_with_the_same_bytes(tile_px: int, tmp_path: Path) -> None:
    dates, model = write_dates(tmp_path / "scenes", 3), make_model(tile_px=tile_px, halo_px=8)
    request: dict[str, Any] = {"dates": dates, "series": SERIES, "outputs": ("classes", "polygons", "stats")}
    whole = Job(None, tmp_path / "whole", model, **request)
    expected = contents(whole.attempt())
    strips = len(whole.saved)
    assert strips == 3 * {48: 3, 256: 1}[tile_px]
    for lives in range(1, strips):
        job = Job(None, tmp_path / f"{lives}", model, **request)
        with pytest.raises(Killed):
            job.attempt(lives)
        assert contents(job.attempt()) == expected
        assert job.announced[-1][1] == whole.sent[0] * lives // strips
        assert job.sent[-1] == whole.sent[0] - job.announced[-1][1]


def test_dates_of_one_file_have_one_map(tmp_path: Path) -> None:
    dates = write_dates(tmp_path / "scenes", 1) * 2
    dates = [dates[0], {**dates[0], "datetime": "2021-01-01T00:00:00Z"}]
    job = Job(None, tmp_path / "job", MODEL, dates=dates, series=SERIES, outputs=("classes", "stats"))
    with pytest.raises(Killed):
        job.attempt(4)
    sink = job.attempt()
    first, second = (sink.artifacts[f"{prefix}-classes.tif"] for prefix in ("01-2020-01-01", "02-2021-01-01"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"scene": "a.tif"}, "series needs dates"),
        ({"dates": [{"scene": "a.tif"}], "datetime": "2020-01-01T00:00:00Z"}, "datetime cannot be given with series"),
        (
            {"dates": [{"scene": "a.tif"}], "change": {"before": {"scene": "a.tif"}, "of": ["class 1"]}},
            "change cannot be given with series",
        ),
    ],
)
def test_a_series_has_dates_and_nothing_of_one_scene(request_: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RasterSegmentation.request(series=SERIES, **request_)


@pytest.mark.parametrize(
    ("series", "said"),
    [
        ({"of": ["water"]}, "no class 'water'; its classes are class 0, class 1"),
        ({"of": ["class 1"], "ignore": ["Class 1"]}, "`series.of` and `series.ignore` name the same class"),
    ],
)
def test_classes_that_the_model_lacks_are_refused(series: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        run(write_dates(tmp_path / "scenes", 2), tmp_path / "out", series=series)


def test_a_model_of_several_dates_makes_no_series(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="`series` is for models of one date"):
        run(write_dates(tmp_path / "scenes", 2), tmp_path / "out", model=make_model(tile_px=48, dates=2))


def test_outputs_are_read_while_prompts_are_drawn(tmp_path: Path) -> None:
    dates = write_dates(tmp_path / "scenes", 4)
    expected = contents(run(dates, tmp_path / "one")[0])
    processor = RasterSegmentation(MODEL)
    request = processor.request(dates=dates, series=SERIES, outputs=ALL)
    prepared, sink = processor.pre_process(request, Files()), Folder(tmp_path / "many")
    answered = list(answers(prepared.prompts, lambda pixels: by_value_of(pixels), batch=7))
    assert len(answered) <= (prepared.count or 0)
    processor.post_process(iter(answered), prepared.context, sink)
    assert contents(sink) == expected


def by_value_of(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    ids = np.rint(pixels[0]).astype(np.int64) % 5
    return (ids[None] == np.arange(5)[:, None, None]).astype(np.float32)


def peak_mb(folder: Path, dates: int) -> int:
    """Return the peak resident memory of a process that maps a series of so many dates of 2,000 px."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.support.geo.peak_of_series", str(folder), str(dates)]
    environment = {**os.environ, **sandbox.environment(), "GDAL_CACHEMAX": "16"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.breadth
@pytest.mark.slow
def test_more_dates_take_no_more_memory(tmp_path: Path) -> None:
    few = peak_mb(tmp_path / "few", 3)
    many = peak_mb(tmp_path / "many", 15)
    # If held, the maps of 12 more dates would take 48 MB, and their scenes 288 MB.
    assert many < few + 40


@pytest.mark.breadth(but=("48-3",))
@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("tile_px", [48, 256])
def test_a_series_in_parts_has_the_same_bytes(tile_px: int, count: int, tmp_path: Path) -> None:
    dates, model = write_dates(tmp_path / "scenes", 7), make_model(tile_px=tile_px, halo_px=8)
    request: dict[str, Any] = {"dates": dates, "series": SERIES, "outputs": ("classes", "confidence", "stats")}
    whole = Job(None, tmp_path / "whole", model, **request)
    expected = contents(whole.attempt())
    job = Job(None, tmp_path / "job", model, **request)
    for part in reversed(parts_of(job, count)):
        assert run_part(job, part).count < whole.announced[0][0]  # type: ignore[operator]
    assert len(job.saved) == len(whole.saved)
    assert contents(job.attempt()) == expected
    assert (job.sent[-1], job.announced[-1]) == (0, (0, whole.announced[0][0]))


@pytest.mark.parametrize(("checked", "failed", "left"), [({"reflectance": 1.0}, [3, 4], 3), ({}, [4], 5)])
def test_dates_that_fail_in_one_attempt_fail_in_parts(
    checked: dict[str, float], failed: list[int], left: int, tmp_path: Path
) -> None:
    bands = [{"name": "one", "mean": 0.1, "std": 0.05}]
    model = make_model(tile_px=48, halo_px=8, bands=bands, **checked)
    good = write_dates(tmp_path / "scenes", 3)
    dark = write_scene(tmp_path / "dark.tif", np.full((1, HEIGHT, WIDTH), 250, np.uint8), nodata=0)
    broken = write_dates(tmp_path / "broken", 1, compress="deflate", blockysize=16)[0]
    broken["scene"] = str(Path(broken["scene"]).rename(tmp_path / "broken.tif"))  # with an etag of its own
    truncated(tmp_path / "broken.tif")
    hot = {"scene": str(dark), "datetime": "2020-01-02T00:00:00Z", "radiometry": {"scale": 1}}
    dates = [*good[:2], hot, {**broken, "datetime": "2020-01-20T00:00:00Z"}, good[2]]
    request: dict[str, Any] = {"dates": dates, "series": SERIES, "radiometry": {"scale": 0.01}, "outputs": ("stats",)}
    expected = contents(Job(None, tmp_path / "whole", model, **request).attempt())
    assert [date["listed"] for date in json.loads(expected["stats.json"])["series"]["failed"]] == failed
    job = Job(None, tmp_path / "job", model, **request)
    division = job.processor.pre_process(job.request, Files()).division
    assert len(division.findings) == left
    for digest, text in division.findings.items():
        keep_finding(job, digest, text)
    for part in parts_of(job, 3):
        assert run_part(job, part).division.digest == division.digest
    assert contents(job.attempt()) == expected
