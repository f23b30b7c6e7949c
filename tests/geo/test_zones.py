"""Zones: the statistics of each named polygon equal an independent computation, however the scene is cut."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import shapely
from pyproj import Transformer

from penstock.errors import InvalidInput, MediaTooLarge
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.write.change_outputs import change_of
from tests.geo.test_resume import Job, Killed
from tests.support.geo.scenes import (
    NORTH_UP,
    Files,
    Folder,
    answers,
    by_value,
    make_model,
    read,
    segment,
    write_scene,
)
from tests.support.geo.shares import SHAPES, UTM, collection, on_the_map, pixel_m2, shares_of, zones

SIDE = 121
NAMES = [f"class {number}" for number in range(5)]


def blobs(seed: int = 3) -> npt.NDArray[np.uint8]:
    """Return a scene (1, SIDE, SIDE) of numbers 1 to 10 in patches, with holes of 0: nodata."""
    rng = np.random.default_rng(seed)
    numbers = np.kron(rng.integers(1, 11, (19, 19)), np.ones((7, 7), int))[:SIDE, :SIDE].astype(np.uint8)
    numbers[rng.random(numbers.shape) < 0.03] = 0
    return numbers[None]


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene(tmp_path / "scene.tif", blobs(), nodata=0)


def statistics(scene: Path, folder: Path, **request: Any) -> tuple[Folder, dict[str, Any]]:
    sink, result = segment(scene, folder, **{"outputs": ("classes", "stats"), "zones": zones(), **request})
    assert result.data is not None
    if "stats.json" in sink.artifacts:
        assert json.loads(sink.artifacts["stats.json"].read_text()) == result.data
    return sink, result.data


def check_classes(found: dict[str, Any], ids: npt.NDArray[np.uint8], shape: Any, names: list[str]) -> None:
    """Compare an entry with sums of pixels by shapely and of areas by PROJ."""
    share, m2 = shares_of(shape, *ids.shape), pixel_m2(*ids.shape)
    valid = ids != 255
    assert found["pixels"] == pytest.approx(share.sum(), abs=1e-4)
    assert found["valid_pixels"] == pytest.approx(share[valid].sum(), abs=1e-4)
    assert found["area_m2"] == pytest.approx((share * m2).sum(), rel=1e-6, abs=1e-3)
    assert [label["name"] for label in found["classes"]] == names
    for number, label in enumerate(found["classes"]):
        here = share[ids == number]
        assert label["pixels"] == pytest.approx(here.sum(), abs=1e-4)
        assert label["area_m2"] == pytest.approx((here * m2[ids == number]).sum(), rel=1e-6, abs=1e-3)
        whole = share[valid].sum()
        assert label["percent"] == (pytest.approx(100 * here.sum() / whole, abs=1e-4) if whole else None)


def test_each_number_of_each_zone_equals_sums_over_pixels(scene: Path, tmp_path: Path) -> None:
    sink, data = statistics(scene, tmp_path / "out")
    ids = read(sink.artifacts["classes.tif"])[0]
    assert [zone["name"] for zone in data["zones"]] == [*SHAPES]
    for zone in data["zones"]:
        check_classes(zone, ids, SHAPES[zone["name"]], NAMES)
    assert {zone["name"]: zone["whole"] for zone in data["zones"]} == {
        name: name not in ("coast", "elsewhere") for name in SHAPES
    }
    assert data["notes"] == [
        "No pixel of the results lies in these zones: elsewhere.",
        "These zones go on beyond the results, and only the part inside counts: coast.",
    ]
    assert data["zones"][4]["pixels"] == 0.125
    assert data["zones"][5]["pixels"] == 0


def test_the_numbers_of_neighbours_add_up_to_those_of_both(scene: Path, tmp_path: Path) -> None:
    both = {"both": shapely.union(SHAPES["east"], SHAPES["west"])}
    _, data = statistics(scene, tmp_path / "out", zones=zones({**SHAPES, **both}))
    found = {zone["name"]: zone for zone in data["zones"]}
    for number in range(5):
        parts = [found[name]["classes"][number]["area_m2"] for name in ("east", "west")]
        assert sum(parts) == pytest.approx(found["both"]["classes"][number]["area_m2"], abs=2e-3)


@pytest.mark.breadth(but=("panels",))
@pytest.mark.parametrize(
    "options",
    [
        {"tile_px": 32},
        {"tile_px": 48, "halo_px": 8},
        {"tile_px": 32, "strip_bytes": 3000},
        {"tile_px": 48, "overlap": "hann", "halo_px": 0},
    ],
    ids=["tiles", "halo", "panels", "hann"],
)
def test_tiles_and_strips_change_no_number(
    options: dict[str, Any], scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = statistics(scene, tmp_path / "whole", model=make_model(tile_px=128))
    monkeypatch.setattr("penstock.processors.geo.tiling.coverage.Coverage.strips.__defaults__", (500,))
    _, found = statistics(scene, tmp_path / "out", model=make_model(**options))
    assert found["zones"] == expected["zones"]


def test_a_killed_job_ends_with_the_same_numbers(scene: Path, tmp_path: Path) -> None:
    model = make_model(tile_px=32)
    asked: dict[str, Any] = {"outputs": ("stats",), "zones": zones()}
    whole = Job(scene, tmp_path / "whole", model, **asked)
    expected = whole.attempt().artifacts
    assert len(whole.saved) > 2
    for lives in range(len(whole.saved)):
        job = Job(scene, tmp_path / f"{lives}", model, **asked)
        with pytest.raises(Killed):
            job.attempt(lives)
        found = job.attempt().artifacts
        for name in ("stats.json", "zones.csv"):
            assert found[name].read_bytes() == expected[name].read_bytes()


def test_parts_of_a_job_need_no_zones_and_its_end_has_them(scene: Path, tmp_path: Path) -> None:
    processor = RasterSegmentation(make_model(tile_px=32))
    document = tmp_path / "zones.json"
    request = processor.request(scene=str(scene), outputs=("stats",), zones=str(document))
    saved = {}
    part = processor.pre_process_part(request, Files(), 0, 99)  # the file is not there yet
    sink = Folder(tmp_path / "part")
    processor.post_process(answers(part.prompts, by_value), part.context, sink)
    for number, (name, content) in enumerate(sink.saved.items()):
        saved[name] = tmp_path / f"saved-{number}"
        saved[name].write_bytes(content)
    document.write_text(json.dumps(zones()))
    prepared = processor.pre_process(request, Files(saved))
    assert prepared.count == 0
    result = processor.post_process(answers(prepared.prompts, by_value), prepared.context, Folder(tmp_path / "end"))
    _, expected = statistics(scene, tmp_path / "whole")
    assert result.data is not None
    assert result.data["zones"] == expected["zones"]


def test_a_change_has_its_areas_in_each_zone(scene: Path, tmp_path: Path) -> None:
    before = write_scene(tmp_path / "before.tif", blobs(4), nodata=0)
    change = {"before": {"scene": str(before)}, "of": ["class 1", "class 3"], "ignore": ["class 4"], "name": "water"}
    sink, data = statistics(scene, tmp_path / "out", change=change)
    was, became = (read(sink.artifacts[name])[0] for name in ("before-classes.tif", "classes.tif"))
    expected = change_of(was, became, {1, 3}, {4})
    for zone in data["zones"]:
        check_classes(zone, became, SHAPES[zone["name"]], NAMES)
        names = ["no water", "water lost", "water gained", "water at both dates"]
        check_classes(zone["change"], expected, SHAPES[zone["name"]], names)
    with sink.artifacts["zones.csv"].open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["change: water gained m2"]) for row in rows] == [
        zone["change"]["classes"][2]["area_m2"] for zone in data["zones"]
    ]


def test_an_area_cuts_the_zones(scene: Path, tmp_path: Path) -> None:
    box = shapely.box(30, 25, 90, 100)
    area = {"geometry": json.loads(shapely.to_geojson(on_the_map(box))), "crs": UTM}
    sink, data = statistics(scene, tmp_path / "out", area=area)
    ids = np.full((SIDE, SIDE), 255, np.uint8)
    ids[25:100, 30:90] = read(sink.artifacts["classes.tif"])[0]
    for zone in data["zones"]:
        check_classes(zone, ids, shapely.intersection(SHAPES[zone["name"]], box), NAMES)
    assert [zone["name"] for zone in data["zones"] if zone["whole"]] == ["islet"]


def test_zones_in_degrees_lie_where_pyproj_puts_them(scene: Path, tmp_path: Path) -> None:
    there = Transformer.from_crs(UTM, "EPSG:4326", always_xy=True)

    def lonlat(xy: Any) -> Any:
        return np.stack(there.transform(*(NORTH_UP @ (xy[:, 0], xy[:, 1]))), axis=1)

    dense = {name: shapely.segmentize(shape, 1) for name, shape in SHAPES.items()}
    given = collection({name: shapely.transform(shape, lonlat) for name, shape in dense.items()}, crs=None)
    _, data = statistics(scene, tmp_path / "out", zones=given)
    _, expected = statistics(scene, tmp_path / "utm")
    for zone, other in zip(data["zones"], expected["zones"], strict=True):
        assert zone["pixels"] == pytest.approx(other["pixels"], abs=0.01)
        for label, same in zip(zone["classes"], other["classes"], strict=True):
            assert label["area_m2"] == pytest.approx(same["area_m2"], abs=10)


def test_a_zone_of_half_the_world_counts_its_part_in_the_scene(scene: Path, tmp_path: Path) -> None:
    """Far from the scene its edges have no place in UTM."""
    given = collection(
        {"east": shapely.segmentize(shapely.box(-10, -89, 178, 89), 90), "west": shapely.box(-170, -80, -100, 80)},
        crs=None,
    )
    _, data = statistics(scene, tmp_path / "out", zones=given)
    east, west = data["zones"]
    assert (east["pixels"], east["whole"]) == (SIDE**2, False)
    assert [label["pixels"] for label in east["classes"]] == [label["pixels"] for label in data["classes"]]
    assert (west["pixels"], west["area_m2"], west["whole"]) == (0, 0, False)


def test_zones_across_the_antimeridian_meet_scenes_on_both_sides(tmp_path: Path) -> None:
    across = shapely.union(shapely.box(179.5, -1, 180, 1), shapely.box(-180, -1, -179.7, 1))
    beyond = shapely.box(179.5, -1, 180.3, 1)
    given = collection({"parts": across, "beyond": beyond}, crs=None)
    place = rasterio.Affine(0.01, 0, 179, 0, -0.01, 0.5)
    scene = write_scene(tmp_path / "scene.tif", np.ones((1, 100, 200), np.uint8), crs="EPSG:4326", transform=place)
    _, data = statistics(scene, tmp_path / "out", zones=given)
    assert [zone["pixels"] for zone in data["zones"]] == pytest.approx([8000, 8000], abs=1e-3)


def test_a_scene_with_control_points_has_pixels_but_no_areas(tmp_path: Path) -> None:
    corners = [(0, 0), (SIDE, 0), (0, SIDE), (SIDE, SIDE)]
    points = [rasterio.control.GroundControlPoint(row, col, *(NORTH_UP @ (col, row))) for row, col in corners]
    scene = write_scene(tmp_path / "scene.tif", blobs(), nodata=0, gcps=points, transform=None)
    _, data = statistics(scene, tmp_path / "out")
    share = shares_of(SHAPES["star"], SIDE, SIDE)
    assert data["zones"][0]["pixels"] == pytest.approx(share.sum(), rel=1e-4)
    assert data["zones"][0]["area_m2"] is None
    assert {label["area_m2"] for label in data["zones"][0]["classes"]} == {None}


def test_a_job_without_the_class_map_has_zones_and_one_without_zones_none(scene: Path, tmp_path: Path) -> None:
    sink, data = statistics(scene, tmp_path / "stats", outputs=("stats",))
    assert set(sink.artifacts) == {"stats.json", "zones.csv"}
    other, same = statistics(scene, tmp_path / "confidence", outputs=("confidence",))
    assert set(other.artifacts) == {"confidence.tif"}
    assert same["zones"] == data["zones"]
    sink, data = statistics(scene, tmp_path / "none", zones=None)
    assert "zones" not in data
    assert "zones.csv" not in sink.artifacts


def test_an_empty_scene_has_empty_zones(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", np.zeros((1, SIDE, SIDE), np.uint8), nodata=0)
    _, data = statistics(scene, tmp_path / "out")
    assert {zone["valid_pixels"] for zone in data["zones"]} == {0}
    assert {label["percent"] for zone in data["zones"] for label in zone["classes"]} == {None}


SQUARE = shapely.box(15, 45, 15.02, 45.02)
TWICE = {"type": "FeatureCollection", "features": collection({"a": SQUARE})["features"] * 2}
NOTHING = {"type": "FeatureCollection", "features": [{"type": "Feature", "geometry": None}]}
BOWTIE = shapely.Polygon([(15, 45), (15.02, 45.02), (15.02, 45), (15, 45.02)])


def one(shape: Any, **given: Any) -> dict[str, Any]:
    return collection({"a": shape}, **{"crs": None, **given})


@pytest.mark.breadth(every=2)
@pytest.mark.parametrize(
    ("document", "said", "pointer"),
    [
        (one(BOWTIE), "Zone 'a' is not a valid polygon: self-intersection at", "/features/0/geometry"),
        (one(SQUARE, crs="EPSG:99999"), "There is no CRS 'EPSG:99999'", "/crs"),
        (one(on_the_map(SHAPES["east"])), "not degrees.*EPSG:32633", "/crs"),
        (one(shapely.box(-179, 0, 179, 1)), "Zone 'a' has an edge from the longitude", "/features/0/geometry"),
        (one(SQUARE, field="NAME_1"), "Feature 1 .* property 'name'.* NAME_1[.] .*`zone_name`", "/features/0"),
        (TWICE, "Several zones have the same name: a[.]", ""),
        (one(shapely.Point(15, 45)), "/features/0/geometry must be of type Polygon", "/features/0/geometry"),
        (NOTHING, "has no geometry", "/features/0/geometry"),
    ],
    ids=["crossing", "crs", "metres", "long", "unnamed", "twice", "point", "nothing"],
)
@pytest.mark.parametrize("by_file", [True, False], ids=["file", "inline"])
def test_unusable_zones_are_refused_in_plain_words(
    document: dict[str, Any], said: str, pointer: str, by_file: bool, scene: Path, tmp_path: Path
) -> None:
    path = tmp_path / "zones.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=said) as caught:
        statistics(scene, tmp_path / "out", zones=str(path) if by_file else document)
    assert [issue.pointer for issue in caught.value.errors] == [f"/input/zones{pointer}"]


def test_a_crs_is_a_code(scene: Path, tmp_path: Path) -> None:
    """PROJ strings can name files."""
    path = tmp_path / "zones.json"
    path.write_text(json.dumps(one(SQUARE, crs="+proj=utm")))
    with pytest.raises(InvalidInput, match="/crs must be a code such as EPSG:32738"):
        statistics(scene, tmp_path / "out", zones=str(path))


def test_documents_that_are_empty_or_too_large_are_refused(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "zones.json"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": []}))
    with pytest.raises(InvalidInput, match="not a GeoJSON FeatureCollection of polygons: /features"):
        statistics(scene, tmp_path / "empty", zones=str(path))
    path.write_text(" " * (16 * 2**20 + 1))
    with pytest.raises(MediaTooLarge, match="The document of zones has 16,777,217 bytes"):
        statistics(scene, tmp_path / "bytes", zones=str(path))
    monkeypatch.setattr("penstock.processors.geo.read.zones._MAX_POSITIONS", 20)
    with pytest.raises(InvalidInput, match="more than 20 positions: simplify the polygons"):
        statistics(scene, tmp_path / "positions")


def test_a_scene_without_a_place_has_no_zones(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", blobs(), nodata=0, crs=None, transform=None)
    with pytest.raises(InvalidInput, match="zones needs a scene with a CRS and a geotransform"):
        statistics(scene, tmp_path / "out")


def test_names_come_from_the_property_that_the_request_names(scene: Path, tmp_path: Path) -> None:
    given = collection({"1": on_the_map(SHAPES["east"]), 'ß, "2"': on_the_map(SHAPES["west"])}, field="NAME_1")
    given["features"][0]["properties"]["NAME_1"] = 1
    sink, data = statistics(scene, tmp_path / "out", zones=given, zone_name="NAME_1")
    assert [zone["name"] for zone in data["zones"]] == ["1", 'ß, "2"']
    with sink.artifacts["zones.csv"].open(encoding="utf-8-sig", newline="") as file:
        assert [row["zone"] for row in csv.DictReader(file)] == ["1", 'ß, "2"']
