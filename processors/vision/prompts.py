"""Prompts from image files: one prompt per image, with `pixels` float32 (3, height, width)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from penstock.models import Limits, Model
from penstock.processors.base import Dummy, Media, Prompt
from penstock.processors.limits import check_items, dummy_items
from penstock.processors.vision.image import ImageArray, measure, read_image
from penstock.processors.vision.preprocessor import Preprocessor

#: The network's input.
INPUT_NAME = "pixels"
#: The values of a prompt as an `IOSignature` declares them: the image, and what some networks need beside it.
PIXELS = {INPUT_NAME: "float32 (3, H, W)"}
SHOWN = {"shown": "list"}
#: Side of a warm-up image: networks see fewer pixels, and decoding a larger image would only take time.
_DUMMY_PX = 1024


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """A job's images, as files or bytes, with their cost in pixels as the network sees them."""

    sources: tuple[Path | bytes, ...]
    cost: int
    #: The pixels of the only image: reading its header first would cost a tenth of decoding it.
    only: ImageArray | None = None

    def prompts(self, preprocessor: Preprocessor, limits: Limits) -> Iterator[Prompt]:
        """Yield one prompt per image; each image is decoded when its prompt is read."""
        for source in self.sources:
            image = read_image(source, limits) if self.only is None else self.only
            pixels = preprocessor.apply(image)
            yield Prompt({INPUT_NAME: pixels}, cost=pixels.shape[1] * pixels.shape[2])


def open_images(references: Sequence[str], media: Media, preprocessor: Preprocessor, limits: Limits) -> ImageFiles:
    """Read the headers of all images; raise the errors of `read_image`, and `InvalidInput` above `max_items`.

    One image alone is decoded at once.
    """
    check_items(len(references), limits, "/input/images", "images")
    sources = tuple(media.source(reference) for reference in references)
    if len(sources) == 1:
        image = read_image(sources[0], limits)
        return ImageFiles(sources, preprocessor.cost(*image.shape[:2]), image)
    return ImageFiles(sources, sum(preprocessor.cost(*measure(source, limits)) for source in sources))


def one_prompt(
    source: Path | bytes, preprocessor: Preprocessor, limits: Limits, *, sized: bool = False, **parameters: float
) -> tuple[ImageArray, Prompt]:
    """Decode a job's only image; return its pixels and its prompt, which also contains `parameters`.

    The prompt has `shown`, the [height, width] without padding, if the network's input is padded. With `sized` it has
    the image's `size`: [height, width].
    """
    image = read_image(source, limits)
    pixels = preprocessor.apply(image)
    data: dict[str, Any] = {INPUT_NAME: pixels, **parameters}
    if preprocessor.pads:
        data["shown"] = list(preprocessor.resized_shape(*image.shape[:2]))
    if sized:
        data["size"] = list(image.shape[:2])
    return image, Prompt(data, cost=pixels.shape[1] * pixels.shape[2])


def write_dummy(folder: Path, limits: Limits) -> Path:
    """Write an image of noise, with a side of 1024 pixels or the largest that the limits allow."""
    side = min(_DUMMY_PX, int((limits.max_pixels or _DUMMY_PX**2) ** 0.5))
    path = folder / "dummy.png"
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, compress_level=0)
    return path


@dataclass(frozen=True, slots=True)
class ImageContext:
    """The state that `post_process` of a processor of one image needs."""

    outputs: tuple[str, ...]
    #: The image's (height, width).
    size: tuple[int, int]
    #: The pixels, only if a copy of the image is wanted.
    image: ImageArray | None = None

    @classmethod
    def of(cls, image: ImageArray, outputs: tuple[str, ...], copy: str) -> ImageContext:
        """Return the context of an image; `copy` names the output that shows its pixels."""
        return cls(outputs, (image.shape[0], image.shape[1]), image if copy in outputs else None)


class OneImage:
    """The warm-up of processors of one image."""

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return one image of ordinary size."""
        return Dummy({"image": "media://dummy"}, {"media://dummy": write_dummy(folder, limits)})


class ManyImages:
    """The warm-up of processors of several images."""

    _model: Model

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a full batch of copies of one image."""
        images = ["media://dummy"] * dummy_items(self._model, limits)
        return Dummy({"images": images}, {"media://dummy": write_dummy(folder, limits)})
