"""Object detection: turns an image into boxes with labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, Prepared, Result, only_output
from penstock.processors.directory import check_options, read_labels
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.annotation import annotate
from penstock.processors.vision.image import ImageArray
from penstock.processors.vision.preprocessor import read_preprocessor
from penstock.processors.vision.prompts import PIXELS, SHOWN, OneImage, one_prompt
from penstock.processors.vision.queries import check_kind, decode
from penstock.processors.vision.request import ObjectDetectionRequest
from penstock.views import View


@dataclass(frozen=True, slots=True)
class ObjectDetectionContext:
    """Request state for `post_process`."""

    outputs: tuple[str, ...]
    threshold: float
    #: The image's (height, width).
    size: tuple[int, int]
    #: The pixels, only if an annotated copy is wanted.
    image: ImageArray | None


class ObjectDetection(OneImage):
    """The object detection processor; it decodes outputs as transformers' image processor of the model's kind does."""

    request = ObjectDetectionRequest
    outputs = (
        OUTPUTS.spec("boxes", "boxes.json: the result: labels, scores and boxes in pixels", kind="json"),
        OUTPUTS.spec("annotated", "annotated.png: the image with its boxes", kind="png"),
    )
    views = (View("boxes", "/objects"),)
    io_signatures = (
        IOSignature(
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
        check_kind(model, self._preprocessor.kind)
        if self._preprocessor.crops:
            raise ModelUnavailable(f"model {model.name!r}: its preprocessor crops images, so boxes would not fit them")

    def pre_process(self, request: ObjectDetectionRequest, media: Media) -> Prepared[ObjectDetectionContext]:
        """Return one prompt."""
        image, prompt = one_prompt(media.source(request.image), self._preprocessor, self._model.limits)
        kept = image if "annotated" in request.outputs else None
        context = ObjectDetectionContext(request.outputs, request.threshold, (image.shape[0], image.shape[1]), kept)
        return Prepared(iter([prompt]), 1, prompt.cost, context, unit="images")

    def post_process(self, outputs: Iterator[Output], context: ObjectDetectionContext, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "objects": [{"label_id", "label", "score", "box", "id"}]}`, best first.

        `label_id` is the id of the object's class; `id` is its old name and has the same value. A box is
        `{"xmin", "ymin", "xmax", "ymax"}` in pixels from the upper left, after the image's EXIF rotation.
        """
        labels, scores, boxes = decode(self._preprocessor.kind, only_output(outputs).data, context.threshold)
        height, width = context.size
        boxes *= (width, height, width, height)
        found = zip(labels.tolist(), scores.tolist(), boxes.tolist(), strict=True)
        objects = [self._entry(*one) for one in found]
        data = {"width": width, "height": height, "objects": objects}
        if "boxes" in context.outputs:
            OUTPUTS.put(sink, "boxes", data, kind="json")
        if context.image is not None:
            OUTPUTS.put(sink, "annotated", annotate(context.image, objects), kind="png")
        return Result(data=data)

    def _entry(self, label: int, score: float, box: list[float]) -> dict[str, Any]:
        return {
            "label_id": label,
            "label": self._labels.get(label, f"LABEL_{label}"),
            "score": round(score, 6),
            "box": {name: round(side, 2) for name, side in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)},
            "id": label,
        }
