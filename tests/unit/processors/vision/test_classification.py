"""Image classification, segmentation and embedding."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from safetensors.numpy import load

from penstock.errors import ConfigError, InvalidInput, MediaTooLarge, ModelUnavailable, ProcessorFailed
from penstock.models import Limits
from penstock.processors.base import Output
from penstock.processors.testing import FolderSink, LocalFiles, check_processor, check_request_module
from penstock.processors.vision.classification import ImageClassification
from penstock.processors.vision.colours import colour
from penstock.processors.vision.embedding import ImageEmbedding
from penstock.processors.vision.segmentation import ImageSegmentation
from tests.support.model_directories import each, image_directory, make_model, write_json

LABELS = {0: "red", 1: "green", 2: "blue"}


def flat(path: Path, rgb: tuple[int, int, int], size: tuple[int, int] = (30, 20)) -> Path:
    Image.new("RGB", size, rgb).save(path, format="PNG")
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return {
        "media://red": flat(tmp_path / "red", (255, 51, 0)),
        "media://blue": flat(tmp_path / "blue", (0, 0, 255), (20, 50)),
    }


def mean_colour(data: Mapping[str, Any]) -> dict[str, Any]:
    pixels = data["pixels"]
    assert (pixels.dtype, pixels.shape) == (np.float32, (3, 8, 8))
    return {"logits": pixels.mean(axis=(1, 2)) * 4, "embedding": pixels.mean(axis=(1, 2))}


def softmax(*values: float) -> list[float]:
    raised = np.exp(values)
    return list(raised / raised.sum())


def test_classes_are_named_best_first(files: dict[str, Path], tmp_path: Path) -> None:
    processor = ImageClassification(make_model(image_directory(tmp_path / "m", LABELS), "image-classification"))
    check_request_module(processor)
    done = check_processor(
        processor,
        {"images": ["media://red", "media://blue"], "top_k": 2},
        files,
        engine=each(mean_colour),
        other={"images": "media://blue"},
        limits=Limits(max_pixels=400),
    )
    red, blue = softmax(4, 0.8, 0), softmax(0, 0, 4)
    assert done.artifacts == {}
    assert done.result.data is not None
    found = [[(n["id"], n["label"], n["score"]) for n in image["labels"]] for image in done.result.data["images"]]
    assert found == [
        [(0, "red", pytest.approx(red[0])), (1, "green", pytest.approx(red[1]))],
        [(2, "blue", pytest.approx(blue[2])), (0, "red", pytest.approx(blue[0]))],
    ]


def test_classes_that_do_not_exclude_each_other_have_scores_of_their_own(
    files: dict[str, Path], tmp_path: Path
) -> None:
    folder = image_directory(tmp_path / "m", {}, problem_type="multi_label_classification")
    processor = ImageClassification(make_model(folder, "image-classification"))
    labels = run(processor, {"images": "media://red"}, files, mean_colour).data["images"][0]["labels"]
    assert [label["label"] for label in labels] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert [label["score"] for label in labels] == pytest.approx([1 / (1 + np.exp(-v)) for v in (4, 0.8, 0)])


def test_a_plain_directory_has_labels_and_recipe_in_the_options(files: dict[str, Path], tmp_path: Path) -> None:
    options = {"preprocessor": {"size": 8, "do_normalize": False}, "labels": ["rot", "gruen", "blau"]}
    processor = ImageClassification(make_model(tmp_path, "image-classification", options=options))
    labels = run(processor, {"images": "media://red", "top_k": 1}, files, mean_colour).data["images"][0]["labels"]
    assert labels[0]["label"] == "rot"


@pytest.mark.parametrize("logits", [np.full(3, np.nan, np.float32), np.zeros((3, 1), np.float32)])
def test_an_answer_that_is_no_list_of_numbers_is_the_models_fault(
    logits: npt.NDArray[Any], files: dict[str, Path], tmp_path: Path
) -> None:
    processor = ImageClassification(make_model(image_directory(tmp_path / "m", LABELS), "image-classification"))
    with pytest.raises(ProcessorFailed, match="expected finite"):
        run(processor, {"images": "media://red"}, files, lambda _: {"logits": logits})


def test_limits_are_checked_before_an_image_is_decoded(files: dict[str, Path], tmp_path: Path) -> None:
    folder = image_directory(tmp_path / "m", LABELS)
    limits = Limits(max_items=2, max_pixels=600)
    processor = ImageClassification(make_model(folder, "image-classification", limits=limits))
    with pytest.raises(InvalidInput, match="3 images were given; this model accepts at most 2") as refusal:
        prepare(processor, {"images": ["media://red"] * 3}, files)
    assert refusal.value.errors[0].pointer == "/input/images"
    with pytest.raises(MediaTooLarge, match="20 x 50 = 1000 pixels; at most 600"):
        prepare(processor, {"images": ["media://red", "media://blue"]}, files)
    assert prepare(processor, {"images": ["media://red"] * 2}, files).cost == 2 * 64


def test_vectors_are_numbers_in_the_result_and_a_file_if_asked_for(files: dict[str, Path], tmp_path: Path) -> None:
    processor = ImageEmbedding(make_model(image_directory(tmp_path / "m", LABELS), "image-embedding", max_batch=3))
    check_request_module(processor)
    done = check_processor(
        processor,
        {"images": ["media://red", "media://blue"], "outputs": ["json", "safetensors"]},
        files,
        engine=each(mean_colour),
        other={"images": "media://blue"},
    )
    data = done.result.data or {}
    assert (data["count"], data["dimensions"]) == (2, 3)
    assert data["embeddings"] == [[1.0, pytest.approx(0.2, rel=1e-6), 0.0], [0.0, 0.0, 1.0]]
    assert len(str(data["embeddings"][0][1])) <= 10, "as long as float32 needs, not float64"
    media_type, content = done.artifacts["embeddings.safetensors"]
    vectors = load(content)["embeddings"]
    assert (media_type, vectors.dtype) == ("application/vnd.safetensors", np.float32)
    np.testing.assert_array_equal(vectors, np.array(data["embeddings"], dtype=np.float32))


def test_many_vectors_need_not_be_in_the_result(files: dict[str, Path], tmp_path: Path) -> None:
    processor = ImageEmbedding(make_model(image_directory(tmp_path / "m", LABELS), "image-embedding"))
    result = run(processor, {"images": "media://red", "outputs": ["safetensors"]}, files, mean_colour)
    assert result.data == {"count": 1, "dimensions": 3}


def halves(data: Mapping[str, Any]) -> dict[str, Any]:
    height, width = data["size"]
    classes = np.zeros((height, width), dtype=np.uint8)
    classes[height // 4 :] = 2
    return {"classes": classes}


def test_a_photograph_gets_a_mask_an_overlay_and_shares_at_its_own_size(files: dict[str, Path], tmp_path: Path) -> None:
    processor = ImageSegmentation(make_model(image_directory(tmp_path / "m", LABELS), "image-segmentation"))
    check_request_module(processor)
    done = check_processor(
        processor,
        {"image": "media://red"},
        files,
        engine=each(halves),
        other={"image": "media://blue", "outputs": ["mask"]},
    )
    assert done.result.data == {
        "width": 30,
        "height": 20,
        "classes": [
            {"id": 2, "label": "blue", "pixels": 450, "share": 0.75},
            {"id": 0, "label": "red", "pixels": 150, "share": 0.25},
        ],
    }
    mask, overlay = (Image.open(io.BytesIO(done.artifacts[name][1])) for name in ("mask.png", "overlay.png"))
    assert (mask.mode, overlay.mode) == ("P", "RGB")
    np.testing.assert_array_equal(np.asarray(mask), np.repeat([0] * 5 + [2] * 15, 30).reshape(20, 30))
    assert mask.convert("RGB").getpixel((0, 19)) == colour(2) == (0, 128, 0)
    assert overlay.getpixel((0, 0)) == (127, 25, 0)
    assert overlay.getpixel((0, 19)) == (127, 89, 0)


def test_more_classes_than_a_palette_has_make_a_mask_of_16_bits(files: dict[str, Path], tmp_path: Path) -> None:
    processor = ImageSegmentation(make_model(image_directory(tmp_path / "m", {}), "image-segmentation"))
    answer = {"classes": np.full((20, 30), 300, dtype=np.uint16)}
    sink = FolderSink(tmp_path)
    result = run(processor, {"image": "media://red"}, files, lambda _: answer, sink)
    assert result.data["classes"] == [{"id": 300, "label": "LABEL_300", "pixels": 600, "share": 1.0}]
    mask = np.asarray(Image.open(io.BytesIO(sink.artifacts["mask.png"][1])))
    assert (mask.dtype, mask.min(), mask.max()) == (np.uint16, 300, 300)


@pytest.mark.parametrize(
    "classes", [np.zeros((8, 8), np.uint8), np.zeros((20, 30), np.float32), np.zeros((20, 30, 1), np.uint8)]
)
def test_a_mask_that_does_not_fit_the_photograph_is_the_models_fault(
    classes: npt.NDArray[Any], files: dict[str, Path], tmp_path: Path
) -> None:
    processor = ImageSegmentation(make_model(image_directory(tmp_path / "m", LABELS), "image-segmentation"))
    with pytest.raises(ProcessorFailed, match="expected uint8 or uint16"):
        run(processor, {"image": "media://red"}, files, lambda _: {"classes": classes})


def test_a_model_that_crops_cannot_segment(tmp_path: Path) -> None:
    folder = image_directory(tmp_path, LABELS)
    write_json(folder, "preprocessor_config.json", {"image_processor_type": "CLIPImageProcessor"})
    with pytest.raises(ModelUnavailable, match="crops"):
        ImageSegmentation(make_model(folder, "image-segmentation"))


@pytest.mark.parametrize("content", ["{", "[]", '{"id2label": {"a": "b"}}', '{"id2label": []}'])
def test_a_broken_config_makes_the_model_unavailable(content: str, tmp_path: Path) -> None:
    folder = image_directory(tmp_path, LABELS)
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelUnavailable, match=r"config.json"):
        ImageClassification(make_model(folder, "image-classification"))


def prepare(processor: Any, request: Mapping[str, Any], files: Mapping[str, Path]) -> Any:
    return processor.pre_process(processor.request.model_validate(request), LocalFiles(files))


def run(processor: Any, request: Mapping[str, Any], files: Mapping[str, Path], network: Any, sink: Any = None) -> Any:
    prepared = prepare(processor, request, files)
    outputs = (Output(network(prompt.data)) for prompt in prepared.prompts)
    return processor.post_process(outputs, prepared.context, sink or FolderSink(next(iter(files.values())).parent))


def test_labels_that_are_not_one_for_each_class_are_refused(tmp_path: Path) -> None:
    folder = image_directory(tmp_path, LABELS)
    with pytest.raises(ConfigError, match=r"options\.labels has 2 names, and the network has 3 classes"):
        ImageClassification(make_model(folder, "image-classification", options={"labels": ["a", "b"]}))
    with pytest.raises(ConfigError, match=r"options\.labels is not a list of names"):
        ImageClassification(make_model(folder, "image-classification", options={"labels": "abc"}))


def test_options_that_nobody_reads_are_refused_with_those_that_are_known(tmp_path: Path) -> None:
    known = (
        "unknown options: colour; known: "
        "adapter, answer, compile, encoder_cache_bytes, labels, normalize, pooling, preprocessor, task"
    )
    options = {"colour": 1, "compile": True}
    with pytest.raises(ConfigError, match=known):
        ImageClassification(make_model(tmp_path, "image-classification", runner="transformers", options=options))
