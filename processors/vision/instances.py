"""Instance segmentation: turns an image into segments, each with its own mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, Prepared, Result, only_output
from penstock.processors.directory import check_options, read_labels
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS, Indexed
from penstock.processors.vision.colours import COLOURS, overlay
from penstock.processors.vision.preprocessor import read_preprocessor
from penstock.processors.vision.prompts import PIXELS, SHOWN, ImageContext, OneImage, one_prompt
from penstock.processors.vision.request import InstanceSegmentationRequest
from penstock.views import View

Ids = npt.NDArray[np.integer[Any]]


#: A prompt's settings of segmentation, named as in the request.
_THRESHOLDS = ("threshold", "mask_threshold", "overlap_threshold")


class InstanceSegmentation(OneImage):
    """The instance segmentation processor: divides an image into segments that do not overlap.

    The model's training decides whether segments are objects only or also regions such as sky (panoptic segmentation).
    """

    request = InstanceSegmentationRequest
    outputs = (
        OUTPUTS.spec("mask", "mask.png: segment ids with a palette (16-bit grey above 255), 0 is none", kind="png"),
        OUTPUTS.spec("overlay", "overlay.png: the image, half in its segments' colours", kind="png"),
        OUTPUTS.spec("segments", "segments.json: the result: the class, score and box of each segment", kind="json"),
    )
    views = (View("boxes", "/segments"),)
    io_signatures = (
        IOSignature(
            prompt={**PIXELS, "size": "list", **dict.fromkeys(_THRESHOLDS, "number")},
            optional=SHOWN,
            output={"segments": "array (H, W)", "classes": "array (segments)", "scores": "array (segments)"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "preprocessor")
        self._preprocessor = read_preprocessor(model)
        self._labels = read_labels(model)
        if self._preprocessor.crops or self._preprocessor.pads:
            raise ModelUnavailable(f"model {model.name!r}: its preprocessor crops or pads, so masks would not fit")

    def pre_process(self, request: InstanceSegmentationRequest, media: Media) -> Prepared[ImageContext]:
        """Return one prompt."""
        thresholds = {name: getattr(request, name) for name in _THRESHOLDS}
        image, prompt = one_prompt(
            media.source(request.image), self._preprocessor, self._model.limits, sized=True, **thresholds
        )
        context = ImageContext.of(image, request.outputs, "overlay")
        return Prepared(iter([prompt]), 1, prompt.cost, context, unit="images")

    def post_process(self, outputs: Iterator[Output], context: ImageContext, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "segments": [{"id", "label_id", "label", "score", "pixels", "box"}]}`.

        A segment's `id` is its value in mask.png. Its box is `{"xmin", "ymin", "xmax", "ymax"}` in pixels, with
        exclusive maxima.
        """
        ids, classes, scores = _checked(only_output(outputs), context.size)
        data = {"width": context.size[1], "height": context.size[0], "segments": self._entries(ids, classes, scores)}
        if "mask" in context.outputs:
            paletted = ids.dtype == np.uint8
            OUTPUTS.put(sink, "mask", Indexed(ids.astype(np.uint8), COLOURS) if paletted else ids, kind="png")
        if context.image is not None:
            OUTPUTS.put(sink, "overlay", overlay(context.image, ids, clear=0), kind="png")
        if "segments" in context.outputs:
            OUTPUTS.put(sink, "segments", data, kind="json")
        return Result(data=data)

    def _entries(self, ids: Ids, classes: Sequence[int], scores: Sequence[float]) -> list[Mapping[str, Any]]:
        pixels = np.bincount(ids.ravel(), minlength=len(classes) + 1)
        places = _places(ids, len(classes))
        return [
            {
                "id": number,
                "label_id": int(kind),
                "label": self._labels.get(int(kind), f"LABEL_{kind}"),
                "score": round(float(score), 6),
                "pixels": int(pixels[number]),
                "box": dict(zip(("xmin", "ymin", "xmax", "ymax"), places[number], strict=True)),
            }
            for number, (kind, score) in enumerate(zip(classes, scores, strict=True), start=1)
        ]


def _checked(output: Output, size: tuple[int, int]) -> tuple[Ids, Sequence[int], Sequence[float]]:
    ids, classes, scores = (np.asarray(output.data[name]) for name in ("segments", "classes", "scores"))
    if (
        ids.shape != size
        or ids.dtype not in (np.uint8, np.uint16)
        or classes.shape != scores.shape
        or classes.ndim != 1
    ):
        raise ProcessorFailed(
            f"The network answered {ids.dtype} {ids.shape} with classes {classes.shape} and scores {scores.shape}; "
            f"expected uint8 or uint16 {size} with one class and one score per segment."
        )
    if int(ids.max()) > len(classes) or not np.isfinite(scores).all():
        raise ProcessorFailed(f"The network answered ids up to {ids.max()}, but only {len(classes)} segments.")
    return ids, classes.tolist(), scores.tolist()


def _places(ids: Ids, count: int) -> Mapping[int, list[int]]:
    """Return left, top, right and bottom (the last two exclusive) of each id, row by row to save memory."""
    places = {number: [ids.shape[1], ids.shape[0], 0, 0] for number in range(1, count + 1)}
    for y, row in enumerate(ids):
        changes = np.flatnonzero(np.diff(row)) + 1
        for left, right in zip((0, *changes), (*changes, len(row)), strict=True):
            if box := places.get(int(row[left])):
                box[:] = min(box[0], int(left)), min(box[1], y), max(box[2], int(right)), y + 1
    return places
