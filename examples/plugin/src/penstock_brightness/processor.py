"""The processor: turns pictures into prompts, and luminances into numbers and grey pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from penstock.errors import ConfigError, InvalidInput
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.inputs import INPUTS
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS
from penstock_brightness.request import BrightnessRequest

#: Side of the dummy's picture in pixels for a model without `max_pixels`.
DUMMY_PX = 1024


@dataclass(frozen=True, slots=True)
class Context:
    """The settings of a job that `post_process` needs."""

    bins: int
    maps: bool


class Brightness:
    """Measures the mean and the histogram of each picture's relative luminance, from 0 (black) to 1 (white).

    Prompts have `pixels`, float32 (3, H, W), linear RGB from 0 to 1; outputs have `luminance`, float32 (H, W). The
    model's option `dark` is the mean below which a picture counts as dark.
    """

    request = BrightnessRequest
    outputs = (OUTPUTS.spec("map", "map-1.png and so on: the luminance of each picture", kind="png", default=False),)
    io_signatures = (IOSignature(prompt={"pixels": "float32 (3, H, W)"}, output={"luminance": "float32 (H, W)"}),)

    def __init__(self, model: Model) -> None:
        self._limits = model.limits
        self._dark = model.options.get("dark", 0.1)
        if not isinstance(self._dark, int | float) or not 0 <= self._dark <= 1:
            raise ConfigError(f"model {model.name!r}: options.dark is {self._dark!r}, not a number from 0 to 1")

    def pre_process(self, request: BrightnessRequest, media: Media) -> Prepared[Context]:
        """Return one prompt for each picture; a picture is read when its prompt is drawn."""
        count, limit = len(request.pictures), self._limits.max_items
        if limit is not None and count > limit:
            raise InvalidInput(f"{count} pictures were given, the model takes {limit} at a time")
        return Prepared(
            prompts=self._prompts(request, media),
            count=count,
            cost=count,  # each prompt costs 1: the pictures are not read yet
            context=Context(request.bins, "map" in request.outputs),
            unit="pictures",
        )

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return the numbers, and write the grey pictures if the request asks for them."""
        found: list[dict[str, Any]] = []
        for number, output in enumerate(final_outputs(outputs), start=1):
            luminance = output.data["luminance"]
            bars, _ = np.histogram(luminance, bins=context.bins, range=(0, 1))
            mean = float(luminance.mean())
            found.append({"mean": round(mean, 4), "dark": mean < self._dark, "histogram": bars.tolist()})
            if context.maps:
                grey = np.rint(255 * luminance).astype(np.uint8)
                OUTPUTS.put(sink, f"map-{number}", grey, kind="png")
        return Result(data={"pictures": found})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return the largest picture that the limits allow."""
        side = DUMMY_PX if limits.max_pixels is None else min(DUMMY_PX, int(limits.max_pixels**0.5))
        path = folder / "grey.png"
        Image.new("RGB", (side, side), (128, 128, 128)).save(path)
        return Dummy({"pictures": ["grey.png"]}, {"grey.png": path})

    def _prompts(self, request: BrightnessRequest, media: Media) -> Iterator[Prompt]:
        for reference in request.pictures:
            # uint8 (H, W, 3); an unreadable file raises an `InputError` that names the file.
            picture = INPUTS.read("picture", media.path(reference), self._limits)
            coded = picture.astype(np.float32) / 255
            linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)  # IEC 61966-2-1
            pixels = np.ascontiguousarray(linear.transpose(2, 0, 1), dtype=np.float32)
            yield Prompt({"pixels": pixels})
