"""The image generation processor: a text, a label or nothing in, images out, shown on their way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, InvalidInput, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.drawing.files import MEDIA_TYPES, preview, write_image
from penstock.processors.drawing.pipeline import Pipeline, Told
from penstock.processors.drawing.request import (
    Format,
    GuidedRequest,
    ImageGenerationRequest,
    LabelToImageRequest,
    TextToImageRequest,
)
from penstock.processors.drawing.vocabulary import PaddedVocabulary, read_padded_vocabulary
from penstock.processors.limits import check_items
from penstock.processors.outputs import OUTPUTS
from penstock.reports import Issue

#: The network's answers: uint8 (height, width, 1 or 3); a preview is smaller.
OUTPUT_NAME, PREVIEW_NAME = "image", "preview"
#: What the record of such a model may say beside what every one may.
OPTIONS = ("compile", "guidance_scale", "steps")
#: Of a warm-up, enough to have run everything.
_DUMMY_STEPS = 2

_REQUESTS: Mapping[Told, type[ImageGenerationRequest]] = {
    Told.TEXT: TextToImageRequest,
    Told.LABEL: LabelToImageRequest,
    Told.NOTHING: ImageGenerationRequest,
}


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    format: Format
    seeds: tuple[int, ...]
    #: What all images of the job were made with.
    how: Mapping[str, Any] = field(default_factory=dict)
    #: Of the texts, those that were too long.
    truncated: tuple[str, ...] = ()


class ImageGeneration:
    """Makes images. What a model is told is what its request has: a text, a label, or nothing."""

    request: type[ImageGenerationRequest] = TextToImageRequest
    outputs = (OUTPUTS.spec("image", "image-1.png, image-2.png, ...; or .webp, where the request says so", kind="png"),)

    def __init__(self, model: Model) -> None:
        self._model = model
        self._pipeline = Pipeline.of(model)
        told = self._pipeline.kind.told
        self.request = _REQUESTS[told]
        self._vocabulary: PaddedVocabulary | None = read_padded_vocabulary(model) if told is Told.TEXT else None
        self._steps, self._guidance_scale = _defaults(model, self._pipeline)

    def pre_process(self, request: ImageGenerationRequest, media: Media) -> Prepared[Context]:  # noqa: ARG002
        """Return a prompt for each image; progress counts their steps."""
        check_items(request.n, self._model.limits, "/input/n", "images")
        width, height = self._size(request)
        steps = self._checked_steps(request.steps or self._steps)
        said, told, truncated = self._told(request)
        data = {"width": width, "height": height, "steps": steps, "previews": request.previews, **told}
        seeds = tuple(request.seed + number for number in range(request.n))
        cost = width * height
        prompts = (Prompt({**data, "seed": seed}, cost) for seed in seeds)
        how = {"model": self._model.name, "revision": self._model.revision, "width": width, "height": height}
        context = Context(request.format, seeds, {**how, "steps": steps, **said}, truncated)
        return Prepared(prompts, len(seeds), cost * len(seeds), context, unit="steps", steps=steps)

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"images": [{"name", "seed"}], "width", "height", "steps", ...}`: what each was made with."""
        made: list[dict[str, Any]] = []
        for output in outputs:
            if len(made) == len(context.seeds):
                raise ProcessorFailed(f"The engine answered more than {len(made)} prompts.")
            name, seed = f"image-{len(made) + 1}.{context.format}", context.seeds[len(made)]
            if output.partial:
                if PREVIEW_NAME in output.data:
                    sink.show(name, preview(_checked(output.data[PREVIEW_NAME])), media_type=MEDIA_TYPES["webp"])
                continue
            path = sink.path(name)
            write_image(path, _checked(output.data.get(OUTPUT_NAME)), {**context.how, "seed": seed}, context.format)
            sink.add(name, path, media_type=MEDIA_TYPES[context.format])
            made.append({"name": name, "seed": seed})
        cut = {"truncated": list(context.truncated)} if context.truncated else {}
        return Result(data={"images": made, **context.how, **cut})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return one image of the model's own size, or of what the limits allow, in few steps."""
        wish: dict[str, Any] = {"steps": min(_DUMMY_STEPS, limits.max_steps or _DUMMY_STEPS)}
        if self._pipeline.kind.told is Told.LABEL:
            wish["label"] = 0
        elif self._pipeline.kind.told is Told.TEXT:
            height, width = self._pipeline.size
            shrink = min(1.0, math.sqrt((limits.max_pixels or math.inf) / (width * height)))
            step = self._pipeline.factor
            width, height = (max(step, 8, int(side * shrink) // step * step) for side in (width, height))
            wish |= {"prompt": "a lighthouse", "width": width, "height": height}
        return Dummy(wish)

    def _size(self, request: ImageGenerationRequest) -> tuple[int, int]:
        """Return width and height; raise `InvalidInput` for what the model does not make."""
        height, width = self._pipeline.size
        if isinstance(request, TextToImageRequest):
            width, height = request.width or width, request.height or height
        step, most = self._pipeline.factor, self._model.limits.max_pixels
        for name, side in (("width", width), ("height", height)):
            if side % step:
                raise _refusal(f"/input/{name}", f"{side} is not a multiple of {step}, which this model needs")
        if most is not None and width * height > most:
            raise _refusal("/input/width", f"{width} x {height} are more than the {most} pixels that this model makes")
        return width, height

    def _checked_steps(self, steps: int) -> int:
        most = min(self._pipeline.max_steps, self._model.limits.max_steps or self._pipeline.max_steps)
        if steps > most:
            raise _refusal("/input/steps", f"{steps} steps were asked for; this model takes at most {most}")
        return steps

    def _told(self, request: ImageGenerationRequest) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
        """Return what an image was made of in words, as the network is told it, and what texts were cut."""
        said: dict[str, Any] = {}
        told: dict[str, Any] = {}
        cut: list[str] = []
        if isinstance(request, GuidedRequest):
            scale = self._guidance_scale if request.guidance_scale is None else request.guidance_scale
            said["guidance_scale"] = told["guidance_scale"] = scale
        if isinstance(request, TextToImageRequest) and self._vocabulary is not None:
            said |= {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
            for name, field_name in (("input_ids", "prompt"), ("negative_ids", "negative_prompt")):
                tokens = self._vocabulary.cut(said[field_name])
                told[name] = np.asarray(tokens.ids, dtype=np.int64)
                cut += [field_name] if tokens.truncated else []
        if isinstance(request, LabelToImageRequest):
            said["label"] = told["label"] = self._label(request.label)
        return said, told, tuple(cut)

    def _label(self, label: int | str) -> int:
        """Return a label's number; raise `InvalidInput` for one that the network does not know."""
        if isinstance(label, int):
            if not 0 <= label < self._pipeline.label_count:
                raise _refusal(
                    "/input/label", f"{label} is none: the model knows 0 to {self._pipeline.label_count - 1}"
                )
            return label
        wanted = tuple(part.strip().casefold() for part in label.split(","))
        for number, names in self._pipeline.labels.items():
            known = tuple(map(str.casefold, names))
            if wanted == known or (len(wanted) == 1 and wanted[0] in known):
                return number
        some = ", ".join(names[0] for names in list(self._pipeline.labels.values())[:5]) or "none has a name"
        raise _refusal("/input/label", f"the model knows no {label!r}; it knows, among others: {some}")


def _defaults(model: Model, pipeline: Pipeline) -> tuple[int, float]:
    """Return steps and guidance scale of requests that do not say; raise `ConfigError` for options that are none."""
    unknown = sorted(set(model.options) - set(OPTIONS)) if model.runner == "diffusers" else []
    if unknown:
        raise ConfigError(
            f"model {model.name!r}: unknown options: {', '.join(unknown)}; known are: {', '.join(OPTIONS)}"
        )
    usual = min(pipeline.kind.steps, pipeline.max_steps)
    steps = model.options.get("steps", min(usual, model.limits.max_steps or usual))
    scale = model.options.get("guidance_scale", pipeline.kind.guidance_scale)
    if type(steps) is not int or not 1 <= steps <= pipeline.max_steps:
        raise ConfigError(f"model {model.name!r}: options.steps is a whole number from 1 to {pipeline.max_steps}")
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 <= scale <= 100:
        raise ConfigError(f"model {model.name!r}: options.guidance_scale is a number from 0 to 100")
    if model.limits.max_steps is not None and steps > model.limits.max_steps:
        raise ConfigError(f"model {model.name!r}: options.steps is more than limits.max_steps")
    return steps, float(scale)


def _refusal(pointer: str, detail: str) -> InvalidInput:
    return InvalidInput(detail, errors=[Issue(pointer, detail)])


def _checked(pixels: Any) -> npt.NDArray[np.uint8]:
    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3):
        raise ProcessorFailed(
            f"The network answered {array.dtype} {array.shape}; expected uint8 (height, width, 1 or 3)."
        )
    return array
