"""Objects found by words and masks made by points: each model type against the library's own processor."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
import torch
import transformers
from jsonschema import Draft202012Validator
from PIL import Image
from pydantic import BaseModel, ValidationError
from transformers.models.sam.image_processing_pil_sam import _mask_to_rle

from penstock.errors import InvalidInput, InvalidRequest, ModelUnavailable, ProcessorFailed
from penstock.intake.media import LocalMedia
from penstock.intake.submissions import check_input
from penstock.models import CatalogueEntry, Model
from penstock.processors.base import Prompt
from penstock.processors.geo.area_request import AreaRequest
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.sample import write_sample
from penstock.processors.open_vocabulary.masks import MaskGeneration, read_masker, run_lengths
from penstock.processors.open_vocabulary.request import (
    PointedObject,
    SceneMaskRequest,
    SceneObject,
    WordDetectionRequest,
)
from penstock.processors.open_vocabulary.scene_masks import RasterMaskGeneration
from penstock.processors.registry import Registry
from penstock.processors.testing import Finished, FolderSink, LocalFiles, check_processor
from penstock.workers.compatibility import checked_entry
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Work
from tests.support import vision
from tests.support.geo.scenes import write_scene
from tests.support.hub import a_model, finish, load
from tests.support.prompted import DETECTORS, MASKERS

LABELS = ["a cat", "Old Dog", "tree"]
OBJECTS = [
    {"points": [[30, 40]]},
    {"points": [[100, 60]]},
    {"box": [20, 30, 90, 100]},
    {"points": [[50, 50], [10, 10]], "labels": [1, 0], "box": [20, 30, 90, 100]},
]
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def directory(kind: str) -> Path:
        if kind not in made:
            made[kind] = {**DETECTORS, **MASKERS}[kind](tmp_path_factory.mktemp("model") / kind)
        return made[kind]

    return directory


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    write_sample(folder / "scene.tif", size_px=192)
    return {
        "media://a": vision.a_picture(folder / "a.png", rotated=True),
        "media://b": vision.a_picture(folder / "b.png", size=(150, 130)),
        "media://scene": folder / "scene.tif",
    }


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def run(
    model: Model, engine: BatchingEngine, files: Mapping[str, Path], request: Mapping[str, Any], other: dict[str, Any]
) -> Finished:
    return check_processor(
        Registry.imported().processor_for(model),
        request,
        files,
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        other={**request, **other},
        limits=model.limits,
    )


def image_of(done: Finished, name: str) -> Any:
    return np.asarray(Image.open(io.BytesIO(done.artifacts[name][1])))


@torch.inference_mode()
def library_objects(directory: Path, picture: Image.Image, threshold: float | None) -> Any:
    processor = transformers.AutoProcessor.from_pretrained(directory)
    network = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(directory).eval()
    inputs = processor(images=picture, text=[LABELS], return_tensors="pt")
    options: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
    if "grounding" in str(directory):
        options["input_ids"] = inputs["input_ids"]
    [found] = processor.post_process_grounded_object_detection(
        network(**inputs), target_sizes=[picture.size[::-1]], text_labels=[LABELS], **options
    )
    return found


@pytest.mark.breadth(but=("grounding-dino",))
@pytest.mark.parametrize("kind", DETECTORS)
def test_objects_by_words_are_those_of_the_library(
    kind: str, directories: Callable[[str], Path], files: dict[str, Path], engine: BatchingEngine
) -> None:
    model = a_model(directories(kind), processor="zero-shot-object-detection", max_batch=1)
    for threshold in (0.0, 0.01) if kind == "mm-grounding-dino" else (None, 0.4):  # its scores begin low
        expected = library_objects(directories(kind), vision.as_seen(files["media://a"]), threshold)
        order = np.argsort(-expected["scores"].numpy(), kind="stable")
        assert len(order) > 2
        request = {"image": "media://a", "labels": LABELS}
        done = run(
            model, engine, files, request if threshold is None else {**request, "threshold": threshold},
            {"image": "media://b", "labels": ["grey sky"]},
        )  # fmt: skip
        assert done.result.data is not None
        found = done.result.data["objects"]
        assert [one["label"] for one in found] == [expected["text_labels"][at] for at in order]
        np.testing.assert_allclose([one["score"] for one in found], expected["scores"].numpy()[order], atol=1e-5)
        boxes = [list(one["box"].values()) for one in found]
        np.testing.assert_allclose(boxes, expected["boxes"].numpy()[order], atol=0.02)
        assert image_of(done, "annotated.png").shape == (180, 120, 3)
        assert json.loads(done.artifacts["boxes.json"][1]) == done.result.data
        named = [one for one in found if one["label"] in LABELS]
        assert all(LABELS[one["label_id"]] == one["label"] for one in named)


@pytest.mark.breadth
@pytest.mark.parametrize("kind", ["owlvit", "grounding-dino"])
def test_an_image_without_the_objects_has_none(
    kind: str, directories: Callable[[str], Path], files: dict[str, Path], engine: BatchingEngine
) -> None:
    model = a_model(directories(kind), processor="zero-shot-object-detection", max_batch=1)
    request = {"image": "media://b", "labels": LABELS, "threshold": 1.0}
    done = run(model, engine, files, request, {"threshold": 0.99999})
    assert done.result.data == {"width": 150, "height": 130, "objects": []}


@torch.inference_mode()
def library_masks(directory: Path, picture: Image.Image, one: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the masks (masks, height, width) and the scores of one object."""
    processor = transformers.AutoProcessor.from_pretrained(directory)
    network = transformers.AutoModelForMaskGeneration.from_pretrained(directory).eval()
    points = one.get("points")
    inputs = processor(
        picture, return_tensors="pt",
        input_points=[[points]] if points else None,
        input_labels=[[one.get("labels", [1] * len(points))]] if points else None,
        input_boxes=[[one["box"]]] if "box" in one else None,
    )  # fmt: skip
    outputs = network(**inputs)
    [masks] = processor.image_processor.post_process_masks(
        outputs.pred_masks, inputs["original_sizes"], inputs["reshaped_input_sizes"]
    )
    return masks[0].numpy(), outputs.iou_scores[0, 0].numpy()


@pytest.mark.parametrize("kind", ["sam", pytest.param("sam_hq", marks=pytest.mark.breadth)])
def test_masks_by_points_and_boxes_are_those_of_the_library(
    kind: str, directories: Callable[[str], Path], files: dict[str, Path], engine: BatchingEngine
) -> None:
    model = a_model(directories(kind), processor="mask-generation", max_batch=1)
    outputs = ["mask", "masks", "overlay", "objects"]
    request = {"image": "media://a", "objects": OBJECTS, "keep": "all", "outputs": outputs}
    every = run(model, engine, files, request, {"image": "media://b", "objects": OBJECTS[2:]})
    best = run(model, engine, files, {**request, "keep": "best"}, {"image": "media://b", "objects": OBJECTS[:1]})
    picture = vision.as_seen(files["media://a"])
    expected = [library_masks(directories(kind), picture, one) for one in OBJECTS]
    masks = [mask for theirs, _ in expected for mask in theirs]
    scores = [score for _, theirs in expected for score in theirs]
    assert len({mask.tobytes() for mask in masks}) > len(OBJECTS), "the masks differ"
    assert every.result.data is not None
    assert best.result.data is not None
    entries = every.result.data["masks"]
    np.testing.assert_allclose([one["score"] for one in entries], scores, atol=1e-5)
    for number, (mask, one) in enumerate(zip(masks, entries, strict=True), start=1):
        assert ((image_of(every, f"mask-{number}.png") == 255) != mask).sum() <= 2, "rounding at an edge at most"
        assert abs(one["pixels"] - mask.sum()) <= 2
    told = json.loads(every.artifacts["masks.json"][1])["masks"]
    assert [{name: value for name, value in one.items() if name != "rle"} for one in told] == entries
    assert [sum(one["rle"]["counts"][1::2]) for one in told] == [one["pixels"] for one in entries]
    chosen = [int(theirs.argmax()) for _, theirs in expected]
    for number, (at, (theirs, _)) in enumerate(zip(chosen, expected, strict=True), start=1):
        assert ((image_of(best, f"mask-{number}.png") == 255) != theirs[at]).sum() <= 2
    ids, top = image_of(best, "mask.png"), max(best.result.data["masks"], key=lambda one: one["score"])
    assert (ids == top["id"]).sum() == top["pixels"], "the mask with the highest score lies above"
    assert image_of(best, "overlay.png").shape == (*ids.shape, 3)


def test_prompts_of_one_form_share_a_pass_and_name_what_they_want(directories: Callable[[str], Path]) -> None:
    masker = read_masker(a_model(directories("sam"), processor="mask-generation"))
    picture = np.random.default_rng(2).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    objects = [PointedObject(points=[[x, 20]]) for x in (5, 50)]
    prompts = [masker.prompts(picture, [one])[0][0] for one in objects]
    with closing(load(directories("sam"), processor="mask-generation")) as runner:
        assert runner.bucket(prompts[0]) == runner.bucket(prompts[1])
        for together, prompt in zip(finish(runner, *prompts), prompts, strict=True):
            [alone] = finish(runner, prompt)
            for name, array in alone.data.items():
                np.testing.assert_allclose(together.data[name], array, atol=1e-4)
        wrong = {name: value for name, value in prompts[0].data.items() if name != "outputs"}
        with pytest.raises(ProcessorFailed, match="in the list `outputs`"):
            runner.admit(Prompt(wrong))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_run_lengths_are_those_of_the_library(share: float) -> None:
    mask = np.random.default_rng(4).random((7, 5)) < share
    assert [run_lengths(mask)] == _mask_to_rle(torch.from_numpy(mask)[None])


def test_a_box_tells_the_pixels_of_its_mask(directories: Callable[[str], Path], files: dict[str, Path]) -> None:
    model = a_model(directories("sam"), processor="mask-generation", max_batch=1)
    with closing(BatchingEngine(Runners.installed())) as engine:
        done = run(model, engine, files, {"image": "media://a", "objects": OBJECTS[:1]}, {"image": "media://b"})
    assert done.result.data is not None
    [one] = done.result.data["masks"]
    rows, columns = np.nonzero(image_of(done, "mask.png"))
    assert list(one["box"].values()) == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


@pytest.mark.skipif(transformers.utils.is_torchvision_available(), reason="torchvision is installed")
@pytest.mark.parametrize(
    ("model_type", "processor"),
    [("omdet-turbo", "zero-shot-object-detection"), ("sam2", "mask-generation"), ("edgetam", "mask-generation"),
     ("sam3_tracker", "mask-generation"), ("sam2", "raster-mask-generation")],
)  # fmt: skip
def test_a_type_that_needs_torchvision_is_refused_when_it_is_checked(
    model_type: str, processor: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    found = checked_entry(Registry.installed(), Runners.installed(), a_model(tmp_path, processor=processor))
    assert "torchvision" in (found.problem or "")
    assert "pip install torchvision" in (found.problem or "")


@pytest.mark.parametrize(
    ("model_type", "processor"), [("omdet-turbo", "zero-shot-object-detection"), ("sam2", "mask-generation")]
)
def test_a_type_that_nobody_tried_is_refused_where_torchvision_is_installed_too(
    model_type: str, processor: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(
        ModelUnavailable, match=rf"model_type '{model_type}' was not seen to answer .* only torchvision"
    ):
        Runners.installed().check(a_model(tmp_path, processor=processor))


def test_a_processor_of_another_kind_is_refused(directories: Callable[[str], Path]) -> None:
    for kind, processor in (("sam", "zero-shot-object-detection"), ("owlvit", "mask-generation")):
        found = checked_entry(
            Registry.installed(), Runners.installed(), a_model(directories(kind), processor=processor)
        )
        assert "finds no objects by words" in (found.problem or "") or "makes no masks" in (found.problem or "")


@pytest.mark.parametrize(
    ("kind", "labels", "sentence"),
    [
        ("owlvit", ["cat", "a " * 20], "label 1 has 22 tokens; this model accepts at most 8"),
        ("grounding-dino", ["a cat"] * 20, "the labels have 62 tokens; this model accepts at most 24"),
    ],
)
def test_labels_that_are_too_long_are_refused(
    kind: str, labels: list[str], sentence: str, directories: Callable[[str], Path], files: dict[str, Path]
) -> None:
    processor = Registry.imported().processor_for(a_model(directories(kind), processor="zero-shot-object-detection"))
    request = processor.request.model_validate({"image": "media://a", "labels": labels})
    with pytest.raises(InvalidInput, match=sentence):
        processor.pre_process(request, LocalFiles(files))


@pytest.mark.parametrize(
    ("objects", "sentence"),
    [
        ([{"points": [[1, 1]], "labels": [1, 0]}], "one label for each point"),
        ([{}], "needs points or a box"),
        ([{"box": [9, 9, 1, 1]}], "the lowest x and y first"),
    ],
)
def test_an_object_that_is_none_is_no_request(objects: list[Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MaskGeneration.request.model_validate({"image": "media://a", "objects": objects})


@pytest.mark.breadth
def test_a_box_that_extends_beyond_the_image_is_cut_to_it(
    directories: Callable[[str], Path], files: dict[str, Path], engine: BatchingEngine
) -> None:
    far = 1e300
    boxes = [[-far, -far, far, far], [0, 0, 120, 180]]
    beyond, whole = (
        run(
            a_model(directories("sam"), processor="mask-generation"),
            engine,
            files,
            {"image": "media://a", "objects": [{"box": box}]},
            {"image": "media://b", "objects": [{"points": [[1, 1]]}]},
        )
        for box in boxes
    )
    assert beyond.result.data == whole.result.data
    np.testing.assert_array_equal(image_of(beyond, "overlay.png"), image_of(whole, "overlay.png"))


def test_a_point_outside_the_image_is_refused_by_its_place(
    directories: Callable[[str], Path], files: dict[str, Path]
) -> None:
    processor = MaskGeneration(a_model(directories("sam"), processor="mask-generation"))
    request = processor.request.model_validate({"image": "media://a", "objects": [*OBJECTS, {"points": [[121, 5]]}]})
    with pytest.raises(InvalidInput, match="object 4 lies outside the image of 120 x 180 pixels") as caught:
        processor.pre_process(request, LocalFiles(files))
    assert [issue.pointer for issue in caught.value.errors] == ["/input/objects/4"]


@pytest.mark.breadth
@pytest.mark.parametrize(
    ("kind", "name", "request_"),
    [
        ("owlv2", "zero-shot-object-detection", {"image": "media://a", "labels": LABELS}),
        ("sam", "mask-generation", {"image": "media://a", "objects": OBJECTS}),
    ],
)
def test_a_job_goes_through_an_io_process(
    kind: str, name: str, request_: dict[str, Any], directories: Callable[[str], Path], tmp_path: Path,
    engine: BatchingEngine,
) -> None:  # fmt: skip
    """The library decodes in a fork, also pictures that are large enough for several threads."""
    model = a_model(directories(kind), processor=name)
    picture = vision.a_picture(tmp_path / "a.png", size=(1500, 1200))
    work = Work(model, request_, {"media://a": LocalMedia(picture)}, tmp_path / "artifacts", tenant="one")
    with (
        closing(IOPool(1, ForkOptions(4096 * 2**20))) as pool,
        pool.open(work, check=lambda: None, say=lambda _: None) as session,
    ):
        done = session.finish(engine.run(model, session.prepared.prompts, check=lambda: None))
    processor = Registry.imported().processor_for(model)
    prepared = processor.pre_process(processor.request.model_validate(request_), LocalFiles({"media://a": picture}))
    sink = FolderSink(tmp_path)
    outputs = engine.run(model, prepared.prompts, check=lambda: None)
    assert done.result == processor.post_process(outputs, prepared.context, sink)
    assert set(done.files) == set(sink.artifacts)


def on_the_scene(path: Path, columns: list[float], rows: list[float]) -> list[list[float]]:
    """Return pixels of a scene in its CRS."""
    with rasterio.open(path) as dataset:
        return [list(dataset.transform @ place) for place in zip(columns, rows, strict=True)]


def test_masks_of_a_scene_lie_on_its_grid(
    directories: Callable[[str], Path], files: dict[str, Path], engine: BatchingEngine
) -> None:
    model = a_model(directories("sam"), processor="raster-mask-generation", max_batch=1)
    path = files["media://scene"]
    [a, b, low, high] = on_the_scene(path, [100.5, 90.5, 80, 120], [60.5, 70.5, 90, 50])
    objects = [{"points": [a]}, {"points": [b], "box": [low[0], low[1], high[0], high[1]]}]
    request = {"scene": "media://scene", "objects": objects, "crs": "EPSG:32633", "bands": [3, 2, 1], "window_px": 80}
    done = run(model, engine, files, request, {"window_px": 100})
    assert done.result.data is not None
    window = {"rows": [30, 110], "columns": [60, 140]}
    assert (done.result.data["window"], done.result.data["network_px"]) == (window, 64)
    with (
        rasterio.MemoryFile(done.artifacts["mask.tif"][1]) as file,
        file.open() as dataset,
        rasterio.open(path) as scene,
    ):
        ids, inner = dataset.read(1), dataset.transform
        assert (dataset.crs, inner @ (0, 0)) == (scene.crs, scene.transform @ (60, 30))
        numbers = scene.read([3, 2, 1], window=((30, 110), (60, 140)))
    low_, high_ = done.result.data["range"]
    shown = np.rint(np.clip((numbers - low_) / (high_ - low_), 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    expected = []
    for one in ({"points": [[40.5, 30.5]]}, {"points": [[30.5, 40.5]], "box": [20, 20, 60, 60]}):
        masks, scores = library_masks(directories("sam"), Image.fromarray(shown), one)
        expected.append((masks[scores.argmax()], float(scores.max())))
    told = done.result.data["objects"]
    np.testing.assert_allclose([one["score"] for one in told], [score for _, score in expected], atol=1e-3)
    top = max((0, 1), key=lambda at: expected[at][1])
    assert ((ids == top + 1) != expected[top][0]).mean() < 0.01, "floats of the window are rounded in another order"
    features = json.loads(done.artifacts["masks.geojson"][1])["features"]
    assert [one["properties"] for one in features] == told
    for one in features:
        shape = shapely.geometry.shape(one["geometry"])
        assert shape.is_valid
        placed = rasterio.warp.transform_geom("EPSG:4326", "EPSG:32633", one["geometry"])
        assert shapely.geometry.shape(placed).area / 900 == pytest.approx(one["properties"]["pixels"], rel=1e-3)


@pytest.mark.breadth
def test_objects_of_a_scene_may_be_given_in_longitude_and_latitude(
    directories: Callable[[str], Path], files: dict[str, Path], engine: BatchingEngine
) -> None:
    model = a_model(directories("sam"), processor="raster-mask-generation", max_batch=1)
    places = on_the_scene(files["media://scene"], [100, 120], [60, 70])
    [[x], [y]] = rasterio.warp.transform("EPSG:32633", "EPSG:4326", [places[0][0]], [places[0][1]])
    base = {"scene": "media://scene", "bands": [3, 2, 1]}
    there = {**base, "objects": [{"points": [places[0]]}], "crs": "EPSG:32633"}
    here = {**base, "objects": [{"points": [[x, y]]}]}
    results = [run(model, engine, files, request, {"window_px": 96}).result.data for request in (there, here)]
    assert results[0] is not None
    assert results[1] is not None
    assert results[0]["window"] == results[1]["window"] == {"rows": [28, 92], "columns": [68, 132]}
    [one], [other] = results[0]["objects"], results[1]["objects"]
    assert one["score"] == pytest.approx(other["score"], abs=1e-4)
    assert one["pixels"] == pytest.approx(other["pixels"], abs=2)


def test_words_for_a_crs_are_those_of_detection(directories: Callable[[str], Path], files: dict[str, Path]) -> None:
    processor = RasterMaskGeneration(a_model(directories("sam"), processor="raster-mask-generation"))
    path = files["media://scene"]
    places = on_the_scene(path, [100], [60])
    [[x], [y]] = rasterio.warp.transform("EPSG:32633", "EPSG:4326", [places[0][0]], [places[0][1]])
    base = {"scene": "media://scene", "bands": [3, 2, 1]}
    windows = []
    for point, crs in ((places[0], "EPSG:32633"), (places[0], "scene"), ([x, y], "EPSG:4326"), ([x, y], "wgs84")):
        request = processor.request.model_validate({**base, "objects": [{"points": [point]}], "crs": crs})
        windows.append(processor.pre_process(request, LocalFiles(files)).context.window)
    assert len(set(windows)) == 1


def test_a_scene_without_data_has_a_note(
    directories: Callable[[str], Path], engine: BatchingEngine, tmp_path: Path
) -> None:
    model = a_model(directories("sam"), processor="raster-mask-generation", max_batch=1)
    path = write_scene(tmp_path / "empty.tif", np.zeros((1, 40, 40), np.uint8), nodata=0)
    [place] = on_the_scene(path, [20], [20])
    processor = RasterMaskGeneration(model)
    request = processor.request.model_validate(
        {"scene": "media://a", "objects": [{"points": [place]}], "crs": "scene", "bands": [1, 1, 1]}
    )
    prepared = processor.pre_process(request, LocalFiles({"media://a": path}))
    outputs = engine.run(model, prepared.prompts, check=lambda: None)
    result = processor.post_process(outputs, prepared.context, FolderSink(tmp_path))
    assert result.data is not None
    assert result.data["notes"] == ["No pixel of the window has data, so the objects are empty."]


def test_an_image_that_is_too_narrow_is_refused_in_words(directories: Callable[[str], Path], tmp_path: Path) -> None:
    processor = MaskGeneration(a_model(directories("sam"), processor="mask-generation"))
    Image.new("RGB", (300, 1)).save(path := tmp_path / "line.png")
    request = processor.request.model_validate({"image": "media://a", "objects": [{"points": [[5, 0]]}]})
    with pytest.raises(InvalidInput, match="300 x 1 pixels, too long and narrow"):
        processor.pre_process(request, LocalFiles({"media://a": path}))


@pytest.mark.parametrize("typed", ["a\ncar", "a\x00", "\x1b[31m", "\x7f"])
def test_words_have_no_control_characters(typed: str) -> None:
    value = {"image": "media://a", "labels": [typed]}
    with pytest.raises(ValidationError):
        WordDetectionRequest.model_validate(value)
    assert not Draft202012Validator(WordDetectionRequest.model_json_schema()).is_valid(value)
    assert Draft202012Validator(WordDetectionRequest.model_json_schema()).is_valid(
        {**value, "labels": ["un chat à l'été"]}
    )


@pytest.mark.parametrize("request_", [AreaRequest, SceneObject])
def test_another_geometry_is_answered_with_those_that_are_known(request_: type[BaseModel]) -> None:
    value = {"geometry": {"type": "LineString", "coordinates": [[0, 0], [1, 1]]}}
    entry = CatalogueEntry(
        name="m", title="M", revision="1", queue="q", input_schema=request_.model_json_schema(), outputs=(),
        execution_timeout_s=1, queue_ttl_s=1, max_attempts=1, processor="p",
    )  # fmt: skip
    with pytest.raises(InvalidRequest) as caught:
        check_input(entry, value)
    [issue] = caught.value.errors
    assert issue.pointer == "/input/geometry/type"
    assert issue.detail.startswith("must be one of: Multi")


@pytest.mark.parametrize(
    ("geometry", "same"),
    [
        ({"type": "Point", "coordinates": [3, 4, 100]}, {"points": [[3, 4]]}),
        ({"type": "MultiPoint", "coordinates": [[3, 4], [5, 6]]}, {"points": [[3, 4], [5, 6]]}),
        ({"type": "Polygon", "coordinates": [[[1, 2], [5, 4], [3, 9], [1, 2]]]}, {"box": [1, 2, 5, 9]}),
    ],
)
def test_an_object_of_a_scene_may_be_a_geometry(geometry: dict[str, Any], same: dict[str, Any]) -> None:
    request = SceneMaskRequest.model_validate({"scene": "media://a", "objects": [{"geometry": geometry}, same]})
    assert request.objects[0].plain() == request.objects[1].plain()
    with pytest.raises(ValueError, match="a geometry, or points and a box"):
        SceneMaskRequest.model_validate({"scene": "media://a", "objects": [{"geometry": geometry, **same}]})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"objects": [{"points": [[0, 0]]}]}, "object 0 lies outside the scene of 192 x 192 pixels"),
        ({"crs": "EPSG:1"}, "There is no CRS 'EPSG:1'"),
        ({"bands": [1, 2, 7]}, "the scene has 6 bands"),
        ({"window_px": 16}, "extend over 40 pixels of the scene, and the window has 16"),
    ],
)
def test_objects_that_do_not_fit_a_scene_are_refused(
    change: dict[str, Any], sentence: str, directories: Callable[[str], Path], files: dict[str, Path]
) -> None:
    processor = RasterMaskGeneration(a_model(directories("sam"), processor="raster-mask-generation"))
    points = on_the_scene(files["media://scene"], [60, 100], [50, 80])
    request = {"scene": "media://scene", "objects": [{"points": points}], "crs": "EPSG:32633", **change}
    with pytest.raises(InvalidInput, match=sentence):
        processor.pre_process(processor.request.model_validate(request), LocalFiles(files))


@pytest.mark.parametrize("shown", [[1, 0], [0, 0]])
def test_black_is_below_white(shown: list[float]) -> None:
    objects = [{"points": [[13.7, 45.1]]}]
    with pytest.raises(ValidationError, match="the lower number first"):
        SceneMaskRequest.model_validate({"scene": "media://scene", "objects": objects, "range": shown})


def test_a_label_with_a_full_stop_is_answered_with_an_example() -> None:
    schema = WordDetectionRequest.model_json_schema()
    assert schema["properties"]["labels"]["items"]["examples"] == ["a red car"]
