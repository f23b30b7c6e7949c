"""Image generation: makes images from a text, a label or nothing, with previews."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from penstock.errors import ConfigError, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.image_generation.calls import Call, Task
from penstock.processors.image_generation.pictures import Pictures, invalid, read_pictures
from penstock.processors.image_generation.pipeline import Conditioning, Pipeline
from penstock.processors.image_generation.request import (
    Format,
    GuidedRequest,
    ImageGenerationRequest,
    LabelToImageRequest,
    TextToImageRequest,
)
from penstock.processors.image_generation.vocabulary import PaddedVocabulary, read_padded_vocabulary
from penstock.processors.io_signature import IOSignature
from penstock.processors.limits import check_items
from penstock.processors.outputs import OUTPUTS
from penstock.views import View

#: The network's outputs: uint8 (height, width, 1 or 3); a preview is smaller.
OUTPUT_NAME, PREVIEW_NAME = "image", "preview"
#: Options of these models beside the common ones.
OPTIONS = ("compile", "guidance_scale", "steps")
#: Steps of a warm-up: enough to run every part of the pipeline.
_DUMMY_STEPS = 2

#: Fields of a request that some calls of the library do not take, and those that only calls take.
_OPTIONAL = ("negative_prompt", "strength", "guidance_scale", "true_cfg_scale")
_OF_CALLS = ("strength", "true_cfg_scale")

_REQUESTS: Mapping[Conditioning, type[ImageGenerationRequest]] = {
    Conditioning.TEXT: TextToImageRequest,
    Conditioning.LABEL: LabelToImageRequest,
    Conditioning.NOTHING: ImageGenerationRequest,
}
MEDIA_TYPES: Mapping[Format, str] = {"png": "image/png", "webp": "image/webp"}
#: The PNG text chunk in which image generation tools look for parameters.
CHUNK = "parameters"
#: EXIF's ImageDescription. It holds ASCII only, and so does the JSON.
_DESCRIPTION = 0x010E


@dataclass(frozen=True, slots=True)
class ImageGenerationContext:
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
    views = (View("rows", "/images"),)
    io_signatures = (
        IOSignature(
            prompt=dict.fromkeys(("width", "height", "steps", "seed", "previews"), "number"),
            optional={
                "guidance_scale": "number",
                "label": "number",
                "input_ids": "int64 (tokens)",
                "negative_ids": "int64 (tokens)",
            },
            output={OUTPUT_NAME: "uint8 (H, W, channels)"},
        ),
        IOSignature(
            prompt={"task": "text", "prompt": "text", **dict.fromkeys(("width", "height", "steps", "seed"), "number")},
            optional={
                **dict.fromkeys(("guidance_scale", "true_cfg_scale", "strength"), "number"),
                "negative_prompt": "text",
                "image": "uint8 (H, W, 3)",
                "mask": "uint8 (H, W)",
            },
            output={OUTPUT_NAME: "uint8 (H, W, channels)"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        self._pipeline = Pipeline.of(model)
        kind = self._pipeline.kind.conditioning
        self.request = _REQUESTS[kind]
        self._vocabulary: PaddedVocabulary | None = None
        if kind is Conditioning.TEXT and self._pipeline.stepped:
            self._vocabulary = read_padded_vocabulary(model)
        self._steps, self._guidance_scale = _defaults(model, self._pipeline)

    def pre_process(self, request: ImageGenerationRequest, media: Media) -> Prepared[ImageGenerationContext]:
        """Return one prompt per image; progress counts steps."""
        check_items(request.n, self._model.limits, "/input/n", "images")
        if isinstance(request, TextToImageRequest):
            pictures = read_pictures(request, media, self._model.limits)
            task = Task.TEXT if pictures is None else Task.IMAGE if pictures.mask is None else Task.INPAINT
            if task is not Task.TEXT or not self._pipeline.stepped:
                return self._called(request, self._call(task), pictures)
            self._refuse(request, _OF_CALLS, "without an image")
        width, height = self._size(request)
        steps = self._checked_steps(request.steps or self._steps)
        given, inputs, truncated = self._conditioning(request)
        data = {"width": width, "height": height, "steps": steps, "previews": request.previews, **inputs}
        return self._prepared(request, data, given, truncated)

    def _call(self, task: Task) -> Call:
        if task in self._pipeline.calls:
            return self._pipeline.calls[task]
        own = [Task.TEXT, *self._pipeline.calls] if self._pipeline.stepped else self._pipeline.calls
        known = ", ".join(task.words for task in own)
        pointer = {Task.TEXT: "/input", Task.IMAGE: "/input/image", Task.INPAINT: "/input/mask"}[task]
        raise invalid(pointer, f"this model's {self._pipeline.name} has no {task.words}; it has: {known}")

    def _called(
        self, request: TextToImageRequest, call: Call, pictures: Pictures | None
    ) -> Prepared[ImageGenerationContext]:
        """Return the prompts for a call of the library; raise `InvalidInput` for fields that it does not take."""
        self._refuse(request, tuple(name for name in _OPTIONAL if not call.takes(name)), f"in {call.pipeline}")
        if request.previews:
            raise invalid("/input/previews", f"{call.pipeline} makes no previews")
        width, height = self._size(request, pictures)
        usual = self._model.options.get("steps") or int(call.default("steps") or self._steps)
        steps = self._checked_steps(request.steps or min(usual, self._most_steps))
        if request.strength is not None and int(steps * request.strength) < 1:
            raise invalid("/input/strength", f"{request.strength} of {steps} steps is less than one step")
        given = {"prompt": request.prompt, **{name: getattr(request, name) for name in _OPTIONAL}}
        if request.guidance_scale is None and call.takes("guidance_scale"):
            given["guidance_scale"] = self._model.options.get("guidance_scale", call.default("guidance_scale"))
        given = {name: value for name, value in given.items() if value is not None and value != ""}
        shown = {"prompt": request.prompt, **given}
        data = {"task": call.task.value, "width": width, "height": height, "steps": steps, **shown}
        pixels = {} if pictures is None else pictures.scaled(width, height)
        return self._prepared(request, {**data, **pixels}, {"task": call.task.value, **shown}, ())

    def _refuse(self, request: TextToImageRequest, names: Sequence[str], where: str) -> None:
        for name in names:
            if getattr(request, name) not in (None, ""):
                raise invalid(f"/input/{name}", f"{name} has no meaning {where}; leave it out")

    def _prepared(
        self, request: ImageGenerationRequest, data: Mapping[str, Any], given: Mapping[str, Any], cut: tuple[str, ...]
    ) -> Prepared[ImageGenerationContext]:
        width, height, steps = (data[name] for name in ("width", "height", "steps"))
        seeds = tuple(request.seed + number for number in range(request.n))
        cost = width * height
        prompts = (Prompt({**data, "seed": seed}, cost) for seed in seeds)
        shared = {"model": self._model.name, "revision": self._model.revision, "width": width, "height": height}
        context = ImageGenerationContext(request.format, seeds, {**shared, "steps": steps, **given}, cut)
        return Prepared(prompts, len(seeds), cost * len(seeds), context, unit="steps", steps=steps)

    def post_process(self, outputs: Iterator[Output], context: ImageGenerationContext, sink: ArtifactSink) -> Result:
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

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a request for one image in few steps, in the model's own size or the largest the limits allow."""
        request: dict[str, Any] = {"steps": min(_DUMMY_STEPS, limits.max_steps or _DUMMY_STEPS)}
        if self._pipeline.kind.conditioning is Conditioning.LABEL:
            request["label"] = 0
        if self._pipeline.kind.conditioning is not Conditioning.TEXT:
            return Dummy(request)
        height, width = self._pipeline.size
        shrink = min(1.0, math.sqrt((limits.max_pixels or math.inf) / (width * height)))
        step = self._pipeline.factor
        width, height = (max(step, 8, int(side * shrink) // step * step) for side in (width, height))
        request |= {"prompt": "a lighthouse", "width": width, "height": height}
        if self._pipeline.stepped or Task.TEXT in self._pipeline.calls:
            return Dummy(request)
        # Networks that only change images: a white image, painted anew everywhere.
        picture = folder / "picture.png"
        Image.new("RGB", (width, height), "white").save(picture)
        names = ("image",) if Task.IMAGE in self._pipeline.calls else ("image", "mask")
        return Dummy({**request, **dict.fromkeys(names, "media://picture")}, {"media://picture": picture})

    def _size(self, request: ImageGenerationRequest, pictures: Pictures | None = None) -> tuple[int, int]:
        """Return width and height; raise `InvalidInput` for sizes that the model cannot make."""
        (height, width), step = self._pipeline.size, self._pipeline.factor
        if pictures is not None:
            height, width = (max(side // step, 1) * step for side in pictures.size)
        if isinstance(request, TextToImageRequest):
            width, height = request.width or width, request.height or height
        most = self._model.limits.max_pixels
        for name, side in (("width", width), ("height", height)):
            if side % step:
                raise invalid(f"/input/{name}", f"{side} is not a multiple of {step}, which this model needs")
        if most is not None and width * height > most:
            raise invalid("/input/width", f"{width} x {height} are more pixels than this model's limit of {most}")
        return width, height

    @property
    def _most_steps(self) -> int:
        return min(self._pipeline.max_steps, self._model.limits.max_steps or self._pipeline.max_steps)

    def _checked_steps(self, steps: int) -> int:
        if steps > self._most_steps:
            raise invalid("/input/steps", f"{steps} steps are too many; this model accepts at most {self._most_steps}")
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
                raise invalid(
                    "/input/label", f"there is no label {label}: the model has 0 to {self._pipeline.label_count - 1}"
                )
            return label
        wanted = tuple(part.strip().casefold() for part in label.split(","))
        for number, names in self._pipeline.labels.items():
            known = tuple(map(str.casefold, names))
            if wanted == known or (len(wanted) == 1 and wanted[0] in known):
                return number
        some = ", ".join(names[0] for names in list(self._pipeline.labels.values())[:5]) or "none with a name"
        raise invalid("/input/label", f"the model has no label {label!r}; its first labels: {some}")


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


def _checked(pixels: Any) -> npt.NDArray[np.uint8]:
    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3):
        raise ProcessorFailed(
            f"The network answered {array.dtype} {array.shape}; expected uint8 (height, width, 1 or 3)."
        )
    return array


def write_image(path: Path, pixels: npt.NDArray[np.uint8], parameters: Mapping[str, Any], kind: Format) -> None:
    """Write uint8 (height, width, 1 or 3) with its parameters as JSON, in the PNG's text or the WebP's EXIF."""
    text, image = json.dumps(parameters), _pil_image(pixels)
    if kind == "png":
        info = PngInfo()
        info.add_text(CHUNK, text)
        image.save(path, format="PNG", pnginfo=info)
    else:
        exif = Image.Exif()
        exif[_DESCRIPTION] = text
        image.convert("RGB").save(path, format="WEBP", lossless=True, exif=exif)


def preview(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return uint8 (height, width, 1 or 3) as a small WebP."""
    file = io.BytesIO()
    _pil_image(pixels).convert("RGB").save(file, format="WEBP", quality=75)
    return file.getvalue()


def _pil_image(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
