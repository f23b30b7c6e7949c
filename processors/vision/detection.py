"""Object detection: turns an image into boxes with labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Result, final_outputs
from penstock.processors.directory import check_options, read_labels
from penstock.processors.exchange import Exchange
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.annotation import annotate
from penstock.processors.vision.image import ImageArray
from penstock.processors.vision.preprocessor import read_preprocessor
from penstock.processors.vision.prompts import PIXELS, SHOWN, one_prompt, write_dummy
from penstock.processors.vision.request import ObjectDetectionRequest

#: Maximum number of results, by the kind of image processor; None = the number of the network's queries. A box may
#: appear several times, with different classes.
_TOP: Mapping[str, int | None] = {"ConditionalDetr": 100, "DeformableDetr": 100, "RTDetr": None}
#: Kinds whose last class means "no object": each box has one class.
_WITH_NO_OBJECT = frozenset({"Detr", "Yolos"})


@dataclass(frozen=True, slots=True)
class Context:
    """Request state for `post_process`."""

    outputs: tuple[str, ...]
    threshold: float
    #: The image's (height, width).
    size: tuple[int, int]
    #: The pixels, only if an annotated copy is wanted.
    image: ImageArray | None


@dataclass(frozen=True, slots=True)
class Detection:
    """A detected object. Its box is left, top, right, bottom as fractions of the image's sides."""

    #: Id of the class.
    label: int
    score: float
    box: tuple[float, float, float, float]


class ObjectDetection:
    """The object detection processor; it decodes outputs as transformers' image processor of the model's kind does."""

    request = ObjectDetectionRequest
    outputs = (
        OUTPUTS.spec("boxes", "boxes.json: the result: labels, scores and boxes in pixels", kind="json"),
        OUTPUTS.spec("annotated", "annotated.png: the image with its boxes", kind="png"),
    )
    exchanges = (
        Exchange(
            prompt=PIXELS,
            optional=SHOWN,
            output={"logits": "array (queries, classes)", "boxes": "array (queries, 4)"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "preprocessor")
        self._preprocessor = read_preprocessor(model)
        self._labels = read_labels(model)
        if self._preprocessor.kind not in {*_TOP, *_WITH_NO_OBJECT}:
            known = ", ".join(sorted({*_TOP, *_WITH_NO_OBJECT}))
            raise ModelUnavailable(
                f"model {model.name!r}: detectors with image processors of the kind {self._preprocessor.kind!r} are "
                f"not supported; supported: {known}"
            )
        if self._preprocessor.crops:
            raise ModelUnavailable(f"model {model.name!r}: its preprocessor crops images, so boxes would not fit them")

    def pre_process(self, request: ObjectDetectionRequest, media: Media) -> Prepared[Context]:
        """Return one prompt."""
        image, prompt = one_prompt(media.path(request.image), self._preprocessor, self._model.limits)
        kept = image if "annotated" in request.outputs else None
        context = Context(request.outputs, request.threshold, (image.shape[0], image.shape[1]), kept)
        return Prepared(iter([prompt]), 1, prompt.cost, context, unit="images")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "objects": [{"label_id", "label", "score", "box", "id"}]}`, best first.

        `label_id` is the id of the object's class; `id` is its old name and has the same value. A box is
        `{"xmin", "ymin", "xmax", "ymax"}` in pixels from the upper left, after the image's EXIF rotation.
        """
        answers = list(final_outputs(outputs))
        if len(answers) != 1:
            raise ProcessorFailed(f"The engine answered {len(answers)} times; expected once.")
        logits, boxes = _checked(answers[0].data)
        found = self._found(logits, boxes, context.threshold)
        height, width = context.size
        objects = [self._entry(one, height, width) for one in found]
        data = {"width": width, "height": height, "objects": objects}
        if "boxes" in context.outputs:
            OUTPUTS.put(sink, "boxes", data, kind="json")
        if context.image is not None:
            OUTPUTS.put(sink, "annotated", annotate(context.image, objects), kind="png")
        return Result(data=data)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return one image of ordinary size."""
        return Dummy({"image": "media://dummy"}, {"media://dummy": write_dummy(folder, limits)})

    def _found(
        self, logits: npt.NDArray[np.float64], boxes: npt.NDArray[np.float64], threshold: float
    ) -> Sequence[Detection]:
        if self._preprocessor.kind in _WITH_NO_OBJECT:
            scores = _softmax(logits)[:, :-1]
            labels, queries = scores.argmax(axis=1), np.arange(len(scores))
            best = scores.max(axis=1)
        else:
            flat = (0.5 * (1 + np.tanh(logits / 2))).ravel()
            order = np.argsort(-flat, kind="stable")[: _TOP[self._preprocessor.kind] or len(boxes)]
            best, labels, queries = flat[order], order % logits.shape[1], order // logits.shape[1]
        order = np.argsort(-best, kind="stable")
        return [
            Detection(int(labels[i]), float(best[i]), _corners(boxes[queries[i]])) for i in order if best[i] > threshold
        ]

    def _entry(self, found: Detection, height: int, width: int) -> dict[str, Any]:
        sides = (width, height, width, height)
        box = [round(part * side, 2) for part, side in zip(found.box, sides, strict=True)]
        return {
            "label_id": found.label,
            "label": self._labels.get(found.label, f"LABEL_{found.label}"),
            "score": round(found.score, 6),
            "box": dict(zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)),
            "id": found.label,
        }


def _checked(data: Mapping[str, Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    logits, boxes = (np.asarray(data[name], dtype=np.float64) for name in ("logits", "boxes"))
    fits = logits.ndim == 2 and boxes.shape == (len(logits), 4)
    if not fits or not np.isfinite(logits).all() or not np.isfinite(boxes).all():
        raise ProcessorFailed(
            f"The network answered logits {logits.shape} and boxes {boxes.shape}; expected finite (queries, classes) "
            "and (queries, 4)."
        )
    return logits, boxes


def _softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _corners(box: npt.NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Convert centre x, centre y, width and height to left, top, right and bottom, clipped to the image."""
    x, y, width, height = box
    left, top, right, bottom = np.clip([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 0, 1)
    return float(left), float(top), float(right), float(bottom)
