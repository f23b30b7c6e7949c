"""Image segmentation: turns an image into a mask, an overlay and the share of each class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, Prepared, Prompt, Result, only_output
from penstock.processors.directory import check_options, read_labels
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS, Indexed
from penstock.processors.vision.colours import COLOURS, overlay
from penstock.processors.vision.image import read_image
from penstock.processors.vision.preprocessor import Preprocessor, read_preprocessor
from penstock.processors.vision.prompts import INPUT_NAME, PIXELS, ImageContext, OneImage
from penstock.processors.vision.request import ImageSegmentationRequest
from penstock.views import View

#: The network's output: class ids (height, width) in the size of the prompt, uint8, or uint16 from 256 classes on.
OUTPUT_NAME = "classes"
#: The prompt's second input: [height, width] of the wanted output.
SIZE_NAME = "size"
#: Both as an `IOSignature` declares them.
CLASS_IDS, SIZE = {OUTPUT_NAME: "uint8 (H, W) or uint16 (H, W)"}, {SIZE_NAME: "list"}


def read_segmenter(model: Model) -> tuple[Preprocessor, Mapping[int, str], tuple[IOSignature]]:
    """Return the preprocessor, labels and signature of a model that segments images or frames in their own size.

    Raises `ModelUnavailable` for a preprocessor that crops.
    """
    check_options(model, "labels", "preprocessor")
    preprocessor = read_preprocessor(model)
    if preprocessor.crops:
        raise ModelUnavailable(f"model {model.name!r}: its preprocessor crops, so a mask would not fit the image")
    resized = preprocessor.fields.do_resize  # then class ids must be made in the image's own size
    prompt, optional = ({**PIXELS, **SIZE}, dict[str, str]()) if resized else (PIXELS, SIZE)
    return preprocessor, read_labels(model), (IOSignature(prompt=prompt, optional=optional, output=CLASS_IDS),)


class ImageSegmentation(OneImage):
    """The image segmentation processor. The network's input is resized; its output has the image's full size."""

    request = ImageSegmentationRequest
    outputs = (
        OUTPUTS.spec("mask", "mask.png: class ids with a palette (16-bit grey above 256 classes)", kind="png"),
        OUTPUTS.spec("overlay", "overlay.png: the image blended with its classes' colours", kind="png"),
    )
    views = (View("rows", "/classes"),)
    io_signatures = (IOSignature(prompt=PIXELS, optional=SIZE, output=CLASS_IDS),)

    def __init__(self, model: Model) -> None:
        self._model = model
        self._preprocessor, self._labels, self.io_signatures = read_segmenter(model)

    def pre_process(self, request: ImageSegmentationRequest, media: Media) -> Prepared[ImageContext]:
        """Return one prompt."""
        image = read_image(media.source(request.image), self._model.limits)
        pixels = self._preprocessor.apply(image)
        cost = pixels.shape[1] * pixels.shape[2]
        prompt = Prompt({INPUT_NAME: pixels, SIZE_NAME: list(image.shape[:2])}, cost)
        context = ImageContext.of(image, request.outputs, "overlay")
        return Prepared(iter([prompt]), 1, cost, context, unit="images")

    def post_process(self, outputs: Iterator[Output], context: ImageContext, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "classes": [{"id", "label", "pixels", "share"}]}`, largest class first."""
        height, width = context.size
        ids = class_ids(only_output(outputs), (height, width))
        if "mask" in context.outputs:
            paletted = ids.dtype == np.uint8
            OUTPUTS.put(sink, "mask", Indexed(ids.astype(np.uint8), COLOURS) if paletted else ids, kind="png")
        if context.image is not None:
            OUTPUTS.put(sink, "overlay", overlay(context.image, ids), kind="png")
        return Result(data={"width": width, "height": height, "classes": self._shares(ids)})

    def _shares(self, ids: npt.NDArray[np.integer[Any]]) -> list[dict[str, Any]]:
        found, counts = np.unique(ids, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [
            {
                "id": int(found[i]),
                "label": self._labels.get(int(found[i]), f"LABEL_{found[i]}"),
                "pixels": int(counts[i]),
                "share": round(float(counts[i]) / ids.size, 6),
            }
            for i in order
        ]


def class_ids(output: Output, shape: tuple[int, int]) -> npt.NDArray[np.integer[Any]]:
    """Return the class ids, (height, width), of an output; raise `ProcessorFailed` for any other output."""
    ids = np.asarray(output.data[OUTPUT_NAME])
    if ids.shape != shape or ids.dtype not in (np.uint8, np.uint16):
        raise ProcessorFailed(f"The network answered {ids.dtype} {ids.shape}; expected uint8 or uint16 {shape}.")
    return ids
