"""The STAC items describe footprint, assets and provenance of the results.

The core of STAC is validated with the schemas that pystac ships; `test_stac_documents.py` validates extensions, too.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pystac
import pytest
import shapely
from pyproj import Transformer
from rasterio.control import GroundControlPoint

from penstock.catalogue.records import read_catalogue
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.read.provenance import Provenance, SourceFile
from penstock.processors.geo.read.raster import read_scene
from penstock.processors.geo.write.footprint import footprint
from penstock.processors.geo.write.mlm import stac_mlm
from penstock.processors.geo.write.stac import public_address, stac_item
from tests.support.geo.metadata import item as item_of
from tests.support.geo.metadata import landsat, sentinel2
from tests.support.geo.scenes import NORTH_UP, RPCS, Folder, make_model, pattern, segment, write_scene
from tests.support.geo.stac_schemas import EXTENSIONS
from tests.support.geo.stac_schemas import core_problems as problems

Affine = rasterio.Affine
TIME = datetime(2020, 1, 27, 10, tzinfo=UTC)
EVERYTHING = (
    "classes", "probability", "probability_float32", "confidence", "polygons", "preview", "quicklook", "stats", "item",
)  # fmt: skip
SINUSOIDAL = "+proj=sinu +lon_0=0 +x_0=0 +y_0=0 +R=6371007.181 +units=m +no_defs"


def described(folder: Path, *, outputs: tuple[str, ...] = EVERYTHING, **request: Any) -> tuple[Folder, dict[str, Any]]:
    """Return the sink of a scene's results and their item; the scene is dated unless `datetime` is None."""
    place = request.pop("place", {"crs": "EPSG:32633", "transform": NORTH_UP})
    path = write_scene(folder / "s.tif", pattern(30, 40), **place)
    sink, _ = segment(path, folder / "out", outputs=outputs, **{"datetime": TIME.isoformat(), **request})
    return sink, json.loads(sink.artifacts["item.json"].read_text())


def test_every_artifact_is_an_asset_with_its_type_size_and_hash(tmp_path: Path) -> None:
    sink, item = described(tmp_path)
    assert problems(item) == []
    assert set(item["assets"]) == set(sink.artifacts) - {"item.json", "model.json"}
    assert len(item["assets"]) == 10
    for name, asset in item["assets"].items():
        body = sink.artifacts[name].read_bytes()
        assert asset["href"] == f"./{name}"
        assert asset["type"] == sink.types[name]
        assert asset["file:size"] == len(body)
        assert asset["file:checksum"] == "1220" + hashlib.sha256(body).hexdigest()
        assert asset["roles"] in (["data"], ["metadata"], ["overview"])
    assert item["assets"]["classes.tif"]["type"] == "image/tiff; application=geotiff; profile=cloud-optimized"
    assert pystac.Item.from_dict(item).assets["classes.tif"].ext.file.size == item["assets"]["classes.tif"]["file:size"]
    assert not problems({**item, "bbox": [15.0, 45.1, 15.1, 45.2]})


def test_the_schemas_do_object_to_what_is_wrong(tmp_path: Path) -> None:
    _, item = described(tmp_path)
    assert problems({**item, "bbox": None})
    assert problems({**item, "properties": {**item["properties"], "datetime": None, "start_datetime": "yesterday"}})
    assert problems({key: value for key, value in item.items() if key != "links"})


def test_the_extensions_fields(tmp_path: Path) -> None:
    _, item = described(tmp_path)
    names = ["classification/v1.1.0", "file/v2.1.0", "processing/v1.2.0", "projection/v2.0.0", "raster/v2.0.0"]
    assert item["stac_extensions"] == [f"{EXTENSIONS}/{name}/schema.json" for name in names]
    properties = item["properties"]
    assert properties["proj:code"] == "EPSG:32633"
    assert properties["proj:shape"] == [30, 40]
    assert properties["proj:transform"] == [30, 0, 500_000, 0, -30, 5_000_000]
    assert properties["proj:bbox"] == [500_000, 5_000_000 - 900, 500_000 + 1200, 5_000_000]
    assert set(properties["processing:software"]) == {"penstock"}
    classes = item["assets"]["classes.tif"]
    assert (classes["data_type"], classes["nodata"]) == ("uint8", 255)
    assert classes["classification:classes"][1] == {
        "value": 1, "name": "class-1", "title": "class 1", "description": "class 1", "color_hint": "ff0000",
    }  # fmt: skip
    assert [label["value"] for label in classes["classification:classes"]] == [0, 1, 2, 3, 4]
    assert item["assets"]["probability.tif"]["raster:scale"] == 1 / 254
    assert len(item["assets"]["probability.tif"]["bands"]) == 5
    exact = item["assets"]["probability_float32.tif"]
    assert (exact["data_type"], exact["nodata"], "raster:scale" in exact) == ("float32", "nan", False)


@pytest.mark.parametrize(
    ("place", "bounds", "code"),
    [
        ({"crs": "EPSG:32633", "transform": NORTH_UP}, (15, 45.1454, 15.0153, 45.1535), "EPSG:32633"),
        ({"crs": "EPSG:4326", "transform": Affine(0.1, 0, 178, 0, -0.1, 60)}, (178, 57, -178, 60), "EPSG:4326"),
        (
            {"crs": "EPSG:3413", "transform": Affine(1e5, 0, -2e6, 0, -1e5, 1.5e6)},
            (-180, 67.2148, 180, 90),
            "EPSG:3413",
        ),
        ({"crs": SINUSOIDAL, "transform": Affine(400, 0, 5e5, 0, -400, 5e6)}, (6.3435, 44.858, 6.5588, 44.966), None),
        ({"crs": None, "transform": NORTH_UP}, None, None),
        ({"crs": None, "transform": None}, None, None),
    ],
    ids=["utm", "antimeridian", "pole", "no code", "no crs", "nothing"],
)
def test_geometry_and_bbox_lie_where_the_scene_lies(
    place: dict[str, Any], bounds: tuple[float, ...] | None, code: str | None, tmp_path: Path
) -> None:
    _, item = described(tmp_path, place=place, outputs=("classes", "item"))
    assert problems(item) == []
    assert item["properties"]["proj:code"] == code
    assert ("proj:wkt2" in item["properties"]) == (code is None and bounds is not None)
    if bounds is None:
        assert item["geometry"] is None
        assert "bbox" not in item
    else:
        assert item["bbox"] == pytest.approx(bounds, abs=1e-3)
        geometry = shapely.geometry.shape(item["geometry"])
        assert geometry.is_valid
        assert all(shapely.is_ccw(part.exterior) for part in shapely.get_parts(geometry))
        assert geometry.geom_type == ("MultiPolygon" if bounds[0] > bounds[2] else "Polygon")


@pytest.mark.parametrize(("left", "top"), [(-3300, 3000), (-1000, 500), (-450, 300)])
def test_a_small_scene_with_the_pole_in_it_lies_within_its_geometry(left: int, top: int, tmp_path: Path) -> None:
    place = {"crs": "EPSG:3413", "transform": Affine(30, 0, left, 0, -30, top)}
    scene = read_scene(write_scene(tmp_path / "s.tif", np.ones((1, 200, 220), np.uint8), **place), make_model().limits)
    item = stac_item(make_model(), scene, Provenance((SourceFile("media://01", None),), {"bands": []}, (TIME,)), [])
    geometry = shapely.geometry.shape(item["geometry"])
    assert (geometry.geom_type, geometry.is_valid) == ("Polygon", True)
    assert item["bbox"] == pytest.approx(geometry.bounds, abs=1e-9)
    to_lonlat = Transformer.from_crs("EPSG:3413", "EPSG:4326", always_xy=True)
    columns, rows = np.meshgrid(np.linspace(0.5, 219.5, 220), np.linspace(0.5, 199.5, 200))
    lonlat = to_lonlat.transform(left + 30 * columns, top - 30 * rows)
    assert shapely.intersects_xy(geometry, *lonlat).all()


def test_without_a_time_of_the_request_the_sources_item_tells_it(tmp_path: Path) -> None:
    def taken(name: str, properties: dict[str, Any], **request: Any) -> str:
        (folder := tmp_path / name).mkdir()
        source = {"type": "Feature", "properties": properties, "assets": {"s": {"href": "s.tif"}}}
        (folder / "item.json").write_text(json.dumps(source))
        given = {"stac": str(folder / "item.json"), "datetime": None, **request}
        time: str = described(folder, outputs=("item",), **given)[1]["properties"]["datetime"]
        return time

    known = {"datetime": "2021-05-04T10:20:30.123Z"}
    assert taken("known", known) == "2021-05-04T10:20:30.123000Z"
    assert taken("asked", known, datetime="2020-01-27T10:00:00Z") == "2020-01-27T10:00:00Z"
    for name, wrong in {"null": None, "words": "in May", "number": 5, "no zone": "2021-05-04T10:20:30"}.items():
        with pytest.raises(KeyError, match=r"item\.json"):
            taken(name, {"datetime": wrong})


def test_the_sidecar_tells_the_time_before_the_sources_item(tmp_path: Path) -> None:
    def taken(name: str, document: Any, **request: Any) -> str | None:
        (folder := tmp_path / name).mkdir()
        source = {
            "type": "Feature",
            "properties": {"datetime": "2021-05-04T10:20:30Z"},
            "assets": {"s": {"href": "s.tif"}},
        }
        for file, text in {"sidecar": document, "stac": json.dumps(source)}.items():
            (folder / file).write_text(text)
        given = {"sidecar": str(folder / "sidecar"), "stac": str(folder / "stac"), "radiometry": {"scale": 1}}
        given |= {"datetime": None, **request}
        time: str | None = described(folder, outputs=("item",), **given)[1]["properties"]["datetime"]
        return time

    product = landsat("L2SP", dict.fromkeys(range(1, 8), ("2.75e-05", "-0.2")))
    assert taken("sentinel", sentinel2()) == "2024-04-05T10:06:01.024000Z"
    assert taken("landsat", json.dumps(product)) == "2020-01-27T07:02:33.123456Z"
    assert taken("asked", sentinel2(), datetime="2020-01-27T10:00:00Z") == "2020-01-27T10:00:00Z"
    assert taken("in words", sentinel2(time="in May")) == "2021-05-04T10:20:30Z"
    del product["LANDSAT_METADATA_FILE"]["IMAGE_ATTRIBUTES"]["SCENE_CENTER_TIME"]
    assert taken("a day", json.dumps(product)) == "2021-05-04T10:20:30Z"


def test_a_scene_of_unknown_time_has_no_item_and_the_statistics_tell_why(tmp_path: Path) -> None:
    _, item = described(tmp_path, outputs=("stats", "item"), datetime="2020-01-27T10:00:00+02:00")
    assert item["properties"]["datetime"] == "2020-01-27T08:00:00Z"
    assert "start_datetime" not in item["properties"]
    path = write_scene(tmp_path / "s.tif", pattern(30, 40))
    sink, result = segment(path, tmp_path / "undated", outputs=("classes", "stats", "item"))
    assert set(sink.artifacts) == {"classes.tif", "classes.tif.aux.xml", "classes.qml", "stats.json", "model.json"}
    (note,) = json.loads(sink.artifacts["stats.json"].read_text())["notes"]
    assert note.startswith("item.json was not created: STAC requires the acquisition time")
    assert result.data is not None
    assert result.data["notes"] == [note]
    _, result = segment(path, tmp_path / "no item", outputs=("classes", "stats"))
    assert result.data is not None
    assert result.data["notes"] == []


SPAN = {"start_datetime": "2024-05-01T00:00:00Z", "end_datetime": "2024-05-03T02:00:00+02:00"}
UNREAD = "of the STAC item is 'yesterday', which is no time with a time zone such as 2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("properties", "given", "times", "noted"),
    [
        ({"datetime": None, **SPAN}, {}, (None, "2024-05-01T00:00:00Z", "2024-05-03T00:00:00Z"), None),
        ({"datetime": "yesterday", **SPAN}, {}, (None, "2024-05-01T00:00:00Z", "2024-05-03T00:00:00Z"), "datetime"),
        ({"datetime": "yesterday"}, {}, None, "datetime"),
        ({"datetime": None, **SPAN, "end_datetime": "yesterday"}, {}, None, "end_datetime"),
        ({"datetime": "yesterday"}, {"datetime": "2020-01-02T00:00:00Z"}, ("2020-01-02T00:00:00Z",), None),
    ],
    ids=["interval", "interval and no time", "no time", "no end", "time of the request"],
)
def test_the_interval_of_a_scenes_item_is_that_of_the_results_item(
    properties: dict[str, Any], given: dict[str, str], times: tuple[str | None, ...] | None, noted: str | None,
    tmp_path: Path,
) -> None:  # fmt: skip
    path = write_scene(tmp_path / "s.tif", pattern(30, 40))
    document = item_of({"s": {"href": "s.tif", "eo:bands": [{"name": "grey"}]}}, **properties)
    sink, result = segment(path, tmp_path / "out", outputs=("item", "stats"), stac=document, **given)
    assert result.data is not None
    notes = " ".join(result.data["notes"])
    assert (f"The `{noted}` {UNREAD}" in notes) if noted else "yesterday" not in notes
    assert ("item.json was not created" in notes) == (times is None) == ("item.json" not in sink.artifacts)
    if times is not None:
        made = json.loads(sink.artifacts["item.json"].read_text())
        assert problems(made) == []
        names = ("datetime", "start_datetime", "end_datetime")
        assert tuple(made["properties"][name] for name in names if name in made["properties"]) == times


@pytest.mark.parametrize(
    ("times", "found"),
    [
        (["2020-01-02T00:00:00Z", "2020-03-04T00:00:00+01:00"], ("2020-01-02T00:00:00Z", "2020-03-03T23:00:00Z")),
        (["2020-03-04T00:00:00Z", "2020-03-04T01:00:00+01:00"], "2020-03-04T00:00:00Z"),
        ([None, "2020-03-04T00:00:00Z"], None),
    ],
    ids=["two times", "one time", "one unknown"],
)
def test_several_dates_are_an_interval(times: list[str | None], found: Any, tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(30, 40))
    dates = [{"scene": str(path), **({"datetime": time} if time else {})} for time in times]
    sink, _ = segment(None, tmp_path / "out", model=make_model(dates=2), outputs=("item",), dates=dates)
    if found is None:
        assert set(sink.artifacts) == {"model.json"}
        return
    item = json.loads(sink.artifacts["item.json"].read_text())
    assert problems(item) == []
    properties = item["properties"]
    if isinstance(found, str):
        assert (properties["datetime"], "start_datetime" in properties) == (found, False)
    else:
        assert (properties["datetime"], properties["start_datetime"], properties["end_datetime"]) == (None, *found)


def test_links_lead_to_public_sources_and_to_the_model(tmp_path: Path) -> None:
    model = make_model()
    scene = read_scene(write_scene(tmp_path / "s.tif", pattern(30, 40)), model.limits)
    signed = "https://a.example/b/c.tif?X-Amz-Signature=secret"
    sources = (
        SourceFile(signed, "abc"),
        SourceFile("https://a.example/b/c.tif", None),
        SourceFile("s3://bucket/key.tif#etag=def", "def"),
        SourceFile("media://01", None),
    )
    items = ("https://a.example/item.json", "media://02", "https://a.example/item.json")
    item = stac_item(model, scene, Provenance(sources, {"bands": []}, (TIME,), items=items), [])
    found = [(link["rel"], link["href"], link.get("etag")) for link in item["links"]]
    assert found == [
        ("derived_from", "https://a.example/item.json", None),
        ("derived_from", "https://a.example/b/c.tif", None),
        ("derived_from", "s3://bucket/key.tif", "def"),
        ("mlm:model", "./model.json", None),
    ]
    other = stac_item(model, scene, Provenance(sources[:1], {"bands": []}, (TIME,)), [])
    assert item["id"] != other["id"]
    assert "secret" not in json.dumps(item)


@pytest.mark.parametrize(
    ("reference", "address"),
    [
        ("https://a.example/b/c.tif", "https://a.example/b/c.tif"),
        ("https://a.example:8443/b%20c.tif#etag=1", "https://a.example:8443/b%20c.tif"),
        ("s3://bucket/a key/é.tif#etag=1", "s3://bucket/a%20key/é.tif"),
        ("https://a.example/c.tif?sig=secret", None),
        ("https://user:secret@a.example/c.tif", None),
        ("media://01J/s.tif", None),
        ("file:///srv/penstock/s.tif", None),
        ("/srv/penstock/s.tif", None),
        ("s.tif", None),
        ("//[a]b/s.tif", None),
    ],
)
def test_a_reference_is_public_if_anyone_can_follow_it(reference: str, address: str | None) -> None:
    assert public_address(reference) == address


def test_a_second_run_gives_the_same_item(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(30, 40))
    asked: dict[str, Any] = {"outputs": ("classes", "item"), "datetime": TIME.isoformat()}
    runs = [segment(path, tmp_path / name, **asked)[0] for name in ("one", "two")]
    for name in ("item.json", "model.json"):
        assert runs[0].artifacts[name].read_bytes() == runs[1].artifacts[name].read_bytes()


def test_the_shipped_model_as_an_mlm_item() -> None:
    item = stac_mlm(read_catalogue()["csmask"])
    assert problems(item) == []
    properties = item["properties"]
    assert f"{EXTENSIONS}/mlm/v1.5.2/schema.json" in item["stac_extensions"]
    assert (properties["mlm:name"], properties["mlm:framework"]) == ("csmask", "PyTorch")
    assert (properties["mlm:tasks"], properties["license"]) == (["semantic-segmentation"], "Apache-2.0")
    (given,) = properties["mlm:input"]
    assert given["bands"] == ["blue", "green", "red", "nir", "swir16", "swir22"]
    assert given["input"]["shape"] == [-1, 6, -1, -1]
    assert given["value_scaling"][0] == {"type": "z-score", "mean": 0.19312, "stddev": 0.16431}
    (made,) = properties["mlm:output"]
    assert [label["title"] for label in made["classification:classes"]] == [
        "cloud shadow", "water", "snow or ice", "land", "cloud",
    ]  # fmt: skip
    assert properties["mlm:hyperparameters"] == {"tile_px": 768, "halo_px": 96, "stride_px": 16}
    weights = item["assets"]["model"]
    assert weights["href"] == "https://github.com/dlr-eoc/ukis-csmask/raw/v0.2.1/ukis_csmask/model_6b.onnx"
    assert weights["roles"] == ["mlm:model", "mlm:weights"]
    assert weights["mlm:artifact_type"] == "onnx"
    assert weights["file:checksum"] == "1220abd33028e9e9218522778bbcbc627177c6451f795989c82414f37adb6f673a66"
    assert [band["name"] for band in weights["eo:bands"]] == given["bands"]


def test_models_of_several_dates_and_of_quantities_as_mlm_items() -> None:
    model = make_model(dates=3, bands=[{"name": name, "mean": 0, "std": 1} for name in ("red", "nir")])
    (channels,) = stac_mlm(model)["properties"]["mlm:input"]
    assert channels["input"]["shape"] == [-1, 6, -1, -1]
    assert channels["bands"] == ["red", "nir"] * 3
    assert len(channels["value_scaling"]) == 6
    (timed,) = stac_mlm(model.model_copy(update={"runner": "terratorch"}))["properties"]["mlm:input"]
    assert timed["input"]["shape"] == [-1, 2, 3, -1, -1]
    assert timed["input"]["dim_order"] == ["batch", "bands", "time", "height", "width"]
    assert timed["bands"] == ["red", "nir"]
    model = make_model()
    options = {key: value for key, value in model.options.items() if key != "classes"}
    quantities = [{"name": "depth", "unit": "m"}]
    regression = model.model_copy(
        update={"processor": "raster-regression", "options": {**options, "quantities": quantities}}
    )
    item = stac_mlm(regression)
    assert problems(item) == []
    assert item["properties"]["mlm:tasks"] == ["regression"]
    assert item["properties"]["mlm:output"][0]["result"]["shape"] == [-1, 1, -1, -1]


def test_floats_in_items_are_plain_numbers(tmp_path: Path) -> None:
    _, item = described(tmp_path, outputs=("classes", "item"))
    assert all(type(value) in (int, float) for value in item["bbox"] + item["properties"]["proj:transform"])
    assert np.isfinite(item["bbox"]).all()


def outline(gcps: list[tuple[float, float]], folder: Path, *, crs: str = "EPSG:4326") -> Any:
    """Return the footprint of a scene of 80 x 90 pixels whose corners and middle points lie at these places."""
    rows, columns = np.meshgrid([0, 40, 80], [0, 45, 90], indexing="ij")
    points = [
        GroundControlPoint(float(row), float(column), *place, 3)
        for row, column, place in zip(rows.flat, columns.flat, gcps, strict=True)
    ]
    path = write_scene(
        folder / "g.tif", pattern(80, 90), crs=rasterio.CRS.from_string(crs), gcps=points, transform=None
    )
    return footprint(read_scene(path, make_model().limits))


def test_control_points_place_the_footprint(tmp_path: Path) -> None:
    """A scene of 80 x 90 pixels of 1 km, turned by 12 degrees in UTM, known by nine points in degrees."""
    turned = Affine.translation(500_000, 5_000_000) @ Affine.rotation(12) @ Affine.scale(1000, -1000)
    rows, columns = np.meshgrid([0, 40, 80], [0, 45, 90], indexing="ij")
    xy = [turned @ (column, row) for row, column in zip(rows.flat, columns.flat, strict=True)]
    to_lonlat = Transformer.from_crs("EPSG:32633", "EPSG:4326", always_xy=True)
    exact = write_scene(tmp_path / "s.tif", pattern(80, 90), transform=turned)
    expected = footprint(read_scene(exact, make_model().limits))
    for places, crs in (([to_lonlat.transform(*each) for each in xy], "EPSG:4326"), (xy, "EPSG:32633")):
        found = outline(places, tmp_path, crs=crs)
        assert shapely.hausdorff_distance(found, expected) < 1e-3  # a tenth of a pixel
    sink, _ = segment(tmp_path / "g.tif", tmp_path / "out", outputs=("item",), datetime=TIME.isoformat())
    item = json.loads(sink.artifacts["item.json"].read_text())
    assert item["bbox"] == pytest.approx(expected.bounds, abs=1e-3)
    assert item["properties"]["proj:code"] is None
    assert "proj:transform" not in item["properties"]


@pytest.mark.parametrize("jump", [True, False], ids=["-180 to 180", "beyond 180"])
def test_control_points_across_the_antimeridian(jump: bool, tmp_path: Path) -> None:
    places = [(lon - 360 if jump and lon > 180 else lon, lat) for lat in (61, 60, 59) for lon in (179, 180, 181)]
    found = outline(places, tmp_path)
    assert (found.geom_type, found.is_valid) == ("MultiPolygon", True)
    assert found.bounds == pytest.approx((-180, 59, 180, 61), abs=0.01)
    assert found.area == pytest.approx(4, rel=0.01)


def test_control_points_around_a_pole(tmp_path: Path) -> None:
    to_lonlat = Transformer.from_crs("EPSG:3413", "EPSG:4326", always_xy=True)
    places = [to_lonlat.transform(x, y) for y in (4e5, 0, -4e5) for x in (-4e5, 1e3, 4e5)]
    found = outline(places, tmp_path)
    assert found.is_valid
    assert found.bounds[3] == 90
    assert shapely.intersects_xy(found, np.arange(-170, 180, 20), np.full(18, 87)).all()


@pytest.mark.parametrize(
    "places",
    [
        [(10.0, 50.0)] * 9,
        [(float(x), 0.0) for x in range(9)],
        [(10.0, 500.0)] * 9,
        [(float("nan"), 0.0)] * 9,
        [(11.0 + (1 - y) * (x - 1), 50.0 - y) for y in range(3) for x in range(3)],
    ],
    ids=["one place", "a line", "no latitude", "nan", "crossed"],
)
def test_control_points_that_place_nothing_give_no_footprint(places: list[tuple[float, float]], tmp_path: Path) -> None:
    assert outline(places, tmp_path) is None


def test_rational_polynomials_place_the_footprint_at_their_mean_height(tmp_path: Path) -> None:
    with (
        without_georeference(),
        rasterio.open(write_scene(tmp_path / "r.tif", pattern(30, 40), crs=None, transform=None), "r+") as file,
    ):
        file.rpcs = RPCS
    sink, _ = segment(tmp_path / "r.tif", tmp_path / "out", outputs=("item",), datetime=TIME.isoformat())
    item = json.loads(sink.artifacts["item.json"].read_text())
    assert problems(item) == []
    # Row 0 is at 45.1 degrees, and the first column at 14.9; RPCs count from the middle of the first pixel.
    assert item["bbox"] == pytest.approx((14.8975, 44.9033, 15.0975, 45.1033), abs=1e-3)


def test_a_footprint_follows_the_curve_of_its_control_points(tmp_path: Path) -> None:
    """An edge that bends by a quarter of a degree is no straight line from corner to corner."""
    places = [(10 + column, 50 - row + column * (2 - column) / 4) for row in (0, 1, 2) for column in (0, 1, 2)]
    found = outline(places, tmp_path)
    assert shapely.intersects_xy(found, 11, 50.2)
    assert not shapely.intersects_xy(found, 10.1, 50.2)
