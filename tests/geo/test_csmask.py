"""The shipped model with its real weights: on the synthetic scene, and on real scenes if they are available."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from penstock.catalogue.records import read_catalogue
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.sample import write_sample
from penstock.workers.engine.torch.runner import load_torch
from tests.support.geo.scenes import Folder, Network, read, segment

DATA = Path(__file__).parents[3] / "shared" / "data" / "geo"
SHADOW, WATER, SNOW, LAND, CLOUD, NODATA = 0, 1, 2, 3, 4, 255
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data beside the checkout, ../shared/data")
pytestmark = pytest.mark.slow


def csmask(**options: int) -> Model:
    """Return the shipped record, on the CPU, with some of its options changed."""
    model = read_catalogue()["csmask"]
    return model.model_copy(update={"device": "cpu", "options": {**model.options, **options}})


@pytest.fixture(scope="module")
def network() -> Network:
    """Return the published network."""
    runner = load_torch(csmask())

    def forward(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        (done,) = runner.step([runner.admit(Prompt({"pixels": pixels}))])
        return np.asarray(done.output.data["probability"])

    return forward


def percents(data: Any) -> list[float]:
    """Return the share of each class in the valid pixels."""
    return [label["percent"] for label in data["classes"]]


def test_on_the_synthetic_scene_the_real_network_finds_what_was_painted(network: Network, tmp_path: Path) -> None:
    write_sample(tmp_path / "sample.tif", size_px=512)
    sink, result = segment(tmp_path / "sample.tif", tmp_path / "out", network=network, model=csmask())
    classes = read(sink.artifacts["classes.tif"])[0]
    painted = {
        "sea": ((0.30, 0.10), WATER),
        "river": ((0.495, 0.50), WATER),
        "fields": ((0.85, 0.70), LAND),
        "wood": ((0.62, 0.54), LAND),
        "cloud": ((0.27, 0.64), CLOUD),
        "cloud over the sea": ((0.77, 0.20), CLOUD),
        "shadow": ((0.14, 0.51), SHADOW),
        "wedge": ((0.95, 0.97), NODATA),
    }
    found = {name: classes[int(512 * down), int(512 * across)] for name, ((down, across), _) in painted.items()}
    assert found == {name: expected for name, (_, expected) in painted.items()}
    np.testing.assert_array_equal(classes == NODATA, read(tmp_path / "sample.tif")[0] == 0)
    shadow, water, snow, land, cloud = percents(result.data)
    assert 2 < shadow < 8
    assert 30 < water < 40
    assert snow < 0.5
    assert 40 < land < 55
    assert 8 < cloud < 16


def test_the_synthetic_scene_says_so_and_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one.tif", "two.tif"):
        write_sample(tmp_path / name, size_px=200)
    write_sample(tmp_path / "other.tif", size_px=200, seed=1)
    one, two, other = (read(tmp_path / name) for name in ("one.tif", "two.tif", "other.tif"))
    np.testing.assert_array_equal(one, two)
    assert (one != other).mean() > 0.5
    with rasterio.open(tmp_path / "one.tif") as file:
        assert file.tags()["SYNTHETIC"] == "yes"
        assert file.descriptions == ("blue", "green", "red", "nir", "swir16", "swir22")
        assert (set(file.scales), set(file.offsets), file.nodata) == ({1e-4}, {0.0}, 0)
        assert (set(file.dtypes), file.crs.to_epsg(), file.res) == ({"uint16"}, 32633, (30, 30))
    data = one[:, one[0] != 0]
    assert data.min() > 0
    assert data.max() < 10_000
    assert 0.02 < (one[0] == 0).mean() < 0.15


@pytest.fixture(scope="module")
def whole(network: Network, tmp_path_factory: pytest.TempPathFactory) -> tuple[Folder, Any]:
    """Return the files and the data of the Betsiboka scene, computed in one tile."""
    return betsiboka(network, tmp_path_factory.mktemp("betsiboka") / "whole")


def betsiboka(
    network: Network, folder: Path, *, area: dict[str, Any] | None = None, **options: int
) -> tuple[Folder, Any]:
    """Segment the Betsiboka scene, or an area of it."""
    scene = DATA / "l8_betsiboka_20200127_6b.tif"
    outputs = ("classes", "probability_float32", "stats")
    asked = {} if area is None else {"area": area}
    sink, result = segment(scene, folder, network=network, model=csmask(**options), outputs=outputs, **asked)
    return sink, result.data


@needs_data
def test_betsiboka_has_the_shares_of_the_published_network_run_on_the_whole_image(whole: tuple[Folder, Any]) -> None:
    _, data = whole
    assert percents(data) == pytest.approx([0.0, 18.15, 29.18, 52.65, 0.01], abs=0.05)
    assert (data["valid_pixels"], data["nodata_pixels"]) == (260_309, 1835)
    assert data["radiometry"]["scale"] == pytest.approx(1 / 65_535)
    assert data["radiometry"]["source"] == "file"


@pytest.mark.breadth
@needs_data
def test_betsibokas_tiles_equal_the_whole_image_with_96_px_of_halo_and_do_not_with_80(
    network: Network, whole: tuple[Folder, Any], tmp_path: Path
) -> None:
    name = "probability_float32.tif"
    tiled, _ = betsiboka(network, tmp_path / "tiled", tile_px=192)
    short, _ = betsiboka(network, tmp_path / "short", tile_px=192, halo_px=80)
    exact = whole[0].artifacts[name]
    assert tiled.artifacts[name].read_bytes() == exact.read_bytes()
    differ = np.abs(read(short.artifacts[name]) - read(exact))
    assert np.nanmax(differ) > 1e-4


@pytest.mark.breadth
@needs_data
@pytest.mark.parametrize(
    "area",
    [
        pytest.param({"bbox": [47.05, -15.42, 47.11, -15.36]}, id="degrees"),
        # UTM zone 38 south: a rectangle there is a curved quadrangle on the scene's grid in degrees.
        pytest.param({"bbox": [722_000, 8_290_000, 731_000, 8_299_000], "crs": "EPSG:32738"}, id="metres"),
        pytest.param(
            {"geometry": {"type": "Polygon", "coordinates": [
                [[47.04, -15.56], [47.2, -15.5], [47.28, -15.33], [47.18, -15.45], [47.04, -15.56]]
            ]}},
            id="polygon",
        ),
    ],
)  # fmt: skip
def test_an_area_of_betsiboka_is_the_whole_result_cut(
    area: dict[str, Any], network: Network, whole: tuple[Folder, Any], tmp_path: Path
) -> None:
    all_files, all_of_it = whole
    part, data = betsiboka(network, tmp_path / "part", tile_px=128, area=area)
    (top, bottom), (left, right) = data["area"]["rows"], data["area"]["columns"]
    assert (bottom - top) * (right - left) == data["pixels"] < all_of_it["pixels"]
    classes, every = (read(sink.artifacts["classes.tif"])[0] for sink in (part, all_files))
    inside = np.isfinite(read(part.artifacts["probability_float32.tif"])[0])
    np.testing.assert_array_equal(classes, np.where(inside, every[top:bottom, left:right], NODATA))
    name = "probability_float32.tif"
    exact = read(all_files.artifacts[name])[:, top:bottom, left:right]
    np.testing.assert_array_equal(read(part.artifacts[name])[:, inside], exact[:, inside])
    assert data["area"]["whole_box"] == (area.get("crs") is None and "bbox" in area)
    assert data["valid_pixels"] == inside.sum() > 5_000
    with (
        rasterio.open(part.artifacts["classes.tif"]) as file,
        rasterio.open(all_files.artifacts["classes.tif"]) as full,
    ):
        assert file.crs == full.crs
        assert file.transform == full.transform @ rasterio.Affine.translation(left, top)


@pytest.mark.breadth
@needs_data
def test_the_halves_of_betsiboka_are_the_whole_scene(
    network: Network, whole: tuple[Folder, Any], tmp_path: Path
) -> None:
    scenes = []
    with rasterio.open(DATA / "l8_betsiboka_20200127_6b.tif") as file:
        for at in range(2):
            window = rasterio.windows.Window(256 * at, 0, 256, 512)
            profile = {
                **file.profile,
                "width": 256,
                "transform": file.transform @ rasterio.Affine.translation(256 * at, 0),
            }
            with rasterio.open(tmp_path / f"{at}.tif", "w", **profile) as half:
                half.write(file.read(window=window))
                half.descriptions, half.scales = file.descriptions, file.scales
            scenes.append({"scene": str(tmp_path / f"{at}.tif")})
    parts, _ = segment(None, tmp_path / "parts", network=network, model=csmask(tile_px=128), mosaic={"scenes": scenes})
    np.testing.assert_array_equal(*(read(sink.artifacts["classes.tif"]) for sink in (parts, whole[0])))


@pytest.mark.breadth
@needs_data
def test_the_flood_of_betsiboka_is_gained_water(network: Network, tmp_path: Path) -> None:
    """The river carries red sediment, which the network takes for snow, so that both classes count as water."""
    change = {
        "before": {"scene": str(DATA / "l8_betsiboka_20170118_6b.tif")},
        "of": ["water", "snow or ice"],
        "name": "water",
        "ignore": ["cloud", "cloud shadow"],
    }
    scene, outputs = DATA / "l8_betsiboka_20200127_6b.tif", ("classes", "polygons", "stats")
    sink, result = segment(scene, tmp_path / "out", network=network, model=csmask(), outputs=outputs, change=change)
    assert result.data is not None
    found = {label["name"]: label for label in result.data["change"]["classes"]}
    assert [found[f"water {kind}"]["percent"] for kind in ("lost", "gained", "at both dates")] == pytest.approx(
        [1.56, 14.54, 32.73], abs=0.1
    )
    assert found["water gained"]["area_m2"] == pytest.approx(125.8e6, rel=0.01)
    dry_before, wet_after = (read(sink.artifacts[f"{name}.tif"])[0] for name in ("before-classes", "change"))
    assert (wet_after[dry_before == LAND] != 1).all()
    # A place on the flooded plain, one in the estuary, one on the hills in the north.
    assert [int(wet_after[row, column]) for row, column in ((120, 490), (100, 120), (60, 400))] == [2, 3, 0]


@pytest.mark.breadth
@needs_data
def test_aquileias_lagoon_is_water_and_its_fields_are_land(network: Network, tmp_path: Path) -> None:
    scene = DATA / "s2_l2a_aquileia_20190416_6b.tif"
    _, result = segment(scene, tmp_path / "out", network=network, model=csmask(), outputs=("stats",))
    assert percents(result.data) == pytest.approx([0.1, 40.7, 0.0, 59.2, 0.0], abs=0.2)


@needs_data
def test_unnamed_bands_and_undeclared_floats_work_when_the_request_says_what_they_are(
    network: Network, tmp_path: Path
) -> None:
    scene, bands = DATA / "hls_tx_10b_float32.tif", [2, 3, 4, 5, 6, 7]
    _, result = segment(
        scene, tmp_path / "out", network=network, model=csmask(), bands=bands, radiometry={"scale": 1e-4}
    )
    assert percents(result.data)[LAND] > 99
