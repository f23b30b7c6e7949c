"""Every pixel of a tile equals GDAL's own warper and the colours of the legend, in real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import numpy.typing as npt
import pytest
from affine import Affine

from penstock.jobs import JobKey
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.write.cog import Overviews, write_cog
from tests.support.tile_service import TileService, by_gdal, picture, tile_at, tile_service

COLOURS = {0: (10, 20, 30), 1: (200, 0, 0), 2: (0, 180, 40), 3: (90, 90, 250)}
#: The viridis of the previews, from low to high.
RAMP = [(0x44, 0x01, 0x54), (0x3B, 0x52, 0x8B), (0x21, 0x91, 0x8C), (0x5E, 0xC9, 0x62), (0xFD, 0xE7, 0x25)]
UTM = Affine(10, 0, 600_000, 0, -10, 5_300_000)
#: The middle of the rasters.
LON, LAT = 10.5, 47.7


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TileService]:
    with tile_service(tmp_path_factory.mktemp("tiles")) as found:
        yield found


def write(
    path: Path, numbers: npt.NDArray[Any], transform: Affine = UTM, crs: str | None = "EPSG:32632", **more: Any
) -> Path:
    count, height, width = numbers.shape
    made = {"driver": "GTiff", "dtype": numbers.dtype.name, "count": count, "height": height, "width": width}
    with without_georeference(), rasterio.open(path, "w", **made, crs=crs, transform=transform, **more) as file:
        file.write(numbers)
    return path


def cog(path: Path, overviews: Overviews, numbers: npt.NDArray[Any], **more: Any) -> Path:
    scratch = write(path.with_suffix(".scratch.tif"), numbers, **more)
    if overviews == "MODE":
        with rasterio.open(scratch, "r+") as file:
            file.write_colormap(1, {at: (*colour, 255) for at, colour in COLOURS.items()})
            file.update_tags(1, CLASS_0="land", CLASS_1="water")
    write_cog(scratch, path, overviews=overviews)
    return path


def get(link: dict[str, Any], z: int, x: int, y: int, **query: int) -> httpx2.Response:
    url = link["xyz"].format(z=z, x=x, y=y) + "".join(f"&{name}={value}" for name, value in query.items())
    return httpx2.get(url)


def drawn(link: dict[str, Any], z: int, x: int, y: int, **query: int) -> npt.NDArray[np.uint8]:
    answer = get(link, z, x, y, **query)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png"), answer.text
    return picture(answer.content)


def ramp(shares: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return (rows, columns, 3): the ramp's colours at shares from 0 to 1, in 254 steps of 255."""
    steps = np.rint(np.clip(shares, 0, 1) * 254) / 255 * 4
    channels = [np.interp(steps, range(5), [colour[at] for colour in RAMP]) for at in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


def test_each_pixel_of_a_class_map_has_the_colour_of_its_class(service: TileService, tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).integers(0, 4, (1, 3000, 2500)).astype(np.uint8)
    numbers[0, 900:1500, :1200] = 255
    path = cog(tmp_path / "classes.tif", "MODE", numbers, nodata=255)
    link = service.links(service.finished(path))["classes.tif"]
    document = httpx2.get(link["tilejson"]).json()

    assert (document["tilejson"], document["tiles"]) == ("3.0.0", [link["xyz"]])
    assert (document["minzoom"], document["maxzoom"]) == (13 - 3 - 2, 13)
    assert document["legend"] == "#0a141e land\n#c80000 water"
    west, south, east, north = document["bounds"]
    assert west < LON < east
    assert south < LAT < north
    # An edge, the middle with nodata, overviews, and pixels larger than those of the raster.
    places = [(13, *tile_at(west, north, 13)), *((z, *tile_at(LON, LAT, z)) for z in (8, 9, 11, 12, 13, 15, 18))]
    shown = 0
    for z, x, y in places:
        expected = by_gdal(path, z, x, y)[0]
        image = drawn(link, z, x, y)
        known = expected != 255
        shown += int(known.sum())
        assert (image[..., 3] == np.where(known, 255, 0)).all(), (z, x, y)
        palette = np.array([COLOURS[at] for at in range(4)])
        assert (image[known][:, :3] == palette[expected[known]]).all(), (z, x, y)
    assert shown > 200_000


def test_one_band_of_numbers_has_the_ramp_of_the_previews(service: TileService, tmp_path: Path) -> None:
    numbers = np.random.default_rng(2).normal(size=(2, 700, 800)).astype(np.float32)
    numbers[:, :300, :200] = np.nan
    path = cog(tmp_path / "values.tif", "AVERAGE", numbers, nodata=np.nan)
    with rasterio.open(path, "r+", IGNORE_COG_LAYOUT_BREAK="YES") as file:
        file.descriptions = ("depth", "error")
    link = service.links(service.finished(path))["values.tif"]

    second = httpx2.get(link["tilejson"] + "&band=2").json()
    assert second["bands"] == ["depth", "error"]
    assert second["tiles"] == [link["xyz"] + "&band=2"]
    z = second["maxzoom"]
    west, south, east, north = second["bounds"]
    x, y = tile_at((west + east) / 2, (south + north) / 2, z)
    for band in (1, 2):
        known = np.sort(numbers[band - 1][np.isfinite(numbers[band - 1])])
        low, high = known[-(-len(known) // 100) - 1], known[-(-len(known) * 99 // 100) - 1]
        expected = by_gdal(path, z, x, y)[band - 1]
        image = drawn(link, z, x, y, band=band)
        seen = np.isfinite(expected)
        assert 0.1 < seen.mean() <= 1
        assert (image[..., 3] == np.where(seen, 255, 0)).all()
        assert (image[seen][:, :3] == ramp((expected[seen] - low) / (high - low))).all()


def test_an_input_has_the_colours_and_the_stretch_of_its_quicklook(service: TileService, tmp_path: Path) -> None:
    numbers = np.random.default_rng(3).integers(1, 9000, (4, 600, 500)).astype(np.uint16)
    numbers[:, 100:250, 100:300] = 0
    path = write(tmp_path / "scene.tif", numbers)
    stats = {
        "bands": [{"name": name, "index": at} for name, at in (("blue", 1), ("green", 2), ("red", 4))],
        "radiometry": {"nodata": 0},
    }
    job = service.finished(data=stats, image=service.made.upload(path))
    link = service.links(job)["scene.tif"]
    assert (link["kind"], link["pointer"]) == ("input", "/image")

    low, high = np.percentile(numbers[[3, 1, 0]][:, numbers[0] > 0].astype(np.float64), (1, 99))
    z, (x, y) = 13, tile_at(10.37, 47.82, 13)
    expected = by_gdal(path, z, x, y, nodata=0)[[3, 1, 0]].astype(np.float64)
    image = drawn(link, z, x, y)
    known = (expected > 0).all(axis=0)
    assert 0.1 < known.mean() < 0.9
    assert (image[..., 3] == np.where(known, 255, 0)).all()
    light = np.rint(np.clip((expected - low) / (high - low), 0, 1) * 255).transpose(1, 2, 0)
    assert (image[known][:, :3] == light[known]).all()


@pytest.mark.breadth
def test_a_large_input_without_overviews_has_the_stretch_of_a_grid_of_parts(
    service: TileService, tmp_path: Path
) -> None:
    rng = np.random.default_rng(8)
    numbers = (rng.integers(1, 3000, (1, 3000, 2500)) + np.arange(3000)[:, None]).astype(np.uint16)
    path = write(tmp_path / "scene.tif", numbers, tiled=True, blockxsize=256, blockysize=256, compress="DEFLATE")
    link = service.links(service.finished(image=service.made.upload(path), data={}))["scene.tif"]
    rows, columns = ([(2 * at + 1) * side // 8 - 128 for at in range(4)] for side in (3000, 2500))
    sample = [numbers[0, top : top + 256, left : left + 256] for top in rows for left in columns]
    low, high = np.percentile(np.stack(sample), (1, 99))
    tile = 13, *tile_at(LON, LAT, 13)
    expected = by_gdal(path, *tile)[0].astype(np.float64)
    light = np.rint(np.clip((expected - low) / (high - low), 0, 1) * 255)
    image = drawn(link, *tile)
    assert (image == np.dstack([light, light, light, np.full_like(light, 255)])).all()
    # The whole file has nearly the same percentiles.
    assert (low, high) == pytest.approx(np.percentile(numbers, (1, 99)), abs=150)


@pytest.mark.breadth
def test_a_raster_whose_rows_begin_in_the_south_is_drawn_upright(service: TileService, tmp_path: Path) -> None:
    numbers = np.random.default_rng(4).integers(0, 4, (1, 300, 400)).astype(np.uint8)
    straight, turned = Affine(0.001, 0, 10, 0, -0.001, 48), Affine(0.001, 0, 10, 0, 0.001, 47.7)
    upright = write(tmp_path / "upright.tif", numbers, straight, "EPSG:4326", nodata=255)
    path = write(tmp_path / "turned.tif", np.flip(numbers, axis=1), turned, "EPSG:4326", nodata=255)
    links = service.links(service.finished(upright, path))
    tile = 11, *tile_at(10.2, 47.85, 11)
    image = drawn(links["turned.tif"], *tile)
    assert (image == drawn(links["upright.tif"], *tile)).all()
    assert (image[..., 3] == 255).any()


def test_a_raster_across_the_antimeridian_is_drawn_on_both_sides(service: TileService, tmp_path: Path) -> None:
    numbers, place = np.ones((1, 400, 400), np.uint8), Affine(30, 0, 813_000, 0, -30, 8_118_000)
    path = write(tmp_path / "fiji.tif", numbers, place, "EPSG:32760", nodata=255)
    link = service.links(service.finished(path))["fiji.tif"]
    document = httpx2.get(link["tilejson"]).json()
    assert (document["bounds"][0], document["bounds"][2], document["maxzoom"]) == (-180, 180, 12)
    assert abs(document["center"][0]) > 179.9
    for longitude in (179.99, -179.99):
        assert drawn(link, 12, *tile_at(longitude, -17.03, 12)).any()


def test_outside_of_a_raster_tiles_are_empty_and_of_no_grid_they_are_missing(
    service: TileService, tmp_path: Path
) -> None:
    path = cog(tmp_path / "classes.tif", "MODE", np.ones((1, 400, 400), np.uint8), nodata=255)
    link = service.links(service.finished(path))["classes.tif"]
    assert not drawn(link, 12, 3, 3).any()
    assert not drawn(link, 10, *tile_at(10.36, 47.83, 10)).any()  # small and without overviews
    assert drawn(link, 11, *tile_at(10.36, 47.83, 11)).any()
    for z, x, y in ((3, 8, 0), (3, 0, 8), (25, 0, 0)):
        assert get(link, z, x, y).status_code == 404
    for text in ("3/-1/0", "3/a/0", "99999999999/0/0", "..%2f..%2fjobs/3/0/0"):
        answer = httpx2.get(link["xyz"].replace("{z}/{x}/{y}", text))
        assert answer.status_code == 404, answer.text
    assert get(link, 10, *tile_at(10.35, 47.8, 10), band=2).json()["code"] == "unknown_artifact"


def refusal(service: TileService, job: JobKey, name: str) -> tuple[int, str]:
    answer = httpx2.get(service.links(job)[name]["tilejson"])
    return answer.status_code, answer.json()["detail"]


def test_files_that_cannot_be_drawn_are_refused_with_the_reason(service: TileService, tmp_path: Path) -> None:
    ones = np.ones((1, 40, 40), np.uint8)
    nowhere = write(tmp_path / "nowhere.tif", ones, Affine.identity(), None)
    block = {"tiled": True, "blockxsize": 8208, "blockysize": 8208, "compress": "DEFLATE"}
    heavy = write(tmp_path / "heavy.tif", np.ones((1, 8208, 8208), np.uint8), **block)
    broken = tmp_path / "broken.tif"
    broken.write_bytes(b"this is no GeoTIFF" * 1000)
    polar = write(tmp_path / "polar.tif", ones, Affine(30, 0, -600, 0, -30, 600), "EPSG:3413")
    job = service.finished(nowhere, heavy, broken, polar)
    assert refusal(service, job, "nowhere.tif")[0] == 422
    assert "no place on the earth" in refusal(service, job, "nowhere.tif")[1]
    assert "nearer to a pole" in refusal(service, job, "polar.tif")[1]
    assert "blocks are larger than 64 MiB" in refusal(service, job, "heavy.tif")[1]
    status, detail = refusal(service, job, "broken.tif")
    assert status == 422
    assert "cannot be read" in detail
    assert "signature" not in detail
