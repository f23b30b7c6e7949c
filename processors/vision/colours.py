"""Colours of classes and segments, and overlays in these colours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock.processors.vision.image import ImageArray

#: Weight of the class's colour in an overlay.
_OPACITY = 0.5
#: Rows of an overlay that are made at a time: temporary memory does not grow with the image.
_ROWS = 256


def colour(number: int) -> tuple[int, int, int]:
    """Return a class's colour from the PASCAL VOC colour map, which gives close ids very different colours."""
    red = green = blue = 0
    for bit in range(8):
        red |= (number >> (3 * bit) & 1) << (7 - bit)
        green |= (number >> (3 * bit + 1) & 1) << (7 - bit)
        blue |= (number >> (3 * bit + 2) & 1) << (7 - bit)
    return red, green, blue


COLOURS = tuple(colour(number) for number in range(256))


def overlay(image: ImageArray, ids: npt.NDArray[np.integer[Any]], *, clear: int | None = None) -> ImageArray:
    """Return the image blended with the colours of its ids, (height, width); pixels with the id `clear` stay."""
    colours = np.asarray([colour(number) for number in range(int(ids.max()) + 1)], dtype=np.uint8)
    made = np.empty_like(image)
    for top in range(0, len(image), _ROWS):
        rows = slice(top, top + _ROWS)
        blended = Image.blend(Image.fromarray(image[rows]), Image.fromarray(colours[ids[rows]]), _OPACITY)
        made[rows] = np.asarray(blended)
        if clear is not None:
            made[rows][ids[rows] == clear] = image[rows][ids[rows] == clear]
    return made
