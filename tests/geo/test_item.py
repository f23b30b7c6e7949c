"""The STAC items say where the results lie, what they are and what made them.

The core of STAC is validated with the schemas that pystac ships. The extensions' schemas come with no package: their
fields are compared with what is written out here by hand.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pystac
import pytest
import shapely
from jsonschema import Draft7Validator, FormatChecker
from pyproj import Transformer
from pystac.validation.local_validator import get_local_schema_cache
from referencing import Registry
from referencing.jsonschema import DRAFT7

from penstock.models import read_catalogue
from penstock.processors.geo.gdal import rasterio
from penstock.processors.geo.mlm import stac_mlm
from penstock.processors.geo.provenance import Provenance, Source
from penstock.processors.geo.raster import read_scene
from penstock.processors.geo.stac import stac_item
from tests.geo.documents import landsat, sentinel2
from tests.geo.scenes import NORTH_UP, Folder, make_model, pattern, segment, write_scene

Affine = rasterio.Affine
CORE = "https://schemas.stacspec.org/v1.1.0/item-spec/json-schema/item.json"
EXTENSIONS = "https://stac-extensions.github.io"
EVERYTHING = (
    "classes", "probability", "probability_float32", "confidence", "polygons", "preview", "stats", "item",
)  # fmt: skip
SINUSOIDAL = "+proj=sinu +lon_0=0 +x_0=0 +y_0=0 +R=6371007.181 +units=m +no_defs"


def problems(item: dict[str, Any]) -> list[str]:
    """Return what the core schemas have against an item."""
    schemas = {uri: {**schema, "$id": uri} for uri, schema in get_local_schema_cache().items()}
    registry = Registry().with_resources((uri, DRAFT7.create_resource(schema)) for uri, schema in schemas.items())
    validator = Draft7Validator(schemas[CORE], registry=registry, format_checker=FormatChecker())
    return [error.message for error in validator.iter_errors(item)]


def described(folder: Path, *, outputs: tuple[str, ...] = EVERYTHING, **request: Any) -> tuple[Folder, dict[str, Any]]:
    """Return the sink of a scene's results and their item."""
    place = request.pop("place", {"crs": "EPSG:32633", "transform": NORTH_UP})
    path = write_scene(folder / "s.tif", pattern(30, 40), **place)
    sink, _ = segment(path, folder / "out", outputs=outputs, **request)
    return sink, json.loads(sink.artifacts["item.json"].read_text())


def test_every_artifact_is_an_asset_with_its_type_size_and_hash(tmp_path: Path) -> None:
    sink, item = described(tmp_path)
    assert problems(item) == []
    assert set(item["assets"]) == set(sink.artifacts) - {"item.json", "model.json"}
    assert len(item["assets"]) == 9
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
    names = ["classification/v2.0.0", "file/v2.1.0", "processing/v1.2.0", "projection/v2.0.0", "raster/v2.0.0"]
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
        "value": 1, "name": "class-1", "title": "class 1", "color_hint": "ff0000",
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
        ({"crs": None, "transform": NORTH_UP}, None, "absent"),
        ({"crs": None, "transform": None}, None, "absent"),
    ],
    ids=["utm", "antimeridian", "pole", "no code", "no crs", "nothing"],
)
def test_geometry_and_bbox_lie_where_the_scene_lies(
    place: dict[str, Any], bounds: tuple[float, ...] | None, code: str | None, tmp_path: Path
) -> None:
    _, item = described(tmp_path, place=place, outputs=("classes", "item"))
    assert problems(item) == []
    assert item["properties"].get("proj:code", "absent") == code
    assert ("proj:wkt2" in item["properties"]) == (code is None)
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
    item = stac_item(make_model(), scene, Provenance((Source("media://01", None),), {"bands": []}), [])
    geometry = shapely.geometry.shape(item["geometry"])
    assert (geometry.geom_type, geometry.is_valid) == ("Polygon", True)
    assert item["bbox"] == pytest.approx(geometry.bounds, abs=1e-9)
    to_lonlat = Transformer.from_crs("EPSG:3413", "EPSG:4326", always_xy=True)
    columns, rows = np.meshgrid(np.linspace(0.5, 219.5, 220), np.linspace(0.5, 199.5, 200))
    lonlat = to_lonlat.transform(left + 30 * columns, top - 30 * rows)
    assert shapely.intersects_xy(geometry, *lonlat).all()


def test_without_a_time_of_the_request_the_sources_item_tells_it(tmp_path: Path) -> None:
    def taken(name: str, properties: dict[str, Any], **request: Any) -> str | None:
        (folder := tmp_path / name).mkdir()
        source = {"type": "Feature", "properties": properties, "assets": {"s": {"href": "s.tif"}}}
        (folder / "item.json").write_text(json.dumps(source))
        given = {"stac": str(folder / "item.json"), **request}
        time: str | None = described(folder, outputs=("item",), **given)[1]["properties"]["datetime"]
        return time

    known = {"datetime": "2021-05-04T10:20:30.123Z"}
    assert taken("known", known) == "2021-05-04T10:20:30.123000Z"
    assert taken("asked", known, datetime="2020-01-27T10:00:00Z") == "2020-01-27T10:00:00Z"
    for name, wrong in {"null": None, "words": "in May", "number": 5, "no zone": "2021-05-04T10:20:30"}.items():
        assert taken(name, {"datetime": wrong}) is None


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
        time: str | None = described(folder, outputs=("item",), **given, **request)[1]["properties"]["datetime"]
        return time

    product = landsat("L2SP", dict.fromkeys(range(1, 8), ("2.75e-05", "-0.2")))
    assert taken("sentinel", sentinel2()) == "2024-04-05T10:06:01.024000Z"
    assert taken("landsat", json.dumps(product)) == "2020-01-27T07:02:33.123456Z"
    assert taken("asked", sentinel2(), datetime="2020-01-27T10:00:00Z") == "2020-01-27T10:00:00Z"
    assert taken("in words", sentinel2(time="in May")) == "2021-05-04T10:20:30Z"
    del product["LANDSAT_METADATA_FILE"]["IMAGE_ATTRIBUTES"]["SCENE_CENTER_TIME"]
    assert taken("a day", json.dumps(product)) == "2021-05-04T10:20:30Z"


def test_the_time_is_the_requests_or_said_to_be_unknown(tmp_path: Path) -> None:
    _, item = described(tmp_path, outputs=("stats", "item"), datetime="2020-01-27T10:00:00+02:00")
    assert item["properties"]["datetime"] == "2020-01-27T08:00:00Z"
    (tmp_path / "unknown").mkdir()
    _, item = described(tmp_path / "unknown", outputs=("stats", "item"))
    assert item["properties"]["datetime"] is None
    assert item["properties"]["start_datetime"] == "1900-01-01T00:00:00Z"
    assert item["properties"]["end_datetime"] == "9999-12-31T23:59:59Z"


def test_links_lead_to_the_source_without_its_secrets_and_to_the_model(tmp_path: Path) -> None:
    model = make_model()
    scene = read_scene(write_scene(tmp_path / "s.tif", pattern(30, 40)), model.limits)
    signed = "https://a.example/b/c.tif?X-Amz-Signature=secret"
    sources = (Source(signed, "abc"), Source("s3://bucket/key.tif#etag=def", "def"), Source("media://01", None))
    item = stac_item(model, scene, Provenance(sources, {"bands": []}), [])
    found = [(link["rel"], link["href"], link.get("etag")) for link in item["links"]]
    assert found == [
        ("derived_from", "https://a.example/b/c.tif", "abc"),
        ("derived_from", "s3://bucket/key.tif", "def"),
        ("derived_from", "media://01", None),
        ("mlm:model", "./model.json", None),
    ]
    other = stac_item(model, scene, Provenance(sources[:1], {"bands": []}), [])
    assert item["id"] != other["id"]
    assert "secret" not in json.dumps(item)


def test_a_second_run_gives_the_same_item(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(30, 40))
    runs = [segment(path, tmp_path / name, outputs=("classes", "item"))[0] for name in ("one", "two")]
    for name in ("item.json", "model.json"):
        assert runs[0].artifacts[name].read_bytes() == runs[1].artifacts[name].read_bytes()


def test_the_shipped_model_as_an_mlm_item() -> None:
    item = stac_mlm(read_catalogue()["csmask"])
    assert problems(item) == []
    properties = item["properties"]
    assert f"{EXTENSIONS}/mlm/v1.4.0/schema.json" in item["stac_extensions"]
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
    assert weights["href"] == "package:ukis_csmask/model_6b.onnx"
    assert weights["roles"] == ["mlm:model", "mlm:weights"]
    assert weights["mlm:artifact_type"] == "onnx"
    assert weights["file:checksum"] == "1220abd33028e9e9218522778bbcbc627177c6451f795989c82414f37adb6f673a66"
    assert [band["name"] for band in weights["eo:bands"]] == given["bands"]


def test_models_of_several_dates_and_of_quantities_as_mlm_items() -> None:
    dates = stac_mlm(make_model(dates=3))
    assert dates["properties"]["mlm:input"][0]["input"]["shape"] == [-1, 3, -1, -1]
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
