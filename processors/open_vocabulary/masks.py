"""Mask generation: outlines objects that points and boxes describe, by the library's own processor."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock.errors import InvalidInput, Issue, ModelUnavailable, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.directory import check_options
from penstock.processors.io_signature import IOSignature
from penstock.processors.multimodal.encoder import INPUTS_NAME, OUTPUTS_NAME
from penstock.processors.multimodal.library import as_array, load_processor, rejecting, trying
from penstock.processors.open_vocabulary.request import MaskRequest, PointedObject
from penstock.processors.outputs import OUTPUTS, Indexed
from penstock.processors.vision.annotation import mark
from penstock.processors.vision.colours import COLOURS, overlay
from penstock.processors.vision.image import ImageArray, read_image
from penstock.processors.vision.prompts import write_dummy
from penstock.views import View

Mask = npt.NDArray[np.bool_]

#: Values that a processor makes for its own decoder: the image's size, and its size in the network's input.
_SIZES = ("original_sizes", "reshaped_input_sizes")
_PIXELS = INPUTS_NAME.format("pixel_values")
_ANSWER = {"pred_masks": "array (objects, masks, h, w)", "iou_scores": "array (objects, masks)"}
SIGNATURES = (IOSignature(prompt={INPUTS_NAME.format("*"): "array", OUTPUTS_NAME: "list"}, output=_ANSWER),)


@dataclass(frozen=True, slots=True)
class Framed:
    """An image as a network sees it: what its masks are enlarged by, and the objects of each prompt."""

    sizes: Mapping[str, Any]
    #: Places of objects in the request.
    objects: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A mask of an object, at the network's own size."""

    #: The object's place in the request.
    place: int
    score: float
    #: float32 (1, 1, h, w): above 0 inside.
    small: Any
    sizes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Masker:
    """A network of masks for images of any origin, such as a photograph or a window of a scene."""

    processor: Any
    #: Side of the network's input: it sees no finer detail.
    side_px: int = 0

    def prompts(self, image: ImageArray, objects: Sequence[PointedObject]) -> tuple[list[Prompt], Framed]:
        """Return the prompts of an image, with coordinates in its pixels: one for all objects of the same form.

        The form is the number of points and having a box: those of a prompt are one array. Raises `InvalidInput` for an
        image whose shorter side vanishes at the network's size, and for what the processor rejects.
        """
        height, width = image.shape[:2]
        if self.side_px and 2 * min(height, width) * self.side_px < max(height, width):
            raise InvalidInput(
                f"The image is {width} x {height} pixels, too long and narrow: resized to the network's {self.side_px} "
                "pixels, its shorter side has none. Cut a part that is less long."
            )
        forms: dict[tuple[int, bool], list[int]] = {}
        for place, one in enumerate(objects):
            forms.setdefault((len(one.points), one.box is not None), []).append(place)
        made = [self._made(image, [objects[place] for place in places]) for places in forms.values()]
        prompts = [
            Prompt(
                {
                    **{INPUTS_NAME.format(name): as_array(value) for name, value in one.items() if name not in _SIZES},
                    OUTPUTS_NAME: list(_ANSWER),
                },
                cost=one["pixel_values"].shape[-1] * one["pixel_values"].shape[-2],
            )
            for one in made
        ]
        sizes = {name: as_array(made[0][name]).tolist() for name in _SIZES if name in made[0]}
        return prompts, Framed(sizes, tuple(map(tuple, forms.values())))

    def found(self, outputs: Iterator[Output], framed: Framed, *, every: bool = False) -> list[Found]:
        """Return the masks in the order of the objects: the one with the highest score of each, or `every` one."""
        answers = list(final_outputs(outputs))
        if len(answers) != len(framed.objects):
            raise ProcessorFailed(f"The engine answered {len(answers)} times; expected {len(framed.objects)}.")
        found: list[Found] = []
        for answer, places in zip(answers, framed.objects, strict=True):
            masks, scores = _checked(answer.data, len(places))
            for place, some, theirs in zip(places, masks, scores, strict=True):
                chosen = range(len(theirs)) if every else [int(theirs.argmax())]
                found += [Found(place, float(theirs[at]), some[at][None, None], framed.sizes) for at in chosen]
        return sorted(found, key=lambda one: one.place)

    def mask(self, found: Found) -> Mask:
        """Return a mask as the library enlarges it, bool (height, width) of the image."""
        enlarge = self.processor.post_process_masks
        if "original_sizes" not in inspect.signature(enlarge).parameters:  # it hands its arguments on
            enlarge = self.processor.image_processor.post_process_masks
        [whole] = enlarge([found.small], **found.sizes)
        return np.asarray(whole[0, 0])

    def _made(self, image: ImageArray, objects: Sequence[PointedObject]) -> Any:
        given: dict[str, Any] = {}
        if objects[0].points:
            given["input_points"] = [[one.points for one in objects]]
            given["input_labels"] = [[labels_of(one) for one in objects]]
        if objects[0].box is not None:
            given["input_boxes"] = [[one.box for one in objects]]
        with rejecting("points and boxes"):
            return self.processor(Image.fromarray(image), return_tensors="pt", **given)


def read_masker(model: Model) -> Masker:
    """Return the model's network of masks; raise `ModelUnavailable` if its processor takes no points with an image."""
    processor = load_processor(model)
    if not hasattr(processor, "post_process_masks"):
        raise ModelUnavailable(f"model {model.name!r}: {type(processor).__name__} makes no masks of points and boxes")
    masker = Masker(processor)
    with trying(model, processor):
        example = PointedObject(points=[[1, 1]], box=[0, 0, 9, 9])
        [prompt], _ = masker.prompts(np.zeros((64, 64, 3), np.uint8), [example])
        return Masker(processor, max(prompt.data[_PIXELS].shape[-2:]))


def labels_of(one: PointedObject) -> list[int]:
    """Return 1 for each point on an object, 0 beside it."""
    return list(one.labels) or [1] * len(one.points)


def entry(number: int, found: Found, mask: Mask) -> dict[str, Any]:
    """Return a mask's JSON: `{"id", "object", "score", "pixels", "box"}`; a box has exclusive maxima."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = None
    if len(rows):
        box = {
            "xmin": int(columns[0]), "ymin": int(rows[0]), "xmax": int(columns[-1]) + 1, "ymax": int(rows[-1]) + 1
        }  # fmt: skip
    return {
        "id": number, "object": found.place, "score": round(found.score, 6), "pixels": int(mask.sum()), "box": box
    }  # fmt: skip


def run_lengths(mask: Mask) -> dict[str, list[int]]:
    """Return a mask in COCO's uncompressed form: lengths of runs down the columns, beginning outside the mask."""
    flat = mask.ravel(order="F")
    edges = [0, *(np.flatnonzero(flat[1:] != flat[:-1]) + 1).tolist(), flat.size]
    counts = np.diff(edges).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}


@dataclass(frozen=True, slots=True)
class MaskGenerationContext:
    """Request state for `post_process`."""

    request: MaskRequest
    framed: Framed
    #: The image's (height, width).
    size: tuple[int, int]
    #: The pixels, only if an overlay is wanted.
    image: ImageArray | None


class MaskGeneration:
    """The mask generation processor: outlines the objects that points and boxes describe."""

    request = MaskRequest
    outputs = (
        OUTPUTS.spec("mask", "mask.png: ids of masks with a palette (16-bit grey above 255), 0 is none", kind="png"),
        OUTPUTS.spec("overlay", "overlay.png: the image, half in its masks' colours", kind="png"),
        OUTPUTS.spec("masks", "mask-1.png, mask-2.png, ...: each mask in white", kind="png", default=False),
        OUTPUTS.spec("objects", "masks.json: score, area, box and run lengths of each mask", kind="json"),
    )
    views = (View("rows", "/masks"),)
    io_signatures = SIGNATURES

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model)
        self._masker = read_masker(model)

    def pre_process(self, request: MaskRequest, media: Media) -> Prepared[MaskGenerationContext]:
        """Return one prompt for all objects with as many points and boxes."""
        image = read_image(media.source(request.image), self._model.limits)
        height, width = image.shape[:2]
        request = request.model_copy(update={"objects": inside(request.objects, width, height, "image")})
        prompts, framed = self._masker.prompts(image, request.objects)
        context = MaskGenerationContext(
            request, framed, (height, width), image if "overlay" in request.outputs else None
        )
        return Prepared(iter(prompts), len(prompts), sum(prompt.cost for prompt in prompts), context)

    def post_process(self, outputs: Iterator[Output], context: MaskGenerationContext, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "masks": [{"id", "object", "score", "pixels", "box"}]}`.

        A mask's `id` is its value in mask.png, where the mask with the higher score lies above. `object` is the place
        of its object in the request. One mask at a time has the image's size.
        """
        wanted, (height, width) = context.request, context.size
        found = self._masker.found(outputs, context.framed, every=wanted.keep == "all")
        entries: dict[int, dict[str, Any]] = {}
        runs: dict[int, Any] = {}
        ids = np.zeros(context.size, np.uint8 if len(found) < 256 else np.uint16)
        for at in sorted(range(len(found)), key=lambda at: found[at].score):
            mask, number = self._masker.mask(found[at]), at + 1
            ids[mask] = number
            entries[number] = entry(number, found[at], mask)
            if "objects" in wanted.outputs:
                runs[number] = run_lengths(mask)
            if "masks" in wanted.outputs:
                OUTPUTS.put(sink, f"mask-{number}", mask.astype(np.uint8) * 255, kind="png")
        data: dict[str, Any] = {
            "width": width,
            "height": height,
            "masks": [entries[number] for number in sorted(entries)],
        }
        if "mask" in wanted.outputs:
            OUTPUTS.put(sink, "mask", Indexed(ids, COLOURS) if ids.dtype == np.uint8 else ids, kind="png")
        if context.image is not None:
            OUTPUTS.put(sink, "overlay", _marked(overlay(context.image, ids, clear=0), wanted.objects), kind="png")
        if "objects" in wanted.outputs:
            with_runs = [{**one, "rle": runs[one["id"]]} for one in data["masks"]]
            OUTPUTS.put(sink, "masks", {**data, "masks": with_runs}, kind="json")
        return Result(data=data)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return one image of ordinary size with one point."""
        request = {"image": "media://dummy", "objects": [{"points": [[0, 0]]}]}
        return Dummy(request, {"media://dummy": write_dummy(folder, limits)})


def inside(objects: Sequence[PointedObject], width: int, height: int, what: str) -> list[PointedObject]:
    """Return the objects with their boxes, in pixels, cut to an image of `width` x `height`.

    Raises `InvalidInput` for an object with a point outside the image, or with a box that has no part in it.
    """
    cut: list[PointedObject] = []
    for place, one in enumerate(objects):
        pointed = all(0 <= x <= width and 0 <= y <= height for x, y in one.points)
        box = one.box
        shown = box is None or (box[0] < width and box[2] > 0 and box[1] < height and box[3] > 0)
        if not (pointed and shown):
            detail = f"object {place} lies outside the {what} of {width} x {height} pixels"
            raise InvalidInput(detail, errors=[Issue(f"/input/objects/{place}", detail)])
        if box is not None:
            box = [max(box[0], 0), max(box[1], 0), min(box[2], width), min(box[3], height)]
        cut.append(one.model_copy(update={"box": box}))
    return cut


def _marked(image: ImageArray, objects: Sequence[PointedObject]) -> ImageArray:
    points: list[tuple[list[float], bool]] = []
    for one in objects:
        points += zip(one.points, map(bool, labels_of(one)), strict=True)
    return mark(image, points, [one.box for one in objects if one.box])


def _checked(data: Mapping[str, Any], objects: int) -> tuple[Any, Any]:
    masks, scores = (np.asarray(data[name], dtype=np.float32) for name in ("pred_masks", "iou_scores"))
    if masks.ndim != 4 or masks.shape[:2] != scores.shape or len(scores) != objects or not scores.size:
        raise ProcessorFailed(f"The network answered masks {masks.shape} with scores {scores.shape}.")
    if not np.isfinite(masks).all() or not np.isfinite(scores).all():
        raise ProcessorFailed("The network answered NaN or infinite numbers.")
    return masks, scores
