"""A network gets time and location in its training format: [year, day of the year from 0] and [lat, lon]."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from pyproj import Transformer

import penstock
from penstock.config import Settings
from penstock.errors import InvalidInput
from penstock.models import Model
from penstock.processors.geo.options import Band
from penstock.processors.geo.read.coordinates import LOCATION_NAME, TIME_NAME
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.inputs import read_inputs
from penstock.processors.geo.request import SceneRequest
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.numbers import as_floats
from penstock.processors.reductions import without_request
from penstock.workers.engine.sources import sha256_of
from tests.support.geo.metadata import item, sentinel2
from tests.support.geo.scenes import Files, make_model, pattern, read, segment, write_scene

BOTH = {"time": "optional", "location": "optional"}
LEAP_DAY = "2020-02-29T23:30:00-01:00"  # the first of March in UTC
FIRST_DAY = "2019-01-01T00:00:00Z"
GREY = [Band(name="grey", mean=0, std=1)]


def told(model: Model, **request: Any) -> list[dict[str, npt.NDArray[np.float32]]]:
    """Return the inputs of each prompt besides its pixels."""
    processor = RasterSegmentation(model)
    prepared = processor.pre_process(processor.request(**request), Files())
    data = [without_request(as_floats(prompt)).data for prompt in prepared.prompts]
    return [{name: a for name, a in each.items() if name != "pixels"} for each in data]


def used(model: Model, **request: Any) -> Any:
    """Return the statistics' entry on time and location."""
    processor = RasterSegmentation(model)
    context = processor.pre_process(processor.request(**request), Files()).context
    return context.coordinates.to_json()


@pytest.fixture
def scene(tmp_path: Path) -> str:
    return str(write_scene(tmp_path / "scene.tif", pattern(70, 90)))


def test_days_count_from_zero_in_utc_and_latitude_comes_first(scene: str) -> None:
    model = make_model(coordinates=BOTH, tile_px=128)
    (prompt,) = told(model, scene=scene, datetime=LEAP_DAY, location={"lat": -16.2, "lon": 46.5})
    assert {name: (array.dtype, array.shape) for name, array in prompt.items()} == {
        TIME_NAME: (np.float32, (1, 2)),
        LOCATION_NAME: (np.float32, (2,)),
    }
    np.testing.assert_array_equal(prompt[TIME_NAME], [[2020, 60]])
    np.testing.assert_array_equal(prompt[LOCATION_NAME], np.array([-16.2, 46.5], np.float32))
    (prompt,) = told(model, scene=scene, datetime=FIRST_DAY)
    np.testing.assert_array_equal(prompt[TIME_NAME], [[2019, 0]])


def test_a_model_that_was_trained_without_is_told_nothing(scene: str) -> None:
    assert told(make_model(tile_px=128), scene=scene, datetime=FIRST_DAY) == [{}]
    assert used(make_model(tile_px=128), scene=scene, datetime=FIRST_DAY) == {}
    with pytest.raises(InvalidInput, match="does not use a location") as refused:
        told(make_model(), scene=scene, location={"lat": 1, "lon": 2})
    assert refused.value.errors[0].pointer == "/input/location"


def test_each_tile_is_told_its_own_centre(scene: str) -> None:
    places = [prompt[LOCATION_NAME] for prompt in told(make_model(coordinates=BOTH, tile_px=64), scene=scene)]
    # Two rows and two columns of tiles of 35 x 45 px, at 30 m.
    centres = [(row, column) for row in (17.5, 52.5) for column in (22.5, 67.5)]
    to_lonlat = Transformer.from_crs("EPSG:32633", "EPSG:4326", always_xy=True)
    expected = [to_lonlat.transform(500_000 + 30 * column, 5_000_000 - 30 * row)[::-1] for row, column in centres]
    np.testing.assert_allclose(np.array(places), expected, atol=1e-5)
    assert 45 < places[0][0] < 46
    assert places[0][1] < places[1][1]
    assert places[0][0] > places[2][0]


def test_a_window_that_hangs_over_has_its_centre_in_the_scene(scene: str) -> None:
    hann = {"overlap": "hann", "tile_px": 128}
    base = make_model(coordinates=BOTH)
    options = {name: value for name, value in base.options.items() if name != "halo_px"} | hann
    (prompt,) = told(base.model_copy(update={"options": options}), scene=scene)
    (small,) = told(make_model(coordinates=BOTH, tile_px=128), scene=scene)
    np.testing.assert_array_equal(prompt[LOCATION_NAME], small[LOCATION_NAME])


def test_longitudes_beyond_180_are_brought_back(tmp_path: Path) -> None:
    place = {"crs": "EPSG:4326", "transform": rasterio.Affine(0.01, 0, 199.5, 0, -0.01, 10.5)}
    path = write_scene(tmp_path / "s.tif", pattern(100, 100), **place)
    (prompt,) = told(make_model(coordinates=BOTH, tile_px=128), scene=str(path))
    np.testing.assert_allclose(prompt[LOCATION_NAME], [10, -160], atol=1e-6)


@pytest.mark.parametrize("place", [{"crs": None}, {"transform": None, "crs": None}], ids=["no CRS", "nothing"])
def test_a_scene_that_nobody_can_place_is_told_without_or_refused_where_it_is_needed(
    place: dict[str, None], tmp_path: Path
) -> None:
    path = str(write_scene(tmp_path / "s.tif", pattern(40, 40), **place))
    assert told(make_model(coordinates=BOTH), scene=path) == [{}]
    assert used(make_model(coordinates=BOTH), scene=path) == {
        "time": None, "time_source": "none", "location": None, "location_source": "none",
    }  # fmt: skip
    needy = make_model(coordinates={"location": "needed"})
    with pytest.raises(InvalidInput, match="Give `location`"):
        told(needy, scene=path)
    assert told(needy, scene=path, location={"lat": 0, "lon": 0})[0][LOCATION_NAME].tolist() == [0, 0]


def test_a_time_that_is_needed_and_not_known_is_asked_for(scene: str) -> None:
    with pytest.raises(InvalidInput, match="the time of the scene is unknown") as refused:
        told(make_model(coordinates={"time": "needed"}), scene=scene)
    assert refused.value.errors[0].pointer == "/input/datetime"


def test_who_says_when_in_order(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(40, 40))
    with rasterio.open(path, "r+") as file:
        file.update_tags(SENSING_TIME="2021-01-01T10:00:00.1234567Z; 2021-01-01T10:00:09Z", TIFFTAG_DATETIME="x")
    (tmp_path / "m.xml").write_text(sentinel2())
    (tmp_path / "i.json").write_text(
        json.dumps(item({"s": {"href": "https://x/s.tif"}}, datetime="2022-01-02T00:00:00Z"))
    )
    request: dict[str, Any] = {"scene": str(path)}
    model = make_model(coordinates=BOTH)
    steps: list[tuple[dict[str, Any], str, list[int]]] = [
        ({}, "file", [2021, 0]),
        ({"stac": str(tmp_path / "i.json")}, "stac", [2022, 1]),
        ({"datetime": "2023-12-31T12:00:00Z"}, "request", [2023, 364]),
    ]
    for more, source, day in steps:
        request |= more
        request["radiometry"] = {"scale": 1}
        assert {name: used(model, **request)[name] for name in ("time", "time_source")} == {
            "time": [day], "time_source": source,
        }  # fmt: skip
    # A sidecar has precedence over an item; its bands do not matter here.
    sources = [Path(request["stac"]), tmp_path / "m.xml"]
    found = read_inputs(
        SceneRequest(scene=str(path), stac=str(sources[0]), sidecar=str(sources[1]), radiometry={"scale": 1}),
        Files(), [Band(name="B04", synonyms=("grey",), mean=0, std=1)],
    )  # fmt: skip
    assert [time.source for time in found.times] == ["sidecar"]


@pytest.mark.parametrize(
    ("tags", "namespace"),
    [({"ACQUISITIONDATETIME": "2021-03-01 10:00:00"}, "IMAGERY"), ({"SENSING_TIME": "2021-03-01T10:00:00Z"}, None)],
)
def test_tags_that_mean_the_acquisition_are_read(tags: dict[str, str], namespace: str | None, tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(40, 40))
    with rasterio.open(path, "r+") as file:
        file.update_tags(ns=namespace, **tags)
    assert used(make_model(coordinates=BOTH), scene=str(path))["time"] == [[2021, 59]]


def test_when_a_file_was_written_is_not_when_the_scene_was_taken(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(40, 40))
    with rasterio.open(path, "r+") as file:
        file.update_tags(TIFFTAG_DATETIME="2021:03:01 10:00:00", SENSING_TIME="yesterday")
    assert used(make_model(coordinates=BOTH), scene=str(path))["time"] is None


def dates(tmp_path: Path, *times: str | None) -> list[dict[str, str]]:
    scenes = [write_scene(tmp_path / f"{i}.tif", pattern(40, 40)) for i in range(len(times))]
    return [{"scene": str(p)} | ({"datetime": t} if t else {}) for p, t in zip(scenes, times, strict=True)]


def test_every_date_has_its_own_time_and_the_one_beside_them_is_the_last_ones(tmp_path: Path) -> None:
    model = make_model(coordinates=BOTH, dates=3)
    three = dates(tmp_path, FIRST_DAY, "2019-12-31T00:00:00Z", None)
    (prompt,) = told(model, dates=three, datetime=LEAP_DAY)
    np.testing.assert_array_equal(prompt[TIME_NAME], [[2019, 0], [2019, 364], [2020, 60]])
    three[2]["datetime"] = "2020-01-01T00:00:00Z"
    (prompt,) = told(model, dates=three, datetime=LEAP_DAY)
    np.testing.assert_array_equal(prompt[TIME_NAME], [[2019, 0], [2019, 364], [2020, 0]])


@pytest.mark.parametrize("coordinates", [BOTH, {}])
@pytest.mark.parametrize("between", [None, "2019-06-01T00:00:00Z"])
def test_dates_in_the_wrong_order_are_refused_whatever_the_model(
    coordinates: dict[str, str], between: str | None, tmp_path: Path
) -> None:
    model = make_model(dates=3, coordinates=coordinates)
    wrong = dates(tmp_path, LEAP_DAY, between, FIRST_DAY)
    with pytest.raises(InvalidInput, match=r"not in the order of time: date [23] \(2019-0.*\) is earlier") as refused:
        told(model, dates=wrong)
    assert "List the earliest date first" in str(refused.value)
    assert refused.value.errors[0].pointer == ("/input/dates/1" if between else "/input/dates/2")
    if between:
        assert len(told(model, dates=wrong[::-1])) == 1


def test_a_time_zone_does_not_change_the_order(tmp_path: Path) -> None:
    model = make_model(dates=2)
    given = dates(tmp_path, "2020-01-01T01:00:00+02:00", "2019-12-31T23:30:00Z")
    assert len(told(model, dates=given)) == 1
    with pytest.raises(InvalidInput, match=r"date 2 .* is earlier than date 1"):
        told(model, dates=given[::-1])


def test_times_of_files_are_compared_with_those_of_the_request(tmp_path: Path) -> None:
    first, second = dates(tmp_path, None, None)
    with rasterio.open(first["scene"], "r+") as file:
        file.update_tags(SENSING_TIME="2021-03-01T10:00:00Z")
    request = {"dates": [first, second], "datetime": LEAP_DAY}
    with pytest.raises(InvalidInput, match=r"source: request\) is earlier than date 1 .*source: file\)"):
        told(make_model(dates=2), **request)


def test_an_order_that_cannot_be_checked_is_noted(tmp_path: Path) -> None:
    def notes(*times: str | None) -> list[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        _, result = segment(None, folder / "out", model=make_model(dates=2), dates=dates(folder, *times))
        assert result.data is not None
        found: list[str] = result.data["notes"]
        return found

    assert notes(FIRST_DAY, LEAP_DAY) == []
    (note,) = notes(FIRST_DAY, None)
    assert "not checked, because the time of date 2 is unknown" in note
    (note,) = notes(None, None)
    assert "the time of dates 1 and 2 is unknown" in note
    (note,) = notes(LEAP_DAY, LEAP_DAY)
    assert note.startswith("Dates 1 and 2 have the same time, 2020-")


def test_times_of_some_dates_are_refused_and_of_none_are_left_out(tmp_path: Path) -> None:
    model = make_model(coordinates=BOTH, dates=3)
    with pytest.raises(InvalidInput, match="the time of date 2 is unknown") as refused:
        told(model, dates=dates(tmp_path, FIRST_DAY, None, LEAP_DAY))
    assert refused.value.errors[0].pointer == "/input/dates/1/datetime"
    (prompt,) = told(model, dates=dates(tmp_path, None, None, None))
    assert TIME_NAME not in prompt


class Echo(torch.nn.Module):
    """Returns its inputs at every pixel: year and day of both dates, latitude, longitude, first band."""

    def forward(self, pixels: torch.Tensor, when: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        numbers = torch.cat([when.flatten(1), where], dim=1)[:, :, None, None]
        batch, _, height, width = pixels.shape
        return torch.cat([numbers.expand(batch, 6, height, width), pixels[:, :1]], dim=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Engine]:
    """Return an engine with an exported program that needs time and location."""
    tmp_path = tmp_path_factory.mktemp("engine")
    folder = tmp_path / "echo"
    folder.mkdir()
    size = {0: torch.export.Dim("batch"), 2: torch.export.Dim("h", min=2), 3: torch.export.Dim("w", min=2)}
    zeros = torch.zeros(2, 2, 64, 48), torch.zeros(2, 2, 2), torch.zeros(2, 2)
    program = torch.export.export(Echo(), zeros, dynamic_shapes=(size, {0: size[0]}, {0: size[0]}))
    torch.export.save(program, folder / "program.pt2")
    (folder / "penstock.toml").write_text(
        '[inputs.pixels]\nshape = ["bands=2", "H", "W"]\n[inputs.temporal_coords]\nshape = [2, 2]\n'
        "[inputs.location_coords]\nshape = [2]\n[outputs.values]\n"
    )
    catalogue = tmp_path / "models.toml"
    names = ["year 1", "day 1", "year 2", "day 2", "lat", "lon", "grey"]
    quantities = ", ".join(f'{{ name = "{name.replace(" ", "-")}" }}' for name in names)
    catalogue.write_text(f"""
[models.echo]
title = "Echo"
runner = "torch"
processor = "raster-regression"
source = "{folder}"
revision = "1"
files = {{ "program.pt2" = "{sha256_of(folder / "program.pt2")}" }}
[models.echo.options]
halo_px = 0
tile_px = 32
dates = 2
coordinates = {{ time = "needed", location = "needed" }}
bands = [{{ name = "grey", mean = 0.0, std = 1.0 }}]
default_radiometry = [{{ dtypes = ["uint8", "float32"], scale = 1.0 }}]
quantities = [{quantities}]
""")
    with penstock.Engine(catalogue=[catalogue], settings=Settings(model_cache=tmp_path), isolated=True) as engine:
        yield engine


def test_the_network_itself_gets_them_through_the_engine(engine: penstock.Engine, tmp_path: Path) -> None:
    given = dates(tmp_path, FIRST_DAY, LEAP_DAY)
    result = engine.run("echo", dates=given, location={"lat": 12.5, "lon": -70.25}, out=tmp_path / "out")
    values = read(tmp_path / "out/values.tif")
    for band, expected in zip(values, [2019, 0, 2020, 60, 12.5, -70.25], strict=False):
        assert (band == expected).all()
    np.testing.assert_array_equal(values[6], pattern(40, 40)[0])
    assert result.data is not None
    assert result.data["coordinates"] == {
        "time": [[2019, 0], [2020, 60]], "time_source": "request",
        "location": [12.5, -70.25], "location_source": "request",
    }  # fmt: skip
    result = engine.run("echo", dates=given, out=tmp_path / "placed")
    latitudes = np.unique(read(tmp_path / "placed/values.tif")[4])
    assert len(latitudes) == 2  # one for each row of tiles
    assert result.data is not None
    assert result.data["coordinates"]["location_source"] == "centre of each tile"


def test_a_missing_date_fails_the_job_and_leaves_the_engine_well(engine: penstock.Engine, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the time of date 1 is unknown"):
        engine.run("echo", dates=dates(tmp_path, None, None))
    assert engine.run("echo", dates=dates(tmp_path, FIRST_DAY, LEAP_DAY), outputs=["stats"]).data
    assert engine.warm_up("echo")
