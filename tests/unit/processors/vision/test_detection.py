"""Depth, detection, instance segmentation and zero-shot classification: results from networks' outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProcessorFailed
from penstock.processors.base import Result
from penstock.processors.testing import FolderSink, LocalFiles, check_request_module
from penstock.processors.vision.annotation import annotate
from penstock.processors.vision.colours import overlay
from penstock.processors.vision.depth import DepthEstimation, Scale, Upsampled
from penstock.processors.vision.detection import ObjectDetection
from penstock.processors.vision.instances import InstanceSegmentation
from tests.support.model_directories import each, make_model, write_json
from tests.support.vision import a_picture

LABELS = {0: "cat", 1: "dog"}


@settings(deadline=None)
@given(small=st.tuples(st.integers(1, 9), st.integers(1, 9)), size=st.tuples(st.integers(1, 600), st.integers(1, 40)))
def test_a_map_is_enlarged_as_torch_does_it(small: tuple[int, int], size: tuple[int, int]) -> None:
    values = np.random.default_rng(small[0]).normal(size=small).astype(np.float32)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(values)[None, None], size=size, mode="bicubic", align_corners=False
    )[0, 0]
    upsampled = Upsampled(values, size)
    np.testing.assert_allclose(upsampled.whole(), expected.numpy(), rtol=0, atol=2e-5)
    assert all(len(strip) <= 256 for strip in upsampled.strips())


@pytest.mark.parametrize(
    ("low", "high", "metric", "expected"),
    [
        (0.5, 60.0, True, Scale(0.0, 0.001)),
        (0.5, 70.0, True, Scale(0.5, 69.5 / 65535)),
        (-0.5, 60.0, True, Scale(-0.5, 60.5 / 65535)),
        (-2.0, 6.0, False, Scale(-2.0, 8.0 / 65535)),
        (3.0, 3.0, False, Scale(3.0, 0.0)),
    ],
)
def test_depths_are_numbers_of_sixteen_bits(low: float, high: float, metric: bool, expected: Scale) -> None:
    scale = Scale.of(low, high, metric=metric)
    assert (scale.offset, scale.scale) == pytest.approx((expected.offset, expected.scale))
    numbers = scale.numbers(np.array([low, (low + high) / 2, high], dtype=np.float32))
    np.testing.assert_allclose(numbers * scale.scale + scale.offset, [low, (low + high) / 2, high], atol=scale.scale)


def directory(folder: Path, kind: str) -> Path:
    size = {"height": 8, "width": 8}
    write_json(folder, "preprocessor_config.json", {"image_processor_type": f"{kind}ImageProcessor", "size": size})
    write_json(folder, "config.json", {"id2label": LABELS})
    return folder


def run(processor: Any, answer: Mapping[str, Any], folder: Path, **request: Any) -> Result:
    """Return the result about an image of 40 x 20 pixels."""
    files = {"media://a": a_picture(folder / "a.png", size=(40, 20))}
    prepared = processor.pre_process(
        processor.request.model_validate({"image": "media://a", **request}), LocalFiles(files)
    )
    outputs = each(lambda _: answer)(prepared.prompts)
    result: Result = processor.post_process(outputs, prepared.context, FolderSink(folder))
    return result


def detector(folder: Path, kind: str) -> ObjectDetection:
    return ObjectDetection(make_model(directory(folder / "m", kind), "object-detection"))


#: Two queries; for kinds with a "no object" class, the second query is most likely no object.
LOGITS = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0]], dtype=np.float32)
BOXES = np.array([[0.5, 0.5, 0.2, 0.4], [0.0, 0.9, 0.5, 0.5]], dtype=np.float32)


def test_a_box_has_its_best_class_where_the_last_one_means_nothing(tmp_path: Path) -> None:
    data = run(detector(tmp_path, "Detr"), {"logits": LOGITS, "boxes": BOXES}, tmp_path, threshold=0.1).data or {}
    first, second = (np.exp(row) / np.exp(row).sum() for row in LOGITS.astype(float))
    assert data == {
        "width": 40,
        "height": 20,
        "objects": [
            {"label_id": 0, "label": "cat", "score": round(first[0], 6), "box": box(16, 6, 24, 14), "id": 0},
            {"label_id": 1, "label": "dog", "score": round(second[1], 6), "box": box(0, 13, 10, 20), "id": 1},
        ],
    }


def test_a_box_may_have_several_classes_elsewhere(tmp_path: Path) -> None:
    data = run(detector(tmp_path, "DeformableDetr"), {"logits": LOGITS, "boxes": BOXES}, tmp_path, threshold=0.72).data
    found = [(one["label_id"], one["label"], one["box"]["xmin"]) for one in (data or {})["objects"]]
    assert found[:2] == [(2, "LABEL_2", 0.0), (0, "cat", 16.0)]
    assert {one[:2] for one in found[2:]} == {(1, "dog")}
    assert len(found) == 4


def test_as_many_boxes_are_told_as_the_kind_allows(tmp_path: Path) -> None:
    answer = {"logits": np.full((150, 2), 3, np.float32), "boxes": np.full((150, 4), 0.5, np.float32)}
    for kind, count in (("DeformableDetr", 100), ("RTDetr", 150), ("Yolos", 150)):
        data = run(detector(tmp_path / kind, kind), answer, tmp_path, outputs=["boxes"]).data or {}
        assert len(data["objects"]) == (count if kind != "Yolos" else 0), kind
        if kind == "Yolos":
            assert len((run(detector(tmp_path, kind), answer, tmp_path, threshold=0.4).data or {})["objects"]) == count


def box(left: float, top: float, right: float, bottom: float) -> dict[str, Any]:
    return {
        "xmin": pytest.approx(left),
        "ymin": pytest.approx(top),
        "xmax": pytest.approx(right),
        "ymax": pytest.approx(bottom),
    }


@pytest.mark.parametrize(
    "answer",
    [
        {"logits": LOGITS[0], "boxes": BOXES},
        {"logits": LOGITS, "boxes": BOXES[:1]},
        {"logits": LOGITS * np.nan, "boxes": BOXES},
        {"logits": LOGITS, "boxes": BOXES + np.float32(np.inf)},
    ],
)
def test_boxes_that_are_none_are_the_models_fault(answer: Mapping[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ProcessorFailed, match=r"expected finite \(queries, classes\)"):
        run(detector(tmp_path, "Detr"), answer, tmp_path)


@pytest.mark.parametrize(
    "depth",
    [np.zeros((1, 5, 5), np.float32), np.zeros((5, 5), np.float64), np.full((5, 5), np.nan, np.float32)],
)
def test_depths_that_are_none_are_the_models_fault(depth: npt.NDArray[Any], tmp_path: Path) -> None:
    processor = DepthEstimation(make_model(directory(tmp_path / "m", "DPT"), "depth-estimation"))
    with pytest.raises(ProcessorFailed, match="expected finite float32"):
        run(processor, {"depth": depth}, tmp_path)


def segmenter(folder: Path) -> InstanceSegmentation:
    return InstanceSegmentation(make_model(directory(folder / "m", "MaskFormer"), "instance-segmentation"))


def test_more_than_255_segments_are_a_grey_image_of_16_bits(tmp_path: Path) -> None:
    ids = (np.arange(800) % 300 + 1).reshape(20, 40).astype(np.uint16)
    answer = {"segments": ids, "classes": np.ones(300, np.int64), "scores": np.full(300, 0.9, np.float32)}
    data = run(segmenter(tmp_path), answer, tmp_path).data or {}
    assert [segment["id"] for segment in data["segments"]] == list(range(1, 301))
    for segment in data["segments"]:
        rows, columns = np.nonzero(ids == segment["id"])
        assert segment["pixels"] == len(rows)
        assert segment["box"] == box(columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"segments": np.zeros((5, 5), np.uint8)},
        {"segments": np.zeros((20, 40), np.int64)},
        {"segments": np.full((20, 40), 2, np.uint8)},
        {"scores": np.ones(2, np.float32)},
        {"scores": np.full(1, np.nan, np.float32)},
    ],
)
def test_segments_that_are_none_are_the_models_fault(wrong: Mapping[str, Any], tmp_path: Path) -> None:
    good = {"segments": np.ones((20, 40), np.uint8), "classes": np.ones(1, np.int64), "scores": np.ones(1, np.float32)}
    assert (run(segmenter(tmp_path), good, tmp_path).data or {})["segments"][0]["pixels"] == 800
    with pytest.raises(ProcessorFailed, match="The network answered"):
        run(segmenter(tmp_path), {**good, **wrong}, tmp_path)


def test_an_overlay_leaves_what_has_no_segment_as_it_is() -> None:
    image = np.full((600, 5, 3), 100, np.uint8)
    ids = np.zeros((600, 5), np.uint8)
    ids[300:, 2:] = 1
    made = overlay(image, ids, clear=0)
    assert (made[ids == 0] == 100).all()
    assert [tuple(pixel) for pixel in np.unique(made[ids == 1], axis=0)] == [(114, 50, 50)]


def test_boxes_are_drawn_where_they_are_with_the_best_on_top() -> None:
    objects = [
        {"label_id": 0, "label": "cat", "score": 0.9, "box": {"xmin": 50, "ymin": 50, "xmax": 150, "ymax": 90}},
        {"label_id": 1, "label": "hund 犬", "score": 0.4, "box": {"xmin": 50, "ymin": 50, "xmax": 150, "ymax": 90}},
    ]
    image = np.zeros((200, 200, 3), np.uint8)
    drawn = annotate(image, objects)
    assert not image.any(), "the image itself stays as it is"
    assert tuple(drawn[70, 50]) == tuple(drawn[90, 100]) == (128, 0, 0)
    assert not drawn[60:85, 60:140].any()
    assert drawn[36:50, 50:80].any(), "the label stands above"
    corner = annotate(image, [{**objects[0], "box": {"xmin": 0, "ymin": 0, "xmax": 9, "ymax": 199}}])
    assert corner[2:12, 12:30].any(), "or inside, where there is no room above"


def test_requests_are_light(tmp_path: Path) -> None:
    check_request_module(segmenter(tmp_path))
