"""An area of a scene has the results of the whole scene there, bit by bit, and only its tiles are computed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pyproj import Transformer

from penstock.errors import InvalidInput, MediaTooLarge
from penstock.models import Limits
from penstock.processors.geo.area_request import AreaRequest
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.raster import read_scene
from penstock.processors.geo.read.scene_area import SceneArea, find_area
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.tiling.plan import Box
from tests.support.geo.in_memory import MemoryRows, Network, Numbers, mapped, plan_of
from tests.support.geo.scenes import (
    NORTH_UP,
    Files,
    Folder,
    answers,
    by_value,
    make_model,
    pattern,
    read,
    segment,
    write_scene,
)

UTM = "EPSG:32633"
SIDES = st.integers(1, 48)


def conv(radius: int) -> Network:
    """Return a network of stride 1 with integer weights, so that sums are exact."""
    weights = np.random.default_rng(7).integers(1, 5, (2 * radius + 1, 2 * radius + 1))

    def network(pixels: Numbers) -> Numbers:
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(pixels[0].astype(np.int64), radius), weights.shape)
        return ((windows * weights).sum(axis=(2, 3)) % 1009)[None]

    return network


def by_place_in_the_tile(pixels: Numbers) -> Numbers:
    """Return outputs that depend on pixel, position and whole tile, as for a vision transformer."""
    _, height, width = pixels.shape
    ramp = np.linspace(0, 1, height)[:, None] + np.linspace(0, 2, width)
    return np.stack([pixels[0] * 0.3 + ramp, ramp * pixels.mean(dtype=np.float64)])


def some_area(draw: Any, shape: tuple[int, int]) -> SceneArea | None:
    """Draw a triangle or a box with at least one pixel; None if there is none."""
    height, width = shape
    points = [(draw(st.floats(0, width)), draw(st.floats(0, height))) for _ in range(3)]
    found = shapely.Polygon(points)
    if draw(st.booleans()) or not found.is_valid or found.area == 0:
        left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
        found = shapely.box(left, top, draw(st.integers(left + 1, width)), draw(st.integers(top + 1, height)))
    left, top, right, bottom = found.bounds
    box = Box(math.floor(top), math.floor(left), math.ceil(bottom), math.ceil(right))
    area = SceneArea(found, box)
    inside = area.mask(box)
    if not inside.any():
        return None
    rows, columns = np.nonzero(inside)
    tight = Box(int(rows.min()), int(columns.min()), int(rows.max()) + 1, int(columns.max()) + 1)
    return SceneArea(found, tight.moved(box.top, box.left))


@settings(deadline=None, max_examples=80)
@given(
    data=st.data(), shape=st.tuples(SIDES, SIDES), tile=st.integers(4, 40), hann=st.booleans(),
    budget=st.sampled_from([1, 2000, 10**9]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_an_area_is_the_whole_result_cut(
    data: Any, shape: tuple[int, int], tile: int, hann: bool, budget: int, seed: int
) -> None:
    area = some_area(data.draw, shape)
    if area is None:
        return
    rng = np.random.default_rng(seed)
    numbers, known = rng.integers(0, 99, (1, *shape)).astype(np.float32), rng.random(shape) < 0.9
    cut: dict[str, Any] = {"overlap": -(-tile // 2)} if hann else {"halo": 3}
    network = by_place_in_the_tile if hann else conv(3)
    whole_plan = plan_of(shape, tile, strip_bytes=budget, **cut)
    plan = plan_of(shape, tile, strip_bytes=budget, area=area.box, **cut)
    whole = mapped(numbers, whole_plan, network, known=known)
    rows, sent = MemoryRows(numbers, known), list[int]()

    def counted(pixels: Numbers) -> Numbers:
        sent.append(1)
        return network(pixels)

    found = mapped(numbers, plan, counted, known=known, rows=rows, area=area)
    inside = area.mask(Box(0, 0, *shape))
    np.testing.assert_array_equal(found, np.where(inside, whole, np.nan))
    tiles = [tile for strip in plan.strips() for tile in strip.tiles]
    assert plan.count() == len(tiles) <= whole_plan.count()
    assert len(sent) - 1 <= plan.count()  # one call finds the number of channels
    assert set(tiles) <= {tile for strip in whole_plan.strips() for tile in strip.tiles}
    read_boxes = [box for box in rows.boxes if box.height > 0]
    assert all(box.clipped(plan.window) == box for box in read_boxes)


@settings(deadline=None, max_examples=80)
@given(
    data=st.data(), shape=st.tuples(SIDES, SIDES), tile=st.integers(1, 10), stride=st.sampled_from([1, 4]),
    budget=st.sampled_from([1, 2000, 10**9]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_with_an_exact_halo_an_area_reads_no_pixels_beyond_its_halo(
    data: Any, shape: tuple[int, int], tile: int, stride: int, budget: int, seed: int
) -> None:
    area = some_area(data.draw, shape)
    if area is None:
        return
    rng = np.random.default_rng(seed)
    numbers, known = rng.integers(0, 99, (1, *shape)).astype(np.float32), rng.random(shape) < 0.9
    cut: dict[str, Any] = {"tile": 4 * tile, "halo": 4, "stride": stride, "strip_bytes": budget}
    whole = mapped(numbers, plan_of(shape, **cut), conv(3), known=known)
    plan, rows = plan_of(shape, **cut, area=area.box), MemoryRows(numbers, known)
    needed = area.box.grown(4, stride).clipped(plan.window)
    found = mapped(numbers, plan, conv(3), known=known, rows=rows, area=area, needed=needed)
    np.testing.assert_array_equal(found, np.where(area.mask(Box(0, 0, *shape)), whole, np.nan))
    assert needed is not None
    assert rows.boxes
    assert all(box.clipped(needed) == box for box in rows.boxes)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), shape=st.tuples(st.integers(1, 200), st.integers(1, 200)))
def test_the_mask_is_the_pixels_with_their_centre_inside_and_does_not_depend_on_the_box(
    data: Any, shape: tuple[int, int]
) -> None:
    area = some_area(data.draw, shape)
    if area is None:
        return
    whole = area.mask(Box(0, 0, *shape))
    rows, columns = np.nonzero(whole)
    assert (rows.min(), columns.min(), rows.max() + 1, columns.max() + 1) == (
        area.box.top, area.box.left, area.box.bottom, area.box.right,
    )  # fmt: skip
    x, y = np.meshgrid(np.arange(shape[1]) + 0.5, np.arange(shape[0]) + 0.5)
    np.testing.assert_array_equal(whole, shapely.contains_xy(area.shape, x, y))
    top, left = data.draw(st.integers(0, shape[0] - 1)), data.draw(st.integers(0, shape[1] - 1))
    part = Box(top, left, data.draw(st.integers(top + 1, shape[0])), data.draw(st.integers(left + 1, shape[1])))
    np.testing.assert_array_equal(area.mask(part), whole[part.top : part.bottom, part.left : part.right])


def area_of(path: Path, **area: Any) -> SceneArea:
    return find_area(AreaRequest(**area), read_scene(path, Limits()))


def utm_box(left: int, top: int, right: int, bottom: int) -> list[float]:
    """Return the bounds of pixels of a scene at `NORTH_UP`."""
    (west, north), (east, south) = NORTH_UP @ (left, top), NORTH_UP @ (right, bottom)
    return [west, south, east, north]


def test_the_result_of_a_bbox_is_the_whole_result_cut_to_its_pixels(tmp_path: Path) -> None:
    numbers = np.kron(pattern(53, 50), np.ones((4, 4), np.uint8))[:, :211, :199]  # patches: few polygons
    path = write_scene(tmp_path / "scene.tif", numbers, nodata=7)
    model, wanted = make_model(tile_px=32), ("classes", "confidence", "polygons", "preview", "stats", "item")
    given_ = {"model": model, "outputs": wanted, "datetime": "2024-05-01T00:00:00Z"}
    whole, _ = segment(path, tmp_path / "whole", **given_)
    part, result = segment(path, tmp_path / "part", area={"bbox": utm_box(50, 71, 121, 140), "crs": UTM}, **given_)
    for name in ("classes.tif", "confidence.tif"):
        np.testing.assert_array_equal(read(part.artifacts[name]), read(whole.artifacts[name])[:, 71:140, 50:121])
    with rasterio.open(part.artifacts["classes.tif"]) as file:
        assert tuple(file.transform) == tuple(NORTH_UP @ rasterio.Affine.translation(50, 71))
        assert file.crs == rasterio.CRS.from_string(UTM)
    data = result.data
    assert data is not None
    assert data["area"] == {"rows": [71, 140], "columns": [50, 121], "whole_box": True}
    assert (data["pixels"], data["scene"]["width"], data["scene"]["height"]) == (69 * 71, 71, 69)
    counts = np.bincount(read(part.artifacts["classes.tif"]).ravel(), minlength=256)
    assert [label["pixels"] for label in data["classes"]] == counts[:5].tolist()
    assert data["nodata_pixels"] == counts[255]


def test_outside_of_a_polygon_is_nodata(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(90, 80))
    corners = [NORTH_UP @ corner for corner in ((10, 5), (70, 20), (30, 81), (10, 5))]
    geometry = {"type": "Polygon", "coordinates": [[list(corner) for corner in corners]]}
    wanted = ("classes", "polygons", "stats", "probability_float32")
    whole, _ = segment(path, tmp_path / "whole", outputs=wanted)
    part, result = segment(path, tmp_path / "part", outputs=wanted, area={"geometry": geometry, "crs": UTM})
    area = area_of(path, geometry=geometry, crs=UTM)
    box, inside = area.box, area.mask(area.box)
    expected = np.where(
        inside, read(whole.artifacts["classes.tif"])[0, box.top : box.bottom, box.left : box.right], 255
    )
    np.testing.assert_array_equal(read(part.artifacts["classes.tif"])[0], expected)
    assert (np.isnan(read(part.artifacts["probability_float32.tif"])[0]) == ~inside).all()
    data = result.data
    assert data is not None
    assert (data["valid_pixels"], data["nodata_pixels"]) == (inside.sum(), (~inside).sum())
    # The triangle's surface, from its corners: pixels follow it within half a pixel of its outline.
    assert abs(inside.sum() - shapely.Polygon([(10, 5), (70, 20), (30, 81)]).area) < 60


def test_only_the_tiles_of_the_area_are_counted_and_computed(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(320, 320))
    processor = RasterSegmentation(make_model(tile_px=32))
    corners = [NORTH_UP @ corner for corner in ((0, 0), (320, 320), (320, 310), (0, 0))]
    for area, tiles in (
        (None, 100),
        ({"bbox": utm_box(33, 33, 63, 63), "crs": UTM}, 1),
        ({"bbox": utm_box(31, 33, 63, 65), "crs": UTM}, 4),
        ({"geometry": {"type": "Polygon", "coordinates": [corners]}, "crs": UTM}, 19),
    ):
        request = {"scene": str(path)} | ({} if area is None else {"area": area})
        prepared = processor.pre_process(processor.request(**request), Files())
        sent = list(prepared.prompts)
        assert (prepared.count, prepared.cost) == (tiles, tiles * 32 * 32)
        assert len(sent) <= tiles
        assert len(sent) >= tiles - 1  # the sliver has no pixel centre in the first tile


def test_an_interrupted_area_is_resumed_with_the_same_bytes_and_its_digest_is_its_own(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(211, 199))
    processor = RasterSegmentation(make_model(tile_px=32))
    request = processor.request(scene=str(path), area={"bbox": utm_box(20, 40, 150, 180), "crs": UTM})
    other = processor.request(scene=str(path), area={"bbox": utm_box(20, 40, 150, 181), "crs": UTM})
    assert (
        processor.pre_process(request, Files()).context.digest != processor.pre_process(other, Files()).context.digest
    )

    def run(files: Files, folder: Path) -> tuple[Folder, int]:
        prepared, sink = processor.pre_process(request, files), Folder(folder)
        processor.post_process(answers(prepared.prompts, by_value), prepared.context, sink)
        return sink, prepared.done

    whole, _ = run(Files(), tmp_path / "whole")
    assert len(whole.saved) == 4  # five strips of 32 rows meet the rows 40 to 180; the last is not saved
    saved = {}
    for name, content in list(whole.saved.items())[:3]:
        saved[name] = tmp_path / name.replace("/", "-")
        saved[name].write_bytes(content)
    resumed, done = run(Files(saved), tmp_path / "resumed")
    assert done == 3 * 6
    for name in whole.artifacts:
        assert resumed.artifacts[name].read_bytes() == whole.artifacts[name].read_bytes()


def test_a_bbox_in_degrees_is_placed_on_a_grid_in_metres_along_curved_edges(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(400, 500))
    bbox = [15.01, 45.05, 15.14, 45.13]
    area = area_of(path, bbox=bbox)
    to_lonlat = Transformer.from_crs(UTM, "EPSG:4326", always_xy=True)
    rows, columns = np.mgrid[0:400, 0:500]
    lon, lat = to_lonlat.transform(*(NORTH_UP @ (columns + 0.5, rows + 0.5)))
    inside = (lon > bbox[0]) & (lon < bbox[2]) & (lat > bbox[1]) & (lat < bbox[3])
    wrong = area.mask(Box(0, 0, 400, 500)) != inside
    assert inside.sum() > 50_000
    assert wrong.sum() <= 2  # pixels whose centre is within a hundredth of a pixel of the edge


@pytest.mark.parametrize(
    ("west", "bbox"), [(170.0, [179, 9, 182, 11]), (170.0, [179, 9, -178, 11]), (-190.0, [179, 9, -178, 11])]
)
def test_an_area_across_the_antimeridian(west: float, bbox: list[float], tmp_path: Path) -> None:
    place = rasterio.Affine(0.1, 0, west, 0, -0.1, 15)
    path = write_scene(tmp_path / "scene.tif", pattern(100, 200), crs="EPSG:4326", transform=place)
    assert area_of(path, bbox=bbox).box == Box(40, 90, 60, 120)


#: Grids in metres over the antimeridian, with pixel centres on it: on a column, on the diagonal, on a column.
POLAR = {
    "EPSG:3031": rasterio.Affine(1000, 0, -100_500, 0, -1000, -1_600_000),
    "EPSG:3413": rasterio.Affine(1000, 0, -1_300_500, 0, -1000, 1_300_500),
    "EPSG:3832": rasterio.Affine(1000, 0, 30 * 111_319.49079327358 - 100_500, 0, -1000, -6_000_000),
}


def covered(path: Path, bbox: list[float]) -> tuple[Numbers, Numbers]:
    """Return the mask of a bbox in degrees, and the pixels whose longitude and latitude lie in it."""
    scene = read_scene(path, Limits())
    rows, columns = np.mgrid[0 : scene.height, 0 : scene.width]
    to_lonlat = Transformer.from_crs(scene.crs.to_wkt(), "EPSG:4326", always_xy=True)
    lon, lat = to_lonlat.transform(*(scene.transform @ (columns + 0.5, rows + 0.5)))
    west, south, east, north = bbox
    inside = (lon >= west) | (lon <= east) if west > east else (west <= lon) & (lon <= east)
    area = find_area(AreaRequest(bbox=bbox), scene)
    return area.mask(Box(0, 0, scene.height, scene.width)), inside & (south <= lat) & (lat <= north)


@pytest.mark.parametrize("crs", POLAR)
def test_an_area_across_the_antimeridian_has_the_pixels_on_it(crs: str, tmp_path: Path) -> None:
    numbers = np.ones((1, 201, 201), np.uint8)
    path = write_scene(tmp_path / "scene.tif", numbers, crs=crs, transform=POLAR[crs])
    to_lonlat = Transformer.from_crs(crs, "EPSG:4326", always_xy=True)
    _, south = to_lonlat.transform(*(POLAR[crs] @ (100.5, 140)))
    _, north = to_lonlat.transform(*(POLAR[crs] @ (100.5, 60)))
    found, expected = covered(path, [179.0, min(south, north), -179.0, max(south, north)])
    assert expected.sum() > 500
    assert (found != expected).sum() <= 4  # pixels whose centre is within a hundredth of a pixel of the bent sides


def test_a_ring_around_the_pole_has_the_pixels_on_the_antimeridian_and_the_pole(tmp_path: Path) -> None:
    place = rasterio.Affine(10_000, 0, -1_005_000, 0, -10_000, 1_005_000)
    path = write_scene(tmp_path / "scene.tif", np.ones((1, 201, 201), np.uint8), crs="EPSG:3031", transform=place)
    found, expected = covered(path, [-180, -90, 180, -85])
    assert expected[100, 100]  # the pole
    assert expected[150, 100]  # x = 0, y < 0: the antimeridian
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("way", ["bbox", "geometry"])
def test_pixels_with_their_centre_on_an_edge_belong_to_the_area(way: str, tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(90, 80))
    west, south, east, north = utm_box(10, 20, 30, 40)
    half = abs(NORTH_UP.a) / 2
    bbox = [west + half, south + half, east + half, north + half]  # its sides go through centres
    ring = [[bbox[at] for at in corner] for corner in ((0, 1), (2, 1), (2, 3), (0, 3), (0, 1))]
    area = {"bbox": bbox} if way == "bbox" else {"geometry": {"type": "Polygon", "coordinates": [ring]}}
    found = area_of(path, **area, crs=UTM)
    assert found.box == Box(19, 10, 40, 31)
    assert found.mask(found.box).all()
    assert found.is_box


def test_two_areas_that_share_a_diagonal_have_all_pixels_of_their_square(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(90, 80))
    corners = [list(NORTH_UP @ corner) for corner in ((10, 10), (50, 10), (50, 50), (10, 50))]
    a, b, c, d = corners
    inside = Box(10, 10, 50, 50)
    upper, lower = (
        area_of(path, geometry={"type": "Polygon", "coordinates": [ring]}, crs=UTM).mask(inside)
        for ring in ([a, b, c, a], [a, c, d, a])
    )
    assert (upper | lower).all()
    assert (upper & lower == np.eye(40, dtype=bool)).all()  # each of the two has the pixels on the diagonal


def test_a_long_polygon_in_degrees_has_the_pixels_of_the_rectangle_with_its_sides(tmp_path: Path) -> None:
    """Over 150 km, a parallel deviates from a straight line on the grid by more than a pixel of 300 m."""
    coarse = NORTH_UP @ rasterio.Affine.scale(10)
    path = write_scene(tmp_path / "scene.tif", pattern(400, 500), transform=coarse)
    ring = [[15.2, 44.3], [16.6, 44.3], [16.6, 44.9], [15.2, 44.9], [15.2, 44.3]]
    by_bbox, by_ring = area_of(path, bbox=[15.2, 44.3, 16.6, 44.9]), area_of(path, **polygon(*ring))
    assert by_ring.box == by_bbox.box
    np.testing.assert_array_equal(by_ring.mask(by_ring.box), by_bbox.mask(by_bbox.box))


RIGHT = [[179, 9], [182, 9], [182, 11], [179, 11], [179, 9]]
PARTS = [
    [[[179, 9], [180, 9], [180, 11], [179, 11], [179, 9]]],
    [[[-180, 9], [-178, 9], [-178, 11], [-180, 11], [-180, 9]]],
]


@pytest.mark.parametrize(
    "geometry",
    [{"type": "Polygon", "coordinates": [RIGHT]}, {"type": "MultiPolygon", "coordinates": PARTS}],
    ids=["beyond 180", "two parts"],
)
def test_a_polygon_across_the_antimeridian(geometry: dict[str, Any], tmp_path: Path) -> None:
    place = rasterio.Affine(0.1, 0, 170.0, 0, -0.1, 15)
    path = write_scene(tmp_path / "scene.tif", pattern(100, 200), crs="EPSG:4326", transform=place)
    assert area_of(path, geometry=geometry).box == Box(40, 90, 60, 120)


@pytest.mark.parametrize(("west", "noted"), [(15.0, True), (170.0, False), (-190.0, False)])
def test_a_bbox_with_swapped_sides_has_a_note_where_the_scene_is_far_from_the_antimeridian(
    west: float, noted: bool, tmp_path: Path
) -> None:
    place = rasterio.Affine(0.1, 0, west, 0, -0.1, 15)
    path = write_scene(tmp_path / "scene.tif", pattern(100, 200), crs="EPSG:4326", transform=place)
    east_first = {15.0: [20, 9, 18, 11]}.get(west, [179, 9, -178, 11])
    _, result = segment(path, tmp_path / "out", area={"bbox": east_first}, outputs=("stats",))
    assert result.data is not None
    said = "from 20 eastwards across the antimeridian to 18"
    assert any(said in note for note in result.data["notes"]) == noted


def test_south_up_and_rotated_scenes_have_areas(tmp_path: Path) -> None:
    upright = write_scene(tmp_path / "n.tif", pattern(90, 80))
    flipped = write_scene(
        tmp_path / "s.tif", pattern(90, 80)[:, ::-1], transform=NORTH_UP @ rasterio.Affine(1, 0, 0, 0, -1, 90)
    )
    area = {"bbox": utm_box(10, 20, 50, 60), "crs": UTM}
    assert area_of(upright, **area).box == Box(20, 10, 60, 50)
    assert area_of(flipped, **area).box == Box(30, 10, 70, 50)
    turned = write_scene(tmp_path / "r.tif", pattern(90, 80), transform=NORTH_UP @ rasterio.Affine.rotation(45))
    box = area_of(turned, bbox=utm_box(-10, 20, 10, 40), crs=UTM)
    assert abs(box.mask(box.box).sum() - 400) < 40
    assert not box.is_box


RING = [[15.01, 45.05], [15.1, 45.05], [15.1, 45.1], [15.01, 45.1], [15.01, 45.05]]


def polygon(*ring: list[float]) -> dict[str, Any]:
    return {"geometry": {"type": "Polygon", "coordinates": [list(ring)]}}


OUTSIDE = "The area lies outside the scene: it spans 40 to 41 (x) and 5 to 6 (y). The scene spans 15 to 15."
CROSSING = polygon(*(RING[i] for i in (0, 1, 3, 2, 0)))
FLAT = polygon(*(RING[i] for i in (0, 1, 1, 0)))
ACROSS = polygon([179.9, -15.5], [-179.95, -15.5], [-179.95, -15.4], [179.9, -15.4], [179.9, -15.5])
OPEN = polygon(*RING[:-1], [15.02, 45.06])


@pytest.mark.parametrize(
    ("area", "said", "place"),
    [
        ({"bbox": [40, 5, 41, 6]}, OUTSIDE, "/input/area"),
        (CROSSING, "self-intersection at 15.055", "/input/area/geometry"),
        (FLAT, "not a valid polygon", "/input/area/geometry"),
        (OPEN, "not closed", "/input/area/geometry"),
        (ACROSS, "edge from the longitude 179.9 to -179.95, longer than 180", "/input/area/geometry"),
        (ACROSS, "a MultiPolygon", "/input/area/geometry"),
        (ACROSS, "beyond 180: 180.05 instead of -179.95", "/input/area/geometry"),
        ({"bbox": [15.05, 45.05, 15.0500001, 45.0500001]}, "smaller than the scene's pixels", "/input/area"),
        ({"bbox": [15.01, 45.05, 15.1, 45.1], "crs": "EPSG:99999"}, "There is no CRS 'EPSG:99999'", "/input/area/crs"),
    ],
)
def test_an_area_that_cannot_be_used_is_refused(area: Any, said: str, place: str, tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(400, 500))
    with pytest.raises(InvalidInput) as caught:
        area_of(path, **area)
    assert said in caught.value.detail
    assert [issue.pointer for issue in caught.value.errors] == [place]


def test_an_area_of_a_scene_without_a_place_is_refused(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(40, 50), crs=None, transform=None)
    with pytest.raises(InvalidInput, match="needs a scene with a CRS"):
        segment(path, tmp_path / "out", area={"bbox": [15, 45, 16, 46]})


@pytest.mark.parametrize(
    "area",
    [
        {},
        {"bbox": [1, 2, 3]},
        {"bbox": [1, 5, 3, 5]},
        {"bbox": [3, 1, 1, 5], "crs": UTM},
        {"bbox": [1, 2, 3, math.nan]},
        {"bbox": [1, 2, 3, 4], "geometry": {"type": "Polygon", "coordinates": [RING]}},
        {"geometry": {"type": "Point", "coordinates": [1, 2]}},
        {"geometry": {"type": "Polygon", "coordinates": [RING], "crs": {"type": "name"}}},
        {"geometry": {"type": "Polygon", "coordinates": []}},
        {"bbox": [1, 2, 3, 4], "crs": "+proj=utm +nadgrids=/etc/passwd"},
    ],
)
def test_an_area_of_the_wrong_form_is_no_request(area: Any) -> None:
    with pytest.raises(ValidationError):
        SegmentationRequest(scene="s", area=area)


def test_the_models_limit_counts_the_pixels_of_the_area(tmp_path: Path) -> None:
    path, model = write_scene(tmp_path / "scene.tif", pattern(300, 300)), make_model(max_pixels=2500)
    with pytest.raises(MediaTooLarge, match="90,000"):
        segment(path, tmp_path / "whole", model=model)
    segment(path, tmp_path / "part", model=model, area={"bbox": utm_box(20, 20, 70, 70), "crs": UTM})
    with pytest.raises(MediaTooLarge, match="The area has 51 x 50 = 2,550 pixels"):
        segment(path, tmp_path / "large", model=model, area={"bbox": utm_box(20, 20, 71, 70), "crs": UTM})


def test_several_files_and_coarser_bands_are_cut_alike(tmp_path: Path) -> None:
    fine = write_scene(tmp_path / "fine.tif", pattern(120, 100), descriptions=["a"])
    coarse = write_scene(
        tmp_path / "coarse.tif", pattern(60, 50), descriptions=["b"], transform=NORTH_UP @ rasterio.Affine.scale(2)
    )
    bands = tuple({"name": name, "mean": 0.0, "std": 1.0} for name in "ab")
    given_: dict[str, Any] = {
        "files": [{"media": str(fine)}, {"media": str(coarse)}],
        "model": make_model(bands=bands, tile_px=16, halo_px=4),
        "outputs": ("classes", "stats"),
        "network": lambda pixels: hard(np.rint(pixels[0] * 3 + pixels[1] * 8).astype(np.int64) % 5),
    }
    whole, _ = segment(None, tmp_path / "whole", **given_)
    part, _ = segment(None, tmp_path / "part", area={"bbox": utm_box(33, 41, 80, 90), "crs": UTM}, **given_)
    np.testing.assert_array_equal(
        read(part.artifacts["classes.tif"]), read(whole.artifacts["classes.tif"])[:, 41:90, 33:80]
    )


def hard(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    return (ids[None] == np.arange(5)[:, None, None]).astype(np.float32)
