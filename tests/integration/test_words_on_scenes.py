"""Objects that words name in scenes: each tile against the library's own processor, and the tiles put together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from PIL import Image
from pydantic import ValidationError

from penstock.errors import ConfigError, InvalidInput, ModelUnavailable
from penstock.intake.media import LocalMedia
from penstock.models import Limits, Model
from penstock.processors.geo.tiling.boxes import joined, on_scene, put_together
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.open_vocabulary.scene_detection import RasterZeroShotDetection, as_image, nearest
from penstock.processors.registry import Registry
from penstock.processors.testing import Finished, check_processor
from penstock.workers.compatibility import checked_entry
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Work
from tests.support.geo.scenes import Files, Folder, write_scene
from tests.support.hub import a_model
from tests.support.prompted import DETECTORS
from tests.support.vision import a_detr

LABELS = ["a cat", "old dog", "tree"]
SIDE_PX, OVERLAP_PX = 64, 24
KINDS = ["owlvit", "owlv2", "grounding-dino", "mm-grounding-dino"]

pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def directory(kind: str) -> Path:
        if kind not in made:
            made[kind] = DETECTORS[kind](tmp_path_factory.mktemp("model") / kind)
        return made[kind]

    return directory


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def words_model(source: Path, *, max_batch: int = 1, **options: Any) -> Model:
    """Return a record whose bands are bytes, shown as they are."""
    theirs = transformers.AutoImageProcessor.from_pretrained(source)
    moments = zip(("red", "green", "blue"), theirs.image_mean, theirs.image_std, strict=True)
    bands = [{"name": name, "mean": 255 * mean, "std": 255 * std} for name, mean, std in moments]
    of_bytes = [{"dtypes": ["uint8"], "scale": 1.0}]
    given = {"bands": bands, "default_radiometry": of_bytes, "tile_px": SIDE_PX, "overlap_px": OVERLAP_PX, **options}
    return a_model(source, processor="raster-zero-shot-detection", max_batch=max_batch, options=given)


def a_scene(path: Path, seed: int = 0, height: int = 120, width: int = 150) -> npt.NDArray[np.uint8]:
    numbers = np.random.default_rng(seed).integers(1, 255, (3, height, width)).astype(np.uint8)
    write_scene(path, numbers)
    return numbers


def detect(model: Model, engine: BatchingEngine, scene: Path, folder: Path, **request: Any) -> tuple[Any, Any]:
    """Return the properties of the objects, and the statistics."""
    processor, sink = RasterZeroShotDetection(model), Folder(folder)
    asked = processor.request.model_validate({"scene": str(scene), "labels": LABELS, "bands": [1, 2, 3], **request})
    prepared = processor.pre_process(asked, Files())
    result = processor.post_process(engine.run(model, prepared.prompts, check=lambda: None), prepared.context, sink)
    features = json.loads(sink.artifacts["objects.geojson"].read_text())["features"]
    return [one["properties"] for one in features], result.data


@torch.inference_mode()
def library_objects(source: Path, image: npt.NDArray[np.uint8], threshold: float) -> Any:
    """Return the labels' places, the scores and the boxes that the library finds in (3, rows, columns)."""
    processor = transformers.AutoProcessor.from_pretrained(source)
    network = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(source).eval()
    inputs = processor(images=Image.fromarray(image.transpose(1, 2, 0)), text=[LABELS], return_tensors="pt")
    ids = {"input_ids": inputs["input_ids"]} if "grounding" in str(source) else {}
    [found] = processor.post_process_grounded_object_detection(
        network(**inputs), target_sizes=[image.shape[1:]], text_labels=[LABELS], threshold=threshold, **ids
    )
    scores = found["scores"].numpy()
    places = [nearest(label, LABELS) for label in found["text_labels"][: len(scores)]]
    return np.array(places, np.int64), scores.astype(np.float64), found["boxes"].numpy().astype(np.float64)


@pytest.mark.breadth(but=("owlv2",))
@pytest.mark.parametrize("kind", KINDS)
def test_the_objects_of_a_scene_are_those_of_the_library_in_each_tile(
    kind: str, directories: Callable[[str], Path], engine: BatchingEngine, tmp_path: Path
) -> None:
    source, threshold = directories(kind), 0.01 if kind == "mm-grounding-dino" else 0.3
    numbers = a_scene(tmp_path / "scene.tif")
    processor = RasterZeroShotDetection(words_model(source))
    asked = {"scene": str(tmp_path / "scene.tif"), "labels": LABELS, "bands": [1, 2, 3]}
    plan = processor.pre_process(processor.request.model_validate(asked), Files()).context.plan
    windows = [tile.window for strip in plan.strips() for tile in strip.tiles]
    assert len(windows) > 4
    tables = []
    for window in windows:
        assert window.bottom <= 120
        assert window.right <= 150
        image = numbers[:, window.top : window.bottom, window.left : window.right]
        labels, scores, boxes = library_objects(source, image, threshold)
        valid = np.ones(image.shape[1:], bool)
        tables.append(on_scene(boxes, labels, scores, window, Box(0, 0, 120, 150), valid, 2))
    expected = put_together(joined(tables), 0.9).table
    found, stats = detect(
        words_model(source), engine, tmp_path / "scene.tif", tmp_path / "out", threshold=threshold, iou=0.9
    )
    assert 2 < len(expected) < sum(map(len, tables))
    assert stats["objects"]["count"] == len(found) == len(expected)
    names = [*LABELS, ""]
    assert all(one["label"] == names[one["label_id"]] for one in found)
    assert {one["label"]: one["count"] for one in stats["objects"]["labels"]} == {
        name: count for at, name in enumerate(names) if (count := int((expected[:, 4] == at).sum()))
    }
    ours = np.array([[*one["pixels"], one["label_id"], one["score"]] for one in found])
    apart = np.abs(ours[:, None] - expected[None, :, :6]).max(axis=2)
    assert apart.min(axis=1).max() < 0.05
    assert sorted(apart.argmin(axis=1).tolist()) == list(range(len(expected))), "each has one of its own"
    np.testing.assert_allclose([one["score"] for one in found], expected[:, 5], atol=1e-4)


@pytest.mark.breadth
@pytest.mark.parametrize("kind", ["owlv2", "grounding-dino"])
def test_the_batch_changes_nothing(
    kind: str, directories: Callable[[str], Path], engine: BatchingEngine, tmp_path: Path
) -> None:
    a_scene(tmp_path / "scene.tif", 3)
    one_by_one, four = (
        detect(
            words_model(directories(kind), max_batch=size), engine, tmp_path / "scene.tif", tmp_path / str(size),
            threshold=0.3, iou=0.9,
        )[0]
        for size in (1, 4)
    )  # fmt: skip
    assert len(one_by_one) > 2
    assert [one["label"] for one in four] == [one["label"] for one in one_by_one]
    np.testing.assert_allclose([one["score"] for one in four], [one["score"] for one in one_by_one], atol=1e-5)
    np.testing.assert_allclose([one["pixels"] for one in four], [one["pixels"] for one in one_by_one], atol=0.02)


def run(model: Model, engine: BatchingEngine, files: Mapping[str, Path], **request: Any) -> Finished:
    return check_processor(
        Registry.imported().processor_for(model),
        {"scene": "media://a", "labels": LABELS, "threshold": 0.3, "bands": [1, 2, 3], **request},
        files,
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        other={"scene": "media://b", "labels": ["grey sky"], "bands": [1, 2, 3], "outputs": ["objects"]},
        limits=model.limits,
        count_is_a_bound=True,
    )


def test_the_processor_keeps_the_contract(
    directories: Callable[[str], Path], engine: BatchingEngine, tmp_path: Path
) -> None:
    a_scene(tmp_path / "a.tif", 1)
    a_scene(tmp_path / "b.tif", 2, 90, 70)
    model = words_model(directories("owlv2")).model_copy(update={"limits": Limits(max_pixels=100_000)})
    done = run(model, engine, {"media://a": tmp_path / "a.tif", "media://b": tmp_path / "b.tif"})
    assert set(done.artifacts) == {"objects.geojson", "preview.png", "stats.json"}
    assert done.saved


@pytest.mark.breadth
def test_a_job_goes_through_an_io_process(
    directories: Callable[[str], Path], engine: BatchingEngine, tmp_path: Path
) -> None:
    """The library prepares and decodes in a fork, beside GDAL."""
    model, scene = words_model(directories("grounding-dino"), max_batch=4), tmp_path / "scene.tif"
    a_scene(scene, 5)
    request = {"scene": "media://a", "labels": LABELS, "bands": [1, 2, 3]}
    work = Work(model, request, {"media://a": LocalMedia(scene)}, tmp_path / "artifacts", tenant="one")
    with (
        closing(IOPool(1, ForkOptions(4096 * 2**20))) as pool,
        pool.open(work, check=lambda: None, say=lambda _: None) as session,
    ):
        done = session.finish(engine.run(model, session.prepared.prompts, check=lambda: None))
    _, here = detect(model, engine, scene, tmp_path / "out")
    assert done.result.data is not None
    assert done.result.data["objects"] == here["objects"]
    assert here["objects"]["count"] > 2
    assert set(done.files) == {"objects.geojson", "preview.png", "stats.json"}


def test_workers_share_a_scene_and_the_bytes_stay_the_same(
    directories: Callable[[str], Path], engine: BatchingEngine, tmp_path: Path
) -> None:
    model, scene = words_model(directories("grounding-dino")), tmp_path / "scene.tif"
    a_scene(scene, 6)
    processor, alone = RasterZeroShotDetection(model), Folder(tmp_path / "alone")
    request = processor.request.model_validate({"scene": str(scene), "labels": LABELS, "bands": [1, 2, 3]})

    def finish(prepared: Any, sink: Folder) -> Folder:
        outputs = engine.run(model, prepared.prompts, check=lambda: None)
        processor.post_process(outputs, prepared.context, sink)
        return sink

    whole = processor.pre_process(request, Files())
    finish(whole, alone)
    assert whole.division is not None
    units, saved = [number for number, _, _ in whole.division.units], dict[str, Path]()
    assert len(units) > 1
    for unit in units:
        part = finish(processor.pre_process_part(request, Files(), unit, unit), Folder(tmp_path / f"part-{unit}"))
        assert not part.artifacts
        for name, content in part.saved.items():
            saved[name] = tmp_path / f"saved-{len(saved)}"
            saved[name].write_bytes(content)
    again = finish(processor.pre_process(request, Files(saved)), Folder(tmp_path / "joined"))
    assert set(saved) >= set(alone.saved)
    assert len(json.loads(alone.artifacts["objects.geojson"].read_text())["features"]) > 2
    for name, path in alone.artifacts.items():
        assert again.artifacts[name].read_bytes() == path.read_bytes()


def test_other_words_and_thresholds_use_no_saved_strips(directories: Callable[[str], Path], tmp_path: Path) -> None:
    a_scene(tmp_path / "scene.tif")
    processor = RasterZeroShotDetection(words_model(directories("owlvit")))
    asked = {"scene": str(tmp_path / "scene.tif"), "labels": LABELS, "bands": [1, 2, 3]}
    changes: list[dict[str, Any]] = [
        {}, {"labels": LABELS[::-1]}, {"threshold": 0.4}, {"text_threshold": 0.4}, {"iou": 0.9}
    ]  # fmt: skip
    digests = [
        processor.pre_process(processor.request.model_validate({**asked, **change}), Files()).context.digest
        for change in changes
    ]
    assert len(set(digests)) == 4
    assert digests[0] == digests[4], "boxes are put together at the end"


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        (None, "Field required"),
        ([], "at least 1 item"),
        (["a cat."], "should match pattern"),
        ([" "], "should match pattern"),
    ],
)
def test_a_request_names_words(labels: Any, error: str) -> None:
    given = {"scene": "media://a"} | ({} if labels is None else {"labels": labels})
    with pytest.raises(ValidationError, match=error):
        RasterZeroShotDetection.request.model_validate(given)


def test_words_that_are_too_long_are_refused_before_the_first_tile(
    directories: Callable[[str], Path], tmp_path: Path
) -> None:
    a_scene(tmp_path / "scene.tif")
    processor = RasterZeroShotDetection(words_model(directories("owlvit")))
    asked = {"scene": str(tmp_path / "scene.tif"), "labels": ["cat", "a " * 20], "bands": [1, 2, 3]}
    with pytest.raises(InvalidInput, match="label 1 has 22 tokens; this model accepts at most 8"):
        processor.pre_process(processor.request.model_validate(asked), Files())


def test_a_phrase_is_of_the_label_that_shares_most_of_its_words() -> None:
    labels = ["a red car", "Red", "ship", "red"]
    phrases = ["red car", "red", "ship a", "tree", ""]
    assert [nearest(phrase, labels) for phrase in phrases] == [0, 1, 2, 4, 4]


def test_an_image_is_what_the_library_normalises_to_the_pixels_of_a_tile() -> None:
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.25, 0.5]
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    pixels = ((image / 255 - mean) / std).astype(np.float32).transpose(2, 0, 1)
    assert np.array_equal(as_image(pixels, mean, std), image)
    assert np.array_equal(np.unique(as_image(np.full((3, 1, 1), 99, np.float32), mean, std)), [255])
    assert np.array_equal(np.unique(as_image(np.full((3, 1, 1), -99, np.float32), mean, std)), [0])


def test_what_cannot_run_is_refused_when_it_is_checked(directories: Callable[[str], Path], tmp_path: Path) -> None:
    registry, runners = Registry.installed(), Runners.installed()
    assert checked_entry(registry, runners, words_model(directories("owlvit"))).problem is None
    source = a_detr(tmp_path / "detr")
    other = words_model(directories("owlvit")).model_copy(update={"source": str(source)})
    assert "transformers" in (checked_entry(registry, runners, other).problem or "")
    with pytest.raises(ModelUnavailable, match="does not fit model_type 'detr'"):
        runners.check(other)
    turbo = tmp_path / "turbo"
    turbo.mkdir()
    (turbo / "config.json").write_text('{"model_type": "omdet-turbo"}')
    (turbo / "model.safetensors").touch()
    with pytest.raises(ModelUnavailable, match="model_type 'omdet-turbo' was not seen to answer"):
        runners.check(other.model_copy(update={"source": str(turbo)}))
    four = [{"name": name, "mean": 0.0, "std": 1.0} for name in "abcd"]
    with pytest.raises(ConfigError, match="bands must be three of one date"):
        RasterZeroShotDetection(words_model(directories("owlvit"), bands=four))
    with pytest.raises(ConfigError, match="labels"):
        RasterZeroShotDetection(words_model(directories("owlvit"), labels=["cat"]))
    with pytest.raises(ConfigError, match="coordinates are not for"):
        RasterZeroShotDetection(words_model(directories("owlvit"), coordinates={"time": "optional"}))
