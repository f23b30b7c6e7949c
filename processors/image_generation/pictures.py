"""The image and the mask of a request, as the pixels that a pipeline gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock.errors import InvalidInput, Issue
from penstock.models import Limits
from penstock.processors.base import Media
from penstock.processors.image_generation.request import TextToImageRequest
from penstock.processors.vision.image import ImageArray, read_image, read_opacity


@dataclass(frozen=True, slots=True)
class Pictures:
    """An image, and its mask where a part of it shall change."""

    #: uint8 (H, W, 3).
    image: ImageArray
    #: uint8 (H, W): white is painted anew.
    mask: npt.NDArray[np.uint8] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.image.shape[0], self.image.shape[1]

    def scaled(self, width: int, height: int) -> dict[str, Any]:
        """Return the values of a prompt, with the pictures in another size."""
        made = {"image": _scaled(self.image, width, height, Image.Resampling.LANCZOS)}
        if self.mask is not None:
            made["mask"] = _scaled(self.mask, width, height, Image.Resampling.NEAREST)
        return made


def read_pictures(request: TextToImageRequest, media: Media, limits: Limits) -> Pictures | None:
    """Return a request's pictures; None without an image.

    Raises `InvalidInput` for a mask that does not fit its image, and the errors of `read_image`.
    """
    if request.image is None:
        if request.mask is not None:
            raise invalid("/input/mask", "a mask needs the image that it belongs to")
        return None
    source = media.source(request.image)
    image, transparent = read_image(source, limits), request.mask_edits == "transparent"
    if request.mask is None:
        mask = 255 - read_opacity(source, limits) if transparent else None
        return Pictures(image, mask if mask is not None and mask.any() else None)
    found = media.source(request.mask)
    mask = 255 - read_opacity(found, limits) if transparent else _grey(read_image(found, limits))
    if mask.shape != image.shape[:2]:
        sizes = " and ".join(f"{width} x {height}" for height, width in (image.shape[:2], mask.shape))
        raise invalid("/input/mask", f"the mask needs the size of the image: they have {sizes} pixels")
    if transparent and not mask.any():
        raise invalid("/input/mask", "the mask has no transparent pixels, so nothing would be painted")
    return Pictures(image, mask)


def _grey(pixels: ImageArray) -> npt.NDArray[np.uint8]:
    return np.array(Image.fromarray(pixels).convert("L"))


def _scaled(pixels: npt.NDArray[np.uint8], width: int, height: int, how: Image.Resampling) -> npt.NDArray[np.uint8]:
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.array(Image.fromarray(pixels).resize((width, height), how))


def invalid(pointer: str, detail: str) -> InvalidInput:
    """Return an error about one field of a request."""
    return InvalidInput(detail, errors=[Issue(pointer, detail)])
