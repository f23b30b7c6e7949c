"""Colours for classes and segments, and pictures with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock.processors.vision.picture import Picture

#: How much of the class's colour an overlay shows.
_OPACITY = 0.5
#: An overlay is made so many rows at a time: what is needed on the way does not grow with the picture.
_ROWS = 256


def colour(number: int) -> tuple[int, int, int]:
    """Return a class's colour: the map of the PASCAL VOC challenge, whose bits spread close ids far apart."""
    red = green = blue = 0
    for bit in range(8):
        red |= (number >> (3 * bit) & 1) << (7 - bit)
        green |= (number >> (3 * bit + 1) & 1) << (7 - bit)
        blue |= (number >> (3 * bit + 2) & 1) << (7 - bit)
    return red, green, blue


COLOURS = tuple(colour(number) for number in range(256))


def overlay(picture: Picture, ids: npt.NDArray[np.integer[Any]], *, clear: int | None = None) -> Picture:
    """Return the picture, half in the colours of the ids, uint8 or uint16 (height, width); `clear` has no colour."""
    colours = np.asarray([colour(number) for number in range(int(ids.max()) + 1)], dtype=np.uint8)
    made = np.empty_like(picture)
    for top in range(0, len(picture), _ROWS):
        rows = slice(top, top + _ROWS)
        blended = Image.blend(Image.fromarray(picture[rows]), Image.fromarray(colours[ids[rows]]), _OPACITY)
        made[rows] = np.asarray(blended)
        if clear is not None:
            made[rows][ids[rows] == clear] = picture[rows][ids[rows] == clear]
    return made
