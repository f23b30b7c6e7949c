"""The image segmentation processor: a photograph in, a mask, an overlay and the classes' shares out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.directory import check_options, read_labels
from penstock.processors.inputs import INPUTS
from penstock.processors.outputs import OUTPUTS, Indexed
from penstock.processors.vision.colours import COLOURS, overlay
from penstock.processors.vision.picture import Picture
from penstock.processors.vision.prompts import INPUT_NAME, write_dummy
from penstock.processors.vision.recipe import read_recipe
from penstock.processors.vision.request import ImageSegmentationRequest

#: The network's output: uint8 class ids (height, width) of the size that the prompt names; uint16 from 256 classes on.
OUTPUT_NAME = "classes"
#: What the prompt has beside its pixels: [height, width] of the answer.
SIZE_NAME = "size"


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    outputs: tuple[str, ...]
    picture: Picture


class ImageSegmentation:
    """Segments a photograph at its own size: the network sees it resized, its classes come back at full size."""

    request = ImageSegmentationRequest
    outputs = (
        OUTPUTS.spec("mask", "mask.png: class ids with a palette (16-bit grey above 256 classes)", kind="png"),
        OUTPUTS.spec("overlay", "overlay.png: the picture, half in its classes' colours", kind="png"),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "preprocessor")
        self._recipe = read_recipe(model)
        self._labels = read_labels(model)
        if self._recipe.crops:
            raise ModelUnavailable(f"model {model.name!r}: its preprocessor crops pictures: a mask would not fit them")

    def pre_process(self, request: ImageSegmentationRequest, media: Media) -> Prepared[Context]:
        """Return the one prompt."""
        picture: Picture = INPUTS.read("picture", media.path(request.image), self._model.limits)
        pixels = self._recipe.apply(picture)
        cost = pixels.shape[1] * pixels.shape[2]
        prompt = Prompt({INPUT_NAME: pixels, SIZE_NAME: list(picture.shape[:2])}, cost)
        return Prepared(iter([prompt]), 1, cost, Context(request.outputs, picture), unit="images")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "classes": [{"id", "label", "pixels", "share"}]}`, most pixels first."""
        height, width = context.picture.shape[:2]
        ids = class_ids(list(final_outputs(outputs)), (height, width))
        if "mask" in context.outputs:
            paletted = ids.dtype == np.uint8
            OUTPUTS.put(sink, "mask", Indexed(ids.astype(np.uint8), COLOURS) if paletted else ids, kind="png")
        if "overlay" in context.outputs:
            OUTPUTS.put(sink, "overlay", overlay(context.picture, ids), kind="png")
        return Result(data={"width": width, "height": height, "classes": self._shares(ids)})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a picture of ordinary size."""
        return Dummy({"image": "media://dummy"}, {"media://dummy": write_dummy(folder, limits)})

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


def class_ids(outputs: list[Output], shape: tuple[int, int]) -> npt.NDArray[np.integer[Any]]:
    """Return the class ids of the one output there is, (height, width); raise `ProcessorFailed` for anything else."""
    if len(outputs) != 1:
        raise ProcessorFailed(f"The engine answered {len(outputs)} times; expected once.")
    ids = np.asarray(outputs[0].data[OUTPUT_NAME])
    if ids.shape != shape or ids.dtype not in (np.uint8, np.uint16):
        raise ProcessorFailed(f"The network answered {ids.dtype} {ids.shape}; expected uint8 or uint16 {shape}.")
    return ids
