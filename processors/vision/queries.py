"""Detections of networks with queries, decoded as transformers' image processor of the network's kind does. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.models import Model

Numbers = npt.NDArray[np.float64]

#: Maximum number of results, by the kind of image processor; None = the number of the network's queries. A box may
#: appear several times, with different classes.
_TOP: Mapping[str, int | None] = {"ConditionalDetr": 100, "DeformableDetr": 100, "RTDetr": None}
#: Kinds whose last class means "no object": each box has one class.
_WITH_NO_OBJECT = frozenset({"Detr", "Yolos"})


def check_kind(model: Model, kind: str) -> None:
    """Raise `ModelUnavailable` for a kind of image processor whose detectors cannot be decoded."""
    if kind not in {*_TOP, *_WITH_NO_OBJECT}:
        known = ", ".join(sorted({*_TOP, *_WITH_NO_OBJECT}))
        raise ModelUnavailable(
            f"model {model.name!r}: detectors with image processors of the kind {kind!r} are not supported; "
            f"supported: {known}"
        )


def decode(kind: str, data: Mapping[str, Any], threshold: float) -> tuple[npt.NDArray[np.int64], Numbers, Numbers]:
    """Return the labels (n), scores (n) and boxes (n, 4) above a threshold, best first.

    `data` has `logits` (queries, classes) and `boxes` (queries, 4). A returned box is left, top, right, bottom as
    shares of the image's sides, clipped to the image. Raises `ProcessorFailed` for other arrays.
    """
    logits, boxes = _checked(data)
    if kind in _WITH_NO_OBJECT:
        scores = _softmax(logits)[:, :-1]
        labels, queries = scores.argmax(axis=1), np.arange(len(scores))
        best = scores.max(axis=1)
    else:
        flat = (0.5 * (1 + np.tanh(logits / 2))).ravel()
        order = np.argsort(-flat, kind="stable")[: _TOP[kind] or len(boxes)]
        best, labels, queries = flat[order], order % logits.shape[1], order // logits.shape[1]
    order = np.argsort(-best, kind="stable")
    order = order[best[order] > threshold]
    return labels[order].astype(np.int64), best[order], np.clip(corners(boxes[queries[order]]), 0, 1)


def corners(boxes: Numbers) -> Numbers:
    """Convert centre x, centre y, width and height to left, top, right and bottom."""
    x, y, width, height = boxes.reshape(-1, 4).T
    return np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)


def _checked(data: Mapping[str, Any]) -> tuple[Numbers, Numbers]:
    logits, boxes = (np.asarray(data[name], dtype=np.float64) for name in ("logits", "boxes"))
    fits = logits.ndim == 2 and boxes.shape == (len(logits), 4)
    if not fits or not np.isfinite(logits).all() or not np.isfinite(boxes).all():
        raise ProcessorFailed(
            f"The network answered logits {logits.shape} and boxes {boxes.shape}; expected finite (queries, classes) "
            "and (queries, 4)."
        )
    return logits, boxes


def _softmax(logits: Numbers) -> Numbers:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))
