"""Image generation: makes images from a text, a label or nothing, with previews."""

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
from penstock.processors.exchange import Exchange
from penstock.processors.image_generation.files import MEDIA_TYPES, preview, write_image
from penstock.processors.image_generation.pipeline import Conditioning, Pipeline
from penstock.processors.image_generation.request import (
    Format,
    GuidedRequest,
    ImageGenerationRequest,
    LabelToImageRequest,
    TextToImageRequest,
)
from penstock.processors.image_generation.vocabulary import PaddedVocabulary, read_padded_vocabulary
from penstock.processors.limits import check_items
from penstock.processors.outputs import OUTPUTS
from penstock.reports import Issue

#: The network's outputs: uint8 (height, width, 1 or 3); a preview is smaller.
OUTPUT_NAME, PREVIEW_NAME = "image", "preview"
#: Options of these models beside the common ones.
OPTIONS = ("compile", "guidance_scale", "steps")
#: Steps of a warm-up: enough to run every part of the pipeline.
_DUMMY_STEPS = 2

_REQUESTS: Mapping[Conditioning, type[ImageGenerationRequest]] = {
    Conditioning.TEXT: TextToImageRequest,
    Conditioning.LABEL: LabelToImageRequest,
    Conditioning.NOTHING: ImageGenerationRequest,
}


@dataclass(frozen=True, slots=True)
class Context:
    """Request state for `post_process`."""

    format: Format
    seeds: tuple[int, ...]
    #: Parameters that all images of the job share.
    shared: Mapping[str, Any] = field(default_factory=dict)
    #: Names of the truncated texts: `prompt`, `negative_prompt`.
    truncated: tuple[str, ...] = ()


class ImageGeneration:
    """The image generation processor. The model's conditioning chooses the request: a text, a label, or nothing."""

    request: type[ImageGenerationRequest] = TextToImageRequest
    outputs = (OUTPUTS.spec("image", "image-1.png, image-2.png, ...; .webp if the request wants it", kind="png"),)
    exchanges = (
        Exchange(
            prompt=dict.fromkeys(("width", "height", "steps", "seed", "previews"), "number"),
            optional={
                "guidance_scale": "number",
                "label": "number",
                "input_ids": "int64 (tokens)",
                "negative_ids": "int64 (tokens)",
            },
            output={OUTPUT_NAME: "uint8 (H, W, channels)"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        self._pipeline = Pipeline.of(model)
        kind = self._pipeline.kind.conditioning
        self.request = _REQUESTS[kind]
        self._vocabulary: PaddedVocabulary | None = read_padded_vocabulary(model) if kind is Conditioning.TEXT else None
        self._steps, self._guidance_scale = _defaults(model, self._pipeline)

    def pre_process(self, request: ImageGenerationRequest, media: Media) -> Prepared[Context]:  # noqa: ARG002
        """Return one prompt per image; progress counts steps."""
        check_items(request.n, self._model.limits, "/input/n", "images")
        width, height = self._size(request)
        steps = self._checked_steps(request.steps or self._steps)
        conditioning, inputs, truncated = self._conditioning(request)
        data = {"width": width, "height": height, "steps": steps, "previews": request.previews, **inputs}
        seeds = tuple(request.seed + number for number in range(request.n))
        cost = width * height
        prompts = (Prompt({**data, "seed": seed}, cost) for seed in seeds)
        shared = {"model": self._model.name, "revision": self._model.revision, "width": width, "height": height}
        context = Context(request.format, seeds, {**shared, "steps": steps, **conditioning}, truncated)
        return Prepared(prompts, len(seeds), cost * len(seeds), context, unit="steps", steps=steps)

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"images": [{"name", "seed"}], "width", "height", "steps", ...}`, with all generation parameters."""
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
            write_image(path, _checked(output.data.get(OUTPUT_NAME)), {**context.shared, "seed": seed}, context.format)
            sink.add(name, path, media_type=MEDIA_TYPES[context.format])
            made.append({"name": name, "seed": seed})
        cut = {"truncated": list(context.truncated)} if context.truncated else {}
        return Result(data={"images": made, **context.shared, **cut})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a request for one image in few steps, in the model's own size or the largest the limits allow."""
        request: dict[str, Any] = {"steps": min(_DUMMY_STEPS, limits.max_steps or _DUMMY_STEPS)}
        if self._pipeline.kind.conditioning is Conditioning.LABEL:
            request["label"] = 0
        elif self._pipeline.kind.conditioning is Conditioning.TEXT:
            height, width = self._pipeline.size
            shrink = min(1.0, math.sqrt((limits.max_pixels or math.inf) / (width * height)))
            step = self._pipeline.factor
            width, height = (max(step, 8, int(side * shrink) // step * step) for side in (width, height))
            request |= {"prompt": "a lighthouse", "width": width, "height": height}
        return Dummy(request)

    def _size(self, request: ImageGenerationRequest) -> tuple[int, int]:
        """Return width and height; raise `InvalidInput` for sizes that the model cannot make."""
        height, width = self._pipeline.size
        if isinstance(request, TextToImageRequest):
            width, height = request.width or width, request.height or height
        step, most = self._pipeline.factor, self._model.limits.max_pixels
        for name, side in (("width", width), ("height", height)):
            if side % step:
                raise _invalid(f"/input/{name}", f"{side} is not a multiple of {step}, which this model needs")
        if most is not None and width * height > most:
            raise _invalid("/input/width", f"{width} x {height} are more pixels than this model's limit of {most}")
        return width, height

    def _checked_steps(self, steps: int) -> int:
        most = min(self._pipeline.max_steps, self._model.limits.max_steps or self._pipeline.max_steps)
        if steps > most:
            raise _invalid("/input/steps", f"{steps} steps are too many; this model accepts at most {most}")
        return steps

    def _conditioning(self, request: ImageGenerationRequest) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
        """Return the conditioning as the request has it, the same as network inputs, and the truncated texts' names."""
        given: dict[str, Any] = {}
        inputs: dict[str, Any] = {}
        truncated: list[str] = []
        if isinstance(request, GuidedRequest):
            scale = self._guidance_scale if request.guidance_scale is None else request.guidance_scale
            given["guidance_scale"] = inputs["guidance_scale"] = scale
        if isinstance(request, TextToImageRequest) and self._vocabulary is not None:
            given |= {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
            for name, field_name in (("input_ids", "prompt"), ("negative_ids", "negative_prompt")):
                tokens = self._vocabulary.cut(given[field_name])
                inputs[name] = np.asarray(tokens.ids, dtype=np.int64)
                truncated += [field_name] if tokens.truncated else []
        if isinstance(request, LabelToImageRequest):
            given["label"] = inputs["label"] = self._label(request.label)
        return given, inputs, tuple(truncated)

    def _label(self, label: int | str) -> int:
        """Return a label's number; raise `InvalidInput` for an unknown label."""
        if isinstance(label, int):
            if not 0 <= label < self._pipeline.label_count:
                raise _invalid(
                    "/input/label", f"there is no label {label}: the model has 0 to {self._pipeline.label_count - 1}"
                )
            return label
        wanted = tuple(part.strip().casefold() for part in label.split(","))
        for number, names in self._pipeline.labels.items():
            known = tuple(map(str.casefold, names))
            if wanted == known or (len(wanted) == 1 and wanted[0] in known):
                return number
        some = ", ".join(names[0] for names in list(self._pipeline.labels.values())[:5]) or "none with a name"
        raise _invalid("/input/label", f"the model has no label {label!r}; its first labels: {some}")


def _defaults(model: Model, pipeline: Pipeline) -> tuple[int, float]:
    """Return the default steps and guidance scale; raise `ConfigError` for unknown or invalid options."""
    unknown = sorted(set(model.options) - set(OPTIONS)) if model.runner == "diffusers" else []
    if unknown:
        raise ConfigError(f"model {model.name!r}: unknown options: {', '.join(unknown)}; known: {', '.join(OPTIONS)}")
    usual = min(pipeline.kind.steps, pipeline.max_steps)
    steps = model.options.get("steps", min(usual, model.limits.max_steps or usual))
    scale = model.options.get("guidance_scale", pipeline.kind.guidance_scale)
    if type(steps) is not int or not 1 <= steps <= pipeline.max_steps:
        raise ConfigError(f"model {model.name!r}: options.steps must be a whole number from 1 to {pipeline.max_steps}")
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 <= scale <= 100:
        raise ConfigError(f"model {model.name!r}: options.guidance_scale must be a number from 0 to 100")
    if model.limits.max_steps is not None and steps > model.limits.max_steps:
        raise ConfigError(f"model {model.name!r}: options.steps is more than limits.max_steps")
    return steps, float(scale)


def _invalid(pointer: str, detail: str) -> InvalidInput:
    return InvalidInput(detail, errors=[Issue(pointer, detail)])


def _checked(pixels: Any) -> npt.NDArray[np.uint8]:
    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3):
        raise ProcessorFailed(
            f"The network answered {array.dtype} {array.shape}; expected uint8 (height, width, 1 or 3)."
        )
    return array
