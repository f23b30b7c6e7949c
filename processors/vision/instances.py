"""The instance segmentation processor: a photograph in, its objects and regions out, each with a mask of its own."""

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
from penstock.processors.outputs import OUTPUTS, Indexed
from penstock.processors.vision.colours import COLOURS, overlay
from penstock.processors.vision.picture import Picture
from penstock.processors.vision.prompts import one_prompt, write_dummy
from penstock.processors.vision.recipe import read_recipe
from penstock.processors.vision.request import InstanceSegmentationRequest

Ids = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    outputs: tuple[str, ...]
    #: The picture's (height, width).
    size: tuple[int, int]
    #: The picture itself, if there is to be an overlay.
    picture: Picture | None


class InstanceSegmentation:
    """Parts a photograph into segments that do not overlap: objects one by one, and regions where the model knows them.

    Whether the parts are instances of things alone, or also of what has no number (panoptic), is the model's training.
    """

    request = InstanceSegmentationRequest
    outputs = (
        OUTPUTS.spec("mask", "mask.png: segment ids with a palette (16-bit grey above 255), 0 is none", kind="png"),
        OUTPUTS.spec("overlay", "overlay.png: the picture, half in its segments' colours", kind="png"),
        OUTPUTS.spec("segments", "segments.json: the result: what each segment is, and where", kind="json"),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels", "preprocessor")
        self._recipe = read_recipe(model)
        self._labels = read_labels(model)
        if self._recipe.crops or self._recipe.pads:
            raise ModelUnavailable(
                f"model {model.name!r}: its preprocessor crops or pads: masks would not fit pictures"
            )

    def pre_process(self, request: InstanceSegmentationRequest, media: Media) -> Prepared[Context]:
        """Return the one prompt."""
        asked = {
            "threshold": request.threshold,
            "mask_threshold": request.mask_threshold,
            "overlap_threshold": request.overlap_threshold,
        }
        picture, prompt = one_prompt(media.path(request.image), self._recipe, self._model.limits, sized=True, **asked)
        kept = picture if "overlay" in request.outputs else None
        context = Context(request.outputs, (picture.shape[0], picture.shape[1]), kept)
        return Prepared(iter([prompt]), 1, prompt.cost, context, unit="images")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "segments": [{"id", "label_id", "label", "score", "pixels", "box"}]}`.

        A segment's `id` is its number in mask.png; its box is `{"xmin", "ymin", "xmax", "ymax"}` in pixels, the last
        two exclusive.
        """
        ids, classes, scores = _checked(list(final_outputs(outputs)), context.size)
        told = {"width": context.size[1], "height": context.size[0], "segments": self._told(ids, classes, scores)}
        if "mask" in context.outputs:
            paletted = ids.dtype == np.uint8
            OUTPUTS.put(sink, "mask", Indexed(ids.astype(np.uint8), COLOURS) if paletted else ids, kind="png")
        if context.picture is not None:
            OUTPUTS.put(sink, "overlay", overlay(context.picture, ids, clear=0), kind="png")
        if "segments" in context.outputs:
            OUTPUTS.put(sink, "segments", told, kind="json")
        return Result(data=told)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a picture of ordinary size."""
        return Dummy({"image": "media://dummy"}, {"media://dummy": write_dummy(folder, limits)})

    def _told(self, ids: Ids, classes: Sequence[int], scores: Sequence[float]) -> list[Mapping[str, Any]]:
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


def _checked(outputs: list[Output], size: tuple[int, int]) -> tuple[Ids, Sequence[int], Sequence[float]]:
    if len(outputs) != 1:
        raise ProcessorFailed(f"The engine answered {len(outputs)} times; expected once.")
    ids, classes, scores = (np.asarray(outputs[0].data[name]) for name in ("segments", "classes", "scores"))
    if (
        ids.shape != size
        or ids.dtype not in (np.uint8, np.uint16)
        or classes.shape != scores.shape
        or classes.ndim != 1
    ):
        raise ProcessorFailed(
            f"The network answered {ids.dtype} {ids.shape} with classes {classes.shape} and scores {scores.shape}; "
            f"expected uint8 or uint16 {size} with one of each for every segment."
        )
    if int(ids.max()) > len(classes) or not np.isfinite(scores).all():
        raise ProcessorFailed(f"The network answered ids up to {ids.max()} for {len(classes)} segments.")
    return ids, classes.tolist(), scores.tolist()


def _places(ids: Ids, count: int) -> Mapping[int, list[int]]:
    """Return left, top, right and bottom of each id, the last two exclusive; row by row, so that it stays small."""
    places = {number: [ids.shape[1], ids.shape[0], 0, 0] for number in range(1, count + 1)}
    for y, row in enumerate(ids):
        changes = np.flatnonzero(np.diff(row)) + 1
        for left, right in zip((0, *changes), (*changes, len(row)), strict=True):
            if box := places.get(int(row[left])):
                box[:] = min(box[0], int(left)), min(box[1], y), max(box[2], int(right)), y + 1
    return places
