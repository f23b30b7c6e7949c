"""The object detection processor: a photograph in, boxes with labels out."""

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
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.annotation import annotate
from penstock.processors.vision.picture import Picture
from penstock.processors.vision.prompts import one_prompt, write_dummy
from penstock.processors.vision.recipe import read_recipe
from penstock.processors.vision.request import ObjectDetectionRequest

#: How many boxes are told at most, by the kind of image processor; None = as many as the network has queries. A box
#: may be told with several classes.
_TOP: Mapping[str, int | None] = {"ConditionalDetr": 100, "DeformableDetr": 100, "RTDetr": None}
#: Kinds whose last class means "nothing": each box has one class.
_WITH_NOTHING = frozenset({"Detr", "Yolos"})


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    outputs: tuple[str, ...]
    threshold: float
    #: The picture's (height, width).
    size: tuple[int, int]
    #: The picture itself, if it is to be annotated.
    picture: Picture | None


@dataclass(frozen=True, slots=True)
class Found:
    """A box in parts of the picture: left, top, right, bottom."""

    label: int
    score: float
    box: tuple[float, float, float, float]


class ObjectDetection:
    """Finds objects in a photograph, as the library's image processor of the model's kind reads its answers."""

    request = ObjectDetectionRequest
    outputs = (
        OUTPUTS.spec("boxes", "boxes.json: the result: labels, scores and boxes in pixels", kind="json"),
        OUTPUTS.spec("annotated", "annotated.png: the picture with its boxes", kind="png"),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "preprocessor")
        self._recipe = read_recipe(model)
        self._labels = read_labels(model)
        if self._recipe.kind not in {*_TOP, *_WITH_NOTHING}:
            known = ", ".join(sorted({*_TOP, *_WITH_NOTHING}))
            raise ModelUnavailable(
                f"model {model.name!r}: how detectors with image processors of the kind {self._recipe.kind!r} answer is"
                f" not known here; known are: {known}"
            )
        if self._recipe.crops:
            raise ModelUnavailable(f"model {model.name!r}: its preprocessor crops pictures: boxes would not fit them")

    def pre_process(self, request: ObjectDetectionRequest, media: Media) -> Prepared[Context]:
        """Return the one prompt."""
        picture, prompt = one_prompt(media.path(request.image), self._recipe, self._model.limits)
        kept = picture if "annotated" in request.outputs else None
        context = Context(request.outputs, request.threshold, (picture.shape[0], picture.shape[1]), kept)
        return Prepared(iter([prompt]), 1, prompt.cost, context, unit="images")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "objects": [{"id", "label", "score", "box"}]}`, best first.

        A box is `{"xmin", "ymin", "xmax", "ymax"}` in pixels of the picture as people see it, from the upper left.
        """
        answers = list(final_outputs(outputs))
        if len(answers) != 1:
            raise ProcessorFailed(f"The engine answered {len(answers)} times; expected once.")
        logits, boxes = _checked(answers[0].data)
        found = self._found(logits, boxes, context.threshold)
        height, width = context.size
        objects = [self._told(one, height, width) for one in found]
        told = {"width": width, "height": height, "objects": objects}
        if "boxes" in context.outputs:
            OUTPUTS.put(sink, "boxes", told, kind="json")
        if context.picture is not None:
            OUTPUTS.put(sink, "annotated", annotate(context.picture, objects), kind="png")
        return Result(data=told)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a picture of ordinary size."""
        return Dummy({"image": "media://dummy"}, {"media://dummy": write_dummy(folder, limits)})

    def _found(
        self, logits: npt.NDArray[np.float64], boxes: npt.NDArray[np.float64], threshold: float
    ) -> Sequence[Found]:
        if self._recipe.kind in _WITH_NOTHING:
            scores = _softmax(logits)[:, :-1]
            labels, queries = scores.argmax(axis=1), np.arange(len(scores))
            best = scores.max(axis=1)
        else:
            flat = (0.5 * (1 + np.tanh(logits / 2))).ravel()
            order = np.argsort(-flat, kind="stable")[: _TOP[self._recipe.kind] or len(boxes)]
            best, labels, queries = flat[order], order % logits.shape[1], order // logits.shape[1]
        order = np.argsort(-best, kind="stable")
        return [
            Found(int(labels[i]), float(best[i]), _corners(boxes[queries[i]])) for i in order if best[i] > threshold
        ]

    def _told(self, found: Found, height: int, width: int) -> dict[str, Any]:
        sides = (width, height, width, height)
        box = [round(part * side, 2) for part, side in zip(found.box, sides, strict=True)]
        return {
            "id": found.label,
            "label": self._labels.get(found.label, f"LABEL_{found.label}"),
            "score": round(found.score, 6),
            "box": dict(zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)),
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
    """Return left, top, right and bottom of centre x, centre y, width and height, within the picture."""
    x, y, width, height = box
    left, top, right, bottom = np.clip([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 0, 1)
    return float(left), float(top), float(right), float(bottom)
