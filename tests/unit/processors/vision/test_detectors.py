"""Detections in the layouts of exported networks, against doubles computed one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import ProcessorFailed
from penstock.processors.vision.detectors import Detector, Layout, without_doubles

#: Two objects: class 1 at (10, 20)-(30, 60) with 0.9, class 0 at (40, 0)-(60, 10) with 0.6.
BOXES = np.array([[40.0, 0, 60, 10], [10, 20, 30, 60]])
SCORES, LABELS = np.array([0.6, 0.9]), np.array([0, 1])
CENTRES = np.array([[50.0, 5, 20, 10], [20, 40, 20, 40]])


def rows_of_yolo(object_score: float | None = None) -> np.ndarray[Any, Any]:
    """Return 8 places: the objects, a double of the better one, and nothing."""
    boxes = np.concatenate([CENTRES, CENTRES[1:] + 1, np.ones((5, 4))])
    scores = np.zeros((8, 2))
    scores[0, 0], scores[1, 1], scores[2, 1] = 0.6, 0.9, 0.8
    if object_score is None:
        return np.concatenate([boxes, scores], axis=1)
    return np.concatenate([boxes, np.full((8, 1), object_score), scores / object_score], axis=1)


DATA: dict[str, tuple[Layout, dict[str, Any]]] = {
    "boxes": ("boxes", {"boxes": BOXES, "scores": SCORES, "labels": LABELS}),
    "scores": ("scores", {"boxes": BOXES, "scores": np.array([[0.6, 0.1], [0.2, 0.9]])}),
    "rows": ("rows", {"boxes": np.column_stack([BOXES, SCORES, LABELS])}),
    "yolo": ("yolo", {"boxes": rows_of_yolo().T}),
    "yolo of one class": ("yolo", {"boxes": np.delete(rows_of_yolo(), 4, axis=1).T}),
    "yolov5": ("yolo", {"boxes": rows_of_yolo(0.95)}),
}


@pytest.mark.parametrize("name", DATA)
def test_each_layout_gives_the_objects_best_first(name: str) -> None:
    layout, data = DATA[name]
    labels, scores, boxes = Detector(layout).find(data, 0.3, 64, 64)
    if name == "yolo of one class":
        assert (labels.tolist(), scores.tolist()) == ([0], [0.9])
        np.testing.assert_allclose(boxes, BOXES[1:])
        return
    assert labels.tolist() == [1, 0]
    np.testing.assert_allclose(scores, [0.9, 0.6])
    np.testing.assert_allclose(boxes, BOXES[::-1])


def test_shares_and_centres_become_pixels() -> None:
    shares = {"boxes": CENTRES / [64, 32, 64, 32], "scores": SCORES, "labels": LABELS}
    found = Detector("boxes", "cxcywh", "shares").find(shares, 0.3, 64, 32)
    np.testing.assert_allclose(found[2], BOXES[::-1])


@pytest.mark.parametrize(
    ("layout", "data", "said"),
    [
        ("rows", {"boxes": BOXES}, r"answered boxes \(2, 4\); expected \(n, 6\)"),
        ("yolo", {"boxes": BOXES}, r"expected \(4 \+ classes, n\) or \(n, 5 \+ classes\)"),
        ("boxes", {"boxes": BOXES, "scores": SCORES}, "it lacks labels"),
        ("rows", {"boxes": np.full((1, 6), np.inf)}, "no finite numbers"),
    ],
)
def test_other_arrays_are_refused_with_their_shapes(layout: Layout, data: dict[str, Any], said: str) -> None:
    with pytest.raises(ProcessorFailed, match=said):
        Detector(layout).find(data, 0.3, 64, 64)


def test_doubles_are_those_of_a_direct_count() -> None:
    rng = np.random.default_rng(3)
    corner = rng.uniform(0, 50, (200, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(5, 30, (200, 2))], axis=1)
    labels, scores = rng.integers(0, 3, 200), np.sort(rng.uniform(0, 1, 200))[::-1]
    kept: list[int] = []
    for at, (left, top, right, bottom) in enumerate(boxes):
        for other in kept:
            a, b, c, d = boxes[other]
            shared = max(0, min(right, c) - max(left, a)) * max(0, min(bottom, d) - max(top, b))
            union = (right - left) * (bottom - top) + (c - a) * (d - b) - shared
            if labels[other] == labels[at] and shared / union >= 0.4:
                break
        else:
            kept.append(at)
    found = without_doubles(labels, scores, boxes, iou=0.4)
    np.testing.assert_array_equal(found[2], boxes[kept])
    assert 20 < len(kept) < 200
