"""Objects in scenes: a scene in tiles has the objects of the whole scene."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import shapely
import torch
import transformers
from PIL import Image
from pyproj import Transformer
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

from penstock.errors import ConfigError, InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import Output, Prompt, Result
from penstock.processors.geo.detection import RasterDetection
from penstock.processors.geo.read.gdal import pyogrio, rasterio
from penstock.processors.numbers import as_floats
from penstock.processors.testing import check_processor, check_request_module
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.geo.rectangles import Rectangles
from tests.support.geo.scenes import NORTH_UP, Files, Folder, make_model, segment, write_scene
from tests.support.pairs import a_model
from tests.support.vision import a_detr

NETWORK = Rectangles()
LARGEST_PX = 13


def object_model(**options: Any) -> Model:
    base = make_model(tile_px=48, overlap_px=LARGEST_PX + 5, labels=["boat", "ship"], **options)
    left_out = {"classes", "halo_px", "stride_px"} - options.keys()
    kept = {name: value for name, value in base.options.items() if name not in left_out}
    return base.model_copy(update={"processor": "raster-detection", "options": kept, "source": "/nowhere"})


def answers(prompts: Iterator[Prompt]) -> Iterator[Output]:
    for prompt in prompts:
        pixels = torch.from_numpy(as_floats(prompt).data["pixels"])[None]
        boxes, scores, labels = (tensor[0].numpy() for tensor in NETWORK(pixels))
        yield Output({"boxes": boxes, "scores": scores, "labels": labels})


def detect(
    scene: Path, folder: Path, model: Model | None = None, *, saved: dict[str, Path] | None = None, **request: Any
) -> tuple[Folder, Result]:
    processor, sink = RasterDetection(model or object_model()), Folder(folder)
    asked = processor.request(scene=str(scene), **{"threshold": 0.1, **request})
    prepared = processor.pre_process(asked, Files(saved))
    return sink, processor.post_process(answers(prepared.prompts), prepared.context, sink)


def features(sink: Folder) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(sink.artifacts["objects.geojson"].read_text())["features"]
    return found


def boxes_of(sink: Folder) -> list[tuple[int, ...]]:
    return sorted(tuple(map(int, one["properties"]["pixels"])) for one in features(sink))


def harbour(seed: int, height: int, width: int) -> tuple[npt.NDArray[np.uint8], list[tuple[int, ...]]]:
    """Return a scene (1, rows, columns) of rectangles that do not touch, and their boxes."""
    rng = np.random.default_rng(seed)
    numbers, boxes = np.full((1, height, width), 20, np.uint8), []
    for _ in range(60):
        top, left = (int(rng.integers(0, side)) for side in (height, width))
        bottom = min(top + int(rng.integers(1, LARGEST_PX + 1)), height)
        right = min(left + int(rng.integers(1, LARGEST_PX + 1)), width)
        if (numbers[0, max(0, top - 1) : bottom + 1, max(0, left - 1) : right + 1] == 20).all():
            numbers[0, top:bottom, left:right] = rng.integers(101, 250)
            boxes.append((left, top, right, bottom))
    return numbers, sorted(boxes)


@pytest.mark.breadth(every=2)
@pytest.mark.parametrize("shape", [(1, 1), (30, 30), (48, 49), (131, 97), (20, 170), (150, 20)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_every_object_is_found_once_and_whole(seed: int, shape: tuple[int, int], tmp_path: Path) -> None:
    numbers, boxes = harbour(seed, *shape)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    sink, result = detect(scene, tmp_path / "out")
    assert boxes_of(sink) == boxes
    assert result.data is not None
    assert result.data["objects"]["count"] == len(boxes)
    assert result.data["notes"] == []


@pytest.mark.parametrize("strip_bytes", [1, 100_000])
def test_panels_change_nothing(strip_bytes: int, tmp_path: Path) -> None:
    numbers, boxes = harbour(5, 140, 150)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    sink, _ = detect(scene, tmp_path / "out", object_model(strip_bytes=strip_bytes))
    assert boxes_of(sink) == boxes


def test_objects_on_fill_are_none_and_the_share_of_data_is_told(tmp_path: Path) -> None:
    numbers = np.full((1, 100, 100), 20, np.uint8)
    numbers[0, 10:20, 10:20] = 200
    numbers[0, 60:100, 60:100] = 250
    numbers[0, 15:20, 10:20] = 250  # nodata
    scene = write_scene(tmp_path / "scene.tif", numbers, nodata=250)
    model = object_model()
    sink, _ = detect(scene, tmp_path / "out", model)
    [found] = features(sink)
    assert found["properties"] == {
        "label_id": 1, "label": "ship", "score": 0.8, "pixels": [10, 10, 20, 15], "valid": 1,
    }  # fmt: skip


def test_the_objects_of_an_area_are_those_of_the_scene_with_their_centres_in_it(tmp_path: Path) -> None:
    numbers, boxes = harbour(7, 200, 190)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    shape = shapely.Polygon([(40.2, 60.3), (120.1, 50.4), (150.3, 130.2), (60.4, 140.1)])  # columns and rows
    ring = [list(NORTH_UP @ point) for point in shape.exterior.coords]
    area = {"geometry": {"type": "Polygon", "coordinates": [ring]}, "crs": "EPSG:32633"}
    sink, _ = detect(scene, tmp_path / "out", area=area)
    expected = [box for box in boxes if shape.contains(shapely.box(*box).centroid)]
    assert 3 < len(expected) < len(boxes)
    assert boxes_of(sink) == expected


def test_the_polygons_lie_on_the_objects(tmp_path: Path) -> None:
    numbers, _ = harbour(1, 120, 110)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    with rasterio.open(scene) as file:
        crs, transform = file.crs, file.transform
    in_utm, _ = detect(scene, tmp_path / "utm", crs="scene")
    in_degrees, _ = detect(scene, tmp_path / "degrees")
    meta, _, geometry, _ = pyogrio.raw.read(in_utm.artifacts["objects.geojson"])
    assert meta["crs"] == crs.to_string()
    to_utm = Transformer.from_crs("EPSG:4326", crs.to_wkt(), always_xy=True)
    for one, placed in zip(features(in_degrees), shapely.from_wkb(geometry), strict=True):
        left, top, right, bottom = one["properties"]["pixels"]
        corner, other = transform @ (left, top), transform @ (right, bottom)
        expected = shapely.box(*np.minimum(corner, other), *np.maximum(corner, other))
        assert placed.equals(expected)
        back = shapely.transform(
            shapely.geometry.shape(one["geometry"]), lambda xy: np.stack(to_utm.transform(*xy.T), 1)
        )
        assert back.symmetric_difference(expected).area < 1e-3 * expected.area
    assert "crs" not in json.loads(in_degrees.artifacts["objects.geojson"].read_text()), "RFC 7946 has none"


@pytest.mark.breadth(but=("OGC:CRS84-wgs84", "EPSG:3857-None"))
@pytest.mark.parametrize(
    ("crs", "same"), [("EPSG:4326", "wgs84"), ("OGC:CRS84", "wgs84"), ("EPSG:32633", "scene"), ("EPSG:3857", None)]
)
def test_the_crs_of_objects_may_be_a_code(crs: str, same: str | None, tmp_path: Path) -> None:
    numbers, _ = harbour(1, 120, 110)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    coded, _ = detect(scene, tmp_path / "coded", crs=crs)
    named, _ = detect(scene, tmp_path / "named", crs=same or "scene")
    made, expected = (pyogrio.raw.read(sink.artifacts["objects.geojson"]) for sink in (coded, named))
    if same is None:
        assert made[0]["crs"] == crs
        move = Transformer.from_crs(expected[0]["crs"], crs, always_xy=True)
        moved = shapely.transform(shapely.from_wkb(expected[2]), lambda xy: np.stack(move.transform(*xy.T), 1))
        assert shapely.equals_exact(shapely.from_wkb(made[2]), moved, 1e-3).all()
    else:
        assert made[0]["crs"] == expected[0]["crs"]
        assert shapely.equals_exact(shapely.from_wkb(made[2]), shapely.from_wkb(expected[2]), 1e-6).all()
    assert len(made[2]) > 0
    with pytest.raises(InvalidInput, match="There is no CRS 'EPSG:1'") as caught:
        detect(scene, tmp_path / "none", crs="EPSG:1")
    assert caught.value.errors[0].pointer == "/input/crs"


def test_a_scene_without_data_says_so(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", np.zeros((1, 60, 60), np.uint8), nodata=0)
    _, result = detect(scene, tmp_path / "out")
    assert result.data is not None
    assert result.data["notes"] == ["No pixel of the scene has data, so the result is empty."]
    (tmp_path / "map").mkdir()
    _, result = segment(scene, tmp_path / "map" / "out")
    assert result.data is not None
    assert "No pixel of the scene has data, so the result is empty." in result.data["notes"]


def test_objects_of_a_scene_without_a_place_have_no_geometry(tmp_path: Path) -> None:
    numbers, boxes = harbour(1, 60, 60)
    scene = write_scene(tmp_path / "scene.tif", numbers, crs=None, transform=None)
    for crs in ("wgs84", "scene", "EPSG:3857"):
        sink, result = detect(scene, tmp_path / crs, crs=crs)
        assert boxes_of(sink) == boxes
        assert {str(one["geometry"]) for one in features(sink)} == {"None"}
        assert result.data is not None
        assert "no geometry: the scene has no" in result.data["notes"][-1]


def test_an_object_that_every_tile_cuts_is_told_and_not_halved(tmp_path: Path) -> None:
    numbers = np.full((1, 60, 200), 20, np.uint8)
    numbers[0, 10:20, 10:190] = 200
    scene = write_scene(tmp_path / "scene.tif", numbers)
    sink, result = detect(scene, tmp_path / "out")
    assert boxes_of(sink) == []
    assert result.data is not None
    assert result.data["notes"][0].startswith("1 object(s) are left out, because every tile cuts them")


@pytest.mark.parametrize("area", [False, True])
def test_a_later_attempt_goes_on_after_any_strip_and_makes_the_same_bytes(area: bool, tmp_path: Path) -> None:
    numbers, _ = harbour(3, 200, 120)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    (left, top), (right, bottom) = NORTH_UP @ (20, 70), NORTH_UP @ (110, 150)
    request = {"area": {"bbox": [left, bottom, right, top], "crs": "EPSG:32633"}} if area else {}
    first, _ = detect(scene, tmp_path / "first", **request)
    assert len(first.saved) > 1
    saved = {}
    for number, (name, content) in enumerate(first.saved.items()):
        path = tmp_path / f"saved-{number}"
        path.write_bytes(content)
        saved[name] = path
    for number in range(1, len(saved) + 1):
        some = dict(list(saved.items())[:number])
        again, _ = detect(scene, tmp_path / f"again-{number}", saved=some, **request)
        assert len(again.saved) == len(saved) - number, "restored strips are not computed again"
        for name, path in first.artifacts.items():
            assert again.artifacts[name].read_bytes() == path.read_bytes()
    other, _ = detect(scene, tmp_path / "other", saved=saved, threshold=0.7, **request)
    assert len(other.saved) == len(saved), "strips of another threshold are of no use"


def test_the_preview_has_the_boxes_on_the_objects(tmp_path: Path) -> None:
    numbers = np.full((1, 300, 300), 20, np.uint8)
    numbers[0, 40:53, 60:73] = 200
    upright = rasterio.Affine(30, 0, 500_000, 0, 30, 4_000_000)  # the first row is the southernmost
    for name, transform, row in (("north", NORTH_UP, 46), ("south", upright, 300 - 46)):
        scene = write_scene(tmp_path / f"{name}.tif", numbers, transform=transform)
        sink, _ = detect(scene, tmp_path / name)
        pixels = np.asarray(Image.open(sink.artifacts["preview.png"]))
        painted = np.ptp(pixels[row].astype(int), axis=1) > 0  # a colour: the scene is grey
        assert set(np.flatnonzero(painted)) <= {59, 60, 61, 72, 73, 74}
        assert painted.sum() >= 2


def test_cxcywh_shares_and_scores_of_classes(tmp_path: Path) -> None:
    numbers, boxes = harbour(2, 100, 100)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    model = object_model(detector="scores", box_format="cxcywh", box_unit="shares")
    processor, sink = RasterDetection(model), Folder(tmp_path / "out")
    prepared = processor.pre_process(processor.request(scene=str(scene), threshold=0.1), Files())

    def changed(outputs: Iterator[Output]) -> Iterator[Output]:
        for output in outputs:
            edges, scores = output.data["boxes"], output.data["scores"]
            centre, size = (edges[:, :2] + edges[:, 2:]) / 2, edges[:, 2:] - edges[:, :2]
            of_class = np.eye(2)[output.data["labels"]] * scores[:, None]
            yield Output({"boxes": np.hstack([centre, size]) / 48, "scores": of_class})

    processor.post_process(changed(answers(prepared.prompts)), prepared.context, sink)
    found = sorted(tuple(np.rint(one["properties"]["pixels"]).astype(int).tolist()) for one in features(sink))
    assert found == boxes


@pytest.mark.parametrize(("data", "problem"), [
    ({"boxes": np.zeros((2, 4))}, "lacks scores, labels"),
    ({"boxes": np.zeros((2, 5)), "scores": np.zeros(2), "labels": np.zeros(2)}, r"answered boxes \(2, 5\)"),
    ({"boxes": np.zeros((2, 4)), "scores": np.zeros(3), "labels": np.zeros(2)}, r"scores \(3,\)"),
    ({"boxes": np.full((2, 4), np.nan), "scores": np.ones(2), "labels": np.zeros(2)}, "no finite numbers"),
])  # fmt: skip
def test_outputs_that_are_no_boxes_are_refused(data: dict[str, Any], problem: str, tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", np.full((1, 30, 30), 20, np.uint8))
    processor = RasterDetection(object_model())
    prepared = processor.pre_process(processor.request(scene=str(scene)), Files())
    outputs = (Output(data) for _ in prepared.prompts)
    with pytest.raises(ProcessorFailed, match=problem):
        processor.post_process(outputs, prepared.context, Folder(tmp_path / "out"))


@pytest.mark.parametrize(("options", "problem"), [
    ({"overlap_px": 44}, "less than tile_px"), ({"halo_px": 8}, "halo_px"), ({"box_format": "yolo"}, "box_format"),
])  # fmt: skip
def test_options_that_cannot_be_are_refused(options: dict[str, Any], problem: str) -> None:
    model = object_model()
    with pytest.raises(ConfigError, match=problem):
        RasterDetection(model.model_copy(update={"options": {**model.options, **options}}))


def test_a_detector_of_queries_needs_a_known_kind(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "ViTImageProcessor"}')
    model = object_model(detector="queries").model_copy(update={"source": str(tmp_path)})
    with pytest.raises(ModelUnavailable, match="image processors of the kind 'ViT' are not supported"):
        RasterDetection(model)


def test_too_many_boxes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.processors.geo.write.object_outputs._MOST", 3)
    scene = write_scene(tmp_path / "scene.tif", harbour(1, 120, 110)[0])
    with pytest.raises(InvalidInput, match="a higher `threshold`, or an `area`"):
        detect(scene, tmp_path / "out")


@pytest.mark.breadth
def test_an_exported_program_finds_the_same(tmp_path: Path) -> None:
    numbers, boxes = harbour(4, 70, 100)
    scene = write_scene(tmp_path / "scene.tif", np.repeat(numbers, 3, axis=0))
    model = a_model("torch", "raster-detection", tmp_path / "model")
    plain = [{"name": name, "mean": 0.0, "std": 1.0} for name in ("red", "green", "blue")]
    of_numbers = [{"dtypes": ["uint8"], "scale": 1.0}]
    options = {**model.options, "bands": plain, "tile_px": 48, "overlap_px": 18, "default_radiometry": of_numbers}
    model = model.model_copy(update={"options": options})
    processor, sink = RasterDetection(model), Folder(tmp_path / "out")
    prepared = processor.pre_process(processor.request(scene=str(scene), threshold=0.1), Files())
    with closing(BatchingEngine(Runners.installed())) as engine:
        outputs = engine.run(model, prepared.prompts, check=lambda: None)
        processor.post_process(outputs, prepared.context, sink)
    assert boxes_of(sink) == boxes


def test_the_processor_keeps_the_contract(tmp_path: Path) -> None:
    model = object_model().model_copy(update={"limits": Limits(max_pixels=100_000)})
    files = {
        "media://1": write_scene(tmp_path / "1.tif", harbour(1, 211, 99)[0]),
        "media://2": write_scene(tmp_path / "2.tif", harbour(2, 90, 150)[0], nodata=3),
    }
    done = check_processor(
        RasterDetection(model),
        {"scene": "media://1", "threshold": 0.1},
        files,
        engine=answers,
        other={"scene": "media://2", "outputs": ["objects"], "threshold": 0.1},
        limits=model.limits,
        count_is_a_bound=True,
    )
    assert set(done.artifacts) == {"objects.geojson", "preview.png", "stats.json"}
    assert done.saved
    check_request_module(RasterDetection(model))


def test_a_detector_of_transformers_finds_what_the_library_finds_in_a_tile(tmp_path: Path) -> None:
    source = a_detr(tmp_path / "model")
    mean, std = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # ImageNet's, of bytes
    bands = [{"name": str(at), "mean": mean[at], "std": std[at]} for at in range(3)]
    of_transformers = {"runner": "transformers", "source": str(source), "device": "cpu"}
    model = object_model(bands=bands).model_copy(update=of_transformers)
    options = {name: value for name, value in model.options.items() if name != "labels"}
    model = model.model_copy(update={"options": {**options, "tile_px": 96}})
    numbers = np.random.default_rng(0).integers(1, 255, (3, 96, 96)).astype(np.uint8)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    processor, sink = RasterDetection(model), Folder(tmp_path / "out")
    request = processor.request(scene=str(scene), threshold=0.2, iou=1, bands=[1, 2, 3])
    prepared = processor.pre_process(request, Files())
    with closing(BatchingEngine(Runners.installed())) as engine:
        outputs = engine.run(model, prepared.prompts, check=lambda: None)
        processor.post_process(outputs, prepared.context, sink)
    theirs = DetrImageProcessorPil(size={"height": 96, "width": 96})
    network = transformers.DetrForObjectDetection.from_pretrained(source).eval()
    with torch.inference_mode():
        answer = network(**theirs(Image.fromarray(numbers.transpose(1, 2, 0)), return_tensors="pt"))
    [expected] = theirs.post_process_object_detection(answer, threshold=0.2, target_sizes=[(96, 96)])
    found = [one["properties"] for one in features(sink)]
    assert len(found) > 1
    best_first = expected["scores"].argsort(descending=True)
    assert [one["label_id"] for one in found] == expected["labels"][best_first].tolist()
    assert [one["score"] for one in found] == pytest.approx(expected["scores"][best_first].tolist(), abs=1e-4)
    clipped = expected["boxes"][best_first].clamp(0, 96).numpy()
    np.testing.assert_allclose([one["pixels"] for one in found], clipped, atol=0.05)


def test_workers_share_a_scene_and_the_bytes_stay_the_same(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", harbour(3, 300, 120)[0])
    alone, _ = detect(scene, tmp_path / "alone")
    processor = RasterDetection(object_model())
    request = processor.request(scene=str(scene), threshold=0.1)
    division = processor.pre_process(request, Files()).division
    assert division is not None
    units, saved = [number for number, _, _ in division.units], {}
    for first, last in ((units[0], units[2]), (units[3], units[-1])):
        part, sink = processor.pre_process_part(request, Files(), first, last), Folder(tmp_path / f"part-{first}")
        processor.post_process(answers(part.prompts), part.context, sink)
        assert not sink.artifacts
        for name, content in sink.saved.items():
            saved[name] = tmp_path / f"saved-{len(saved)}"
            saved[name].write_bytes(content)
    assert len(saved) == len(units)
    joined, _ = detect(scene, tmp_path / "joined", saved=saved)
    assert not joined.saved
    for name, path in alone.artifacts.items():
        assert joined.artifacts[name].read_bytes() == path.read_bytes()
