"""Object detection: turns an image into boxes with labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from penstock.errors import ModelUnavailable
from penstock.json_body import wrong_fields
from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, Prepared, Result, only_output
from penstock.processors.directory import check_options, read_labels
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.annotation import annotate
from penstock.processors.vision.detectors import OUTPUTS as OUTPUTS_OF
from penstock.processors.vision.detectors import BoxFormat, BoxUnit, Detector, Layout
from penstock.processors.vision.image import ImageArray
from penstock.processors.vision.preprocessor import read_preprocessor
from penstock.processors.vision.prompts import INPUT_NAME, PIXELS, SHOWN, OneImage, one_prompt
from penstock.processors.vision.queries import check_kind
from penstock.processors.vision.request import ObjectDetectionRequest
from penstock.views import View


@dataclass(frozen=True, slots=True)
class ObjectDetectionContext:
    """Request state for `post_process`."""

    outputs: tuple[str, ...]
    threshold: float
    #: The image's (height, width).
    size: tuple[int, int]
    #: The (height, width) of the network's input, and of the image in it.
    seen: tuple[int, int]
    shown: tuple[int, int]
    #: The pixels, only if an annotated copy is wanted.
    image: ImageArray | None


class _Options(BaseModel):
    """The options of a model that name the layout of its outputs."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    detector: Layout = "queries"
    box_format: BoxFormat = "xyxy"
    box_unit: BoxUnit = "pixels"


def _options(model: Model) -> _Options:
    try:
        return _Options.model_validate(dict(model.options))
    except ValidationError as error:
        raise ModelUnavailable(f"model {model.name!r}: wrong options: {wrong_fields(error)}") from error


class ObjectDetection(OneImage):
    """The object detection processor; it decodes outputs as transformers' image processor of the model's kind does."""

    request = ObjectDetectionRequest
    outputs = (
        OUTPUTS.spec("boxes", "boxes.json: the result: labels, scores and boxes in pixels", kind="json"),
        OUTPUTS.spec("annotated", "annotated.png: the image with its boxes", kind="png"),
    )
    views = (View("boxes", "/objects"),)
    #: The output that all kinds of networks have; a model's own signature has more.
    io_signatures: tuple[IOSignature, ...] = (
        IOSignature(
            prompt=PIXELS,
            optional=SHOWN,
            output={"boxes": "array (_, _)"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "preprocessor")
        self._preprocessor = read_preprocessor(model)
        self._labels = read_labels(model)
        options = _options(model)
        self._detector = Detector(options.detector, options.box_format, options.box_unit, self._preprocessor.kind)
        self.io_signatures = (IOSignature(prompt=PIXELS, optional=SHOWN, output=OUTPUTS_OF[options.detector]),)
        if options.detector == "queries":
            check_kind(model, self._preprocessor.kind)
        if self._preprocessor.crops:
            raise ModelUnavailable(f"model {model.name!r}: its preprocessor crops images, so boxes would not fit them")

    def pre_process(self, request: ObjectDetectionRequest, media: Media) -> Prepared[ObjectDetectionContext]:
        """Return one prompt."""
        image, prompt = one_prompt(media.source(request.image), self._preprocessor, self._model.limits)
        kept = image if "annotated" in request.outputs else None
        size = image.shape[0], image.shape[1]
        seen = prompt.data[INPUT_NAME].shape[1:]
        # Networks with queries answer shares of the image, also where their input is padded.
        queries = self._detector.layout == "queries"
        shown = seen if queries else self._preprocessor.resized_shape(*size)
        context = ObjectDetectionContext(request.outputs, request.threshold, size, seen, shown, kept)
        return Prepared(iter([prompt]), 1, prompt.cost, context, unit="images")

    def post_process(self, outputs: Iterator[Output], context: ObjectDetectionContext, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "objects": [{"label_id", "label", "score", "box", "id"}]}`, best first.

        `label_id` is the id of the object's class; `id` is its old name and has the same value. A box is
        `{"xmin", "ymin", "xmax", "ymax"}` in pixels from the upper left, after the image's EXIF rotation.
        """
        (height, width), seen, shown = context.size, context.seen, context.shown
        labels, scores, boxes = self._detector.find(only_output(outputs).data, context.threshold, seen[1], seen[0])
        boxes = np.clip(boxes / (shown[1], shown[0], shown[1], shown[0]), 0, 1) * (width, height, width, height)
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
