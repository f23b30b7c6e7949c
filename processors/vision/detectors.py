"""Detections in the layouts in which detectors are exported, of photographs and of scenes. Pure.

| detector | outputs without the batch axis |
| --- | --- |
| boxes | `boxes` (n, 4), `scores` (n), `labels` (n): torchvision, RT-DETR with its post-processing |
| scores | `boxes` (n, 4), `scores` (n, classes) |
| rows | `boxes` (n, 6): edges, score and class: YOLO exported with its suppression of doubles |
| yolo | `boxes` (4 + classes, n), or (n, 5 + classes) with a score of being an object, as YOLOv5: centre and size |
| queries | `logits` (queries, classes) and `boxes` (queries, 4): DETR and its kin, as transformers decodes them |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.errors import ProcessorFailed
from penstock.processors.vision.queries import corners, decode

Numbers = npt.NDArray[np.float64]
#: Labels (n), scores (n) and boxes (n, 4: left, top, right, bottom in pixels), best first.
Found = tuple[npt.NDArray[np.int64], Numbers, Numbers]
Layout = Literal["boxes", "scores", "rows", "yolo", "queries"]
BoxFormat = Literal["xyxy", "cxcywh"]
BoxUnit = Literal["pixels", "shares"]

#: The values that are read of each kind of network's outputs.
OUTPUTS: Mapping[str, Mapping[str, str]] = {
    "boxes": {"boxes": "array (_, 4)", "scores": "array (_)", "labels": "array (_)"},
    "scores": {"boxes": "array (_, 4)", "scores": "array (_, classes)"},
    "rows": {"boxes": "array (_, 6)"},
    "yolo": {"boxes": "array (_, _)"},
    "queries": {"logits": "array (queries, classes)", "boxes": "array (queries, 4)"},
}
#: Boxes of one class whose intersection is this share of their union are one object, where a network leaves doubles.
IOU = 0.7
#: Boxes among which doubles are looked for, at most: the best ones.
_MOST = 3000


@dataclass(frozen=True, slots=True)
class Detector:
    """The layout of a network's outputs."""

    layout: Layout
    #: Order of a box's numbers, and their unit; not for `queries` and `yolo`, whose numbers are centre and size.
    box_format: BoxFormat = "xyxy"
    box_unit: BoxUnit = "pixels"
    #: The kind of transformers' image processor, for `queries`.
    kind: str = ""

    def find(self, data: Mapping[str, Any], threshold: float, width: int, height: int) -> Found:
        """Return the objects above a threshold in a network's input of this size; raise `ProcessorFailed`."""
        lacking = ", ".join(name for name in OUTPUTS[self.layout] if name not in data)
        if lacking:
            raise ProcessorFailed(f"The network returned {', '.join(data) or 'nothing'}; it lacks {lacking}.")
        sides = np.array([width, height] * 2)
        if self.layout == "queries":
            labels, scores, boxes = decode(self.kind, data, threshold)
            return labels, scores, boxes * sides
        boxes, scores, of_each = self._read(data)
        kept = scores > threshold
        boxes, scores, of_each = boxes[kept], np.asarray(scores[kept]), of_each[kept]
        if not all(np.isfinite(each).all() for each in (boxes, scores, of_each)):
            raise ProcessorFailed("The network answered boxes or scores that are no finite numbers.")
        of_each = of_each.astype(np.int64)
        boxes = boxes * sides if self.box_unit == "shares" else boxes
        boxes = corners(boxes) if self.layout == "yolo" or self.box_format == "cxcywh" else boxes
        order = np.argsort(-scores, kind="stable")
        found = of_each[order], scores[order], boxes[order]
        return without_doubles(*found) if self.layout == "yolo" else found

    def _read(self, data: Mapping[str, Any]) -> tuple[Numbers, Numbers, npt.NDArray[Any]]:
        """Return boxes as the network gives them, their scores and classes."""
        boxes = np.asarray(data["boxes"], np.float64)
        if self.layout == "rows":
            if boxes.ndim != 2 or boxes.shape[1] < 6:
                raise ProcessorFailed(f"The network answered boxes {boxes.shape}; expected (n, 6).")
            return boxes[:, :4], boxes[:, 4], boxes[:, 5]
        if self.layout == "yolo":
            return _of_yolo(boxes)
        scores = np.asarray(data["scores"], np.float64)
        rank = 2 if self.layout == "scores" else 1
        of_each: Any = np.asarray(data["labels"]) if rank == 1 else scores.argmax(-1) if scores.size else np.zeros(0)
        if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.ndim != rank or {len(scores), len(of_each)} != {len(boxes)}:
            raise ProcessorFailed(
                f"The network answered boxes {boxes.shape}, scores {scores.shape} and labels {of_each.shape}; "
                f"expected (n, 4), {'(n, classes)' if rank == 2 else '(n)'} and (n)."
            )
        return boxes, scores.max(axis=1, initial=-np.inf) if rank == 2 else scores, of_each


def _of_yolo(array: Numbers) -> tuple[Numbers, Numbers, npt.NDArray[Any]]:
    """Return boxes, scores and classes of an array with places along one axis and numbers along the other.

    There are more places than numbers. Where the numbers are last, the fifth is the score of being an object.
    """
    if array.ndim != 2 or min(array.shape) < 5:
        raise ProcessorFailed(
            f"The network answered boxes {array.shape}; expected (4 + classes, n) or (n, 5 + classes)."
        )
    rows, first = (array.T, 4) if array.shape[0] <= array.shape[1] else (array, 5)
    scores = rows[:, first:] if first == 4 else rows[:, 5:] * rows[:, 4:5]
    if not scores.shape[1]:  # one class, whose score is that of being an object
        scores = rows[:, 4:5]
    return rows[:, :4], scores.max(axis=1), scores.argmax(axis=1)


def without_doubles(labels: npt.NDArray[np.int64], scores: Numbers, boxes: Numbers, iou: float = IOU) -> Found:
    """Return the objects, best first, without those that overlap a better one of their class (`iou` or more)."""
    labels, scores, boxes = labels[:_MOST], scores[:_MOST], boxes[:_MOST]
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    stays = np.ones(len(boxes), bool)
    for at in range(len(boxes)):
        if stays[at]:
            inner = np.clip(
                np.minimum(boxes[at, 2:], boxes[at:, 2:]) - np.maximum(boxes[at, :2], boxes[at:, :2]), 0, None
            )
            shared = np.prod(inner, axis=1)
            doubles = (labels[at:] == labels[at]) & (shared >= iou * (areas[at] + areas[at:] - shared))
            doubles[0] = False
            stays[at:] &= ~doubles
    return labels[stays], scores[stays], boxes[stays]
