"""Every STAC document of every kind of model, scene and output is valid, by the core schemas and all extensions'."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pystac
import pytest
from rasterio.control import GroundControlPoint

from penstock.catalogue.records import read_catalogue
from penstock.errors import ConfigError
from penstock.local.ready import ready_records
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.request import RegressionRequest, SegmentationRequest
from penstock.processors.geo.write.mlm import MAPPED, stac_mlm
from penstock.processors.geo.write.stac import ITEM_TYPE
from tests.geo.test_regression import HALO, HANN, estimate, value_model
from tests.support.geo.scenes import NORTH_UP, RPCS, Folder, make_model, pattern, segment, write_scene
from tests.support.geo.stac_schemas import problems

Affine = rasterio.Affine
TIME = "2020-01-27T10:00:00Z"
SINUSOIDAL = "+proj=sinu +lon_0=0 +x_0=0 +y_0=0 +R=6371007.181 +units=m +no_defs"
CLASS_OUTPUTS = (
    "classes",
    "probability",
    "probability_float32",
    "confidence",
    "polygons",
    "preview",
    "quicklook",
    "stats",
)
VALUE_OUTPUTS = ("values", "preview", "stats")
GCPS = [GroundControlPoint(r, c, 12 + c / 100, 47 - r / 90, 3) for r, c in [(0, 0), (0, 40), (30, 0), (30, 40)]]
PLACES: dict[str, dict[str, Any]] = {
    "utm": {"crs": "EPSG:32633", "transform": NORTH_UP},
    "rotated": {"crs": "EPSG:32633", "transform": Affine(17.3, 5.1, 500_100.7, 10.3, -8.66, 5_000_200.9)},
    "south-up": {"crs": "EPSG:4326", "transform": Affine(0.5, 0, -180, 0, 0.5, -90)},
    "antimeridian": {"crs": "EPSG:4326", "transform": Affine(0.1, 0, 178, 0, -0.1, 60)},
    "pole": {"crs": "EPSG:3413", "transform": Affine(1e5, 0, -2e6, 0, -1e5, 1.5e6)},
    "no code": {"crs": SINUSOIDAL, "transform": Affine(400, 0, 5e5, 0, -400, 5e6)},
    "no crs": {"crs": None, "transform": NORTH_UP},
    "nothing": {"crs": None, "transform": None},
    "gcps": {"crs": rasterio.CRS.from_epsg(4326), "gcps": GCPS, "transform": None},
    "rpcs": {"crs": None, "transform": None, "rpcs": RPCS},
    "rpcs on a grid": {"crs": "EPSG:32633", "transform": NORTH_UP, "rpcs": RPCS},
}


def place_scene(folder: Path, *, rpcs: Any = None, numbers: Any = None, **place: Any) -> Path:
    path = write_scene(folder / "s.tif", pattern(30, 40) if numbers is None else numbers, **place)
    if rpcs is not None:
        with without_georeference(), rasterio.open(path, "r+") as file:
            file.rpcs = rpcs
    return path


def check(sink: Folder, *, dated: bool = True) -> None:
    """Validate all STAC documents of a job; each link and asset of a relative address must be an artifact."""
    parsed = {name: json.loads(path.read_text()) for name, path in sink.artifacts.items() if "json" in path.suffix}
    documents = {name: document for name, document in parsed.items() if "stac_version" in document}
    assert set(documents) == {"model.json", *(["item.json"] if dated else [])}
    for name, document in documents.items():
        assert sink.types[name] == ITEM_TYPE
        assert problems(document) == [], name
        assert pystac.Item.from_dict(document).to_dict(include_self_link=False, transform_hrefs=False)
        for link in (*document["links"], *document["assets"].values()):
            assert link["href"].startswith("https://") or link["href"].removeprefix("./") in sink.artifacts


@pytest.mark.breadth(but=("utm", "antimeridian", "no crs", "nothing", "gcps", "rpcs"))
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_every_place(place: dict[str, Any], tmp_path: Path) -> None:
    scene = place_scene(tmp_path, **place)
    check(segment(scene, tmp_path / "classes", outputs=(*CLASS_OUTPUTS, "item"), datetime=TIME)[0])
    sink, _ = estimate(scene, tmp_path / "values", value_model(**HALO), outputs=(*VALUE_OUTPUTS, "item"), datetime=TIME)
    check(sink)


@pytest.mark.parametrize("output", [*CLASS_OUTPUTS, "item"])
def test_every_output_of_a_segmentation_alone(output: str, tmp_path: Path) -> None:
    outputs = tuple(dict.fromkeys((output, "item")))
    check(segment(place_scene(tmp_path), tmp_path / "out", outputs=outputs, datetime=TIME)[0])
    check(segment(place_scene(tmp_path), tmp_path / "undated", outputs=outputs)[0], dated=False)


def test_a_change_of_an_area(tmp_path: Path) -> None:
    scene = place_scene(tmp_path)
    change = {"before": {"scene": str(scene), "datetime": "2017-01-18T07:00:00Z"}, "of": ["class 1"]}
    area = {"bbox": [*(NORTH_UP @ (3, 25)), *(NORTH_UP @ (35, 4))], "crs": "EPSG:32633"}
    outputs = (*CLASS_OUTPUTS, "item")
    sink, _ = segment(scene, tmp_path / "out", outputs=outputs, datetime=TIME, change=change, area=area)
    check(sink)


@pytest.mark.breadth(every=2)
@pytest.mark.parametrize("output", [*VALUE_OUTPUTS, "item"])
@pytest.mark.parametrize("cut", [HALO, HANN], ids=["halo", "hann"])
def test_every_output_of_a_regression_alone(output: str, cut: dict[str, Any], tmp_path: Path) -> None:
    outputs = tuple(dict.fromkeys((output, "item")))
    model, scene = value_model(**cut), place_scene(tmp_path)
    check(estimate(scene, tmp_path / "out", model, outputs=outputs, datetime=TIME)[0])
    check(estimate(scene, tmp_path / "undated", model, outputs=outputs)[0], dated=False)


def test_the_outputs_are_all_there_are() -> None:
    for request, tested in ((SegmentationRequest, CLASS_OUTPUTS), (RegressionRequest, VALUE_OUTPUTS)):
        names = request.model_json_schema()["properties"]["outputs"]["items"]["enum"]
        assert set(names) - {"change"} == {*tested, "item"}  # a change needs two dates: test_change.py


def test_the_processors_are_all_of_scenes() -> None:
    processors = entry_points(group="penstock.io_processors")
    of_scenes = {entry.name for entry in processors if entry.value.startswith("penstock.processors.geo.")}
    without_item = {"raster-detection", "raster-embedding"}  # their requests name no output `item`
    assert of_scenes - without_item == {"raster-segmentation", "raster-regression"}


def test_a_scene_without_any_data(tmp_path: Path) -> None:
    scene = place_scene(tmp_path, numbers=np.zeros((1, 30, 40), np.uint8), nodata=0)
    check(segment(scene, tmp_path / "classes", outputs=(*CLASS_OUTPUTS, "item"), datetime=TIME)[0])
    sink, _ = estimate(scene, tmp_path / "values", value_model(**HALO), outputs=(*VALUE_OUTPUTS, "item"), datetime=TIME)
    check(sink)


@pytest.mark.breadth(but=("2020-03-01T10:00:00Z", "None"))
@pytest.mark.parametrize("other", ["2020-03-01T10:00:00Z", TIME, None])
def test_several_dates(other: str | None, tmp_path: Path) -> None:
    scene = str(place_scene(tmp_path))
    dates = [{"scene": scene, "datetime": TIME}, {"scene": scene, **({"datetime": other} if other else {})}]
    model = make_model(dates=2)
    sink, _ = segment(None, tmp_path / "out", model=model, outputs=(*CLASS_OUTPUTS, "item"), dates=dates)
    check(sink, dated=other is not None)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "m"},
        {"name": "4-bands"},
        {"name": "clouds_"},
        {"runner": "x"},
        {"runner": "fake-"},
        {"runner": "lightgbm", "source": "/srv/private/model.txt", "sha256": "0" * 64},
        {"runner": "terratorch", "source": "hf://ibm-nasa/Prithvi", "revision": "a b/c"},
        {"source": "/srv/private/v1.2", "weights_url": "https://a.example/weights/"},
        {"source": "s3://private/weights"},
        {"licence": ""},
        {"licence": "CC BY-NC 4.0 (data)"},
        {"licence": "CC-BY-4.0", "links": ("https://a.example", "https://doi.org/10.1/a"), "description": "  "},
    ],
    ids=str,
)
def test_every_kind_of_model_record(changes: dict[str, Any]) -> None:
    for base in (make_model(), make_model(dates=3), value_model()):
        item = stac_mlm(base.model_copy(update=changes))
        assert problems(item) == []
        assert ("model" in item["assets"]) == ("weights_url" in changes or changes.get("source", "").startswith("hf:"))
        assert "private" not in json.dumps(item)
        assert "nowhere" not in json.dumps(item)


def test_every_raster_model_of_the_catalogue_and_every_ready_record() -> None:
    models = (*read_catalogue().values(), *ready_records().values())
    found = [model for model in models if model.processor.startswith("raster-")]
    maps = [model for model in found if model.processor in MAPPED]
    assert {model.name for model in maps} >= {"csmask", "s2cloudless", "prithvi-floods"}
    for model in maps:
        assert problems(stac_mlm(model)) == [], model.name
    for model in found:
        if model not in maps:
            with pytest.raises(ConfigError, match=f"{model.name} makes no map"):
                stac_mlm(model)


def test_the_schemas_object_to_what_is_wrong(tmp_path: Path) -> None:
    outputs = ("classes", "probability", "item")
    sink, _ = segment(place_scene(tmp_path), tmp_path / "out", outputs=outputs, datetime=TIME)
    item, model = (json.loads(sink.artifacts[name].read_text()) for name in ("item.json", "model.json"))
    classes = item["assets"]["classes.tif"]["classification:classes"]

    def said(document: dict[str, Any], change: Any) -> list[str]:
        changed = json.loads(json.dumps(document))
        change(changed)
        return problems(changed)

    assert len(classes) == 5
    wrong: dict[str, Any] = {
        "classification": lambda i: i["assets"]["classes.tif"]["classification:classes"][0].pop("description"),
        "file": lambda i: i["assets"]["classes.tif"].update({"file:size": -1}),
        "processing": lambda i: i["properties"].update({"processing:software": "penstock"}),
        "projection": lambda i: i["properties"].update({"proj:shape": [1]}),
        "raster": lambda i: i["assets"]["probability.tif"].pop("raster:scale"),
    }
    for name, change in wrong.items():
        (problem,) = said(item, change)
        assert f"/{name}/" in problem
    (problem,) = said(model, lambda m: m["properties"]["mlm:output"][0]["classification:classes"][0].pop("description"))
    assert "/mlm/" in problem
    (problem,) = said(model, lambda m: m["stac_extensions"].append("https://stac-extensions.github.io/none/v1.0.0"))
    assert problem.startswith("no schema")
