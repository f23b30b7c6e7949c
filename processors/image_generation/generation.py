"""Image generation: makes images from a text, an image, a label or nothing, with previews."""

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
from penstock.processors.image_generation.pipeline import Pipeline
from penstock.processors.image_generation.request import (
    Format,
    ImageGenerationRequest,
    LabelToImageRequest,
    TextToImageRequest,
)
from penstock.processors.io_signature import IOSignature
from penstock.processors.limits import check_items
from penstock.processors.outputs import OUTPUTS
from penstock.views import View

#: The network's outputs: uint8 (height, width, 1 or 3); a preview is smaller. Names of texts that were cut.
OUTPUT_NAME, PREVIEW_NAME, CUT_NAME = "image", "preview", "truncated"
#: Options of these models beside the common ones.
OPTIONS = ("compile", "guidance_scale", "steps")
#: Steps of a warm-up: enough to run every part of the pipeline.
_DUMMY_STEPS = 2

#: Fields of a request that some calls of the library do not take.
_OPTIONAL = ("negative_prompt", "strength", "guidance_scale", "true_cfg_scale")

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


class ImageGeneration:
    """The image generation processor. The model's tasks choose the request: a text, a label, or nothing."""

    request: type[ImageGenerationRequest] = TextToImageRequest
    outputs = (OUTPUTS.spec("image", "image-1.png, image-2.png, ...; .webp if the request wants it", kind="png"),)
    views = (View("rows", "/images"),)
    io_signatures = (
        IOSignature(
            prompt={"task": "text", **dict.fromkeys(("width", "height", "steps", "seed"), "number")},
            optional={
                **dict.fromkeys(("guidance_scale", "true_cfg_scale", "strength", "label", "previews"), "number"),
                **dict.fromkeys(("prompt", "negative_prompt"), "text"),
                "image": "uint8 (H, W, 3)",
                "mask": "uint8 (H, W)",
            },
            output={OUTPUT_NAME: "uint8 (H, W, channels)"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        self._pipeline = Pipeline.of(model)
        self.request = TextToImageRequest
        if Task.LABEL in self._pipeline.calls:
            self.request = LabelToImageRequest
        elif Task.NOTHING in self._pipeline.calls:
            self.request = ImageGenerationRequest
        _check_options(model, self._pipeline)

    def pre_process(self, request: ImageGenerationRequest, media: Media) -> Prepared[ImageGenerationContext]:
        """Return one prompt per image; progress counts steps. Raises `InvalidInput` for fields that no call takes."""
        check_items(request.n, self._model.limits, "/input/n", "images")
        pictures, given = None, dict[str, Any]()
        if isinstance(request, TextToImageRequest):
            pictures = read_pictures(request, media, self._model.limits)
            task = Task.TEXT if pictures is None else Task.IMAGE if pictures.mask is None else Task.INPAINT
            call = self._call(task)
            self._refuse(request, tuple(name for name in _OPTIONAL if not call.takes(name)), f"in {call.pipeline}")
            given["prompt"] = request.prompt
        else:
            [call] = self._pipeline.calls.values()
        if request.previews and not self._pipeline.previews:
            raise invalid("/input/previews", f"{call.pipeline} makes no previews")
        if isinstance(request, LabelToImageRequest):
            given["label"] = self._label(request.label)
        given |= {name: value for name in _OPTIONAL if (value := getattr(request, name, None)) not in (None, "")}
        if call.takes("guidance_scale"):
            usual = self._model.options.get("guidance_scale", call.default("guidance_scale"))
            given |= {"guidance_scale": given.get("guidance_scale", usual)}
        width, height = self._size(request, pictures)
        steps = self._steps(request.steps, call)
        if "strength" in given and int(steps * given["strength"]) < 1:
            raise invalid("/input/strength", f"{given['strength']} of {steps} steps is less than one step")
        shared = {"task": call.task.value, "width": width, "height": height, "steps": steps, **given}
        more: dict[str, Any] = {} if pictures is None else pictures.scaled(width, height)
        if request.previews:
            more["previews"] = request.previews
        return self._prepared(request, shared, more)

    def _call(self, task: Task) -> Call:
        if task in self._pipeline.calls:
            return self._pipeline.calls[task]
        known = ", ".join(task.words for task in self._pipeline.calls)
        pointer = {Task.TEXT: "/input", Task.IMAGE: "/input/image", Task.INPAINT: "/input/mask"}[task]
        raise invalid(pointer, f"this model's {self._pipeline.name} has no {task.words}; it has: {known}")

    def _refuse(self, request: TextToImageRequest, names: Sequence[str], where: str) -> None:
        for name in names:
            if getattr(request, name) not in (None, ""):
                raise invalid(f"/input/{name}", f"{name} has no meaning {where}; leave it out")

    def _prepared(
        self, request: ImageGenerationRequest, shared: Mapping[str, Any], more: Mapping[str, Any]
    ) -> Prepared[ImageGenerationContext]:
        seeds = tuple(request.seed + number for number in range(request.n))
        cost = shared["width"] * shared["height"]
        prompts = (Prompt({**shared, **more, "seed": seed}, cost) for seed in seeds)
        model = {"model": self._model.name, "revision": self._model.revision}
        context = ImageGenerationContext(request.format, seeds, {**model, **shared})
        return Prepared(prompts, len(seeds), cost * len(seeds), context, unit="steps", steps=shared["steps"])

    def post_process(self, outputs: Iterator[Output], context: ImageGenerationContext, sink: ArtifactSink) -> Result:
        """Return `{"images": [{"name", "seed"}], "width", "height", "steps", ...}`, with all generation parameters."""
        made: list[dict[str, Any]] = []
        cut: set[str] = set()
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
            cut.update(output.data.get(CUT_NAME, ()))
        named = {CUT_NAME: sorted(cut, reverse=True)} if cut else {}
        return Result(data={"images": made, **context.shared, **named})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a request for one image in few steps, in the model's own size or the largest the limits allow."""
        request: dict[str, Any] = {"steps": min(_DUMMY_STEPS, limits.max_steps or _DUMMY_STEPS)}
        if self.request is not TextToImageRequest:
            return Dummy({**request, "label": 0} if Task.LABEL in self._pipeline.calls else request)
        height, width = self._pipeline.size
        shrink = min(1.0, math.sqrt((limits.max_pixels or math.inf) / (width * height)))
        step = self._pipeline.factor
        width, height = (max(step, 8, int(side * shrink) // step * step) for side in (width, height))
        request |= {"prompt": "a lighthouse", "width": width, "height": height}
        if Task.TEXT in self._pipeline.calls:
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

    def _steps(self, asked: int | None, call: Call) -> int:
        """Return the number of steps; raise `InvalidInput` for more than the model takes."""
        steps = asked or min(self._model.options.get("steps") or int(call.default("steps") or 50), self._most_steps)
        if steps > self._most_steps:
            raise invalid("/input/steps", f"{steps} steps are too many; this model accepts at most {self._most_steps}")
        return steps

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


def _check_options(model: Model, pipeline: Pipeline) -> None:
    """Raise `ConfigError` for unknown or invalid options."""
    unknown = sorted(set(model.options) - set(OPTIONS)) if model.runner == "diffusers" else []
    if unknown:
        raise ConfigError(f"model {model.name!r}: unknown options: {', '.join(unknown)}; known: {', '.join(OPTIONS)}")
    steps, scale = model.options.get("steps", 1), model.options.get("guidance_scale", 1.0)
    if type(steps) is not int or not 1 <= steps <= pipeline.max_steps:
        raise ConfigError(f"model {model.name!r}: options.steps must be a whole number from 1 to {pipeline.max_steps}")
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 <= scale <= 100:
        raise ConfigError(f"model {model.name!r}: options.guidance_scale must be a number from 0 to 100")
    if model.limits.max_steps is not None and steps > model.limits.max_steps:
        raise ConfigError(f"model {model.name!r}: options.steps is more than limits.max_steps")


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
